"""How long the CPU takes to launch a step's kernels, and the gaps between kernels."""

from __future__ import annotations

from train.spec.config import RunConfig
from train.spec.step_graph import obstacle

OF_BLOCK, OF_STEP, OF_RECOMPUTED = 50, 70, 14
"""Kernels of a block's two passes, of all else, and of a block's forward pass that is made again: 670 in a step of 12
blocks (benchmarks/trainer_notes.md, 150M); a block has 6 of norms, heads, gate and sum, 5 of products and attention, 3
and more of casts in its forward pass."""
LAUNCH = 16.40e-3 / (4 * OF_BLOCK + OF_STEP)
"""Seconds of the CPU for each kernel where kernels are launched singly: calibrated on one row, 256 x 4 with kernels
launched singly, 16.40 ms a step (benchmarks/results/small_models.md), nothing of which the GPU hid."""
GAP = {True: 0.75e-6, False: 1.5e-6}
"""Seconds from a kernel's end to the next one's start, within a recorded graph and without: 1.5 us between kernels, of
which a graph would save half (benchmarks/trainer_notes.md)."""


def graphed(config: RunConfig, ranks: int) -> bool:
    """Say whether the step is replayed as one CUDA graph."""
    return config.compile.step_graph is not False and obstacle(config, "cuda", ranks) is None


def kernels(blocks: int, micro_batches: int, recomputed: float) -> float:
    """Return the kernels of a step on a rank with so many blocks, `recomputed` of which run forward again."""
    return OF_STEP + micro_batches * (OF_BLOCK * blocks + OF_RECOMPUTED * recomputed)


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
