"""How jobs end on a real SLURM and what follows by itself: hangs, preemption, memory, dead nodes, caps."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import ThrowawayCluster, wait_for
from tests.slurm.daemons import Daemons, hasty, killing_as_sbatch_is_called
from tests.slurm.groups import PREFIX, memory_groups
from tests.slurm.lab import LOOK_SECONDS, TINY, TRAINERS, Lab

pytestmark = pytest.mark.slurm

USER_SIGNAL = "SlurmctldParameters=preempt_send_user_signal"
PREEMPTION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    USER_SIGNAL,
    "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 State=UP",
    "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP",
)
QUICKLY = ("cluster.hang_floor_seconds=3", "runtime.start_seconds=60")


@pytest.fixture(scope="module")
def own_cluster(slurm_here: None) -> Iterator[ThrowawayCluster]:
    """A cluster whose nodes may be taken down and whose jobs preempt each other."""
    with ThrowawayCluster(nodes=3, extra=PREEMPTION) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def daemons(own_cluster: ThrowawayCluster) -> Iterator[Daemons]:
    daemons = Daemons(own_cluster)
    yield daemons
    daemons.close()


@pytest.fixture
def lab(tmp_path: Path, corpus: Path, own_cluster: ThrowawayCluster) -> Lab:
    return Lab(tmp_path, corpus, own_cluster)


def fragile(lab: Lab, study: str, words: str, *overrides: str, **variables: object) -> Lab:
    """Submit a study whose trainer ends as `words` say, one start after the other."""
    there = lab.with_trainer("fragile", FRAGILE=words, **variables)
    there.sweep(f"study.name={study}", *TINY, *overrides)
    return there


@contextlib.contextmanager
def configured(cluster: ThrowawayCluster, line: str, other: str) -> Iterator[None]:
    """Let another line stand for one of slurm.conf."""
    file = cluster.settings.slurm_conf
    usual = file.read_text(encoding="utf-8")
    assert line in usual
    try:
        file.write_text(usual.replace(line, other), encoding="utf-8")
        cluster.call("scontrol", "reconfigure")
        yield
    finally:
        file.write_text(usual, encoding="utf-8")
        cluster.call("scontrol", "reconfigure")


def starts(lab: Lab, study: str, key: str | None = None) -> list[str]:
    path = lab.run_folder(study, key) / "starts"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def kinds(lab: Lab, study: str) -> list[tuple[str, str]]:
    """Return the kinds of ends that the ledger holds, and what was decided of each."""
    return [(event["kind"], event["action"]) for event in lab.ledger(study) if event["event"] == "ended"]


def test_a_hang_leaves_stacks_and_is_tried_again(lab: Lab) -> None:
    there = fragile(lab, "hang", "1:hang,complete;2:stop,complete", *QUICKLY, "seed=1,2")
    for seed, key in zip((1, 2), there.keys("hang"), strict=True):
        run = there.run_folder("hang", key)
        wait_for(f"outcome of seed {seed}", (run / "outcome.json").exists, every=0.3)
        attempt = run / "attempts" / "1"
        stacks = (attempt / "stacks.0").read_text(encoding="utf-8")
        where = "hang" if seed == 1 else "stop"
        told = f"in {where}", f"{where} (fragile.py"  # in the interpreter's own words, and in py-spy's
        assert any(words in stacks for words in told), "where its main thread stood"
        assert ("stopped" in stacks) == (seed == 2), "what the kernel says of it"
        assert "rank 0" in (attempt / "hang.json").read_text(encoding="utf-8")
        assert '"kind": "hang"' in (attempt / "outcome.json").read_text(encoding="utf-8")
    assert kinds(there, "hang") == [("hang", "elsewhere"), ("hang", "elsewhere")]


def test_a_warned_job_goes_on_by_requeue(lab: Lab) -> None:
    """It is warned by a user's signal and requeues itself."""
    warned = fragile(lab, "warned", "wait,complete", "cluster.partition=low", "cluster.time_minutes=30")
    wait_for("it to wait", (warned.run_folder("warned") / "waits").exists)
    warned.cluster.call("scancel", "--signal=USR2", f"{warned.job_ids('warned')[0]}_0")
    wait_for("the requeued job's outcome", (warned.run_folder("warned") / "outcome.json").exists, every=0.3)
    assert kinds(warned, "warned") == [("preempted", "again")]
    assert warned.attempt("warned", 1)["kind"] == "preempted"
    first, second = (warned.attempt("warned", number, "job.json") for number in (1, 2))
    assert (first["job_id"], second["restart"]) == (second["job_id"], 1)


