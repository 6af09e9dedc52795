"""How long the CPU takes to launch a step's kernels, and the gaps between kernels."""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.config import RunConfig
from train.spec.mesh import Axes
from train.spec.step_graph import obstacle

OF_BLOCK, OF_STEP, OF_RECOMPUTED = 50, 70, 14
"""Kernels of a block's two passes, of all else, and of a block's forward pass that is made again: 670 in a step of 12
blocks (benchmarks/trainer_notes.md, 150M); a block has 6 of norms, heads, gate and sum, 5 of products and attention, 3
and more of casts in its forward pass."""
OF_EXPERTS, EXPERTS_AGAIN = 60, 30
"""Kernels of a router and its experts beyond those of a dense layer, in both passes and forward: the operations of
train.model.moe but views, of which there are 33 and 34 with a softmax, up to ten more in each with a sigmoid."""
OF_EXCHANGE, EXCHANGE_AGAIN = 24, 16
"""The same of rows that go to other ranks and back (train.parallel.experts)."""
LAUNCH = 16.40e-3 / (4 * OF_BLOCK + OF_STEP)
"""Seconds of the CPU for each kernel where kernels are launched singly: calibrated on one row, 256 x 4 with kernels
launched singly, 16.40 ms a step (benchmarks/results/small_models.md), nothing of which the GPU hid."""
GAP = {True: 0.75e-6, False: 1.5e-6}
"""Seconds from a kernel's end to the next one's start, within a recorded graph and without: 1.5 us between kernels, of
which a graph would save half (benchmarks/trainer_notes.md)."""


def graphed(config: RunConfig, ranks: int) -> bool:
    """Say whether the step is replayed as one CUDA graph."""
    return config.compile.step_graph is not False and obstacle(config, "cuda", ranks) is None


@dataclass(frozen=True)
class OfBlock:
    """Of each block and micro-batch: kernels of both passes, of a forward pass that is made again.

    waits, waits_again: how often the host waits for the GPU, after which the GPU waits for the next launch.
    """

    kernels: int = OF_BLOCK
    again: int = OF_RECOMPUTED
    waits: int = 0
    waits_again: int = 0


PLAIN = OfBlock()


def of_block(config: RunConfig, axes: Axes) -> OfBlock:
    """Return what a block of a config has; with experts also how many rows come from other ranks, or by size."""
    experts = config.model.experts // axes.ep
    if not experts:
        return PLAIN
    both, again = OF_BLOCK + OF_EXPERTS, OF_RECOMPUTED + EXPERTS_AGAIN
    waits = waits_again = 0
    if axes.ep > 1:
        both, again, waits, waits_again = both + OF_EXCHANGE, again + EXCHANGE_AGAIN, 1, 1
    if config.precision.name != "bf16":  # a product of each expert, before which its rows are asked for
        both, again, waits, waits_again = both + 6 * experts, again + 2 * experts, waits + 6, waits_again + 2
    return OfBlock(both, again, waits, waits_again)


def kernels(blocks: int, micro_batches: int, recomputed: float, each: OfBlock = PLAIN) -> float:
    """Return the kernels of a step on a rank with so many blocks, `recomputed` of which run forward again."""
    return OF_STEP + micro_batches * (each.kernels * blocks + each.again * recomputed)


def waits(blocks: int, micro_batches: int, recomputed: float, each: OfBlock) -> float:
    """Return the seconds of a step in which a GPU waits for the launch after its host had waited for it."""
    return LAUNCH * micro_batches * (each.waits * blocks + each.waits_again * recomputed)


def launches(config: RunConfig, count: float, blocks: int, micro_batches: int) -> float:
    """Return what the CPU launches for so many kernels: with compile.cuda_graphs each block's pass is one."""
    if config.compile.cuda_graphs:
        return OF_STEP + 2.0 * micro_batches * blocks
    return count


def waited(config: RunConfig, ranks: int, launched: float, busy: float, device: str = "cuda") -> float:
    """Return how long the GPU waits for launches [s], where all else takes `busy` [s]; 0 where a graph replays it.

    A CPU rank calls each operation and then does it: the calls' time is added to all else.
    """
    if device == "cpu":
        return LAUNCH * launched
    return 0.0 if graphed(config, ranks) else max(0.0, LAUNCH * launched - busy)
