"""Points that follow each other in the lanes of a job: who shares one, what it asks for, how long it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import ClusterConfig
from study.executors import job_spec_of
from study.executors.job_spec import JobSpec
from study.executors.slurm.nodes import Site
from study.planning import sizing
from study.planning.estimate import CPU_FLOPS, rows
from study.planning.turns import WORK_SECONDS, dealt, enough, longest_lane
from study.records.point import Point, point
from study.storage.layout import StudyFolder
from study.sweep import dry_run
from train.spec.config import BudgetConfig, RunConfig
from train.spec.resolve import resolve

SLURM = ClusterConfig(executor="slurm")


def test_jobs_that_points_are_dealt_to_take_similar_time() -> None:
    assert dealt([1, 2, 3, 4, 5, 6], 3) == [[5, 2, 1], [4, 3, 0]], "6 + 3 + 2 and 5 + 4 + 1"
    assert dealt([1.0] * 5, 5) == [[0, 1, 2, 3, 4]]
    assert dealt([9, 1, 1, 1, 1], 4) == [[0, 2, 3, 4], [1]], "the rest has room for one"
    assert dealt([], 3) == []
    sizes = [float(7 * n % 23) for n in range(40)]
    jobs = dealt(sizes, 6)
    assert [len(job) for job in jobs] == [6] * 6 + [4], "all but the last are full, as an array's jobs are cut"
    assert sorted(place for job in jobs for place in job) == list(range(40))
    assert all(sizes[a] >= sizes[b] for job in jobs for a, b in pairwise(job))


@pytest.mark.parametrize(
    ("seconds", "lanes", "longest"),
    [([3, 2, 1], 1, 6), ([3, 2, 1], 2, 3), ([3, 3, 3], 2, 6), ([9, 1, 1], 2, 9), ([5], 4, 5)],
)
def test_a_lane_takes_the_next_point_when_it_is_free(seconds: list[float], lanes: int, longest: float) -> None:
    assert longest_lane(seconds, lanes) == longest


@pytest.mark.parametrize(
    ("seconds", "lanes", "short", "count"),
    [
        ([30.0] * 20, 1, list(range(20)), 10),  # two jobs of five minutes
        ([30.0] * 21, 1, list(range(21)), 7),  # three, rather than one of more
        ([7.0, 20.0, 67.0, 200.0, 667.0], 1, [0, 1, 2, 3], 4),
        ([299.0, 299.0, 300.0], 1, [0, 1], 1),
        ([30.0] * 20, 2, list(range(20)), 20),  # two lanes are through with them in five minutes
        ([30.0], 4, [0], 4),
        ([600.0, 900.0], 1, [], 1),
        ([], 1, [], 1),
    ],
)
def test_short_points_are_so_many_in_a_job_that_it_has_work(
    seconds: list[float], lanes: int, short: list[int], count: int
) -> None:
    assert enough(seconds, lanes) == (short, count)


@given(st.lists(st.floats(0.01, 2 * WORK_SECONDS), max_size=40), st.integers(1, 4))
def test_jobs_of_short_points_have_work_and_not_much_more(seconds: list[float], lanes: int) -> None:
    short, count = enough(seconds, lanes)
    assert all((seconds[place] < WORK_SECONDS) == (place in short) for place in range(len(seconds)))
    jobs = -(-len(short) // count)
    work = sum(seconds[place] for place in short)
    assert work <= jobs * count * WORK_SECONDS, "none is expected to have more than its points could need"
    assert (jobs - 1) * lanes * WORK_SECONDS <= work + 1e-6, "no more jobs than there is work for"


def points(*tokens: int) -> list[Point]:
    base = RunConfig()
    made = (replace(base, seed=seed, budget=BudgetConfig(tokens=each)) for seed, each in enumerate(tokens))
    return [point(resolve(config), ()) for config in made]


def test_a_job_asks_for_its_lanes_and_for_the_time_of_all_its_points(tmp_path: Path) -> None:
    cluster = replace(SLURM, pack=2, points_per_job=3, cpus_per_task=2, gpus_per_node=1, mem_gb=3.0, time_minutes=7)
    shape = job_spec_of(cluster)
    assert (shape.cores, shape.gpus, shape.job_mem_gb, shape.jobs(7)) == (4, 2, 6.0, 3)
    assert job_spec_of(replace(cluster, pack_gpus="mps")).gpus == 1
    assert JobSpec.read(shape.record()) == shape and "points_per_job" not in JobSpec(pack=2).record()
    said = dry_run.asked(sizing.job_specs(StudyFolder(tmp_path), points(*range(1280, 1280 * 8, 1280)), cluster, Site()))
    assert "3 jobs for 7 points, 3 in a job, 2 at a time, of 2 GPUs, 4 cores, 6 GB, 7 min" in said
    made = points(*[128 * 8_000 + 128 * n for n in range(4)])
    row = rows(made, {})[0]
    minutes = row.own / CPU_FLOPS / 60
    assert 2.0 < minutes < 2.1
    auto = replace(SLURM, auto=("time",), points_per_job=4)
    for lanes, warm, expected in ((1, True, 2 + 6 * minutes), (1, False, 8 + 6 * minutes), (2, True, 2 + 3 * minutes)):
        (one,) = sizing.job_specs(StudyFolder(tmp_path), made, replace(auto, pack=lanes, warm=warm), Site())
        assert one.shape.time_minutes == next(limit for limit in sizing.MINUTES if expected <= limit)
    (alone,) = sizing.job_specs(StudyFolder(tmp_path), made[:1], replace(auto, points_per_job=None), Site())
    assert alone.shape.time_minutes == next(limit for limit in sizing.MINUTES if 2 + 1.5 * minutes <= limit)


def test_short_points_follow_each_other_in_jobs_and_long_ones_have_their_own(tmp_path: Path) -> None:
    lengths = [20, 165, 10, 75, 40, 500]  # about [s]
    made = points(*(128 * 65 * each for each in lengths))
    row = rows(made, {})[0]
    assert row.own / CPU_FLOPS == pytest.approx(20, rel=0.2), "or the lengths are no seconds"
    auto = replace(SLURM, auto=("points_per_job",))
    turns, alone = sizing.job_specs(StudyFolder(tmp_path), made, auto, Site())
    assert (turns.shape.points_per_job, turns.shape.takes_turns, turns.shape.time_minutes) == (3, True, 60)
    assert turns.keys == tuple(made[place].key for place in (1, 0, 2, 3, 4))
    assert (alone.shape, alone.keys) == (job_spec_of(SLURM), (made[5].key,))
    timed = sizing.job_specs(StudyFolder(tmp_path), made, replace(auto, auto=("time", "points_per_job")), Site())
    assert sum(len(each.keys) for each in timed) == 6
    limits = {key: each.shape.time_minutes for each in timed for key in each.keys}
    assert [limits[one.key] for one in made] == [10, 10, 10, 5, 5, 15], "195 and 115 s of points, and one of 500 s"
    given_ = sizing.job_specs(StudyFolder(tmp_path), made, replace(auto, points_per_job=2), Site())
    assert [each.shape.points_per_job for each in given_] == [2]
    (one,) = sizing.job_specs(StudyFolder(tmp_path), made[:1], auto, Site())
    assert one.shape.points_per_job is None
    here = replace(auto, executor="local")
    (local,) = sizing.job_specs(StudyFolder(tmp_path), made, here, Site())
    assert local.shape.points == 1, "they follow each other in its slots"


def test_points_of_several_processes_have_jobs_of_their_own(tmp_path: Path) -> None:
    cluster = replace(SLURM, auto=("points_per_job",), tasks_per_node=2)
    (sized,) = sizing.job_specs(StudyFolder(tmp_path), points(1280, 2560), cluster, Site())
    assert sized.shape.points == 1


def test_points_stand_in_the_order_in_which_jobs_take_them(tmp_path: Path) -> None:
    made = points(*(1280 * n for n in (1, 2, 3, 4, 5, 6)))
    keys = [one.key for one in made]
    (sized,) = sizing.job_specs(StudyFolder(tmp_path), made, replace(SLURM, points_per_job=3), Site())
    assert sized.keys == tuple(keys[place] for place in (5, 2, 1, 4, 3, 0))
    (plain,) = sizing.job_specs(StudyFolder(tmp_path), made, replace(SLURM, pack=3), Site())
    assert plain.keys == tuple(keys), "those that begin together stay as they are"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"points_per_job": 0}, "cluster.points_per_job=0 is not allowed: cluster.pack=1 of them run side by side"),
        ({"points_per_job": 3, "pack": 4}, "cluster.points_per_job=3 is not allowed: cluster.pack=4 of them"),
        ({"points_per_job": 3, "nodes": 2}, "cluster.points_per_job=3 needs points of one process"),
        ({"points_per_job": 3, "executor": "local"}, "cluster.points_per_job=3 is for SLURM: here set"),
    ],
)
def test_what_cannot_be_is_said(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job_spec_of(replace(SLURM, **changed))
