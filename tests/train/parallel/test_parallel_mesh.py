"""Which groups the views of the mesh open."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.train.parallel.cells import parallel
from tests.train.parallel.fakes import pretended
from train.parallel.mesh import make_mesh

HERE = torch.device("cpu")


@pytest.mark.parametrize(
    ("ranks", "changes", "opened"),
    [
        (4, {"pp": 4}, 1),  # the whole world, which there is, and this rank alone
        (8, {"pp": 2, "dp_shard": 2, "tp": 2}, 6),  # alone, pp, fsdp, tp, data, tokens
        (8, {"dp_replicate": 2, "dp_shard": 2, "cp": 2}, 5),  # alone, dp_replicate, fsdp, data, cp
        (8, {"dp_shard": 8, "ep": 2}, 3),  # alone, expert_fsdp, ep
    ],
)
def test_views_share_the_groups_of_the_axes_that_they_have_in_common(
    ranks: int, changes: dict[str, Any], opened: int
) -> None:
    with pretended(0, ranks) as world:
        before = len(dist.distributed_c10d._world.pg_map)
        mesh = make_mesh(parallel(**changes), world, HERE)
        assert len({id(group) for group in dist.distributed_c10d._world.pg_map}) - before == opened
        for view in filter(None, (mesh.weights, mesh.tokens, mesh.sums, mesh.experts)):
            for axis in view.mesh_dim_names or ():
                assert view.get_group(axis).size() == view[axis].size()
                assert dist.get_process_group_ranks(view.get_group(axis)) == view[axis].mesh.tolist()


def test_every_rank_finds_itself_in_its_groups() -> None:
    """Tensor parallelism innermost, then the shards, the copies and the pipeline."""
    wanted = {"pp": [5, 13], "dp_replicate": [9, 13], "fsdp": [13, 15], "tp": [12, 13], "data": [9, 11, 13, 15]}
    with pretended(13, 16) as world:
        mesh = make_mesh(parallel(pp=2, dp_replicate=2, dp_shard=2, tp=2), world, HERE)
        found = {axis: dist.get_process_group_ranks(mesh.group(axis)) for axis in wanted}
        assert found == wanted
        assert [mesh.rank(axis) for axis in ("pp", "data", "cp", "tp")] == [1, 2, 0, 1]
