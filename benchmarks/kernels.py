"""Our kernels beside Liger, torch.compile and eager torch in one run on one GPU.

`python -m benchmarks.kernels [--only TEXT] [--small]`: medians over interleaved rounds, inputs rotated so that none is
in the cache, CUDA graphs wherever a variant can be captured, a cuBLAS product among them as the clock's witness. The
floor of a case is the larger of its bytes over 4.3 TB/s and its operations over 790 TFLOP/s, the best seen on an H200.
"Extra" is the peak of memory beyond inputs and results. "Error" is the relative L2 error against float64, of results
and gradients together, over that of eager torch in the same format. Writes results/kernels.json beside the table.
`--small` runs everything tiny, also on a CPU, to test this script.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from benchmarks._kernels_cases import (
    DEVICE,
    add_norm,
    both,
    cases,
    drawn,
    gated,
    liger,
    norm,
    plain_loss_any,
)
from benchmarks._kernels_timing import Case, Timed, Witness, measure, tensors
from kernels.core.launch_table import Launch, override
from train.spec.command_line import Parser


def joint_error(outputs: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the root mean square over tensors of relative L2 errors."""
    parts = [
        float(((o.double() - e.double()).norm() / e.double().norm().clamp(min=1e-300)) ** 2)
        for o, e in zip(outputs, exact, strict=True)
    ]
    return float((sum(parts) / len(parts)) ** 0.5)


def error_ratio(ours: Callable[..., Any], plain: Callable[..., Any], make: Callable[[], Any]) -> float:
    """Return the error of ours against float64 over that of plain torch in the inputs' format."""
    inputs = make()
    exact = {k: [t.double() if t.is_floating_point() else t for t in v] for k, v in inputs.items()}
    with kernels.use("reference"):
        truth = tensors(both(plain)(exact))
        theirs = tensors(both(plain)(inputs))
    return joint_error(tensors(both(ours)(inputs)), truth) / max(joint_error(theirs, truth), 1e-12)


def error_ratios() -> dict[str, float]:
    """Return the error ratio of each differentiable operation, by the beginning of the cases' names."""

    def make(*shapes: tuple[int, ...], classes: int = 0, up: tuple[int, ...] = ()) -> Callable[[], Any]:
        def one() -> Any:
            found: Any = {"x": [drawn(*shape, scale=0.1 if classes and len(shapes) > 1 else 1.0) for shape in shapes]}
            if classes:
                found["rest"] = [torch.randint(0, classes, (shapes[0][0],), device=DEVICE)]
            if up:
                found["up"] = [drawn(*up), drawn(*up)]
            return found

        return one

    wide, row = (512, 1024), (1024,)
    return {
        "linear + CE": error_ratio(
            kernels.linear_cross_entropy, plain_loss_any, make((512, 256), (8000, 256), classes=8000)
        ),
        "CE": error_ratio(kernels.cross_entropy, F.cross_entropy, make((256, 8000), classes=8000)),
        "RMSNorm": error_ratio(lambda x, w: kernels.rms_norm(x, w, 1e-6), norm, make(wide, row, up=wide)),
        "add + RMSNorm": error_ratio(
            lambda x, r, w: kernels.add_rms_norm(x, r, w, 1e-6), add_norm, make(wide, wide, row, up=wide)
        ),
        "SwiGLU": error_ratio(kernels.swiglu, gated, make(wide, wide, up=wide)),
    }


GOALS = {"ours, every option": 78e-3, "ours, recompute": None}
"""Goals of the linear head's other modes at 16,384 tokens [s]."""


def goal_of(case: Case, name: str) -> float | None:
    """Return what a variant should take [s], or None if that is not said."""
    if not name.startswith("ours"):
        return None
    if name in GOALS:
        return GOALS[name] if case.name.startswith("linear + CE f+b, 16384") else None
    return case.goal


def row(case: Case, name: str, timed: Timed, ratio: float | None) -> str:
    """Return a variant's line of the table; ratio: its error over that of eager torch."""
    if timed.failure:
        return f"  {name:22} {timed.failure}"
    wanted = goal_of(case, name)
    goal = "" if wanted is None else f"  goal {wanted * 1e6:9.1f}"
    error = "" if ratio is None or name != "ours" else f"  error {ratio:.2f}"
    return (
        f"  {name:22} {timed.median * 1e6:9.1f} us  ({timed.low * 1e6:.1f} to {timed.high * 1e6:.1f})"
        f"  {100 * case.floor / timed.median:5.1f} % of floor  extra {timed.extra / 2**30:6.2f} GiB{goal}{error}"
    )


def main() -> int:
    """Time the cases, print the table and write the figures."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases whose name has this in it; several with |")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on any device: tests the script")
    parser.add_argument("--json", type=Path, help="where the figures go, by default results/kernels.json")
    parser.add_argument("--launches", type=Path, help="launches that kernels_tuning --best wrote")
    options = parser.parse_args()
    if not (options.small or torch.cuda.is_available()):
        print("no CUDA device here: this benchmark needs one (or --small)", file=sys.stderr)
        return 1
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    import triton

    today = datetime.datetime.now(datetime.UTC).date()
    stamp = f"{today}, {device}, torch {torch.__version__}, triton {triton.__version__}"
    if not options.small:
        from importlib.metadata import version

        stamp += f", liger-kernel {version('liger-kernel')}" if liger() is not None else ", no liger-kernel"
    print(stamp)
    with ExitStack() as stack:
        for line in options.launches.read_text(encoding="utf-8").splitlines() if options.launches else ():
            kernel, *values = line.split()
            print(f"launched otherwise: {line}")
            numbers = {name: int(value) for name, value in (part.split("=") for part in values)}
            stack.enter_context(override(kernel, Launch(**numbers)))
        record = run(options.small, options.only.split("|"), stamp)
    target = options.json or Path(__file__).parent / "results" / "kernels.json"
    if not options.small or options.json:
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def run(small: bool, wanted: list[str], stamp: str) -> dict[str, Any]:
    """Time the cases whose names have one of the wanted texts in them; print a table, return what is in it."""
    torch.backends.cuda.matmul.allow_tf32 = False
    ratios = error_ratios()
    witness = Witness(64 if small else 8192)
    record: dict[str, Any] = {"stamp": stamp, "cases": []}
    for case in cases(small):
        if not any(text in case.name for text in wanted):
            continue
        since = len(witness.rates)
        timed = measure(case, witness, rounds=2 if small else 20)
        ratio = next((r for name, r in ratios.items() if case.name.startswith(name)), None)
        goal = "" if case.goal is None else f", goal {case.goal * 1e6:.0f} us"
        print(
            f"{case.name}: floor {case.floor * 1e6:.1f} us{goal} (witness {witness.median(since) / 1e12:.0f} TFLOP/s)"
        )
        for name, result in timed.items():
            print(row(case, name, result, ratio), flush=True)
        record["cases"].append({
            "name": case.name, "floor": case.floor, "goal": case.goal, "error_ratio": ratio,
            "witness": witness.median(since), "variants": {name: vars(t) for name, t in timed.items()},
        })  # fmt: skip
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return record


if __name__ == "__main__":
    sys.exit(main())
