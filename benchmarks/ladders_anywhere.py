"""Ladders of runs at one ratio of N and D: is the law the same under every BLAS kernel and in any order of the rows?

Such runs tell the constants apart only by curvature, and minima lie close together. `python -m
benchmarks.ladders_anywhere [--ladders 8]` fits each with every loss in processes of their own, one a kernel and order,
and counts the fits whose forecasts agree to 1e-6, those that differ and say so (`flat_optimum`), and those that differ
without a word. Returns 1 if there is one of these.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np

from analysis.inference.fit_law import fit_law
from tests.analysis import studies
from train.spec.command_line import Parser

KERNELS = ("Haswell", "Prescott", "Zen", "Sandybridge")
LOSSES = ("huber", "squared", "l1", "student_t")
APART = (0.0, 0.02)
"""Standard deviations of ln(D / N), by turns."""
FAR = {"params": [1e9, 1e10], "tokens": [2e10, 2e11]}
EQUAL = 1e-6


def fits(ladders: int, shuffled: bool) -> dict[str, Any]:
    """Return by ladder and loss the forecasts of two larger runs, and whether the fit says that its optimum is flat."""
    found = {}
    for seed in range(ladders):
        table = studies.ladder(seed, 12 + seed, 0.003 + 0.0005 * seed, APART[seed % len(APART)])
        if shuffled:
            table = table.sample(frac=1.0, random_state=seed).reset_index(drop=True)
        for loss in LOSSES:
            fit = fit_law(table, loss=loss, resamples=0)
            flat = any(check.code == "flat_optimum" for check in fit.check())
            found[f"{seed} {loss}"] = {"loss": fit.predict(FAR).tolist(), "flat": flat}
    return found


def elsewhere(ladders: int, kernel: str, shuffled: bool) -> subprocess.Popen[str]:
    """Start a process that fits the ladders under a kernel, with one thread, and prints them as JSON."""
    env = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.ladders_anywhere", "--ladders", str(ladders), "--here"]
    return subprocess.Popen(
        [*command, *(["--shuffled"] if shuffled else [])], env=env, stdout=subprocess.PIPE, text=True
    )


def main(arguments: list[str]) -> int:
    """Print how many fits agree, differ and say so, and differ in silence."""
    parser = Parser(prog="python -m benchmarks.ladders_anywhere", description=__doc__)
    parser.add_argument("--ladders", type=int, default=8, help="ladders that are drawn")
    parser.add_argument("--here", action="store_true", help="fit in this process and print JSON")
    parser.add_argument("--shuffled", action="store_true", help="rows in another order")
    given = parser.parse_args(arguments)
    if given.here:
        print(json.dumps(fits(given.ladders, given.shuffled)))
        return 0
    settings = [(kernel, shuffled) for kernel in KERNELS for shuffled in (False, True)]
    print(f"{given.ladders} ladders, losses {', '.join(LOSSES)}, kernels {', '.join(KERNELS)}, rows in two orders")
    answers = []
    for first in range(0, len(settings), 2):
        started = [elsewhere(given.ladders, *setting) for setting in settings[first : first + 2]]
        answers += [json.loads(process.communicate()[0]) for process in started]
    equal = 0
    told: list[str] = []
    silent: list[str] = []
    for name in answers[0]:
        forecasts = np.array([answer[name]["loss"] for answer in answers])
        apart = float((np.ptp(forecasts, axis=0) / forecasts.mean(axis=0)).max())
        if apart <= EQUAL:
            equal += 1
        else:
            (told if all(answer[name]["flat"] for answer in answers) else silent).append(f"{name} ({apart:.1e})")
    print(f"{equal} of {len(answers[0])} fits have the same forecasts to {EQUAL:g}")
    print(f"{len(told)} differ and have flat_optimum: {', '.join(told) or 'none'}")
    print(f"{len(silent)} differ in silence: {', '.join(silent) or 'none'}")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
