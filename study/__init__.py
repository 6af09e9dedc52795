"""Where and when: points, submission, SLURM, ledger, tracking, planning, the command line.

In a notebook: `study.submit("study=isoflop", "cluster=slurm", sweep={"model.width": [512, 768]})` submits a sweep, and
`study.points("isoflop")` is a frame of how its points stand. Both are in :mod:`study.notebook`, imported at first use.
"""

from typing import TYPE_CHECKING, Any

from study import namesakes

__version__ = "0.1.0"

namesakes.refuse()

_NOTEBOOK = ("Submitted", "points", "submit")


def __dir__() -> list[str]:
    """Return the public names."""
    return ["__version__", *_NOTEBOOK]


if not TYPE_CHECKING:  # which would take any name for one of this module's

    def __getattr__(name: str) -> Any:
        """Return a public name, importing its module."""
        if name in _NOTEBOOK:
            from importlib import import_module

            return getattr(import_module("study.notebook"), name)
        raise AttributeError(f"module 'study' has no attribute {name!r}")
