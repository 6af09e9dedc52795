"""Weights that may be DTensors: their gradients, the full tensor of local parts, and the local part of a full one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.core.dtensor import is_dtensor, local

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement


def take_gradient(weight: Tensor) -> Tensor:
    """Return this rank's part of a weight's gradient and set `weight.grad` to None: its memory is freed early."""
    gradient = weight.grad
    assert gradient is not None
    weight.grad = None
    return local(gradient)


def full_tensor(part: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor on every rank, from its shards `part`, which are laid out as `like` is."""
    if not is_dtensor(like):
        return part
    from torch.distributed.tensor import DTensor

    made = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return made.full_tensor()


def local_part(full: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a whole tensor, cut as `like` is."""
    if not is_dtensor(like):
        return full
    coordinate = like.device_mesh.get_coordinate()
    assert coordinate is not None, "this rank holds a shard of the weight"
    cuts = list(zip(like.placements, coordinate, like.device_mesh.shape, strict=True))
    # Where two mesh axes cut the same axis of a tensor, FSDP2 cuts what tensor parallelism has left (a strided shard):
    # the inner axis of the mesh comes first then, else the outer one does.
    if any(_strided(placement) for placement, _, _ in cuts):
        cuts.reverse()
    for placement, index, size in cuts:
        if placement.is_shard() or _strided(placement):
            axis = placement.dim  # type: ignore[attr-defined]
            pieces = torch.chunk(full, size, dim=axis)
            full = pieces[index] if index < len(pieces) else full.narrow(axis, 0, 0)
    return full


def _strided(placement: Placement) -> bool:
    return type(placement).__name__ == "_StridedShard"


def shard_axis(tensor: Tensor) -> int | None:
    """Return the mesh axis over which the first axis of a DTensor is cut, if that is its only cut; else None."""
    if not is_dtensor(tensor):
        return None
    cut = [i for i, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return cut[0] if len(cut) == 1 and tensor.placements[cut[0]].is_shard(0) else None


class Exchange:
    """All-to-all that gives each rank one whole matrix of several sharded ones, and back.

    For at most as many weights as the mesh axis has ranks; rank i owns the i-th. Each rank sends its own shards twice,
    where an all-gather on every rank would send whole matrices, and each matrix is worked on once.
    """

    def __init__(self, weights: list[DTensor], axis: int) -> None:
        self._weights = weights
        self._group = weights[0].device_mesh.get_group(axis)
        self._size = dist.get_world_size(self._group)
        self._rank = dist.get_rank(self._group)
        assert len(weights) <= self._size

    def gather(self, parts: list[Tensor]) -> Tensor | None:
        """Return the whole of the weight that this rank owns, from every rank's parts; None where it owns none."""
        send = [part.numel() for part in parts] + [0] * (self._size - len(parts))
        received, sizes = self._swap(torch.cat([part.reshape(-1) for part in parts]), send, self._owned_sizes())
        if self._rank >= len(self._weights):
            return None
        assert sum(sizes) == self._weights[self._rank].numel()
        return received.view(self._weights[self._rank].shape)

    def scatter(self, full: Tensor | None, like: Tensor) -> list[Tensor]:
        """Return this rank's part of every weight, from each owner's whole one; `like` gives format and device."""
        receive = [local(weight).numel() for weight in self._weights] + [0] * (self._size - len(self._weights))
        flat = like.new_empty(0) if full is None else full.reshape(-1)
        received, _ = self._swap(flat, self._owned_sizes(), receive)
        pieces = torch.split(received, receive)[: len(self._weights)]
        return [piece.view(local(weight).shape) for piece, weight in zip(pieces, self._weights, strict=True)]

    def _owned_sizes(self) -> list[int]:
        """Return how many elements of the owned weight each rank holds: cut along the first axis, as by torch.chunk."""
        if self._rank >= len(self._weights):
            return [0] * self._size
        rows, *rest = self._weights[self._rank].shape
        step = -(-rows // self._size)
        width = int(torch.Size(rest).numel())
        return [width * max(0, min(step, rows - i * step)) for i in range(self._size)]

    def _swap(self, flat: Tensor, send: list[int], receive: list[int]) -> tuple[Tensor, list[int]]:
        received = flat.new_empty(sum(receive))
        dist.all_to_all_single(received, flat.contiguous(), receive, send, group=self._group)
        return received, receive
