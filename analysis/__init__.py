"""What the runs say: scaling laws, intervals, plans, plots, the report.

Names are imported when they are first used, so that `import analysis` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis import approaches
    from analysis.approaches import envelope, isoflop
    from analysis.approaches import settings as hyperparameters
    from analysis.diagnostics.sensitivity import sensitivity
    from analysis.inference.fit_law import fit_law
    from analysis.inference.law_result import LawFit
    from analysis.inference.selection import compare
    from analysis.inputs import frame
    from analysis.laws.registry import FORMS

_PLACES = {
    "FORMS": "analysis.laws.registry",
    "LawFit": "analysis.inference.law_result",
    "compare": "analysis.inference.selection",
    "fit_law": "analysis.inference.fit_law",
    "sensitivity": "analysis.diagnostics.sensitivity",
}
_MODULES = {
    "approaches": "analysis.approaches",
    "envelope": "analysis.approaches.envelope",
    "frame": "analysis.inputs.frame",
    "hyperparameters": "analysis.approaches.settings",
    "isoflop": "analysis.approaches.isoflop",
}

__all__ = [
    "FORMS", "LawFit", "approaches", "compare", "envelope", "fit_law", "frame", "hyperparameters", "isoflop",
    "sensitivity",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a public name, importing its module."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'analysis' has no attribute {name!r}")
