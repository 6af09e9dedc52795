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
from study.executors.slurm.nodes import Nodes, Site
from study.planning import sizing
from study.planning.estimate import CPU_FLOPS, rows
from study.planning.turns import LEAST_SECONDS, WORK_SECONDS, dealt, enough, longest_lane, shares, too_short
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
    ("seconds", "lanes", "side_by_side", "room", "count"),
    [
        ([30.0] * 20, 1, 1, None, 10),  # two jobs of five minutes
        ([30.0] * 21, 1, 1, None, 7),  # three, rather than one of more
        ([7.0, 20.0, 67.0, 200.0], 1, 1, None, 4),
        ([299.0, 299.0], 1, 1, None, 1),
        ([30.0] * 20, 2, 2, None, 20),  # two lanes are through with them in five minutes
        ([30.0], 4, 4, None, 4),
        ([30.0] * 20, 1, 1, 2, 10),  # as without knowing
        ([30.0] * 20, 1, 1, 4, 5),  # 150 s in each of four
        ([30.0] * 20, 1, 1, 100, 2),  # 60 s in each of ten
        ([30.0] * 20, 1, 1, 9, 3),  # seven: nine would leave some with 90 s and one with 60
        ([20.0] * 14, 1, 1, 4, 5),  # the last of four would have 40 s, that of three has 80
        ([20.0] * 15, 1, 1, 2, 8),  # 160 and 140 s
        ([2.0] * 15, 1, 1, 2, 15),  # half a minute is not worth two starts
        ([100.0, 10.0, 10.0], 1, 1, 2, 3),  # whoever has not the long one has 20 s
        ([20.0] * 15, 4, 1, 2, 8),  # four share each of two GPUs
        ([20.0] * 15, 4, 4, 2, 15),  # four GPUs each: 75 s in a lane of one job, 40 in one of two
        ([60.0] * 5, 4, 1, 2, 5),  # the second of two would leave lanes without a point
        ([30.0] * 20, 1, 1, 0, 10),
    ],
)
def test_short_points_are_so_many_in_a_job_that_jobs_have_work_and_devices_have_jobs(
    seconds: list[float], lanes: int, side_by_side: int, room: int | None, count: int
) -> None:
    assert enough(seconds, lanes, side_by_side, room).count == count


@pytest.mark.parametrize(
    ("lanes", "room", "why"),
    [
        (1, None, "1 job: up to 300 s in each, as it is not known how many run at once"),
        (1, 1, "1 job: up to 300 s in each; room for 1 at once"),
        (1, 2, "2 jobs: room for 2 at once, and each should have 60 s or more"),
        (2, 2, "2 jobs: room for 2 at once, and each should have 60 s or more and 2 points"),
        (4, 3, "3 jobs: room for 3 at once, and each should have 60 s or more and 4 points"),
        (8, 2, "1 job: room for 2 at once, and each should have 60 s or more and 8 points"),
    ],
)
def test_it_is_said_why_a_job_has_so_many_points(lanes: int, room: int | None, why: str) -> None:
    found = enough([20.0] * 15, lanes, 1, room).why
    assert found == f"15 short points with 300 s of training in {why}"


def test_five_minutes_are_enough_for_a_job() -> None:
    assert too_short(299.9) and not too_short(300.0)