def test_a_requeue_whose_answer_is_killed_with_the_job_is_one(lab: Lab) -> None:
    asked = lab.folder / "asked"
    path = f"{TRAINERS / 'late'}:{lab.environment['PATH']}"
    late = fragile(lab, "late", "wait,complete", "cluster.partition=low", PATH=path, REQUEUED=asked)
    wait_for("it to wait", (late.run_folder("late") / "waits").exists)
    late.cluster.call("scancel", "--signal=USR2", f"{late.job_ids('late')[0]}_0")
    wait_for("the requeued job's outcome", (late.run_folder("late") / "outcome.json").exists, every=0.3)
    assert asked.exists(), "the job asked another scontrol"
    assert len(late.job_ids("late")) == 1, "the point was submitted again, too"
    assert late.attempt("late", 2, "job.json")["restart"] == 1


def preempted(lab: Lab, study: str) -> Lab:
    """Submit a study whose job SLURM preempts, and wait for the end of its attempt."""
    low = fragile(lab, study, "wait,complete", "cluster.partition=low", "cluster.nodes=3", "cluster.cpus_per_task=2")
    # A rank that had not begun would take its first word, and wait, in the attempt that follows.
    wait_for("all ranks to wait", lambda: len(starts(low, study)) == 3)
    low.cluster.call("srun", "--partition=high", "--nodes=3", "--cpus-per-task=2", "--exclusive", "true")
    wait_for("its end", (low.run_folder(study) / "attempts/1/outcome.json").exists, every=0.3)
    assert low.attempt(study, 1)["kind"] == "preempted"
    return low


def test_a_job_preempted_by_slurm_goes_on_by_requeue(lab: Lab) -> None:
    low = preempted(lab, "low")
    wait_for("the preempted job's outcome", (low.run_folder("low") / "outcome.json").exists, every=0.3)
    assert [kind for kind, _ in kinds(low, "low")] == ["preempted"]
    assert low.point("low")["state"] == "completed"


def test_a_preemption_whose_first_signal_is_that_of_scancel_is_one(lab: Lab) -> None:
    with configured(lab.cluster, USER_SIGNAL, ""):
        low = preempted(lab, "plain")
    wait_for("what follows", lambda: bool(kinds(low, "plain")), every=0.3)
    assert kinds(low, "plain") == [("preempted", "again")]


def test_a_job_that_gets_its_signal_after_the_trainer_has_ended_goes_on(lab: Lab) -> None:
    """SLURM signals the processes of a step one after the other."""
    late = fragile(lab, "behind", "wait,complete", "cluster.partition=low")
    run = late.run_folder("behind")
    wait_for("it to wait", (run / "waits").exists)
    job = psutil.Process(json.loads((run / "attempts/1/job.json").read_text(encoding="utf-8"))["pid"])
    (trainer,) = job.children()
    trainer.send_signal(signal.SIGUSR2)
    with contextlib.suppress(psutil.NoSuchProcess):
        wait_for("the trainer's end", lambda: trainer.status() == psutil.STATUS_ZOMBIE, every=0.01)
    time.sleep(0.3)
    job.send_signal(signal.SIGUSR2)
    wait_for("its end", (run / "attempts/1/outcome.json").exists, every=0.3)
    assert late.attempt("behind", 1)["kind"] == "preempted"


def test_a_job_that_was_told_to_end_by_hand_is_not_preempted(lab: Lab) -> None:
    told = fragile(lab, "told", "wait,complete", "cluster.partition=low")
    run = told.run_folder("told")
    wait_for("it to wait", (run / "waits").exists)
    told.cluster.call("scancel", "--signal=TERM", f"{told.job_ids('told')[0]}_0")
    wait_for("its end", (run / "attempts/1/outcome.json").exists, every=0.3)
    assert told.attempt("told", 1)["kind"] == "interrupted"
    assert not kinds(told, "told")


def test_too_little_memory_is_answered_with_more(lab: Lab) -> None:
    there = fragile(lab, "memory", "memory,complete", "cluster.mem_gb=1")
    wait_for("its outcome", (there.run_folder("memory") / "outcome.json").exists, every=0.3)
    assert kinds(there, "memory") == [("host_memory", "more")]
    assert [line.split()[1] for line in starts(there, "memory")] == ["1024", "1536"]
    assert there.attempt("memory", 1)["headline"] == "MemoryError"


def test_the_kernel_kills_a_trainer_that_takes_more_than_its_job_has(lab: Lab) -> None:
    with memory_groups(lab) as grouped:
        if grouped is None:
            pytest.skip("no memory groups can be made below that of this process")
        there = fragile(grouped, "group", "devour,complete", PREFIX, "cluster.mem_gb=0.25")
        wait_for("its outcome", (there.run_folder("group") / "outcome.json").exists, every=0.3)
        first = there.attempt("group", 1)
        assert (first["kind"], first["signal"]) == ("host_memory", 9)
        assert kinds(there, "group") == [("host_memory", "more")]
        assert [line.split()[1] for line in starts(there, "group")] == ["256", "384"]


