"""Logs that are rounded as coarsely as a processor may: is the law of runs at one ratio of N and D still the same?

Such runs have minima close together, and the search ends among digits that rounding takes. `python -m
benchmarks.rounded_logs [--draws 60]` fits twelve of them with exact logs, and then so many times with logs that are off
by up to nine units of the last place, drawn anew at every evaluation. It counts the fits whose constants agree to
1e-6 with those of the exact logs: as the search is, without Newton's steps after a damped descent, with these steps
refused where the value rises by more than rounding of exact logs, and without either. Returns 1 if a fit differs as
the search is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from analysis.estimation import fit_problem, multistart, newton, settled
from analysis.estimation.objectives import Huber
from analysis.estimation.optimizer import Array
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies
from tests.analysis.rounded_logs import rounded_logs
from train.spec.command_line import Parser

UNITS = 9
EQUAL = 1e-6


def unrefined() -> AbstractContextManager[Any]:
    """Let a damped descent be the last of a search."""
    kept = {**vars(newton), "refine": lambda restrict, hessian, found: found}
    return mock.patch.object(settled, "newton", SimpleNamespace(**kept))


def strict() -> AbstractContextManager[Any]:
    """Let no step of Newton's raise a value by more than the rounding of exact logs."""
    return mock.patch.object(newton, "ROUNDED", newton.RISE)


@contextmanager
def neither() -> Iterator[None]:
    """Search as it was before both."""
    with unrefined(), strict():
        yield


def apart(draws: int) -> Array:
    """Return by how much of itself the constant that moved most did, of each draw of rounding (draws,)."""
    rows = studies.as_rows(studies.ray())
    p = fit_problem.problem(SURFACE, (rows.params, rows.tokens), rows.loss, Huber())
    exact = multistart.fit_point(p).constants
    found = []
    for seed in range(draws):
        with rounded_logs(p.form, UNITS, seed):
            found.append(multistart.fit_point(p).constants)
    return np.asarray(np.abs(np.array(found) / exact - 1.0).max(axis=1))


def main(arguments: list[str]) -> int:
    """Print how many fits agree, and how far the farthest is."""
    parser = Parser(prog="python -m benchmarks.rounded_logs", description=__doc__)
    parser.add_argument("--draws", type=int, default=60, help="fits with rounded logs")
    draws = parser.parse_args(arguments).draws
    print(f"12 runs at one ratio of N and D, Huber; {draws} draws of logs off by up to {UNITS} units of the last place")
    searches: dict[str, AbstractContextManager[Any]] = {
        "as the search is": nullcontext(),
        "no Newton's steps after a descent": unrefined(),
        "steps that exact logs would allow": strict(),
        "neither of the two": neither(),
    }
    wrong = 0
    for number, (name, changed) in enumerate(searches.items()):
        with changed:
            off = apart(draws)
        equal = int((off <= EQUAL).sum())
        print(f"{name:35} {equal:3} of {draws} agree to {EQUAL:g}; the farthest is off by {off.max():.1e}", flush=True)
        wrong += draws - equal if number == 0 else 0
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
