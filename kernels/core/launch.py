"""The one place where kernels are launched."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def fp32(x):
    """A number from the host in fp32: compilers hand it over in fp64, Triton's interpreter as a Python number."""
    return tl.full((), x, tl.float32)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
    """Launch `kernel` on the device of its first argument, a tensor; nothing for an empty grid."""
    if 0 in grid:
        return
    device = arguments[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[grid](*arguments, **meta)
    else:
        kernel[grid](*arguments, **meta)


def language(dtype: torch.dtype) -> Any:
    """Return Triton's name of a float format."""
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]
