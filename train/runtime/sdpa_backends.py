"""Which of torch's kernels a device is given where it has several."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend


def prefer(device: torch.device) -> None:
    """Let attention on Hopper and newer GPUs try cuDNN before FlashAttention 2; for the whole process.

    Measured on an H200, causal, forward and backward, 2 x 32 heads x 8,192 x 128: cuDNN 7.5 ms, FlashAttention 12.9 ms
    (benchmarks/attention_backends.py). Older devices, a CPU and formats that cuDNN does not take stay as they are.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return
    order = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    torch._C._set_sdp_priority_order([int(backend) for backend in order])  # type: ignore[call-overload]
