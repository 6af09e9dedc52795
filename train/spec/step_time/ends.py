"""How long the two ends of a model take for one micro-batch: the embedding, and the last norm with head and loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from train.spec.communication.layers import head_chunks
from train.spec.communication.stages import short
from train.spec.config import RunConfig
from train.spec.mesh import Axes
from train.spec.step_time.device import Device
from train.spec.step_time.products import seconds
from train.spec.step_time.result import CASTS, EMBEDDING, HEAD, LOSS, added

FULL = 4
"""Bytes of a weight or gradient as it is kept: fp32."""
CACHED = 8192
"""Logits of a row that is read from memory once by the pass over them, as kernels.cross_entropy.triton has it."""
PASSES = {True: 2, False: 3}
"""Reads and writes of each logit by that pass, for rows that are cached and longer ones: at 16,384 x 128,256 it takes
2.88 ms, for three 2.93 (kernels/README.md); at 40,960 x 8,192 0.356 ms, for two 0.314 (benchmarks/trainer_notes.md)."""


@dataclass(frozen=True)
class HeadShape:
    """Work of the head on one rank: tokens of a micro-batch, in chunks; rows of the vocabulary that it has."""

    tokens: int
    chunks: int
    rows: int
    width: int
    cut: int
    size: int
    format: str
    casts: bool


def head_shape(config: RunConfig, axes: Axes, sequences: int, sharded: bool, device: str = "cuda") -> HeadShape:
    """Return the head's shape. It stays in bf16 where blocks are in fp8."""
    tokens = sequences * config.data.sequence_length // axes.cp
    return HeadShape(
        tokens=tokens,
        chunks=len(head_chunks(config, axes, tokens, device)),
        rows=config.data.vocab_size // axes.tp,
        width=config.model.width,
        cut=axes.tp,
        size=short(config),
        format="bf16" if config.precision.name == "fp8" else config.precision.name,
        casts=not sharded and short(config) < FULL,
    )


@lru_cache(maxsize=4096)
def head_time(shape: HeadShape, device: Device) -> tuple[dict[str, float], dict[str, float]]:
    """Return the parts of the head's forward and backward pass; both gradients are made in the forward pass.

    The backward pass scales them, and norms.
    """
    rows, width, size, memory = shape.rows, shape.width, shape.size, device.memory
    tokens = -(-shape.tokens // shape.chunks)
    inputs, logits, weights = float(size) * tokens * width, float(size) * tokens * rows, float(rows) * width
    forward = seconds(device, shape.format, (tokens, width, rows), inputs + size * weights + logits)[0]
    of_input = seconds(device, shape.format, (tokens, rows, width), logits + size * weights + inputs)[0]
    of_weight = seconds(device, shape.format, (rows, tokens, width), logits + inputs + FULL * weights)[0]
    # Chunks after the first one add to the weight's gradient, which is read and written.
    passes = shape.chunks * PASSES[rows <= CACHED] * logits + (shape.chunks - 1) * 2 * FULL * weights
    stream = float(size) * shape.tokens / shape.cut * width
    first = {HEAD: shape.chunks * (forward + of_input + of_weight), LOSS: (passes + 2 * stream) / memory}
    if shape.casts:
        first = added((1.0, first), (1.0, {CASTS: (FULL + size) * weights / memory}))
    scaled = 2 * float(size) * shape.tokens * width + 2 * FULL * weights
    return first, {LOSS: (scaled + 3 * stream) / memory}


@lru_cache(maxsize=4096)
def embedding_time(
    tokens: int, width: int, rows: int, size: int, device: Device
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the parts of looking tokens up and of adding their gradients up.

    Rows of fp32 are read and written, then changed into the stream's format; backward the other way, into a gradient
    that is cleared first. tokens: that this rank looks up.
    """
    stream = float(tokens) * width
    forward = stream * (2 * FULL + FULL + size)
    backward = stream * (size + FULL + 3 * FULL) + FULL * float(rows) * width
    return {EMBEDDING: forward / device.memory}, {EMBEDDING: backward / device.memory}
