"""Which part of which tensor a rank holds: what tells copies, which must be equal, from shards, which add up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.core.dtensor import is_dtensor, local


class Part(NamedTuple):
    """A part of a tensor: its name, and the rank's coordinates on the mesh axes that cut it ("axis=2", …)."""

    name: str
    place: tuple[str, ...]

    def __str__(self) -> str:
        return self.name if not self.place else f"{self.name} ({', '.join(self.place)})"


def part_of(name: str, tensor: Tensor) -> Part:
    """Return which part of the tensor `name` this rank holds; all of it unless it is a DTensor that is cut."""
    if not is_dtensor(tensor):
        return Part(name, ())
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "this rank holds a part of the tensor"
    names = mesh.mesh_dim_names or tuple(str(i) for i in range(mesh.ndim))
    axes = zip(names, coordinate, tensor.placements, strict=True)
    return Part(name, tuple(f"{axis}={index}" for axis, index, cut in axes if not cut.is_replicate()))


def state_of(named: Iterable[tuple[str, Tensor]], optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield weights and, as `<name>.<key>`, what the optimizer keeps of them."""
    for name, weight in named:
        yield name, weight
        for key, value in optimizer.state.get(weight, {}).items():
            if isinstance(value, Tensor):
                yield f"{name}.{key}", value


def stacked(scalars: Sequence[Tensor]) -> Tensor:
    """Return scalars as one tensor, where the first lies: those of offloaded weights lie elsewhere."""
    return torch.stack([scalar.to(scalars[0].device) for scalar in scalars])


def held(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, without history."""
    # Its own part first: a DTensor whose part waits on the CPU has no detach of its own.
    return local(tensor).detach()
