"""Jobs that are killed, stopped or requeued are reported as what they were, and end with bitwise the same loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import LIMIT_SECONDS, wait_for
from tests.slurm.lab import LOOK_SECONDS, TINY, Lab

pytestmark = pytest.mark.slurm


@dataclass(frozen=True)
class Disturbed:
    """A run on SLURM that is slow enough to be disturbed in its third step."""

    lab: Lab
    study: str
    slow: Path

    @property
    def job(self) -> str:
        """Id of its latest array task."""
        return f"{self.lab.job_ids(self.study)[-1]}_0"

    @property
    def attempts(self) -> Path:
        """Folder of its attempts."""
        return self.lab.run_folder(self.study) / "attempts"

    def wait_for_checkpoint(self) -> None:
        """Wait until there is something to resume from."""
        folder = self.lab.run_folder(self.study) / "checkpoints"
        wait_for(f"a checkpoint of {self.study}", lambda: any(folder.glob("step*/manifest.json")))

    def ended(self, seconds: float = LIMIT_SECONDS) -> tuple[str, str]:
        """Return SLURM's state and exit code of its latest job, once that has ended."""
        job = self.job

        def gone() -> bool:
            if job in [one.job_id for one in self.lab.cluster.queue()]:
                return False  # accounting, which takes several times as long to ask, would say no more
            tasks = self.lab.cluster.jobs(f"--jobs={job}")
            return bool(tasks) and tasks[-1].end

        wait_for(f"job {job} ended", gone, seconds, every=LOOK_SECONDS)
        last = self.lab.cluster.jobs(f"--jobs={job}")[-1]
        return last.state.split(" ")[0], last.exit_code

    def completed(self, seconds: float = LIMIT_SECONDS) -> dict[str, float]:
        """Wait until it has an outcome, check that status says so, and return its losses."""
        wait_for(f"the outcome of {self.study}", (self.lab.run_folder(self.study) / "outcome.json").exists, seconds)
        assert self.lab.point(self.study)["state"] == "completed"
        losses: dict[str, float] = self.lab.outcome(self.study)["loss"]
        return losses

    def speed_up(self) -> None:
        """Let the run, and those that resume it, take its normal time."""
        self.slow.unlink(missing_ok=True)

    def retried(self, *words: str, times: int = 1) -> dict[str, float]:
        """Retry it at normal speed, check that it resumed, and return its losses.

        times: how often at most, where its job's time limit ends it again.
        """
        self.speed_up()
        resuming = self.lab.with_warm_trainer("slow", SLOW=self.slow)
        last = 1
        for _ in range(times):
            last += 1
            resuming.study("retry", self.study, *words)
            ended = self.ended()
            if self.lab.point(self.study)["state"] != "time_limit":  # an attempt killed early has written nothing
                break
        assert ended == ("COMPLETED", "0:0")
        assert self.lab.attempt(self.study, last)["state"] == "completed"
        assert "resumed from step" in self.lab.study("logs", self.study, self.lab.keys(self.study)[0])
        losses: dict[str, float] = self.lab.outcome(self.study)["loss"]
        return losses

    @property
    def supervisor(self) -> psutil.Process:
        """The process of its first attempt that started the trainer."""
        return psutil.Process(self.lab.attempt(self.study, 1, "job.json")["pid"])


Start = Callable[..., Disturbed]


@pytest.fixture
def start(lab: Lab) -> Start:
    """Return a function that submits a run that will wait `seconds` in each step from the third on.

    Its process is fresh, as what is killed outright should be, or `warm`.
    """

    def submit(study: str, seconds: float, *overrides: str, warm: bool = False) -> Disturbed:
        slow = lab.folder / f"{study}.slow"
        slow.write_text(str(seconds), encoding="utf-8")
        slowed = (lab.with_warm_trainer if warm else lab.with_trainer)("slow", SLOW=slow)
        slowed.sweep(f"study.name={study}", *TINY, "runtime.checkpoint_seconds=0", *overrides)
        return Disturbed(slowed, study, slow)

    return submit


