"""`python -m analysis.compare`: several laws on the same runs, side by side.

Nothing in this repository imports this module, which would take the place of the function `analysis.compare`.
"""

from __future__ import annotations

import sys

from analysis.results.law_comparison import KEYS, compare, main, text

__all__ = ["KEYS", "compare", "main", "text"]

if __name__ == "__main__":
    from train.spec.interrupts import guarded

    sys.exit(guarded(main, "analysis.compare"))
