"""The mode in which a run is bitwise repeatable: on one device, and across restarts on it.

Without it results repeat on a CPU anyway, and on a GPU to the rounding of sums whose order is not fixed. Between
layouts (ranks, micro-batches, checkpointing, compiled or not) gradients agree to 1e-5 relative in fp32 and losses to
1e-6, in this mode as well: sums are in another order there.
"""

from __future__ import annotations

import os

import torch


def make_deterministic(device: torch.device, compiles: bool) -> None:
    """Make torch choose kernels whose sums have one order, or raise where it has none; call before anything runs.

    compiles: whether the run may compile something. Compiled code has a mode of its own, and to set it imports the
    compiler, which takes longer than all else that a run on a CPU imports.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.backends.cudnn.benchmark = False  # picks kernels by their speed of the day
    if compiles:
        torch.use_deterministic_algorithms(True)
    else:
        torch.set_deterministic_debug_mode("error")
    # Costs time and changes nothing that is computed.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
