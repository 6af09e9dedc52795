"""Where everything of a study lies on disk: the one place that knows file names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ATTEMPTS, JOB, OUTCOME = "attempts", "job.json", "outcome.json"
"""Names for a look at thousands of runs, which joins them as text: to build a Path takes as long as to read a file."""


@dataclass(frozen=True)
class RunFolder:
    """`runs/<study>/<key>/`: one point being advanced."""

    path: Path

    @property
    def config(self) -> Path:
        """The frozen config of the run, written before its first attempt."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Append-only metrics, one JSON object a line, strictly increasing in `step` and `kind`."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Complete checkpoints, one folder each."""
        return self.path / "checkpoints"

    @property
    def outcome(self) -> Path:
        """What the trainer reached, written once by atomic rename when the budget is reached."""
        return self.path / OUTCOME

    @property
    def reserve(self) -> Path:
        """Room on the disk while an attempt runs, so that it can say in the end that the disk was full."""
        return self.path / "reserve"

    @property
    def lock(self) -> Path:
        """Held by the attempt that is advancing the run."""
        return self.path / "lock"

    @property
    def left_to(self) -> Path:
        """Which job found last that another attempt still had the run, and left it to that."""
        return self.path / "held.json"

    @property
    def attempts(self) -> Path:
        """Numbered attempts, one job each."""
        return self.path / ATTEMPTS

    def attempt(self, number: int) -> AttemptFolder:
        """Return the folder of attempt `number`, counted from 1."""
        return AttemptFolder(self.attempts / str(number))


@dataclass(frozen=True)
class AttemptFolder:
    """`runs/<study>/<key>/attempts/<n>/`: one job's try at advancing a run."""

    path: Path

    @property
    def job(self) -> Path:
        """Job id, executor, node list, process ids, start time: written when the attempt begins."""
        return self.path / JOB

    @property
    def outcome(self) -> Path:
        """How the attempt ended, by atomic rename; absent while it runs or when it was killed outright."""
        return self.path / OUTCOME

    @property
    def pause(self) -> Path:
        """Beginning of the names of two files by which a paused trainer asks whether to go on (train.runtime.pause)."""
        return self.path / "pause"

    def rank(self, rank: int) -> Path:
        """How a rank other than the first failed; absent unless it did."""
        return self.path / f"rank-{rank}.json"

    @property
    def hang(self) -> Path:
        """Why the attempt was taken to hang and killed; absent unless it was."""
        return self.path / "hang.json"

    def stacks(self, rank: int) -> Path:
        """Where every thread of a rank stood when it was taken to hang."""
        return self.path / f"stacks.{rank}"

    def beat(self, rank: int) -> Path:
        """What a rank says of itself while it runs: train.runtime.heartbeat."""
        return self.path / f"beat.{rank}"

    def stdout(self, rank: int) -> Path:
        """Standard output of a rank."""
        return self.path / ("stdout" if rank == 0 else f"stdout.{rank}")

    def stderr(self, rank: int) -> Path:
        """Standard error of a rank."""
        return self.path / ("stderr" if rank == 0 else f"stderr.{rank}")


@dataclass(frozen=True)
class StudyFolder:
    """`runs/<study>/`: all points of a study, what was wanted of them and what was submitted."""

    path: Path

    @property
    def name(self) -> str:
        """The study's name."""
        return self.path.name

    @property
    def points(self) -> Path:
        """Frozen points, one JSON object a line: `{"key", "config", "overrides"}`; append-only."""
        return self.path / "points.jsonl"

    @property
    def ledger(self) -> Path:
        """Events of submission, one JSON object a line; append-only."""
        return self.path / "ledger.jsonl"

    @property
    def outcomes(self) -> Path:
        """Every finished run's outcome, one JSON object a line: what the fit depends on."""
        return self.path / "outcomes.jsonl"

    @property
    def latest(self) -> Path:
        """Keys of the points that the latest command asked for: a study keeps what earlier ones made."""
        return self.path / "latest.json"

    @property
    def lock(self) -> Path:
        """Held while the ledger or the points are appended to."""
        return self.path / "ledger.lock"

    @property
    def submitting(self) -> Path:
        """Held while a process submits: a second one waits instead of judging a half-made submission."""
        return self.path / "submit.lock"

    @property
    def reserve(self) -> Path:
        """Room on the disk while a job is submitted, to write down what became of it."""
        return self.path / ".reserve"

    @property
    def room(self) -> Path:
        """What runs that have begun may still write, an empty file each (see study.storage.room_taken)."""
        return self.path / "room"

    @property
    def room_lock(self) -> Path:
        """Held while a run takes its room on the disk."""
        return self.path / "room.lock"

    @property
    def last_job_lock(self) -> Path:
        """Held by the one job that tries for a while to submit what waits, all others of the study having ended."""
        return self.path / "last.lock"

    @property
    def staying_lock(self) -> Path:
        """Held by the one job that stays for a moment until others that end with it have left room."""
        return self.path / "staying.lock"

    @property
    def queue_note(self) -> Path:
        """When the scheduler was last asked for room, and why points still wait; it may be deleted."""
        return self.path / "feed.json"

    @property
    def peers_checked(self) -> Path:
        """Touched when a job of the study last looked after the others as it ended; it may be deleted."""
        return self.path / ".looked"

    @property
    def status_cache(self) -> Path:
        """What earlier looks found of points that can change no more (see study.status.cache); it may be deleted."""
        return self.path / "settled.json"

    @property
    def limits(self) -> Path:
        """What the scheduler last said of its limits; it may be deleted."""
        return self.path / "limits.json"

    @property
    def controller(self) -> Path:
        """Held by the one process of this machine that starts the study's local runs."""
        return self.path / "local.lock"

    @property
    def study(self) -> Path:
        """The study's own config (cluster, search, tracking) of its latest submission."""
        return self.path / "study.yaml"

    @property
    def code(self) -> Path:
        """Code versions that were submitted: `<git sha>-<diff hash>.json` and `.patch`."""
        return self.path / "code"

    @property
    def jobs(self) -> Path:
        """Submission scripts and the schedulers' own logs."""
        return self.path / "jobs"

    @property
    def search(self) -> Path:
        """What a search is (space, scheduler, limits); absent in a study whose points are all known beforehand."""
        return self.path / "search.json"

    @property
    def rank_sync(self) -> Path:
        """What the first rank of a search's worker told its other ranks, one file a job."""
        return self.path / "crews"

    @property
    def events(self) -> Path:
        """The search's event log (see study.search.event_log): what was handed out and what came of it; append-only."""
        return self.path / "events.log"

    @property
    def events_lock(self) -> Path:
        """Held while a worker reads the event log, decides and appends."""
        return self.path / "events.lock"

    @property
    def optuna(self) -> Path:
        """The search as an Optuna study, filled from its log by commands; it may be deleted."""
        return self.path / "optuna.db"

    @property
    def optuna_lock(self) -> Path:
        """Held by the process that fills it."""
        return self.path / "optuna.lock"

    @property
    def leases(self) -> Path:
        """One file for each unit under way, written again and again by its worker."""
        return self.path / "leases"

    @property
    def tracking(self) -> Path:
        """How far each tracking store has been brought: an optimisation of the syncer, it may be deleted."""
        return self.path / "tracking.json"

    @property
    def tracking_lock(self) -> Path:
        """Held by a syncer while it writes to a tracking store."""
        return self.path / "tracking.lock"

    def run(self, key: str) -> RunFolder:
        """Return the folder of the run with this point key."""
        return RunFolder(self.path / key)
