"""How long a router and its experts take in one block, forward and backward: what train.model.moe runs on a GPU.

Nothing here was measured. Assumed is that every expert has as many rows as the others, and that products of experts in
one launch reach what tiles of one product do: an expert with few rows fills its last tile badly, which counts. A
profile that has such products (`compute.grouped`) says how far that is from the truth. All other operations are torch's
own, each of which reads and writes whole tensors: their bytes are counted from train.model.moe line by line.
"""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.config import RunConfig
from train.spec.counts import experts_per_token, mlp_width
from train.spec.mesh import Axes
from train.spec.step_time.device import Device
from train.spec.step_time.products import product
from train.spec.step_time.result import added

SCORES = {"forward": 28, "backward": 28}
"""Bytes moved for each score beside its first and last format: made fp32, normed, sorted for the largest, marked."""
BALANCE = {"forward": 24, "backward": 20}
"""The same of the loss that balances: choices and scores, each masked, and both added up."""
SHARES = {"forward": 12, "backward": 24}
"""The same of sigmoids made to add up to 1 for that loss."""
SORTED = 288
"""Bytes moved for each choice by a sort: eight passes over 8 bytes of a key and as many of its place, read and written,
and where each went."""
SPREAD, COMBINED = {"forward": 2, "backward": 3}, {"forward": 5, "backward": 8}
"""Reads and writes of each row that goes to an expert: laid out by expert, and taken back, weighed and added up."""
GATED = {"forward": 3, "backward": 5}
"""The same of each hidden channel of a row, by the gated product."""
ORDERED = {"forward": 4, "backward": 8}
"""The same of each row that came from other ranks, put in the order of experts and back."""
CLEARED = 2
"""Reads and writes of the gradients of experts' weights, where those of experts without rows are cleared."""


@dataclass(frozen=True)
class ExpertShape:
    """A layer of experts on one rank: all that its time depends on.

    tokens: of the micro-batch. width, hidden: channels, of one expert. count: of all experts, of which this rank has
    `here` and a token goes through `chosen`. branches: ways of a token through the layer, the experts that all go
    through are one. size: bytes of a number. format: of products. sent: rows go to other ranks.
    """

    tokens: int
    width: int
    hidden: int
    count: int
    here: int
    chosen: int
    branches: int
    size: int
    format: str
    balanced: bool
    sigmoid: bool
    sent: bool

    @property
    def rows(self) -> int:
        """Rows that experts here have, as many as this rank sends."""
        return self.tokens * self.chosen

    @property
    def numbers(self) -> int:
        """Numbers of the experts' weights that this rank multiplies by."""
        return 3 * self.here * self.hidden * self.width


def expert_shape(config: RunConfig, axes: Axes, tokens: int, size: int, format: str) -> ExpertShape:
    """Return the shape of a layer of experts for so many tokens of a micro-batch."""
    model = config.model
    return ExpertShape(
        tokens=tokens,
        width=model.width,
        hidden=mlp_width(model),
        count=model.experts,
        here=model.experts // axes.ep,
        chosen=experts_per_token(model),
        branches=2 + (model.shared_experts > 0),
        size=size,
        format=format,
        balanced=model.balance_weight > 0,
        sigmoid=model.router_score == "sigmoid",
        sent=axes.ep > 1,
    )


def expert_products(shape: ExpertShape, device: Device, phase: str) -> dict[str, float]:
    """Return the products of all experts: in the backward pass those of rows' gradients and of weights'."""
    rows = -(-shape.rows // shape.here)
    found: dict[str, float] = {}
    for into, out in ((shape.width, 2 * shape.hidden), (shape.hidden, shape.width)):
        sides = [(rows, into, out)] if phase == "forward" else [(rows, out, into), (out, rows, into)]
        for one in sides:
            found = added((1.0, found), (1.0, _grouped(shape, device, one)))
    return found


def _grouped(shape: ExpertShape, device: Device, sides: tuple[int, int, int]) -> dict[str, float]:
    """Return a product of every expert: one launch in bf16 alone (kernels.grouped.api)."""
    if shape.format == "bf16":
        return product(device, shape.format, sides, shape.size, shape.size, groups=shape.here)
    return added((float(shape.here), product(device, shape.format, sides, shape.size, shape.size)))


def expert_passes(shape: ExpertShape, phase: str) -> float:
    """Return the bytes that all else moves: scores, orders of rows, rows, gated products, sums of branches."""
    of_score = shape.size + SCORES[phase]
    if shape.balanced:
        of_score += BALANCE[phase] + (SHARES[phase] if shape.sigmoid else 0)
    of_row = SPREAD[phase] + COMBINED[phase] + (ORDERED[phase] if shape.sent else 0)
    sums = 1 + 3 * (shape.branches - 1 if phase == "backward" else shape.branches - 2)
    moved = float(shape.tokens) * (of_score * shape.count + shape.size * sums * shape.width)
    moved += float(shape.rows) * shape.size * (of_row * shape.width + GATED[phase] * shape.hidden)
    if phase == "forward":
        return moved + shape.rows * SORTED * (2 if shape.sent else 1)
    return moved + (CLEARED * shape.size * shape.numbers if shape.format == "bf16" else 0)
