"""What a process takes of a GPU beside its tensors: what no formula knows, with where each figure comes from."""

from __future__ import annotations

from train.spec.config import RunConfig
from train.spec.gpu_share import BESIDE
from train.spec.mesh import Axes
from train.spec.step_graph import obstacle

WORKSPACE = 32 << 20
"""cuBLAS's workspace on a GPU of compute capability 9.0 for each handle and stream [bytes]: torch takes it from its own
allocator (aten/src/ATen/cuda/CublasHandlePool.cpp). Older GPUs have 8.1 MiB."""
CONTEXT = BESIDE
"""CUDA's context, kernels and graphs of a process [bytes], as train.spec.gpu_share counts them."""
FRAGMENTS = {False: 0.01, True: 0.08}
"""What torch's allocator reserves over what tensors take at their peak, without FSDP2 and with it.

Of benchmarks/results/trainer_peers.json, torch.cuda.max_memory_reserved over max_memory_allocated on H200s: 0.1 % (150M
and 1B), 0.7 % (1B in fp8) on one GPU; 6.9 % (1B) and 6.1 % (1B in fp8) with FSDP2 on two, whose gathered weights come
and go.
"""

CHANNELS = 24
"""Channels of a communicator, as NCCL logs them on eight H100s that NVLink joins (issue 1259 of NVIDIA/nccl).

Most other machines have 2 to 16.
"""
BUFFERS = 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + (4 << 20)
"""Buffers of a ring's channel for NCCL's three protocols, LL, LL128 and Simple [bytes].

By src/include/device.h and the default of NCCL_BUFFSIZE. Memory grows with channels and with communicators (issues 864
and 986 of NVIDIA/nccl). Trees and NVLink multicast take more.
"""


def communicators(axes: Axes, sharded: bool, ends: bool = False) -> int:
    """Return how many of NCCL's communicators a rank's messages of a step go through: one for each group of ranks.

    sharded: FSDP2 holds the weights. ends: the first and the last stage of a pipeline add up a tied embedding.
    """
    groups = [axes.pp, axes.tp, axes.cp, axes.data * axes.cp, axes.size]
    if sharded:
        groups += [axes.fsdp, axes.dp_replicate]
    if axes.ep > 1:
        groups += [axes.ep, axes.expert_fsdp, axes.dp_replicate]
    return sum(ranks > 1 for ranks in groups) + int(ends and axes.pp > 1)


def nccl(count: int, device: str) -> int:
    """Return what the buffers of so many communicators are estimated to take [bytes]; this has not been measured."""
    return count * CHANNELS * BUFFERS if device == "cuda" else 0


def workspaces(config: RunConfig, axes: Axes, device: str) -> int:
    """Return the bytes of cuBLAS's workspaces: forward and backward pass each have one, and a recorded step its own."""
    if device != "cuda":
        return 0
    recorded = config.compile.step_graph is not False and obstacle(config, device, axes.size) is None
    return WORKSPACE * (3 if recorded else 2)


def context(device: str) -> int:
    """Return what lies on the GPU outside of torch's allocator [bytes]."""
    return CONTEXT if device == "cuda" else 0


def margin(peak: int, sharded: bool, device: str) -> int:
    """Return what the allocator is expected to reserve beside a peak of tensors [bytes]."""
    return round(FRAGMENTS[sharded] * peak) if device == "cuda" else 0
