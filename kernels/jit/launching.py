"""The one place where kernels are launched."""

from __future__ import annotations

from typing import Any

import torch


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
