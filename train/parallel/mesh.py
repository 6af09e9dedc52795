"""The ranks of a run as a mesh, and which of them talk about what.

Ranks are numbered with tensor parallelism innermost, as its messages are the most frequent, and the pipeline outermost:
(pp, dp_replicate, dp_shard, cp, tp). Views of that one order serve three questions: which part of the weights a
rank holds (pp, dp_replicate, fsdp = dp_shard x cp, tp), which tokens it computes on (pp, data = dp_replicate x
dp_shard, cp, tp), and with whom it adds up counts, losses and gradients of whole weights (pp, tokens = data x cp, tp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from train.runtime.distributed import World
from train.spec.config import ParallelConfig
from train.spec.mesh import Axes, axes


@dataclass(frozen=True)
class Mesh:
    """This process's place in the mesh. A world of one has no views and never communicates."""

    axes: Axes
    world: World
    weights: DeviceMesh | None = None
    tokens: DeviceMesh | None = None
    sums: DeviceMesh | None = None
    experts: DeviceMesh | None = None

    def rank(self, axis: str) -> int:
        """Return this process's place on one of the axes data, cp, tp, pp."""
        return 0 if self.tokens is None else self.tokens.get_local_rank(axis)

    def share(self, count: int) -> range:
        """Return which of `count` sequences are this rank's: contiguous, sizes differing by at most one."""
        rank, size = self.rank("data"), self.axes.data
        return range(count * rank // size, count * (rank + 1) // size)

    def most(self, count: int) -> int:
        """Return the largest share of `count` sequences, which every rank pads its own to."""
        return -(-count // self.axes.data)

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return the process group of one of the axes cp, tp, pp, fsdp, dp_replicate, data, tokens, ep, expert_fsdp."""
        views = (self.weights, self.tokens, self.sums, self.experts)
        for view in views:
            if view is not None and axis in (view.mesh_dim_names or ()):
                return view.get_group(axis)
        raise ValueError(f"no axis {axis!r} in this mesh")

    def sum_tokens_(self, tensor: Tensor) -> Tensor:
        """Replace what each rank counted over its tokens by the sum over all tokens, on every rank, and return it.

        Ranks of one pipeline or tensor-parallel group counted the same tokens.
        """
        if self.axes.data * self.axes.cp > 1:
            dist.all_reduce(tensor, group=self.group("tokens"))
        return tensor

    def sum_losses_(self, tensor: Tensor) -> Tensor:
        """As `sum_tokens_`, for a loss: in a pipeline its last ranks have it and the others have zeros."""
        return self.over_stages_(self.sum_tokens_(tensor))

    def over_stages_(self, tensor: Tensor, largest: bool = False) -> Tensor:
        """Replace what each stage of a pipeline has by the sum of all, or by the largest, and return it."""
        if self.axes.pp > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.group("pp"))
        return tensor


def make_mesh(parallel: ParallelConfig, world: World, device: torch.device) -> Mesh:
    """Return the mesh of all ranks, which have joined; ValueError where the axes do not make up the world."""
    shape = axes(parallel, world.size)
    if world.size == 1:
        return Mesh(shape, world)
    views = _Views(device.type, world)
    return Mesh(
        shape,
        world,
        views.view({"pp": shape.pp, "dp_replicate": shape.dp_replicate, "fsdp": shape.fsdp, "tp": shape.tp}),
        views.view({"pp": shape.pp, "data": shape.data, "cp": shape.cp, "tp": shape.tp}),
        views.view({"pp": shape.pp, "tokens": shape.data * shape.cp, "tp": shape.tp}),
        views.view(_experts(shape)) if shape.ep > 1 else None,
    )


def _experts(shape: Axes) -> dict[str, int]:
    """Return the view of the ranks that hold experts: those of fsdp as ep, neighbours, and expert_fsdp, the rest."""
    return {
        "pp": shape.pp,
        "dp_replicate": shape.dp_replicate,
        "expert_fsdp": shape.expert_fsdp,
        "ep": shape.ep,
        "tp": shape.tp,
    }


@dataclass(frozen=True)
class _Views:
    """Makes views of all ranks that share the groups of the axes that they have in common, on CPUs.

    torch makes groups for every axis of every view anew, those of one rank as well. Each group costs every rank of the
    job a meeting, and those in it threads of gloo that wake a hundred times a second. GPUs keep torch's own groups: all
    that was measured there was measured with them, and NCCL orders what shares a communicator.
    """

    kind: str
    world: World
    groups: dict[tuple[str, int], dist.ProcessGroup] = field(default_factory=dict)

    def view(self, axes: Mapping[str, int]) -> DeviceMesh:
        """Return the view with these axes, the outermost first, of so many ranks each."""
        if self.kind != "cpu":
            return init_device_mesh(self.kind, tuple(axes.values()), mesh_dim_names=tuple(axes))
        ranks = np.arange(self.world.size).reshape(*axes.values())
        groups = [self._group(axis, np.moveaxis(ranks, i, -1).reshape(-1, axes[axis])) for i, axis in enumerate(axes)]
        return DeviceMesh.from_group(groups, self.kind, ranks.tolist(), mesh_dim_names=tuple(axes))

    def _group(self, axis: str, parts: NDArray[np.int_]) -> dist.ProcessGroup:
        """Return this rank's group of an axis; parts: the ranks of each of its groups, (groups, size)."""
        size = parts.shape[1]
        if size == self.world.size:
            assert dist.group.WORLD is not None
            return dist.group.WORLD
        key = (axis if size > 1 else "", size)  # an axis lies alike in all views that have it
        if key not in self.groups:
            self.groups[key], _ = dist.new_subgroups_by_enumeration(parts.tolist())  # type: ignore[no-untyped-call]
        return self.groups[key]
