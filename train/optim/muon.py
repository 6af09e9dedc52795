"""Muon: momentum, made orthogonal by Newton-Schulz iterations, for hidden matrices (Jordan et al. 2024).

A weight may hold several matrices, along leading axes or as rows in turn (`ParamSpec.muon_split`); each is made
orthogonal by itself. Shards are gathered first, so that every layout takes the same step. Where a weight is sharded
along its first axis only (FSDP2), each rank gathers and works on some of the weights (`Exchange`); where it is sharded
otherwise (tensor parallelism), every rank gathers all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from kernels.core.dtensor import local
from train.optim.decayed_step import decayed_step
from train.optim.sharded import Exchange, full_tensor, local_part, shard_axis, take_gradient
from train.spec.config import OptimConfig
from train.spec.counts import Shape

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: steepest at 0 while singular values stay within about 0.7 to 1.2 (Jordan et al. 2024)."""


def settings(optim: OptimConfig) -> dict[str, Any]:
    """Return what its groups hold of the config."""
    return {
        "momentum": optim.momentum,
        "nesterov": optim.nesterov,
        "iterations": optim.muon_iterations,
        "scale": optim.muon_scale,
    }


def update(
    group: Mapping[str, Any],
    weights: Sequence[Tensor],
    state: Mapping[Tensor, dict[str, Any]],
    skip: Tensor | None,
    scale: Tensor | None,
) -> None:
    """Take one step of a group: decoupled decay, then minus lr times the scaled orthogonal update."""
    shapes = dict(zip(group["params"], group["shapes"], strict=True))
    for batch, axis in _batches(weights, shapes):
        updates = [_momentum(weight, state[weight], group, skip, scale) for weight in batch]
        for weight, direction in zip(batch, _orthogonal(batch, updates, axis, shapes[batch[0]], group), strict=True):
            own, lr, decay = local(weight), group["lr"], group["weight_decay"]
            if skip is None:
                decayed_step(own, direction.to(own.dtype), lr, decay, in_place=True)
            else:
                stepped = decayed_step(own, direction.to(own.dtype), lr, decay)
                own.copy_(torch.where(skip.to(own.device) > 0, own, stepped))


def _momentum(
    weight: Tensor, own: dict[str, Any], group: Mapping[str, Any], skip: Tensor | None, scale: Tensor | None
) -> Tensor:
    """Move the momentum and return this rank's part of what is to be made orthogonal, in the iterations' format."""
    if not own:
        own["momentum_buffer"] = torch.zeros_like(weight, dtype=group["state_dtype"])
    buffer, keep = local(own["momentum_buffer"]), group["momentum"]
    gradient = take_gradient(weight).to(buffer.dtype)
    if scale is not None:
        gradient.mul_(scale.to(gradient.device))
    if skip is not None:  # a buffer moved towards itself stays what it is
        gradient = torch.where(skip.to(buffer.device) > 0, buffer, gradient)
    buffer.lerp_(gradient, 1.0 - keep)
    return (gradient.lerp(buffer, keep) if group["nesterov"] else buffer).to(group["iteration_dtype"])


def _batches(weights: Sequence[Tensor], shapes: Mapping[Tensor, Shape]) -> Iterable[tuple[list[Tensor], int | None]]:
    """Yield weights that are worked on together and the mesh axis they are exchanged over; None: each by itself."""
    alike: dict[Any, list[Tensor]] = {}
    for weight in weights:
        axis = shard_axis(weight)
        if axis is None:
            yield [weight], None
        else:
            key = cast("DTensor", weight).device_mesh, axis, weight.shape, shapes[weight]
            alike.setdefault(key, []).append(weight)
    for (mesh, axis, _, _), members in alike.items():
        size = mesh.size(axis)
        for start in range(0, len(members), size):
            yield members[start : start + size], axis


def _orthogonal(
    weights: list[Tensor], updates: list[Tensor], axis: int | None, shape: Shape, group: Mapping[str, Any]
) -> list[Tensor]:
    """Return this rank's part of every weight's scaled orthogonal update; `shape` is that of each whole weight."""
    if axis is None:
        gathered = (full_tensor(update, weight) for update, weight in zip(updates, weights, strict=True))
        directions = (_whole_direction(full, shape, group) for full in gathered)
        return [local_part(full, weight) for full, weight in zip(directions, weights, strict=True)]
    exchange = Exchange(cast("list[DTensor]", weights), axis)
    full = exchange.gather(updates)
    return exchange.scatter(None if full is None else _whole_direction(full, shape, group), updates[0])


def _whole_direction(full: Tensor, shape: Shape, group: Mapping[str, Any]) -> Tensor:
    """Return `direction` of a weight of this shape, laid out as `full` is."""
    return direction(full.view(shape), group).view(full.shape)


def direction(full: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Return the scaled orthogonal update of a whole weight, of its shape (..., rows, columns).

    group["split"]: rows of the matrices that alternate within the weight's rows, None for one matrix.
    """
    split = group["split"]
    iterations, scale = group["iterations"], group["scale"]
    if split is None:
        return _scaled(full, iterations, scale)
    columns = full.shape[-1]
    parts = torch.split(full.reshape(-1, sum(split), columns), list(split), dim=1)
    made = [_scaled(part.reshape(-1, columns), iterations, scale).view_as(part) for part in parts]
    return torch.cat(made, dim=1).view(full.shape)


def _scaled(matrix: Tensor, iterations: int, scale: str) -> Tensor:
    """Return the orthogonalised matrix times its scale, a function of the matrix's shape.

    match_rms: 0.2 sqrt(max(rows, columns)), for a root mean square of 0.2, about that of AdamW's updates (Liu et al.
    2025, "Muon is scalable"), so that AdamW's learning rates and decay hold. spectral: sqrt(max(1, rows / columns)).
    """
    rows, columns = matrix.shape[-2:]
    factor = 0.2 * max(rows, columns) ** 0.5 if scale == "match_rms" else max(1.0, rows / columns) ** 0.5
    return orthogonalise(matrix, iterations).mul_(factor)


def orthogonalise(matrix: Tensor, iterations: int) -> Tensor:
    """Return about U V' of matrix = U S V' (..., rows, columns), its singular values brought to 0.7 … 1.2.

    In the matrix's format. The iterations work on the shorter side: rows² columns products for rows <= columns.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.add(a * x, torch.add(b * gram, gram @ gram, alpha=c) @ x)
    return x.mT.contiguous() if tall else x