@given(
    st.lists(st.floats(0.01, WORK_SECONDS, exclude_max=True), min_size=1, max_size=40),
    st.integers(1, 4),
    st.booleans(),
    st.none() | st.integers(0, 50),
)
def test_jobs_of_short_points_have_work_and_not_much_more(
    seconds: list[float], lanes: int, own: bool, room: int | None
) -> None:
    assert all(map(too_short, seconds))
    side_by_side = lanes if own else 1
    count, plain = enough(seconds, lanes, side_by_side, room).count, enough(seconds, lanes, side_by_side, None).count
    jobs, fewest = dealt(seconds, count), -(-len(seconds) // plain)
    assert lanes <= count <= plain, "what is known makes more jobs, not fewer"
    assert sum(seconds) <= len(jobs) * count * WORK_SECONDS, "none is expected to have more than its points could need"
    assert (fewest - 1) * lanes * WORK_SECONDS <= sum(seconds) + 1e-6, "no more jobs than there is work for"
    if len(jobs) > fewest:
        assert room is not None and len(jobs) <= room, "no more jobs than run at once"
        for places in jobs:
            assert len(places) >= lanes, "each lane has a point"
            assert sum(seconds[place] for place in places) >= LEAST_SECONDS * side_by_side


def test_groups_of_short_points_share_what_runs_at_once_by_their_work() -> None:
    assert shares([30.0]) == [1.0] and shares([]) == []
    assert shares([30.0, 10.0]) == [0.75, 0.25]


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


def test_jobs_of_short_points_are_as_many_as_run_at_once(tmp_path: Path) -> None:
    """Four nodes of two cores; one of them with two GPUs."""
    made = points(*(128 * 65 * each for each in (100, 100, 100, 100, 100, 100)))  # about [s]
    node = Nodes("cpu", True, 4, 2, 64.0, 0, frozenset(), None, None)
    cpu = Site((node, replace(node, partition="gpu", default=False, count=1, gpus=2)), True)
    auto = replace(SLURM, auto=("points_per_job",))

    def count(site: Site, more: int = 0, **changed: Any) -> int | None:
        long = points(*(128 * 65 * (500 + each) for each in range(more)))
        found = sizing.job_specs(StudyFolder(tmp_path), [*made, *long], replace(auto, **changed), site)
        short = next(one for one in found if set(one.keys) == {each.key for each in made})
        assert bool(short.turns) and all(not one.turns for one in found if one is not short)
        return short.shape.points_per_job

    assert count(Site()) == 3, "two of five minutes"
    assert count(cpu) is None, "six of 100 s beside each other, for eight cores"
    assert count(cpu, cpus_per_task=2) == 2, "four nodes: three jobs of two, rather than four of which two have one"
    assert count(cpu, more=4) == 2, "four cores are left"
    assert count(cpu, more=8) == 3, "all are taken"
    assert count(cpu, partition="gpu") == 3, "it has one node"
    assert count(cpu, array_parallelism=1) == 3
    assert count(cpu, constraint="a|b") == 3, "which nodes these are is not known"
    said = dry_run.asked(sizing.job_specs(StudyFolder(tmp_path), made, replace(auto, cpus_per_task=2), cpu))
    assert "    6 short points with 592 s of training in 3 jobs: room for 4 at once, and each" in said


def test_branches_share_no_job_with_their_trunks_which_go_out_before_them(tmp_path: Path) -> None:
    """Four trunks of about 100 s, each with three branches of about 30 s more: trunks go out first, by themselves."""
    unit = 128 * 65
    trunks = points(*(unit * 100 + 128 * number for number in range(4)))
    branches = [
        point(resolve(replace(one.config, budget=BudgetConfig(tokens=tokens + unit * (30 + more)), schedule=after)), ())
        for one in trunks
        if (tokens := one.config.budget.tokens) is not None
        for more in range(3)
        for after in [replace(RunConfig().schedule, parent=f"{one.key}@{tokens}")]
    ]
    made = [*trunks, *branches]
    parents = {one.key: one.parent for one in made}
    auto = replace(SLURM, auto=("time", "points_per_job"))
    found = sizing.job_specs(StudyFolder(tmp_path), made, auto, Site())
    assert sorted(key for one in found for key in one.keys) == sorted(parents)
    limits: dict[str, int] = {}
    for one in found:
        limits |= dict.fromkeys(one.keys, one.shape.time_minutes)
        assert one.shape.points <= (2 if trunks[0].key in one.keys else 3)
    assert {limits[one.key] for one in trunks} == {10}, "two of 100 s in a job, not all four of them"
    running = sizing.job_specs(StudyFolder(tmp_path), branches, auto, Site())
    assert sum(one.shape.jobs(len(one.keys)) for one in running) == 4, "their trunks have jobs, which theirs wait for"
    for trunk in trunks:
        (tmp_path / trunk.key).mkdir()
        (tmp_path / trunk.key / "outcome.json").write_text('{"state": "completed"}')
    late = sizing.job_specs(StudyFolder(tmp_path), branches, auto, Site())
    assert sum(one.shape.jobs(len(one.keys)) for one in late) == 2, "with their trunks behind them they share jobs"


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
