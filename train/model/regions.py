"""Which regions of a whole weight a rank's shard holds, and where they lie in it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from kernels.core.dtensor import is_dtensor, local
from train.spec.counts import Shape
from train.spec.shard_shapes import Region, regions_of_run


def regions_of(weight: Tensor, whole: Shape) -> list[Region]:
    """Return the regions of the whole weight that this rank holds, in the order of its memory.

    One region, unless sharding stores the weight in rows of another length (train.spec.shard_shapes): a shard may then
    begin and end within a row of the weight.
    """
    if not is_dtensor(weight):
        sizes, starts = tuple(weight.shape), (0,) * weight.dim()
    else:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        sizes, starts = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
    if tuple(weight.shape) == whole:
        return [tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
    rows, columns = weight.shape
    assert sizes[1] == columns or not sizes[0], "rows are cut, not columns"
    first = min(starts[0], rows) * columns
    return list(regions_of_run(whole, first, first + sizes[0] * columns))


def parts_of(weight: Tensor, whole: Shape) -> Iterator[tuple[Region, Tensor]]:
    """Yield the regions of the whole weight that this rank holds, each with a view of them in its shard."""
    part = local(weight)
    regions = regions_of(weight, whole)
    if tuple(weight.shape) == whole:
        yield regions[0], part
        return
    flat, at = part.view(-1), 0
    for region in regions:
        sizes = [one.stop - one.start for one in region]
        count = 1
        for size in sizes:
            count *= size
        yield region, flat[at : at + count].view(sizes)
        at += count
