"""Many tensors in one launch: a table of their addresses, and a list of blocks that says which tensor each is in.

Tables are kept by their contents, so that a step whose tensors lie where they lay before copies nothing to the device,
and can be captured in a CUDA graph. Tensors that come to be within the capture, as gradients do, want `filled_after`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.core.launch_table import multiprocessors

BLOCK = 65536
"""The most elements of a tensor that one program walks over."""
SHORTEST = 4096
"""The fewest, unless the tensor ends."""
PROGRAMS = 8
"""How many programs a multiprocessor is meant to have."""


RESERVE_BYTES = 1 << 22
"""Memory for the tables that one capture makes."""


class _Reserve:
    """Memory on the device for tables of tensors that a capture allocates, and what it is to hold."""

    def __init__(self, device: torch.device) -> None:
        self._free = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=device)
        self._promised: list[tuple[Tensor, Tensor]] = []

    def promise(self, table: Tensor) -> Tensor:
        """Return memory that will hold the table."""
        size = table.numel() * table.element_size()
        assert size <= self._free.numel(), f"more than {RESERVE_BYTES} bytes of addresses in one CUDA graph"
        place = self._free[:size].view(table.dtype).view(table.shape)
        self._free = self._free[-(-size // 16) * 16 :]
        self._promised.append((place, table))
        return place

    def fill(self) -> None:
        """Write the tables."""
        for place, table in self._promised:
            place.copy_(table)


_RESERVE: ContextVar[_Reserve | None] = ContextVar("reserve", default=None)


@contextmanager
def filled_after(device: torch.device) -> Iterator[None]:
    """Give tables of a CUDA graph's capture memory at once and their contents at the end.

    Nothing can be copied to the device while a graph is captured, and the graph reads the tables when it is replayed.
    """
    reserve = _Reserve(device)
    token = _RESERVE.set(reserve)
    try:
        yield
    finally:
        _RESERVE.reset(token)
        reserve.fill()


class Tables(NamedTuple):
    """On the device: addresses (tensors, arrays), sizes (tensors,), tensor and place of each block (blocks,)."""

    addresses: Tensor
    sizes: Tensor
    owners: Tensor
    places: Tensor
    aligned: bool
    span: int
    """Elements of a block."""


def span_of(elements: int, processors: int) -> int:
    """Return how many elements one program walks over: few enough that all multiprocessors have programs."""
    share = elements // (PROGRAMS * processors)
    return min(BLOCK, max(SHORTEST, 1 << max(share.bit_length() - 1, 0)))


def tables(arrays: list[list[Tensor]], *, share: bool = False) -> Tables:
    """Return the tables for arrays[i][j], the i-th array (weights, gradients, …) of tensor j.

    share: in blocks as short as gives every multiprocessor its own (`span_of`), else as long as can be.
    """
    device = arrays[0][0].device
    addresses = tuple(tensor.data_ptr() for row in zip(*arrays, strict=True) for tensor in row)
    sizes = tuple(tensor.numel() for tensor in arrays[0])
    span = span_of(sum(sizes), multiprocessors(device)) if share else BLOCK
    owners, places = _blocks(sizes, span, device)
    aligned = all(a % 16 == 0 for a in addresses)
    return Tables(_on_device(addresses, device), _on_device(sizes, device), owners, places, aligned, span)


@lru_cache(maxsize=256)
def _on_device(values: tuple[int, ...], device: torch.device) -> Tensor:
    return _moved(torch.tensor(values, dtype=torch.int64), device)


@lru_cache(maxsize=256)
def _blocks(sizes: tuple[int, ...], span: int, device: torch.device) -> tuple[Tensor, Tensor]:
    counts = [-(-size // span) for size in sizes]
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), counts)
    places = np.concatenate([np.arange(count, dtype=np.int32) for count in counts]) if counts else owners
    return _moved(torch.from_numpy(owners), device), _moved(torch.from_numpy(places), device)


def forget() -> None:
    """Let go of all tables. Not while a CUDA graph lives that reads them."""
    _on_device.cache_clear()
    _blocks.cache_clear()


def _moved(table: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return table
    if torch.cuda.is_current_stream_capturing():
        reserve = _RESERVE.get()
        if reserve is None:
            raise ValueError(
                "kernels: tensors that were not there before a CUDA graph's capture; run the step once first, or "
                "capture within filled_after"
            )
        return reserve.promise(table)
    return table.pin_memory().to(device, non_blocking=True)
