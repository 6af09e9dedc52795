"""Many tensors in one launch: a table of their addresses, and a list of blocks that says which tensor each is in.

Tables are kept by their contents, so that a step whose tensors lie where they lay before copies nothing to the device,
and can be captured in a CUDA graph.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BLOCK = 65536
"""Elements of a tensor that one program walks over."""


class Tables(NamedTuple):
    """On the device: addresses (tensors, arrays), sizes (tensors,), tensor and place of each block (blocks,)."""

    addresses: Tensor
    sizes: Tensor
    owners: Tensor
    places: Tensor
    aligned: bool


def tables(arrays: list[list[Tensor]]) -> Tables:
    """Return the tables for arrays[i][j], the i-th array (weights, gradients, …) of tensor j."""
    device = arrays[0][0].device
    addresses = tuple(tensor.data_ptr() for row in zip(*arrays, strict=True) for tensor in row)
    sizes = tuple(tensor.numel() for tensor in arrays[0])
    owners, places = _blocks(sizes, device)
    return Tables(
        _on_device(addresses, device), _on_device(sizes, device), owners, places, all(a % 16 == 0 for a in addresses)
    )


@lru_cache(maxsize=256)
def _on_device(values: tuple[int, ...], device: torch.device) -> Tensor:
    return _moved(torch.tensor(values, dtype=torch.int64), device)


@lru_cache(maxsize=256)
def _blocks(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    counts = [-(-size // BLOCK) for size in sizes]
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), counts)
    places = np.concatenate([np.arange(count, dtype=np.int32) for count in counts]) if counts else owners
    return _moved(torch.from_numpy(owners), device), _moved(torch.from_numpy(places), device)


def _moved(table: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return table
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("kernels: tensors that were not there before a CUDA graph's capture; run the step once first")
    return table.pin_memory().to(device, non_blocking=True)
