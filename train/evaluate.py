"""Validation on a fixed set of sequences, shared by the ranks: by source, and by position in the sequence."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports, which take their time
    from train.spec.interrupts import no_command

    no_command(
        "train.evaluate",
        "every run validates by itself (validation.*); python -m study show STUDY KEY shows a point's losses",
    )

import math
from collections.abc import Callable

import torch
from torch import Tensor

from train.data.batch import Batch
from train.data.validation import ValidationSet
from train.metrics.validation import Validation
from train.parallel.context import cut_batch
from train.parallel.parallel_model import ParallelModel
from train.spec.labels import IGNORED
from train.spec.micro_batch import even


def evaluate(
    model: ParallelModel, data: ValidationSet, ranges: int, interrupted: Callable[[], bool]
) -> Validation | None:
    """Return the losses over the validation set, or None when interrupted.

    ranges: of positions, each with a loss of its own. `interrupted` is asked before every micro-batch and must answer
    the same on every rank. Every rank takes part in as many micro-batches as the one with most: those that run out of
    sequences go on with empty ones.
    """
    mesh, device = model.mesh, model.device
    starts = range_starts(ranges, data.rows.inputs.shape[1])
    share, most = mesh.share(len(data.rows)), mesh.most(len(data.rows))
    at_once = model.micro * mesh.axes.pp
    if _has_one_shape(model):
        most, at_once = alike(most, at_once)
    batch = cut_batch(data.rows.part(share.start, share.stop).each(torch.from_numpy).padded(most), mesh)
    source = torch.zeros(most, dtype=torch.int64)
    source[: len(share)] = torch.from_numpy(data.source[share.start : share.stop])
    cells = len(data.names) * len(starts)
    totals = torch.zeros(2, cells, dtype=torch.float64, device=device)
    with model.each_token():
        for first in range(0, most, at_once):
            if interrupted():
                return None
            here = slice(first, min(first + at_once, most))
            part = batch.part(here.start, here.stop)
            cell = _cells(part, source[here], starts).to(device)
            part = part.to(device)
            totals[0].index_add_(0, cell, model.forward(part).double().flatten())
            totals[1].index_add_(0, cell, (part.targets != IGNORED).double().flatten())
    sums = torch.stack([mesh.sum_losses_(totals[0].clone()), mesh.sum_tokens_(totals[1].clone())]).cpu()
    return _described(sums.view(2, len(data.names), len(starts)), data, starts)


def alike(sequences: int, most: int) -> tuple[int, int]:
    """Return to how many sequences these are padded, and in parts of which size, so that all parts are of one size."""
    size = even(sequences, most)
    return -(-sequences // size) * size, size


def _has_one_shape(model: ParallelModel) -> bool:
    """Say whether a last, smaller part would be compiled anew: on a GPU, where that takes longer than the part."""
    return model.one_shape and model.device.type == "cuda"


def range_starts(ranges: int, length: int) -> list[int]:
    """Return where ranges of positions begin, each as long as all before it together: 0, …, length/4, length/2."""
    return sorted({0, *(length >> n for n in range(1, ranges))})


def _cells(batch: Batch, source: Tensor, starts: list[int]) -> Tensor:
    """Return for every token, flat, where its loss is added: source times range of positions."""
    length = batch.inputs.shape[1]
    positions = torch.arange(length).expand_as(batch.inputs) if batch.positions is None else batch.positions
    ranges = torch.bucketize(positions.contiguous(), torch.tensor(starts), right=True) - 1
    return (source[:, None] * len(starts) + ranges).flatten()


def _described(sums: Tensor, data: ValidationSet, starts: list[int]) -> Validation:
    """Return the result from summed losses and counts, (2, sources, ranges)."""
    weights = torch.tensor(data.weights, dtype=torch.float64)
    losses = (sums[0].sum(1) / sums[1].sum(1)).tolist()
    several = len(data.names) > 1
    by_range = sums[0] / sums[1].clamp(min=1)
    present = (sums[1] > 0) * weights[:, None]
    ranges = ((by_range * present).sum(0) / present.sum(0)).tolist() if len(starts) > 1 else []
    return Validation(
        loss=math.fsum(weight * loss for weight, loss in zip(data.weights, losses, strict=True)),
        bytes_per_token=data.bytes_per_token,
        sources=dict(zip(data.names, losses, strict=True)) if several else {},
        source_bytes=dict(zip(data.names, data.source_bytes, strict=True)) if several else {},
        positions={first: loss for first, loss in zip(starts, ranges, strict=False) if math.isfinite(loss)},
    )