def test_a_cap_is_reached_and_status_says_so(lab: Lab) -> None:
    there = fragile(lab, "cap", "hang", *QUICKLY, "retry.hang='again 1'")
    wait_for("the second hang", lambda: len(kinds(there, "cap")) == 2, every=0.5)
    point = there.wait_for_state("cap", "failed")
    assert (point["kind"], len(starts(there, "cap"))) == ("hang", 2)
    assert point["next"] == "tried again 1 times after hang: that is the cap (retry.hang)"
    there.study("status", "cap", code=1)
    assert kinds(there, "cap") == [("hang", "again"), ("hang", "stop")], "status did not try it again"
    stopped = fragile(lab, "stops", "fail,complete")
    wait_for("its end", lambda: len(kinds(stopped, "stops")) == 1, every=0.5)
    point = stopped.wait_for_state("stops", "failed")
    assert (point["kind"], point["headline"]) == ("code_error", "RuntimeError: it was not a good day")
    assert len(starts(stopped, "stops")) == 1


def test_while_slurmctld_is_away_jobs_end_and_commands_submit_and_all_goes_on_after(lab: Lab, daemons: Daemons) -> None:
    """One point completes meanwhile, one dies and cannot requeue itself, one trains on; two studies are submitted."""
    lab = hasty(lab)
    there = fragile(lab, "away", "1:hold;2:hold,complete;3:hold", "seed=1,2,3")
    first, second, third = (there.run_folder("away", key) for key in there.keys("away"))
    for run in (first, second, third):
        wait_for(f"{run.name} to train", (run / "waits").exists)
    daemons.save_state(there.job_ids("away")[0].partition("_")[0])
    late = lab.with_trainer("quick")
    # It goes as sbatch is called: the submitter cannot know what became of that.
    cut = killing_as_sbatch_is_called(late, daemons.pid("slurmctld"))
    try:
        assert "it is not known whether" in cut.sweep("study.name=cut", *TINY, "seed=1,2", code=2)
        (first / "go").touch()
        (trainer,) = psutil.Process(json.loads((second / "attempts/1/job.json").read_text())["pid"]).children()
        trainer.kill()
        assert "2 points wait: the scheduler gave no answer" in late.sweep("study.name=late", *TINY, "seed=1,2")
        assert {point["state"] for point in late.points("late")} == {"waiting"}
        assert {point["state"] for point in late.points("cut")} == {"unknown"}
        wait_for("the completed one's end", (first / "attempts/1/outcome.json").exists)
        wait_for("what follows from the death", lambda: happened(there, "away").count("waiting") >= 2, every=0.3)
        assert kinds(there, "away") == [("killed", "again")]
    finally:
        daemons.start_controller()
    (third / "go").touch()
    for study, its in (("away", there), ("cut", late), ("late", late)):  # whoever asks may submit, with its own trainer
        wait_for(f"{study} to complete", partial(is_done, its, study), every=LOOK_SECONDS)
    assert [len(starts(there, "away", key)) for key in there.keys("away")] == [1, 2, 1]
    for study in ("cut", "late"):
        ran = [(late.run_folder(study, key) / "ran").read_text().split() for key in late.keys(study)]
        assert [len(jobs) for jobs in ran] == [1, 1], "no point is lost, none ran twice"


def happened(lab: Lab, study: str) -> list[str]:
    return [str(event["event"]) for event in lab.ledger(study)]


def is_done(lab: Lab, study: str) -> bool:
    """Say whether all points of a study are completed; asking for it lets go on what waits."""
    return all(point["state"] == "completed" for point in lab.points(study))


def test_a_dead_node_is_left_and_named(lab: Lab) -> None:
    there = fragile(lab, "node", "wait,complete", "cluster.requeue=false")
    wait_for("it to wait", (there.run_folder("node") / "waits").exists)
    node = starts(there, "node")[0].split()[0]
    job = psutil.Process(there.attempt("node", 1, "job.json")["pid"]).environ()
    theirs = [process for process in psutil.process_iter() if belongs(process, job)]
    steps = {parent for process in theirs for parent in process.parents() if parent.name() == "slurmstepd"}
    assert steps
    # As a node that loses its power: those first that would still tell slurmctld how the job ended.
    for process in (slurmd(lab.cluster, node), *steps, *theirs):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    there.cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    there.study("status", "node")
    wait_for("its outcome", (there.run_folder("node") / "outcome.json").exists, every=0.5)
    assert kinds(there, "node") == [("node_failure", "elsewhere")]
    assert starts(there, "node")[1].split()[0] != node
    (excluded,) = [event for event in there.ledger("node") if event["event"] == "excluded"]
    assert list(excluded["nodes"]) == [node]
    assert excluded["nodes"][node].startswith("its state is down")


def belongs(process: psutil.Process, job: dict[str, str]) -> bool:
    """Say whether a process is of the job with this environment, of this cluster."""
    with contextlib.suppress(psutil.Error):
        its = process.environ()
        return all(its.get(name) == job[name] for name in ("SLURM_JOB_ID", "SLURM_CONF"))
    return False


def slurmd(cluster: ThrowawayCluster, node: str) -> psutil.Process:
    daemons = psutil.Process(cluster.supervisor_pid).children()
    (found,) = [p for p in daemons if p.name() == "slurmd" and p.cmdline()[-2:] == ["-N", node]]
    return found
