"""Data parallelism with the whole model on every rank: torch's DistributedDataParallel.

Gradients are all-reduced in buckets while the backward pass still computes those of earlier layers. Torch keeps the
buckets from one step to the next. A step of several micro-batches therefore sums its gradients in them: gradients
beside them would be as many bytes again until the last micro-batch, 3.6 GiB of a model of 1B.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from train.model.transformer import Transformer
from train.parallel.mesh import Mesh
from train.parallel.model_part import ModelPart


def replicate(module: Transformer, mesh: Mesh, device: torch.device, bucket_mib: float | None = None) -> ModelPart:
    """Return the part that is a whole model on each rank, its weights on the device already.

    bucket_mib: gradients that fill one message [MiB]; None: as torch has it (parallel.ddp_bucket_mib).
    """
    group = mesh.group("tokens")
    _warn_unheard(group, device)
    weights = list(module.parameters())
    for weight in weights:  # a gradient that is there as torch makes its buckets becomes a view of one
        weight.grad = weight.new_zeros(()).expand_as(weight)
    wrapped = DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket_mib,  # torch multiplies it before it rounds: a fraction is welcome
        gradient_as_bucket_view=True,
        # Without it torch rebuilds the buckets after a process's first step. Sums over more than two ranks are then
        # taken in another order, and a resumed run would not be the uninterrupted one bit for bit.
        find_unused_parameters=True,
        **_buffers_stay(),
    )
    wrapped.register_comm_hook(group, _summed)
    in_buckets = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None

    def last_micro(last: bool) -> None:
        wrapped.require_backward_grad_sync = last
        if not last:  # a step's only micro-batch is copied there by torch, which costs less than zeros and a sum
            _begin(weights, in_buckets)

    return ModelPart(module, wrapped, last_micro)


def _buffers_stay() -> dict[str, Any]:
    """Return the setting by which passes send no buffers: biases of experts move alike on all ranks.

    Torch 2.13 took its name away. Under the new one it sends them once, as the model is wrapped.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def _warn_unheard(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Let torch say here, unheard, what it says once a process: that no weight was unused, which is known.

    Nothing is sent.
    """
    norm = nn.LayerNorm(1, device=device)  # whose weights are not drawn: what is random stays what it was
    probe = DistributedDataParallel(norm, process_group=group, init_sync=False, find_unused_parameters=True)
    with warnings.catch_warnings():
        # Meant for those who have the option for nothing: here it keeps the order of sums, as `replicate` says.
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified in DDP constructor")
        _Filtered.apply(probe, torch.zeros(1, device=device))  # type: ignore[no-untyped-call]


class _Filtered(torch.autograd.Function):
    """Calls a module where warnings of torch's C++ code are Python's: elsewhere DDP's pass by all filters."""

    @staticmethod
    def forward(_: Any, module: nn.Module, inputs: Tensor) -> None:
        """Call the module as if its weights were to be trained."""
        with torch.enable_grad():
            module(inputs)


@torch.no_grad()
def _begin(weights: Sequence[nn.Parameter], in_buckets: Sequence[Tensor | None]) -> None:
    """Let gradients that are not there begin as zeros in the buckets."""
    for weight, view in zip(weights, in_buckets, strict=True):
        if weight.grad is None:
            assert view is not None
            weight.grad = view.zero_()


def _summed(group, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations, which are text here
    """Sum a bucket over ranks; the default divides by their number, and losses here are shares of a sum already."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
