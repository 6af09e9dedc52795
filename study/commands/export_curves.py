"""`python -m study export-curves STUDY FILE.npz`."""

from __future__ import annotations

import argparse
import io
import shlex
from pathlib import Path

from study.commands import add_study
from study.storage.files import write_atomic
from study.storage.mounts import check_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("out", type=Path, metavar="FILE.npz", help="the file to write")
    parser.add_argument("--uri", default="sqlite:///mlflow.db", help="MLflow's address if STUDY is mlflow:EXPERIMENT")


def run(options: argparse.Namespace) -> int:
    """Write a study's learning curves as a table and say how to replay schedulers on them."""
    import numpy as np

    from study.records.settings import find_study
    from study.search.curves import NOT_WHOLE, from_mlflow, from_runs, table

    check_file(f"FILE.npz {options.out}", options.out, ".npz")
    if options.study.startswith("mlflow:"):
        curves = from_mlflow(options.uri, options.study.removeprefix("mlflow:"))
    else:
        curves = from_runs(find_study(options.study, options.runs))
    made = table(curves)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **made.arrays)  # type: ignore[arg-type]
    write_atomic(options.out, content.getvalue())
    rows, columns = made.shape
    print(f"{options.out}: {rows} runs of {made.budget:,} tokens, {columns} columns")
    for why, count in made.left_out.items():
        print(f"  left out: {count} {why}")
    if NOT_WHOLE in made.left_out:
        print(
            "  if a search stopped the others, these are survivors, on which early stopping looks better than it is: "
            "how the others would have ended is not known"
        )
    if made.branches:
        print(
            f"  {made.branches} go on from another run's checkpoint: no value (NaN) before it; a replay leaves them out"
        )
    if made.branches == rows:
        print("  all continue from other runs' weights: nothing can be replayed, for their first part is not known")
        return 0
    cost = " cost=table" if "epoch_cost" in made.arrays else ""
    curves_key = shlex.quote(f"curves={options.out}")
    print(
        f"python -m sweeps.replay {curves_key} scheduler=all workers=4{cost} startup={made.startup:.3g} "
        f"failures={made.failures:.2g}"
    )
    return 0
