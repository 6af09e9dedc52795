"""Data parallelism with the whole model on every rank: torch's DistributedDataParallel.

Gradients are summed over ranks in buckets while the backward pass still computes earlier ones; one message of all
gradients after it, which is as simple and was used here before, leaves the network idle during the pass.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from train.model.transformer import Transformer
from train.parallel.mesh import Mesh
from train.parallel.model_part import Stage


def replicate(module: Transformer, mesh: Mesh, device: torch.device) -> Stage:
    """Return the stage of a whole model on each rank, its weights on the device already."""
    group = mesh.group("tokens")
    wrapped = DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        # Else buckets are put together anew after the first step of a process, sums over more than two ranks are taken
        # in another order from then on, and a run that was resumed is not bit for bit the one that was not. Torch warns
        # once a process that no weight went unused; it offers no way to ask for the one without the other.
        find_unused_parameters=True,
    )
    wrapped.register_comm_hook(group, _summed)

    def last_micro(last: bool) -> None:
        wrapped.require_backward_grad_sync = last

    return Stage(module, wrapped, last_micro)


def _summed(group, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations, which are text here
    """Sum a bucket over ranks; the default divides by their number, and losses here are shares of a sum already."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
