"""FSDP2's all-gather in fp8: half the bytes of bf16, and no cast after it.

FSDP2 calls two hooks of a shard, `fsdp_pre_all_gather` and `fsdp_post_all_gather`, which it looks for before the first
pass. They are set on the shards themselves, which stay plain tensors for the optimizer, checkpoints and statistics.

A weight has one scale for all of its shards. Before every pass each rank finds the largest magnitude of each shard, and
one all-reduce gives those of the whole weights. Once a step would do and cost less, but a scale that is kept can be out
of date after an update, a restart or a rollback. Numbers are first rounded to the format of the usual all-gather, so
products get the same bits as without `precision.fp8_gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from kernels.float8.api import LEAST, cast_fp8, scale_of
from train.model.transformer import Transformer
from train.precision.float8 import FORWARD, Received, products


def gather_in_fp8(module: Transformer, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
    """Gather the weights whose product is `Received` in fp8 over the ranks of `group`, the others in `dtype`.

    To be called after FSDP2 has sharded the module and its weights are on the device, before the first pass.
    """
    shards, names = [], {layer: name for name, layer in module.named_modules()}
    for layer, name in products(module):
        product = layer.linear[name]  # type: ignore[index]
        if isinstance(product, Received):
            # Not to_local(), which may give a view of the shard: FSDP2 asks the shard itself.
            weight, shape = getattr(layer, name), module.specs[f"{names[layer]}.{name}"].shape
            shard = weight._local_tensor
            columns = shape[-1] if tuple(weight.shape) != shape else shard.shape[-1]  # tensor parallelism may cut them
            shards.append(Float8Shard(product, shard, columns))
    if shards:
        sizes = _LargestMagnitudes([one.shard for one in shards], group, dtype)
        for one, size, factor in zip(shards, sizes.largest, sizes.factors, strict=True):
            one.start(size, factor)
        module.register_forward_pre_hook(sizes.find, prepend=True)  # before FSDP2's own, which starts to gather


class _LargestMagnitudes:
    """The largest magnitude and the scale of every weight, both (weights,) fp32 on the device."""

    def __init__(self, shards: Sequence[Tensor], group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        self._shards = shards
        self._group = group
        self._dtype = dtype
        self.largest = torch.zeros(len(shards), dtype=torch.float32, device=shards[0].device)
        # Each on 16 bytes of its own: cuBLAS takes factors from nowhere else.
        self.factors = torch.zeros(len(shards), 4, dtype=torch.float32, device=self.largest.device)[:, 0]

    @torch.no_grad()
    def find(self, *_: Any) -> None:
        """Find them for the shards as they are now; all ranks of the group take part."""
        filled = [shard for shard in self._shards if shard.numel()]  # the last ranks may have no rows
        norms = iter(torch._foreach_norm(filled, torch.inf) if filled else ())
        nothing = self._shards[0].new_zeros(())
        every = [next(norms) if shard.numel() else nothing for shard in self._shards]
        found = torch.stack(every).to(self._dtype).float()
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        found.clamp_(min=LEAST)
        # A backward pass that is still to come may have saved the scales; its weights, and so they, are the same.
        with _unsafe_preserve_version_counter((self.largest, self.factors)):
            self.largest.copy_(found)
            self.factors.copy_(scale_of(found, FORWARD))


class Float8Shard:
    """FSDP2's hooks for the shard of one weight."""

    def __init__(self, product: Received, shard: Tensor, columns: int) -> None:
        self.shard = shard
        self._columns = columns
        self._product = product

    def start(self, largest: Tensor, factor: Tensor) -> None:
        """Keep where the weight's largest magnitude and scale are found, and set the hooks."""
        self._largest = largest
        self._product.factor = factor
        self.shard.fsdp_pre_all_gather = self.send  # type: ignore[attr-defined]
        self.shard.fsdp_post_all_gather = self.receive  # type: ignore[attr-defined]

    def send(
        self,
        mesh: DeviceMesh,
        outer_size: torch.Size,
        outer_stride: tuple[int, ...],
        module: nn.Module,
        mp_policy: MixedPrecisionPolicy,
    ) -> tuple[tuple[Tensor, ...], torch.Size]:
        """Return this rank's shard in fp8 as bytes, padded as FSDP2 pads, and the size that `receive` is given."""
        shard = self.shard if mp_policy.param_dtype is None else self.shard.to(mp_policy.param_dtype)
        values = cast_fp8(shard.reshape(-1, shard.shape[-1]), dtype=FORWARD, by="tensor", largest=self._largest).values
        part = values.view(torch.uint8).view(shard.shape)
        if shard.shape[0] != outer_size[0]:  # cut along the first axis, where the last ranks may have fewer rows
            missing = -(-outer_size[0] // mesh.size()) - shard.shape[0]
            part = F.pad(part, (0, 0) * (part.dim() - 1) + (0, missing)) if missing else part
        return (part,), outer_size

    def receive(
        self, parts: tuple[Tensor, ...], size: torch.Size, dtype: torch.dtype, *, out: Tensor | None = None
    ) -> tuple[Any, list[Tensor]] | None:
        """Hand the gathered bytes to the product; the first time return a placeholder for the weight."""
        values = parts[0].view(FORWARD).view(-1)[: size.numel()]
        self._product.values = values.view(-1, self._columns)
        return None if out is not None else (_Placeholder(dtype, parts[0].device), [])


class _Placeholder:
    """What FSDP2 takes for the gathered weight: it becomes a tensor that gets gradients and has no memory."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        assert function is torch.as_strided, f"not known of FSDP2: {function}"
        stand, size, stride = args
        shaped = torch.empty_strided(size, stride, dtype=stand._dtype, device=stand._device)
        shaped.untyped_storage().resize_(0)
        return shaped
