"""Tensors that sharding stores in rows of another length, as torch's distributed checkpoints take them.

A checkpoint holds every tensor in the weight's own shape, so that it is read on any mesh. Sharding may store a weight
and its moments in rows of another length (train.spec.shard_shapes); a rank's shard is then some regions of the
whole tensor, and this says which.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from train.model.regions import parts_of
from train.spec.counts import Shape


class Relaid(Tensor):
    """A tensor of shape `whole`, of which this rank has what `stored`, a DTensor, has here. It cannot be computed with.

    The methods are those by which torch.distributed.checkpoint asks for a rank's chunks of a tensor, to write and to
    read.
    """

    stored: Tensor
    whole: Shape

    @staticmethod
    def __new__(cls, stored: Tensor, whole: Shape) -> Relaid:
        """Return what stands for `stored`; no memory of its own."""
        made: Relaid = Tensor._make_wrapper_subclass(cls, whole, dtype=stored.dtype, device=stored.device)
        made.stored, made.whole = stored, whole
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise TypeError(f"{func}: a relaid tensor is written and read by region, not computed with")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Relaid({self.whole}, stored as {tuple(self.stored.shape)})"

    def region(self, copy: Tensor, offset: torch.Size | None) -> Tensor:
        """Return the region that begins at `offset` from a copy of what this rank has of `stored`."""
        at = 0
        for region, part in parts_of(self.stored, self.whole):
            if tuple(one.start for one in region) == tuple(offset or ()):
                return copy.reshape(-1)[at : at + part.numel()].view(part.shape)
            at += part.numel()
        raise ValueError(f"this rank has no region that begins at {offset} of a tensor of shape {self.whole}")

    def __create_write_items__(self, name: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk, properties=TensorProperties(dtype=self.dtype), size=torch.Size(self.whole)
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(torch.Size([one.start for one in region]), part.shape)
            for region, part in parts_of(self.stored, self.whole)
        ]

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        for region, part in parts_of(self.stored, self.whole):
            if tuple(one.start for one in region) == tuple(index.offset):
                return part
        raise ValueError(f"this rank has no region of {index.fqn} that begins at {tuple(index.offset)}")


def relaid(stored: Tensor, whole: Shape | None) -> Tensor:
    """Return a tensor as a checkpoint takes it, `whole` being its weight's own shape (None: as it is stored)."""
    return stored if whole is None or tuple(stored.shape) == whole else Relaid(stored, whole)


def stored_of(tensor: Tensor) -> Tensor:
    """Return a tensor as sharding stores it."""
    return tensor.stored if isinstance(tensor, Relaid) else tensor
