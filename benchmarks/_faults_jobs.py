"""Faults of jobs, nodes and SLURM's daemons, each done to slow runs in the middle of their steps."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from benchmarks._faults_field import Field, Patient, Result, times_run, train_losses, undisturbed, with_field
from tests.slurm.cluster import wait_for
from tests.slurm.daemons import hasty, killing_as_sbatch_is_called
from tests.slurm.groups import PREFIX, memory_groups
from tests.slurm.lab import TINY

Act = Callable[[Patient, str], None]
CAUTIOUS = ("cluster.hang_floor_seconds=15",)
OUT_OF_MEMORY = "the kernel kills for want of memory"


def trainer_killed(field: Field) -> Result:
    return _disturbed(field, "trainer", lambda patient, key: patient.supervisor(key).children()[0].kill()).result(
        "kill -9 of the trainer", ends=True
    )


def supervisor_killed(field: Field) -> Result:
    return _disturbed(field, "supervisor", lambda patient, key: patient.supervisor(key).kill()).result(
        "kill -9 of the supervisor", ends=True
    )


def everything_killed(field: Field) -> Result:
    def act(patient: Patient, key: str) -> None:
        supervisor = patient.supervisor(key)
        for process in (supervisor, *supervisor.children(recursive=True)):
            process.kill()

    return _disturbed(field, "everything", act).result("kill -9 of all processes of a job", ends=True)


def step_killed(field: Field) -> Result:
    def act(patient: Patient, key: str) -> None:
        steps = [p for p in patient.supervisor(key).parents() if p.name().startswith("slurmstepd")]
        steps[0].kill()

    return _disturbed(field, "step", act).result("kill -9 of the job step (slurmstepd)")


def rank_killed(field: Field) -> Result:
    shape = ("cluster.nodes=2", "cluster.tasks_per_node=2", "cluster.master_addr=127.0.0.1")
    one = Field(field.cluster, field.lab, {}, 1, field.daemons)
    reference = undisturbed(field.lab, 1, "undisturbed4", "cluster.tasks_per_node=4")

    def act(patient: Patient, key: str) -> None:
        supervisors = [p for p in psutil.process_iter() if _is_rank(p, patient.run(key), 2)]
        assert supervisors, "rank 2 is nowhere"
        supervisors[0].kill()

    patient = with_field(one.patient("rank", *shape), reference)
    patient.wait_for_step()
    patient.disturb(lambda key: act(patient, key))
    patient.recovered()
    return patient.result("kill -9 of one rank of 4", ends=True)


def scancelled(field: Field) -> Result:
    def act(patient: Patient, key: str) -> None:
        field.cluster.call("scancel", *_jobs(patient, key))

    patient = _begun(field, "scancel")
    patient.disturb(lambda key: act(patient, key))
    wait_for("cancelled", lambda: {p["state"] for p in patient.lab.points("scancel")} == {"cancelled"}, 120, every=2.0)
    patient.retry("cancelled")
    patient.recovered()
    note = "stays cancelled until a person says retry --state cancelled"
    return patient.result("scancel by somebody", note=note, ends=True)


def requeued(field: Field) -> Result:
    def act(patient: Patient, key: str) -> None:
        field.cluster.call("scontrol", "requeue", *_jobs(patient, key))

    return _disturbed(field, "requeue", act).result("scontrol requeue", ends=True)


def preempted(field: Field) -> Result:
    nodes: list[str] = []

    def act(patient: Patient, key: str) -> None:
        node = _node(patient, key)
        if node not in nodes:
            nodes.append(node)
            urgent = ("--partition=urgent", f"--nodelist={node}", "--exclusive", "--output=/dev/null")
            job = field.cluster.call("sbatch", "--parsable", *urgent, "--wrap=sleep 5").strip()
            # Once it takes its normal time, the run would end before SLURM looks at its queue.
            asked = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
            wait_for("the preemption", lambda: field.cluster.call(*asked).strip() != "PENDING", 120)

    return _disturbed(field, "preempt", act).result("preemption by a higher partition", ends=True)


def hung(field: Field) -> Result:
    def act(patient: Patient, key: str) -> None:
        patient.supervisor(key).children()[0].send_signal(signal.SIGSTOP)

    return _disturbed(field, "hang", act, *CAUTIOUS).result(
        "a trainer that hangs (SIGSTOP)", note="the watchdog's floor is 15 s here", ends=True
    )


def node_died(field: Field) -> Result:
    dead: list[str] = []

    def act(patient: Patient, key: str) -> None:
        node, supervisor = _node(patient, key), patient.supervisor(key)
        steps = [p for p in supervisor.parents() if p.name().startswith("slurmstepd")]
        if node not in dead:
            dead.append(node)
            field.daemons.kill("slurmd", node)
        for process in (*steps, supervisor, *supervisor.children(recursive=True)):
            _kill(process)

    patient = _disturbed(field, "node", act)
    for node in dead:
        field.daemons.start("slurmd", "-D", "-N", node)
    _wait_for_nodes(field)
    return patient.result("a node dies (slurmd and its job killed)", note="SlurmdTimeout is 10 s here", ends=True)


def slurmd_killed(field: Field) -> Result:
    dead: list[str] = []

    def act(patient: Patient, key: str) -> None:
        node = _node(patient, key)
        if node not in dead:
            dead.append(node)
            field.daemons.kill("slurmd", node)

    patient = _begun(field, "slurmd")
    patient.disturb(lambda key: act(patient, key))
    time.sleep(3.0)
    for node in dead:
        field.daemons.start("slurmd", "-D", "-N", node)
    patient.recovered()
    _wait_for_nodes(field)
    return patient.result("kill -9 of slurmd, back after 3 s")


def controller_killed(field: Field) -> Result:
    patient = _begun(field, "controller", slow=1.0)
    patient.at, patient.last = time.time(), {key: max(train_losses(patient.run(key))) for key in patient.keys}
    field.daemons.kill("slurmctld")
    time.sleep(1.0)
    during = {point["state"] for point in patient.lab.points("controller")}
    field.daemons.start_controller()
    patient.slow.unlink(missing_ok=True)
    patient.recovered()
    return patient.result("kill -9 of slurmctld, back after some s", note=f"meanwhile status says {_words(during)}")


def controller_away(field: Field) -> Result:
    """slurmctld is killed as sbatch is called; meanwhile trainers die, and another command submits."""
    patient = _begun(field, "away")
    patient.slow.write_text("600", encoding="utf-8")  # they must not be done before they are killed
    folder = field.lab.folder / "late"
    folder.mkdir()
    late = hasty(replace(field.lab, folder=folder)).with_trainer("quick")
    cut = killing_as_sbatch_is_called(late, field.daemons.pid("slurmctld"))
    away = time.monotonic()
    try:
        cut.sweep("study.name=cut", *TINY, "seed=0,1,2", code=2)
        patient.disturb(lambda key: patient.supervisor(key).children()[0].kill())
        late.sweep("study.name=late", *TINY, "seed=0,1,2")
        during = {point["state"] for study in ("cut", "late") for point in late.points(study)}
        wait_for("the trainers' ends", lambda: all(_first_ended(patient, key) for key in patient.keys), 120, every=1.0)
    finally:
        field.daemons.start_controller()
    seconds = time.monotonic() - away
    patient.recovered()
    wait_for("the others", lambda: not any(_alive(late, study) for study in ("cut", "late")), 180, every=2.0)
    ran = [times_run(late.run_folder(study, key)) for study in ("cut", "late") for key in late.keys(study)]
    result = patient.result(
        "slurmctld away, work goes on",
        note=f"away for {seconds:.0f} s from the moment that sbatch is called; trainers die and {len(ran)} more points "
        f"are submitted meanwhile, {_words(during)} until it is back; all go on by the next status",
    )
    twice, lost = sum(max(0, times - 1) for times in ran), ran.count(0)
    return replace(result, duplicates=result.duplicates + twice, lost=result.lost + lost)


def _first_ended(patient: Patient, key: str) -> bool:
    return (patient.run(key) / "attempts" / "1" / "outcome.json").exists()


def accounting_killed(field: Field) -> Result:
    """Accounting is away while runs end, one of them badly; it comes back seconds after."""
    patient = _begun(field, "accounting")
    field.daemons.kill("slurmdbd")
    patient.disturb(lambda key: patient.supervisor(key).children()[0].kill())
    time.sleep(5.0)
    during = {point["state"] for point in patient.lab.points("accounting")}
    patient.recovered()
    field.daemons.start("slurmdbd", "-D")
    wait_for("accounting", lambda: _says_something(field), 60, every=1.0)
    return patient.result("slurmdbd killed, and a trainer meanwhile", note=f"meanwhile status says {_words(during)}")


def shard_corrupted(field: Field) -> Result:
    def act(patient: Patient, key: str) -> None:
        newest = max((patient.run(key) / "checkpoints").glob("step-*"))
        shard = newest / "__0_0.distcp"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        patient.supervisor(key).children()[0].kill()

    patient = _begun(field, "shard", step=10)
    patient.disturb(lambda key: act(patient, key))
    patient.recovered()
    return patient.result(
        "a corrupted checkpoint shard, then a kill", note="the checkpoint before it is taken: 2 intervals"
    )


def nan_gradient(field: Field) -> Result:
    command = f"{sys.executable} -m tests.train.faults nan --step 8 --rank 0"
    lab = type(field.lab)(field.lab.folder, field.lab.corpus, field.lab.cluster, (("STUDY_TRAINER", command),))
    patient = Field(field.cluster, lab, field.reference, field.tries, field.daemons).patient("gradient", trainer="")
    patient.recovered()
    same = all(
        {s: loss for s, loss in train_losses(patient.run(key)).items() if s <= 8}
        == {s: loss for s, loss in field.reference[seed].items() if s <= 8}
        for seed, key in enumerate(patient._by_seed())
    )
    note = f"one update is skipped; until then {'bitwise the same' if same else 'NOT the same'}"
    return patient.result("a gradient of NaN", bitwise=False, note=note)


def memory_exhausted(field: Field) -> Result:
    patient = field.patient("memory", "cluster.mem_gb=0.8", trainer="hungry", HUNGRY=1000)
    patient.wait_for_step(5)
    patient.last, patient.at = dict.fromkeys(patient.keys, 5), time.time()
    patient.slow.unlink(missing_ok=True)
    patient.recovered()
    return patient.result("host memory runs out", note="the next job asks for half as much again")


def memory_group_exhausted(field: Field) -> Result:
    """The kernel kills the trainer, in a group of as much memory as its job was given."""
    with memory_groups(field.lab) as lab:
        if lab is None:
            return Result(OUT_OF_MEMORY, 0, 0, "-", "-", note="not tried: no memory groups can be made here")
        there = replace(field, lab=lab)
        patient = there.patient("group", "cluster.mem_gb=0.8", PREFIX, trainer="hungry", HUNGRY=1000, HUNGRY_TAKES=1)
        patient.wait_for_step(5)
        patient.last, patient.at = dict.fromkeys(patient.keys, 5), time.time()
        patient.slow.unlink(missing_ok=True)
        patient.recovered()
    return patient.result(OUT_OF_MEMORY, note="a group of as much memory as the job asked for")


def time_limit(field: Field) -> Result:
    patient = field.patient("limit", "cluster.time_minutes=1", slow=4.0)
    begun = time.monotonic()
    while time.monotonic() - begun < 120 and not any(
        (patient.run(key) / "attempts" / "1" / "outcome.json").exists() for key in patient.keys
    ):
        time.sleep(1.0)
    patient.at = time.time()
    patient.last = {key: max(train_losses(patient.run(key)), default=0) for key in patient.keys}
    patient.slow.unlink(missing_ok=True)
    patient.recovered()
    return patient.result("the time limit, with SLURM's warning")


def code_defect(field: Field) -> Result:
    """A defect is tried no second time by itself: that would only burn hours."""
    lab = field.lab.with_trainer("quick", QUICK_FAIL=0)
    lab.sweep("study.name=defect", *TINY, "seed=0,1,2")
    wait_for("the ends", lambda: not _alive(lab, "defect"), 120, every=2.0)
    points = {point["state"] for point in lab.points("defect")}
    attempts = [len(list((lab.run_folder("defect", key) / "attempts").iterdir())) for key in lab.keys("defect")]
    (failed,) = [p for p in lab.points("defect") if p["state"] == "failed"]
    return Result(
        "a defect in the code",
        tried=1,
        survived=int(points == {"completed", "failed"} and attempts == [1, 1, 1]),
        kinds=str(failed.get("kind") or failed["state"]),
        by="nobody",
        note="as designed: failed at once and left to a person, the other points completed",
    )


def _disturbed(field: Field, study: str, act: Act, *overrides: str) -> Patient:
    patient = _begun(field, study, *overrides)
    patient.disturb(lambda key: act(patient, key))
    patient.recovered()
    return patient


def _begun(field: Field, study: str, *overrides: str, slow: float = 0.7, step: int = 6) -> Patient:
    patient = field.patient(study, *overrides, slow=slow)
    patient.wait_for_step(step)
    return patient


def _jobs(patient: Patient, key: str) -> list[str]:
    arrays = patient.lab.job_ids(patient.study)
    index = next(e["keys"].index(key) for e in patient.lab.ledger(patient.study) if key in e.get("keys", ()))
    return [f"{arrays[-1]}_{index}"]


def _node(patient: Patient, key: str) -> str:
    return patient.supervisor(key).environ()["SLURMD_NODENAME"]


def _is_rank(process: psutil.Process, run: Path, rank: int) -> bool:
    """Whether it is the trainer of this rank of this run."""
    try:
        words = process.cmdline()
        return str(run / "config.yaml") in words and process.environ().get("RANK") == str(rank)
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _wait_for_nodes(field: Field) -> None:
    def idle() -> bool:
        said = field.cluster.call("sinfo", "--noheader", "--Node", "--partition=main", "--format=%t").split()
        return not any(state.startswith(("down", "unk", "drain")) or state.endswith("*") for state in said)

    wait_for("all nodes back", idle, 90, every=1.0)


def _says_something(field: Field) -> bool:
    try:
        field.cluster.call("sacct", "--noheader")
    except (RuntimeError, OSError):
        return False
    return True


def _alive(lab: object, study: str) -> bool:
    points = lab.points(study)  # type: ignore[attr-defined]
    return any(point["state"] in ("pending", "waiting", "queued", "running", "unknown") for point in points)


def _words(states: set[str]) -> str:
    return " and ".join(sorted(states)) or "nothing"
