"""Ways to launch each kernel, beside each other: where kernels/core/launch_table.py's table comes from. Needs a GPU.

`python -m benchmarks.kernels_tuning [--only TEXT] [--small] [--best FILE]`; timed as in benchmarks.kernels, which takes
the best of this run with `--launches FILE`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks._kernels_cases import (
    cast_cases,
    gate_cases,
    heads_cases,
    loss_case,
    norm_cases,
    optimizer_cases,
    rope_case,
    shapes,
)
from benchmarks._kernels_timing import Case, Variant, Witness, measure
from kernels.core.launch_table import TABLE, Launch, override
from train.spec.command_line import Parser


def grid(**choices: Iterable[int]) -> list[Launch]:
    return [Launch(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def under(run: Callable[[Any], Any], kernel: str, launch: Launch) -> Callable[[Any], Any]:
    def forced(inputs: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(override(kernel, launch))
            return run(inputs)

    return forced


def searches(small: bool) -> list[tuple[Case, int, str, list[Launch]]]:
    """Return (case, number of the variant to vary, kernel, launches to try)."""
    rows, width, hidden, vocabulary = (32, 64, 64, 301) if small else (16384, 4096, 14336, 128256)
    norm, norm_both, add_both = norm_cases(rows, width, None)
    gate, packed = gate_cases(rows, hidden, None)
    length, step, _ = optimizer_cases(shapes(10**5 if small else 10**9))
    by_row, transposed, by_tensor = cast_cases(rows, width)
    forward = grid(warps=[2, 4, 8], programs=[0], rows=[1, 2]) + grid(warps=[4, 8], programs=[2, 4], stages=[2, 3])
    backward = grid(warps=[4, 8, 16], programs=[1, 2], stages=[1, 2, 3]) + grid(
        warps=[4, 8], programs=[3, 4], stages=[1, 2]
    )
    loss = loss_case(rows, vocabulary, 0.0, None)
    return [
        (loss, 0, "cross_entropy", grid(block=[8192, 16384], warps=[8, 16, 32])),
        (loss, 1, "cross_entropy_options", grid(block=[4096, 8192], warps=[8, 16, 32], stages=[1, 2])),
        (norm, 0, "rms_norm", forward),
        (norm_both, 0, "rms_norm_backward", backward),
        (add_both, 0, "rms_norm_backward", backward),
        (gate, 0, "swiglu", grid(block=[1024, 2048, 4096], rows=[1, 2], warps=[4, 8])),
        (packed, 0, "swiglu", grid(block=[1024, 2048], rows=[1, 2], warps=[2, 4])),
        (rope_case(rows, None), 0, "rope", grid(rows=[8, 16, 32], warps=[2, 4, 8])),
        (rope_case(rows, None), 1, "rope", grid(rows=[8, 16, 32], warps=[2, 4, 8])),
        *(
            (case, 0, kernel, grid(rows=[8, 16, 32], warps=[2, 4, 8], programs=[4, 8]))
            for case in heads_cases(64 if small else 65536)
            for kernel in ("heads", "heads_backward")
        ),
        (step, 0, "adamw", grid(block=[512, 1024, 2048, 4096], warps=[2, 4, 8])),
        (length, 0, "gradient_norm", grid(block=[2048, 4096, 8192, 16384], warps=[4, 8, 16])),
        (by_row, 0, "fp8_rowwise", grid(warps=[2, 4, 8, 16])),
        (by_tensor, 0, "fp8_rows", grid(block=[256, 512, 1024, 2048], rows=[2, 4, 8, 16], warps=[4, 8])),
        (transposed, 0, "fp8_tiles", grid(block=[32, 64, 128], rows=[64, 128, 256], warps=[4, 8])),
    ]


def main() -> int:
    parser = Parser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a case's name or a kernel; several with |")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--best", type=Path, help="where the fastest launch of each kernel goes")
    options = parser.parse_args()
    if not (options.small or torch.cuda.is_available()):
        print("no CUDA device here: this benchmark needs one (or --small)", file=sys.stderr)
        return 1
    witness = Witness(64 if options.small else 8192)
    best: dict[str, Launch] = {}
    for case, number, kernel, launches in searches(options.small):
        if not any(text in case.name or text == kernel for text in options.only.split("|")):
            continue
        base = case.variants[number]
        variants = [Variant("table", base.run)]
        variants += [Variant(str(launch)[7:-1], under(base.run, kernel, launch)) for launch in launches]
        assert kernel in TABLE
        found = measure(replace(case, variants=variants), witness, rounds=2 if options.small else 12, seconds=0.15)
        print(
            f"{case.name} ({base.name}), {kernel}: floor {case.floor * 1e6:.1f} us, "
            f"witness {witness.median() / 1e12:.0f} TFLOP/s"
        )
        for name, timed in sorted(found.items(), key=lambda item: (item[1].median != item[1].median, item[1].median)):
            print(f"  {timed.median * 1e6:9.1f} us  {name}  {timed.failure}", flush=True)
        fastest = min((name for name in found if not found[name].failure), key=lambda name: found[name].median)
        for launch in launches:
            if str(launch)[7:-1] == fastest:
                best[kernel] = launch
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if options.best:
        lines = [
            " ".join([kernel, *(f"{field.name}={getattr(launch, field.name)}" for field in fields(launch))])
            for kernel, launch in best.items()
        ]
        options.best.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
