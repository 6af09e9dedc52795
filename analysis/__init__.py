"""What the runs say: scaling laws, intervals, plans, plots, the report.

Names are imported when they are first used, so that `import analysis` costs nothing.

Examples
--------
>>> import analysis as sa
>>> fit = sa.fit("docs/example-runs.csv", resamples=0, sensitivity=False)  # or runs/STUDY, mlflow:EXPERIMENT, a frame
>>> fit.law.params.round(3).to_dict()
{'E': 1.803, 'A': 527.474, 'B': 1911.412, 'alpha': 0.356, 'beta': 0.365}
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis import approaches
    from analysis.approaches import envelope, isoflop
    from analysis.approaches import settings as hyperparameters
    from analysis.backtest import backtest
    from analysis.compare import compare
    from analysis.diagnostics.sensitivity import sensitivity
    from analysis.inference.fit_law import fit_law
    from analysis.inference.law_result import LawFit
    from analysis.inputs import frame
    from analysis.laws.registry import FORMS
    from analysis.next import next_runs
    from analysis.notebook import StudyFit, fit, load
    from analysis.plan import plan
    from analysis.report.optimum import Optimum

_PLACES = {
    "FORMS": "analysis.laws.registry",
    "LawFit": "analysis.inference.law_result",
    "backtest": "analysis.backtest",
    "compare": "analysis.compare",
    "fit": "analysis.notebook",
    "Optimum": "analysis.report.optimum",
    "StudyFit": "analysis.notebook",
    "fit_law": "analysis.inference.fit_law",
    "load": "analysis.notebook",
    "next_runs": "analysis.next",
    "plan": "analysis.plan",
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
    "FORMS", "LawFit", "Optimum", "StudyFit", "approaches", "backtest", "compare", "envelope", "fit", "fit_law",
    "frame", "hyperparameters", "isoflop", "load", "next_runs", "plan", "sensitivity",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return the public names."""
    return ["__version__", *__all__]


def __getattr__(name: str) -> Any:
    """Return a public name, importing its module."""
    if name == "__version__":
        from study import __version__

        return __version__
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'analysis' has no attribute {name!r}")


class _Package(ModuleType):
    """This package: a command of the name of a function, once imported, does not take the function's place."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, as the import of a submodule does."""
        if name not in _PLACES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
