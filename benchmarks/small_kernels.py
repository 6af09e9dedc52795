"""The parts of a small model's step, one by one, at the sizes of a row of benchmarks.small_models. Needs a GPU.

    python -m benchmarks.small_kernels [--shapes 256x4 384x6] [--only TEXT] [--small]

Timed as in benchmarks.kernels: CUDA graphs, inputs larger than the cache, medians of interleaved rounds. Of the gated
layer, both ways of keeping what its backward pass needs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from benchmarks._kernels_cases import (
    BYTES,
    DEVICE,
    DTYPE,
    FLOPS,
    both,
    compiled,
    drawn,
    heads_case,
    loss_case,
    norm_cases,
    optimizer_cases,
    variants,
)
from benchmarks._kernels_timing import Case, Witness, measure
from benchmarks.kernels import row
from benchmarks.peers.rows import SHAPES, SMALL, Shape
from train.model.transformer import Transformer
from train.spec.command_line import Parser
from train.spec.counts import mlp_width

TOKENS = 40960


def fork_case(tokens: int, width: int) -> Case:
    """A norm whose input goes on beside it."""

    def make() -> Any:
        weight = torch.ones(width, device=DEVICE, dtype=DTYPE)
        return {"x": [drawn(tokens, width), weight], "up": [drawn(tokens, width) for _ in range(2)]}

    def ours(x: Tensor, weight: Tensor) -> Any:
        return kernels.fork_rms_norm(x, weight, 1e-6)

    def plain(x: Tensor, weight: Tensor) -> Any:
        return x * 1, F.rms_norm(x, weight.shape, weight, 1e-6)

    ways = {"ours": ours, "compile": compiled(plain)}
    return Case(f"fork + RMSNorm f+b, {tokens} x {width}", 12 * tokens * width / BYTES, make, variants(both, ways))


def layer_case(tokens: int, width: int, hidden: int) -> Case:
    """A SwiGLU layer."""

    def make() -> Any:
        weights = [drawn(2, hidden, width, scale=width**-0.5), drawn(width, hidden, scale=hidden**-0.5)]
        return {"x": [drawn(tokens, width), *weights], "up": [drawn(tokens, width)]}

    def layer(keep: bool) -> Callable[..., Any]:
        return lambda x, gate_up, down: kernels.gated_mlp(x, gate_up, down, keep=keep)

    def plain(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = F.linear(x, gate_up.flatten(0, 1)).chunk(2, -1)
        return F.linear(F.silu(gate) * up, down)

    ways = {"ours": layer(keep=False), "ours, kept": layer(keep=True), "compile": compiled(plain)}
    floor = 18 * tokens * width * hidden / FLOPS
    return Case(f"SwiGLU layer f+b, {tokens} x {width} x {hidden}", floor, make, variants(both, ways))


def weights_of(shape: Shape) -> list[tuple[int, ...]]:
    """Return the shapes of a model's weights."""
    with torch.device("meta"):
        model = Transformer(shape.model, shape.vocabulary, shape.length)
    return [tuple(weight.shape) for weight in model.parameters()]


def cases(shape: Shape, tokens: int) -> list[Case]:
    """Return the parts of a step of this model."""
    model, width, hidden = shape.model, shape.model.width, mlp_width(shape.model)
    assert model.head_dim is not None
    _, _, add = norm_cases(tokens, width, None)
    return [
        add,
        fork_case(tokens, width),
        heads_case(tokens, width // model.head_dim, 1, model.head_dim, normed=False),
        layer_case(tokens, width, hidden),
        loss_case(tokens, shape.vocabulary, 0.0, None),
        *optimizer_cases(weights_of(shape)),
    ]


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=["256x4", "384x6"], choices=list(SMALL))
    parser.add_argument("--only", default="", help="part of a case's name; several with |")
    parser.add_argument("--small", action="store_true", help="few tokens, on any device: tests the script")
    options = parser.parse_args()
    if not (options.small or torch.cuda.is_available()):
        print("no CUDA device here: this benchmark needs one (or --small)", file=sys.stderr)
        return 1
    witness = Witness(64 if options.small else 8192)
    for name in ["tiny"] if options.small else options.shapes:
        weights = sum(math.prod(sizes) for sizes in weights_of(SHAPES[name]))
        print(f"{name}, {weights:,} weights")
        for case in cases(SHAPES[name], 128 if options.small else TOKENS):
            if not any(text in case.name for text in options.only.split("|")):
                continue
            case.goal = None
            found = measure(case, witness, rounds=2 if options.small else 20, seconds=0.3)
            print(f"{case.name}: floor {case.floor * 1e6:.1f} us (witness {witness.median() / 1e12:.0f} TFLOP/s)")
            for variant, timed in found.items():
                print(row(case, variant, timed, None), flush=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
