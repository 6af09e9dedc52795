"""`python -m analysis.compare`: several laws on the same runs, side by side.

Imported, it takes the place of the function `analysis.compare` of fits, and so it can be called as that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from analysis.results.law_comparison import KEYS, compare, main, text

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.law_result import LawFit

__all__ = ["KEYS", "compare", "main", "text"]


class CompareModule(ModuleType):
    """This module, which can be called as the function of fits."""

    def __call__(self, fits: Sequence[LawFit]) -> pd.DataFrame:
        """Return fits of the same rows as a table, the lowest AICc first."""
        from analysis.inference.selection import compare as of_fits

        return of_fits(fits)


if __name__ == "__main__":
    from analysis.text.start import start

    sys.exit(start(main, "analysis.compare"))
else:
    sys.modules[__name__].__class__ = CompareModule