def test_job_killed_by_scancel(start: Start, undisturbed: dict[str, float]) -> None:
    run = start("killed", 5)
    run.wait_for_checkpoint()
    run.lab.cluster.call("scancel", "--signal=KILL", run.job)
    assert run.ended() == ("CANCELLED", "0:0")
    assert run.lab.point("killed")["state"] == "cancelled"
    outcome = run.attempts / "1" / "outcome.json"
    # SLURM sends SIGTERM ahead of SIGKILL: the attempt may have had the time to end on its own.
    assert not outcome.exists() or run.lab.attempt("killed", 1)["state"] == "interrupted"
    assert run.retried("--state=cancelled") == undisturbed


def test_trainer_killed_outright(start: Start, undisturbed: dict[str, float]) -> None:
    run = start("trainer", 5)
    run.wait_for_checkpoint()
    (trainer,) = run.supervisor.children()
    run.speed_up()
    trainer.kill()
    assert run.completed() == undisturbed
    first = run.lab.attempt("trainer", 1)
    assert (first["state"], first["kind"], first["signal"]) == ("failed", "killed", 9)
    assert "killed by signal 9 (SIGKILL" in first["error"]
    assert run.lab.attempt("trainer", 2, "job.json")["restart"] == 1, "its job requeued itself"


def test_everything_of_a_job_killed_outright(start: Start, undisturbed: dict[str, float]) -> None:
    run = start("all", 5)
    run.wait_for_checkpoint()
    supervisor = run.supervisor
    run.speed_up()
    for process in (supervisor, *supervisor.children()):
        process.kill()
    assert run.ended()[0] == "FAILED"
    run.lab.study("status", "all")
    assert run.completed() == undisturbed
    assert not (run.attempts / "1" / "outcome.json").exists(), "nobody was left to write how it ended"
    (end,) = [event for event in run.lab.ledger("all") if event["event"] == "ended"]
    assert (end["kind"], end["action"]) == ("killed", "again"), "the first look at it has seen to it"


def test_requeued_job_carries_on_by_itself(start: Start, undisturbed: dict[str, float]) -> None:
    run = start("requeued", 3)
    run.wait_for_checkpoint()
    run.lab.cluster.call("scontrol", "requeue", run.job)
    wait_for("the second start", (run.attempts / "2" / "job.json").exists)
    run.speed_up()
    assert run.ended() == ("COMPLETED", "0:0")
    first, second = (run.lab.attempt("requeued", number, "job.json") for number in (1, 2))
    assert first["job_id"] == second["job_id"] == run.job
    assert (first["restart"], second["restart"]) == (0, 1)
    assert run.lab.point("requeued")["state"] == "completed"
    assert run.lab.outcome("requeued")["loss"] == undisturbed


def test_time_limit_with_and_without_a_warning(start: Start, undisturbed: dict[str, float]) -> None:
    warned = start("warned", 4, "cluster.time_minutes=1", warm=True)
    # 18 minutes of steps: however late a busy SLURM is to end it, it does not complete first.
    stopped = start("stopped", 60, "cluster.time_minutes=1", "cluster.signal_seconds=0", warm=True)
    by_hand = start("by_hand", 4, "cluster.time_minutes=1", "retry=never", warm=True)
    assert by_hand.ended() == ("FAILED", "75:0"), "told in time, it saved a checkpoint and ended by itself"
    warned.speed_up()
    assert by_hand.lab.point("by_hand")["state"] == "time_limit"
    assert stopped.ended()[0] == "TIMEOUT"
    for run in (stopped, warned):
        run.speed_up()
        run.lab.study("status", run.study)
        assert run.completed() == undisturbed
        ends = [event for event in run.lab.ledger(run.study) if event["event"] == "ended"]
        assert {(end["kind"], end["action"]) for end in ends} == {("time_limit", "again")}
    assert warned.lab.attempt("warned", 1)["state"] == "time_limit"
    assert warned.lab.attempt("warned", 2, "job.json")["restart"] == 1, "the warned one requeued itself"
    assert len(stopped.lab.job_ids("stopped")) > 1, "the other one was submitted again by the first look at it"
    assert by_hand.retried(times=4) == undisturbed  # a minute may be too short on a busy machine
