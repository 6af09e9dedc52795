"""Coverage of the nominal 95 % interval of a in simulated studies with the design of the public Chinchilla points.

`python -m benchmarks.analysis_coverage [studies=1000] [resamples=250]`: the default interval (model sizes drawn) beside
rows, the delta method and the cluster sandwich, with errors that model sizes share and without.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pandas as pd

from analysis.inference.coverage import Errors, coverage

POINTS = Path(__file__).parents[2] / "shared/data/scaling/chinchilla_epoch/runs.csv"
LAW = {"E": 1.817218, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}
REFERENCE = {"delta": 0.854, "rows": 0.868, "sandwich": 0.918, "default": 0.962}
"""Published beside the data, 500 studies with size-level effects of 0.4 %; its delta is that of least squares."""


def main() -> None:
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    studies, resamples = int(given.get("studies", 1000)), int(given.get("resamples", 250))
    frame = pd.read_csv(POINTS)
    design = frame[frame["in_reference_fit"]][["params", "tokens"]]
    begin, worked = time.perf_counter(), time.process_time()
    default = coverage(design, LAW, methods=("default",), studies=studies, resamples=resamples)
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    few = max(studies // 2, 1)
    shared = coverage(design, LAW, methods=("default", "rows", "delta", "sandwich"), studies=few, resamples=resamples)
    alone = coverage(
        design, LAW, methods=("default", "rows", "delta"), studies=few, resamples=resamples, errors=Errors(size_sd=0.0)
    )
    print(f"{len(design)} points, 42 model sizes; nominal 95 %, exponent a; {resamples} resamples a study")
    print(f"{'':44}{'coverage':>10}{'below':>8}{'above':>8}{'width':>8}{'reference':>11}")
    rows = [("size effects, default (sizes)", default["default"], "default")]
    rows += [(f"size effects, {name}", found, name) for name, found in shared.items()]
    rows += [(f"independent errors, {name}", found, "") for name, found in alone.items()]
    for title, found, name in rows:
        reference = f"{REFERENCE[name]:.3f}" if name in REFERENCE else ""
        full = f"{title}, {found['studies']:.0f} studies"
        figures = f"{found['coverage']:10.3f}{found['below']:8.3f}{found['above']:8.3f}{found['width']:8.4f}"
        print(f"{full:44}{figures}{reference:>11}")
    took = f"{seconds:.0f} s, processor {worked:.0f} s"
    print(f"{studies} studies x {resamples} resamples, default interval, one process: {took} (goal 300 s on two cores)")


if __name__ == "__main__":
    main()
