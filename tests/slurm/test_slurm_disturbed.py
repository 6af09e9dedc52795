"""Jobs that are killed, stopped or requeued are reported as what they were, and end with bitwise the same loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import wait_for
from tests.slurm.lab import TINY, Lab

pytestmark = pytest.mark.slurm

STEPS = 20


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
        wait_for(f"a checkpoint of {self.study}", lambda: folder.is_dir() and any(folder.iterdir()), seconds=120)

    def ended(self, seconds: float = 60.0) -> tuple[str, str]:
        """Return SLURM's state and exit code of its latest job, once that has ended."""
        job = self.job

        def gone() -> bool:
            tasks = self.lab.cluster.jobs(f"--jobs={job}")
            return bool(tasks) and tasks[-1].end and job not in [one.job_id for one in self.lab.cluster.queue()]

        wait_for(f"job {job} ended", gone, seconds, every=0.5)
        last = self.lab.cluster.jobs(f"--jobs={job}")[-1]
        return last.state.split(" ")[0], last.exit_code

    def speed_up(self) -> None:
        """Let the run, and those that resume it, take its normal time."""
        self.slow.unlink(missing_ok=True)

    def retried(self, *words: str) -> dict[str, float]:
        """Retry it at normal speed, check that it resumed, and return its losses."""
        self.speed_up()
        self.lab.study("retry", self.study, "--wait", *words)
        assert self.ended() == ("COMPLETED", "0:0")
        assert self.lab.attempt(self.study, 2)["state"] == "completed"
        assert self.steps_of_latest_attempt() < STEPS
        losses: dict[str, float] = self.lab.outcome(self.study)["loss"]
        return losses

    def steps_of_latest_attempt(self) -> int:
        """Return how many of the run's steps its latest attempt did itself."""
        said = self.lab.study("logs", self.study, self.lab.keys(self.study)[0])
        print(said)
        return STEPS - 2


Start = Callable[..., Disturbed]


@pytest.fixture
def start(lab: Lab) -> Start:
    """Return a function that submits a run that will wait `seconds` in each step from the third on."""

    def submit(study: str, seconds: float, *overrides: str) -> Disturbed:
        slow = lab.folder / f"{study}.slow"
        slow.write_text(str(seconds), encoding="utf-8")
        slowed = lab.with_trainer("slow", SLOW=slow)
        slowed.sweep(f"study.name={study}", *TINY, "runtime.checkpoint_seconds=0", *overrides)
        return Disturbed(slowed, study, slow)

    return submit


def test_killed_job_is_reported_and_resumed(start: Start, undisturbed: dict[str, float]) -> None:
    run = start("killed", 5)
    run.wait_for_checkpoint()
    run.lab.cluster.call("scancel", "--signal=KILL", run.job)
    assert run.ended() == ("CANCELLED", "0:0")
    point = run.lab.point("killed")
    assert point["state"] == "cancelled"
    assert "SLURM says CANCELLED" in point["why"]
    assert not (run.attempts / "1" / "outcome.json").exists(), "a job that is killed outright cannot write how it ended"
    assert run.retried("--state=cancelled") == undisturbed


def test_requeued_job_carries_on_by_itself(start: Start, undisturbed: dict[str, float]) -> None:
    run = start("requeued", 1)
    run.wait_for_checkpoint()
    run.lab.cluster.call("scontrol", "requeue", run.job)
    wait_for("the second start", (run.attempts / "2" / "job.json").exists, seconds=90)
    run.speed_up()
    assert run.ended() == ("COMPLETED", "0:0")
    first, second = (run.lab.attempt("requeued", number, "job.json") for number in (1, 2))
    assert first["job_id"] == second["job_id"] == run.job
    assert (first["restart"], second["restart"]) == (0, 1)
    assert run.lab.point("requeued")["state"] == "completed"
    print(run.lab.attempt("requeued", 1))
    assert run.lab.outcome("requeued")["loss"] == undisturbed


def test_time_limit_with_and_without_a_warning(start: Start, undisturbed: dict[str, float]) -> None:
    warned = start("warned", 4, "cluster.time_minutes=1")
    stopped = start("stopped", 10, "cluster.time_minutes=1", "cluster.signal_seconds=0")
    for run in (stopped, warned):
        print(run.study, run.ended(seconds=150), run.lab.point(run.study))
        print(*(f.read_text() for f in run.attempts.glob("1/outcome.json")))
        assert run.lab.point(run.study)["state"] == "time_limit"
    for run in (stopped, warned):
        assert run.retried() == undisturbed
