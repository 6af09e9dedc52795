"""What jobs ask: shapes, packing, sizing, jobs that could never start. All decisions, no SLURM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.executors import job_spec_of
from study.executors.base import Answer, JobRequest
from study.executors.job_spec import JobSpec
from study.executors.jobs import Job, JobState
from study.executors.slurm import limits, sbatch
from study.executors.slurm.limits import Accounts, Association, Controller, Limits
from study.executors.slurm.nodes import SINFO, Nodes, Site, never, read_site
from study.executors.slurm.start_estimate import in_words
from study.job import packed
from study.planning import sizing
from study.reconcile import dependencies, dispatch
from study.records.attempts import Attempt
from study.records.ledger import Batch, fold
from study.records.point import point
from study.status.states import NEVER_BEGAN, Evidence, derive_state
from study.storage.layout import StudyFolder
from study.sweep import dry_run
from train.spec.config import BudgetConfig, RunConfig
from train.spec.footprint import footprint
from train.spec.mesh import Axes
from train.spec.resolve import resolve

SLURM = ClusterConfig(executor="slurm")
SITE = read_site(
    Answer(
        0,
        "gpu*|4|64|512000|gpu:a100:8(S:0-1)|a100,ib|2-00:00:00|1-4|mixed\n"
        "gpu*|1|32|256000|gpu:v100:4|v100|2-00:00:00|1-4|idle~\n"
        "cpu|10|32|128000|(null)|(null)|infinite|1-infinite|allocated\n",
    )
)


def test_a_shape_comes_back_from_the_ledger_as_it_was() -> None:
    shape = job_spec_of(
        replace(
            SLURM,
            pack=3,
            nice=100,
            prefix=("apptainer", "exec", "--nv", "a b.sif"),
            setup=("module load cuda",),
            sbatch={"comment": "night", "exclusive": True, "hint": None},
        )
    )
    assert JobSpec.read(json.loads(json.dumps(shape.record()))) == shape
    assert shape.sbatch == (("comment", "night"), ("exclusive", ""))
    assert len({shape, replace(shape)}) == 1, "shapes group points"


def test_every_option_is_in_the_script() -> None:
    shape = job_spec_of(
        replace(
            SLURM,
            nice=100,
            qos="low",
            exclude="n[1-3]",
            container_image="lab/torch:1",
            container_mounts="/data",
            prefix=("apptainer", "exec", "x.sif"),
            python="python3",
            sbatch={"mail_type": "END", "exclusive": True},
            requeue=False,
            gpus_per_node=1,
            mem_gb=2.0,
            cpus_per_task=2,
            pack=4,
        )
    )
    text = sbatch.render(JobRequest(StudyFolder(Path("/s")), replace(shape, dependency="afterok:12_3"), "n", 7))
    for line in (
        "#SBATCH --nice=100",
        "#SBATCH --qos=low",
        "#SBATCH --exclude='n[1-3]'",
        "#SBATCH --mail-type=END",
        "#SBATCH --exclusive",
        "#SBATCH --no-requeue",
        "#SBATCH --dependency=afterok:12_3",
        "#SBATCH --kill-on-invalid-dep=yes",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=8192M",
        "#SBATCH --array=0-6%7",
    ):
        assert line in text.splitlines(), line
    assert "--container-image=lab/torch:1 --container-mounts=/data" in text
    assert "apptainer exec x.sif python3 -u -m study.job" in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"sbatch": {"time": 5}},
            "cluster.sbatch has 'time', which a submission sets itself: use cluster.time_minutes",
        ),
        ({"sbatch": {"x": [1]}}, "cluster.sbatch.x="),
        ({"pack": 0}, "cluster.pack=0 is not allowed"),
        ({"pack": 2, "nodes": 2}, "cluster.pack=2 needs points of one process"),
        ({"pack": 2, "executor": "local"}, "cluster.pack=2 is for SLURM: here set cluster.pack=1"),
        ({"pack": 2, "pack_gpus": "mps"}, "cluster.pack_gpus=mps without GPUs"),
        ({"auto": ("tme",)}, "choose among gpus, memory, time, pack, points_per_job, or all"),
        ({"margin": 0.5}, "cluster.margin=0.5 is not allowed"),
    ],
)
def test_what_no_job_can_be_is_said(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(".", r"\.")):
        job_spec_of(replace(SLURM, **changed))  # type: ignore[arg-type]


def test_all_stands_for_gpus_too() -> None:
    """Who shares GPUs needs some, given or to be sized."""
    assert job_spec_of(replace(SLURM, pack=2, pack_gpus="mps", auto=("all",))).pack == 2


def test_nodes_are_read_from_sinfo() -> None:
    assert SITE.complete
    assert SITE.nodes[0] == Nodes("gpu", True, 4, 64, 500.0, 8, frozenset({"a100", "ib"}), 2880, 4)
    assert SITE.nodes[2].minutes is None
    assert SITE.of(None) == SITE.nodes[:2]
    assert any("--exact" in word for word in SINFO)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(None, error="sinfo: command not found"),
        Answer(1, error="slurm_load_partitions: Unable to contact slurm controller"),
        Answer(0, ""),
        Answer(0, "gpu*|4|64|512000|gpu:8"),
        Answer(0, "gpu*|4|64|512000|gpu:8|(null)|2-00:00:00|1-4|idle\ngpu*|many|64|1|(null)|(null)|infinite|1|idle\n"),
        Answer(0, "gpu*|4|64|512000|gpu:8|(null)|some time|1-4|idle\n"),
    ],
)
def test_what_sinfo_does_not_say_refuses_nothing(answer: Answer) -> None:
    assert never(replace(JobSpec(), gpus_per_node=1000), read_site(answer)) is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"gpus_per_node": 8, "cpus_per_task": 64}, None),
        ({"gpus_per_node": 16}, "cluster.nodes=2 cluster.gpus_per_node=8 would fit"),
        ({"gpus_per_node": 1, "pack": 10}, "cluster.pack=8 would fit"),
        ({"gpus_per_node": 1, "pack": 10, "pack_gpus": "slices"}, None),
        ({"cpus_per_task": 65}, "cluster.cpus_per_task=64 would fit"),
        ({"mem_gb": 501.0}, "cluster.mem_gb=500 would fit"),
        ({"gpus_per_node": 1, "partition": "cpu"}, "1 GPUs a node, more than any node of partition cpu has"),
        ({"time_minutes": 2881}, "cluster.time_minutes=2880 would fit"),
        ({"time_minutes": 2881, "qos": "long"}, None),
        ({"time_minutes": 99999, "partition": "cpu"}, None),
        ({"nodes": 5}, "at most 4 fit"),
        ({"partition": "gppu"}, "there are cpu, gpu"),
        ({"partition": "cpu,gpu", "gpus_per_node": 8}, None),
        ({"constraint": "h100"}, "they have a100, ib, v100"),
        ({"constraint": "v100", "gpus_per_node": 8}, "the largest has 4 GPUs"),
        ({"constraint": "[rack1|rack2]"}, None),
    ],
)
def test_a_job_that_could_never_start_is_told_what_would_fit(changed: dict[str, object], says: str | None) -> None:
    why = never(replace(JobSpec(), **changed), SITE)  # type: ignore[arg-type]
    assert (why is None) if says is None else (why is not None and says in why), why


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({"gpus_per_node": 1}, 36),  # four nodes of eight and one of four
        ({"gpus_per_node": 1, "cpus_per_task": 16}, 18),  # four and two for their cores
        ({"gpus_per_node": 1, "mem_gb": 125.0}, 18),  # four and two for their memory
        ({"gpus_per_node": 1, "pack": 2}, 18),
        ({"gpus_per_node": 1, "pack": 2, "pack_gpus": "mps"}, 36),
        ({"gpus_per_node": 8}, 4),
        ({"gpus_per_node": 8, "nodes": 2}, 2),
        ({"gpus_per_node": 1, "constraint": "v100"}, 4),
        ({"gpus_per_node": 1, "constraint": "[rack1|rack2]"}, None),
        ({"gpus_per_node": 1, "partition": "cpu"}, 0),
        ({"partition": "cpu"}, 320),
        ({"partition": "cpu,gpu"}, 320),  # nodes may be in both
        ({"partition": "other"}, None),
    ],
)
def test_it_is_known_how_many_jobs_the_nodes_hold(changed: dict[str, object], count: int | None) -> None:
    shape = replace(JobSpec(), **changed)  # type: ignore[arg-type]
    assert SITE.jobs_at_once(shape) == count
    assert replace(SITE, complete=False).jobs_at_once(shape) is None


def test_nodes_in_several_states_are_counted_together() -> None:
    line = "main*|{}|2|4000|(null)|(null)|10:00|1-4|{}\n"
    site = read_site(Answer(0, "".join(line.format(*each) for each in [(1, "mixed"), (2, "idle"), (1, "drained*")])))
    assert [(nodes.count, nodes.down) for nodes in site.nodes] == [(4, 1)]
    assert site.jobs_at_once(replace(JobSpec(), cpus_per_task=2, time_minutes=1)) == 3
    assert never(replace(JobSpec(), nodes=4, time_minutes=1), site) is None


@pytest.mark.parametrize(
    ("states", "count"),
    [(("idle", "idle"), 36), (("mixed", "drained"), 32), (("down*", "allocated"), 4), (("maint", "down"), None)],
)
def test_nodes_that_are_down_hold_no_jobs_and_refuse_none(states: tuple[str, str], count: int | None) -> None:
    lines = ("gpu*|4|64|512000|gpu:8|(null)|1:00|1-4|{}\n", "gpu*|1|32|256000|gpu:4|(null)|1:00|1-4|{}\n")
    site = read_site(Answer(0, "".join(line.format(state) for line, state in zip(lines, states, strict=True))))
    shape = replace(JobSpec(), gpus_per_node=1, time_minutes=1)
    assert site.jobs_at_once(shape) == count
    assert never(replace(shape, gpus_per_node=8), site) is None, "they may come back"


def run_of(width: int = 256, **changed: object) -> RunConfig:
    base = RunConfig()
    config = replace(base, model=replace(base.model, width=width), budget=BudgetConfig(tokens=10**7))
    return resolve(replace(config, **changed))  # type: ignore[arg-type]


def test_time_asked_follows_the_expected_time_and_stays_within_the_partition() -> None:
    auto = replace(SLURM, auto=("time",), margin=2.0)
    asked = [sizing.size(auto, run_of(), seconds, SITE).time_minutes for seconds in (1, 600, 3600, 10 * 3600, 10**7)]
    assert asked == [5, 30, 180, 1440, 2880]
    assert sizing.size(auto, run_of(), 10**6, Site()).time_minutes == 33840, "whole half days, no known limit"
    assert sizing.size(SLURM, run_of(), 10**6, SITE).time_minutes == 60, "what is not to be sized stays"
    day = Accounts((Association("lab", "ann", max_wall=1440),))
    allowed = Limits(Controller(enforced=True), day, user="ann")
    assert sizing.size(auto, run_of(), 10**6, replace(SITE, allowed=allowed)).time_minutes == 1440, "an account's limit"


def test_gpus_are_as_many_as_the_model_needs() -> None:
    auto = replace(SLURM, auto=("gpus",), gpu_memory_gb=80.0)
    large = run_of(8192, runtime=replace(RunConfig().runtime, device="cuda"))
    large = replace(
        large, model=replace(large.model, layers=32), parallel=replace(large.parallel, micro_batch_sequences=1)
    )
    with pytest.raises(ValueError, match=r"parallel\.dp_shard=null"):
        sizing.layout(auto, large, SITE)
    cut = replace(large, parallel=replace(large.parallel, dp_shard=None, dp_replicate=1))
    got = sizing.layout(auto, cut, SITE)
    assert (got.nodes, got.gpus_per_node, got.tasks_per_node) == (2, 8, 8)
    assert footprint(cut, Axes(dp_shard=16), "cuda").total * auto.margin <= 80e9
    assert footprint(cut, Axes(dp_shard=8), "cuda").total * auto.margin > 80e9
    whole = replace(cut, parallel=replace(cut.parallel, zero=1))
    with pytest.raises(ValueError, match=r"gathered weights, .*parallel\.zero=3 \(parallel=fsdp\)"):
        sizing.layout(auto, whole, SITE)
    small = run_of(runtime=replace(RunConfig().runtime, device="cuda"))
    assert sizing.layout(auto, small, SITE).gpus_per_node == 1
    assert (
        sizing.layout(
            auto, run_of(), read_site(Answer(0, "c*|1|8|1000|(null)|(null)|infinite|1-1|idle\n"))
        ).gpus_per_node
        == 0
    )


def test_ranks_that_do_not_make_up_the_mesh_name_what_makes_them() -> None:
    split = run_of(parallel=replace(RunConfig().parallel, dp_replicate=1, tp=2))
    sizing.check_ranks(replace(SLURM, tasks_per_node=2), split, 2)
    with pytest.raises(
        ValueError, match=r"cluster\.nodes=3 x cluster\.tasks_per_node=1; cluster\.auto=\[gpus\] chooses"
    ):
        sizing.check_ranks(replace(SLURM, nodes=3), split, 3)
    with pytest.raises(ValueError, match=r"\(cluster\.tasks_per_node=3\)$"):
        sizing.check_ranks(ClusterConfig(tasks_per_node=3), split, 3)


def test_a_dry_run_says_what_each_gpu_is_planned_to_hold(tmp_path: Path) -> None:
    points = [point(run_of(width)) for width in (256, 1024)]
    for cluster in (replace(SLURM, gpus_per_node=1), replace(SLURM, gpus_per_node=1, auto=("memory",))):
        sized = sizing.job_specs(StudyFolder(tmp_path), points, cluster, Site())
        need = footprint(points[1].config, Axes(), "cuda")
        said = dry_run.asked(sized)
        assert f"each GPU is planned to hold {need.total / 1e9:.3g} GB" in said
        assert f"{need.states / 1e9:.1f} for weights, gradients and moments" in said
    assert "planned to hold" not in dry_run.asked(sizing.job_specs(StudyFolder(tmp_path), points, SLURM, Site()))


def test_footprint_is_cut_by_sharding() -> None:
    config = run_of(1024)
    whole, cut = (footprint(config, Axes(dp_shard=n), "cuda") for n in (1, 8))
    assert whole.states == pytest.approx(8 * cut.states, rel=1e-6)
    assert footprint(replace(config, precision=replace(config.precision, name="bf16")), Axes(), "cuda").activations < (
        whole.activations
    )


@pytest.mark.parametrize(
    ("visible", "count", "each", "how", "expected"),
    [
        ("0,1,2,3", 4, 1, "own", ["0", "1", "2", "3"]),
        ("GPU-a,GPU-b,GPU-c,GPU-d", 2, 2, "own", ["GPU-a,GPU-b", "GPU-c,GPU-d"]),
        ("0", 3, 1, "slices", ["0", "0", "0"]),
        ("0,1", 3, 2, "mps", ["0", "1", "0"]),
        (None, 2, 1, "own", None),
        ("0,1", 2, 0, "own", None),
    ],
)
def test_which_gpus_a_packed_point_sees(
    visible: str | None, count: int, each: int, how: str, expected: list[str] | None
) -> None:
    assert packed.devices(visible, count, each, how) == expected


def test_too_few_gpus_are_said_and_cores_are_shared_only_where_the_job_is_bound() -> None:
    with pytest.raises(ValueError, match="4 packed points need 4 GPUs, but the job sees 0,1"):
        packed.devices("0,1", 4, 1)
    assert packed.shares([4, 5, 6, 7], 2, 2) == [(4, 5), (6, 7)]
    assert packed.shares(list(range(64)), 2, 2) == [], "nobody bound this job to its cores"


@pytest.mark.parametrize(("codes", "job"), [([0, 0], 0), ([0, 1], 1), ([1, 75, 0], 75), ([-9, 0], 137)])
def test_exit_code_of_a_packed_job(codes: list[int], job: int) -> None:
    assert packed.exit_code(codes) == job


def intent(name: str, keys: str, **resources: object) -> dict[str, object]:
    return {
        "event": "intent",
        "time": 1.0,
        "name": name,
        "executor": "slurm",
        "keys": list(keys),
        "resources": resources,
    }


def test_a_packed_job_is_cancelled_only_when_none_of_its_points_is_wanted() -> None:
    events = [intent("b", "abcde", pack=2), {"event": "submitted", "time": 2.0, "name": "b", "job_id": "7"}]
    known = fold([*events, {"event": "cancelled", "time": 3.0, "keys": ["a", "c", "d"]}])
    assert known.unwanted_jobs("acd") == {"b": [1]}
    assert known.batches["b"].of_task(2) == ("e",)
    assert known.batches["b"].task("d") == 1
    known = fold([*events, {"event": "cancelled", "time": 3.0, "keys": list("abcde")}])
    assert known.unwanted_jobs("abcde") == {"b": [0, 1, 2]}
    assert known.batches["b"].jobs_by_key() == {"a": "7_0", "b": "7_0", "c": "7_1", "d": "7_1", "e": "7_2"}
    single = {**intent("c", "fg", pack=2), "array": False}
    known = fold([single, {**events[1], "name": "c"}, {"event": "cancelled", "time": 3.0, "keys": ["f"]}])
    assert known.unwanted_jobs("f") == {}
    assert known.batches["c"].jobs_by_key() == {"f": "7", "g": "7"}
    known = fold([single, {**events[1], "name": "c"}, {"event": "cancelled", "time": 3.0, "keys": ["f", "g"]}])
    assert known.unwanted_jobs("fg") == {"c": []}, "a job that is no array's has no index"


def test_branches_name_their_parents_job_once_it_has_one() -> None:
    known = fold([intent("b", "pq", pack=1), {"event": "submitted", "time": 2.0, "name": "b", "job_id": "7"}])
    after, held = dependencies.job_dependencies({"x": "q", "y": "r"}, known)
    assert after == {"x": "afterok:7_1"}
    assert held == {"y": "parent r has not completed"}
    lost = fold([intent("b", "pq", pack=1)])
    assert dependencies.job_dependencies({"x": "q"}, lost) == ({}, {"x": "parent q has not completed"}), "no job yet"
    assert dependencies.job_dependencies({"x": "q"}, known, {"q"}) == ({}, {"x": "parent q has not completed"})
    events = [intent("b", "pq", pack=1), {"event": "submitted", "time": 2.0, "name": "b", "job_id": "7"}]
    gone = fold([*events, {"event": "cancelled", "time": 3.0, "keys": ["q"]}])
    assert dependencies.job_dependencies({"x": "q"}, gone) == ({}, {"x": "parent q has not completed"})
    assert dependencies.lives("afterok:7_1", {"7": 1})
    assert not dependencies.lives("afterok:7_1", {"8": 1})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "sbatch: Job 9 to start at 2026-11-21T15:00:00 using 2 processors on nodes n1 in partition main",
            "SLURM would start the first job at 2026-11-21 15:00:00 on n1",
        ),
        (
            "allocation failure: Requested node configuration is not available",
            "SLURM would not start it: Requested node",
        ),
        ("", "SLURM would not start it: it does not say why"),
        ("sbatch: fatal: Could not establish a configuration source", "no estimate of the start: sbatch: fatal"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "no estimate of the start"),
    ],
)
def test_sbatchs_estimate_in_words(said: str, words: str) -> None:
    assert in_words(Answer(0, "", said)).startswith(words)
    assert (
        in_words(Answer(None, error="sbatch: command not found"))
        == "no estimate of the start: sbatch: command not found"
    )


def waiting(keys: str, **resources: object) -> dict[str, object]:
    return {"event": "waiting", "time": 3.0, "keys": list(keys), "resources": resources, "code": None, "parallel": 8}


def test_points_that_wait_for_other_jobs_are_arrays_of_their_own() -> None:
    known = fold([waiting("abxyz", pack=1)])
    after = {"x": "afterok:7_1", "y": "afterok:7_1", "z": "afterok:7_2"}
    parts = dispatch.plan(known, limits.Limits(), {"b": "parent k has not completed"}, after=after).parts
    assert [(part.keys, part.dependency) for part in parts] == [
        (("a",), None),
        (("x", "y"), "afterok:7_1"),
        (("z",), "afterok:7_2"),
    ]


def test_a_branch_whose_job_was_given_up_is_told_from_one_that_was_cancelled() -> None:
    batch = Batch("b", "slurm", ("x",), 1.0, {"dependency": "afterok:7_1"}, job_id="8")
    gone = Evidence(batch, job=Job(JobState.CANCELLED, "CANCELLED"))
    assert derive_state(gone).why == NEVER_BEGAN
    assert (
        derive_state(replace(gone, job=Job(JobState.CANCELLED, "CANCELLED", "DependencyNeverSatisfied"))).why
        == NEVER_BEGAN
    )
    assert (
        derive_state(replace(gone, job=Job(JobState.CANCELLED, "CANCELLED by 1000", "exit code 0:0"))).state
        == "cancelled"
    )
    assert derive_state(replace(gone, job=Job(JobState.CANCELLED, "CANCELLED", "Dependency"))).state == "cancelled"
    assert derive_state(replace(gone, cancelled=True)).state == "cancelled"
    assert derive_state(replace(gone, batch=replace(batch, resources={}))).state == "cancelled"
    began = Attempt(1, {"name": "b"})
    assert derive_state(replace(gone, attempt=began)).state == "cancelled"


def test_a_point_that_failed_is_failed_while_its_packed_job_goes_on() -> None:
    batch = Batch("b", "slurm", ("x", "y"), 1.0, {"pack": 2}, job_id="8")
    ended = Attempt(1, {"name": "b"}, {"state": "failed", "kind": "code_error"})
    seen = Evidence(batch, attempt=ended, job=Job(JobState.RUNNING, "RUNNING"))
    assert derive_state(seen).state == "failed"
    assert derive_state(replace(seen, batch=replace(batch, resources={}))).state == "running", "it may be requeued"
    assert derive_state(replace(seen, job=Job(JobState.QUEUED, "PENDING"))).state == "queued", (
        "requeued: it is tried again"
    )
