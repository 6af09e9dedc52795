"""Running the trainer of one attempt to its end: its environment, watching for hangs, and how it ended."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import study
from study.executors.base import RankInfo
from study.failures.kinds import INTERRUPTED, AttemptState, Ending, Evidence, Kind, by_words, classify, headline, root
from study.job.hang_watch import FLOOR_SECONDS, START_SECONDS, Bounds, Watch
from study.job.rendezvous import RendezvousRound
from study.process.children import PEERS_GRACE, Signals, Started, failed_alone, kill, memory_kills, wait_together
from study.process.trainers import FRESH, Trainers, TrainerStart
from study.records import ledger, shapes
from study.storage.files import last_lines, tail, write_json
from study.storage.layout import AttemptFolder, RunFolder, StudyFolder
from study.storage.room import is_full
from study.storage.shapes import read_record

WORDS_BYTES = 65536
PEERS_MARGIN = 60.0
"""How much later than the ranks' own timeout this process takes them to hang [s]."""
FIRST_SECONDS = 2 * PEERS_GRACE + 30.0
"""How long other ranks wait for the first one to write how the attempt ended [s]."""
JOB_BEGAN = "STUDY_JOB_BEGAN"
"""Variable that says when a job began whose points run one after the other [s, time.monotonic of its node]."""


@dataclass(frozen=True)
class JobContext:
    """One rank's part in training one key of a batch; `until` [tokens]: where to pause, None: at the budget.

    unit: number of the search's claim, where one job trains several. next_target: called when the trainer has paused;
    it returns the tokens to train on to, or None to end the trainer. Where it is None itself, the trainer ends.
    trainers: how the trainer of a run of one process is started.
    """

    study: StudyFolder
    batch: ledger.Batch
    key: str
    rank_info: RankInfo
    until: int | None = None
    unit: int | None = None
    next_target: Callable[[], int | None] | None = None
    trainers: Trainers = FRESH

    @property
    def run(self) -> RunFolder:
        """The run's folder."""
        return self.study.run(self.key)

    @property
    def resources(self) -> Mapping[str, Any]:
        """What the batch was given."""
        return self.batch.resources

    @property
    def cancelled(self) -> bool:
        """Whether the point is not wanted any more."""
        return self.key in ledger.read(self.study).cancelled


@dataclass(frozen=True)
class TrainerExit:
    """How a trainer ended: Popen's return code, why it was taken to hang, and out-of-memory kills meanwhile."""

    returncode: int
    hang: str | None = None
    memory_kills: int = 0


def finished(run: RunFolder) -> Ending | None:
    """Return the ending that a run's outcome.json stands for; None where there is none."""
    outcome = read_record(run.outcome, shapes.RUN_OUTCOME)
    return (
        None
        if outcome is None
        else Ending(Kind.DIVERGED if outcome.get("state") == AttemptState.DIVERGED else Kind.COMPLETED)
    )


def run_trainer(
    work: JobContext,
    config: Mapping[str, Any],
    this_round: RendezvousRound,
    signals: Signals,
    *,
    inherit: tuple[int, ...] = (),
) -> TrainerExit:
    """Run the trainer until it or its rendezvous round is over; of several ranks here, return the first one's exit."""
    attempt, job = this_round.attempt, this_round.job
    runtime = config.get("runtime", {})
    here = work.rank_info
    # SLURM starts a job like this one for each rank; on this machine this one starts them all.
    rank_infos = [here]
    if here.starts_ranks:
        rank_infos = [replace(here, rank=rank, local_rank=rank) for rank in range(here.world)]
    started, kills = time.monotonic(), memory_kills()
    processes: dict[int, Started] = {}
    for rank_info in rank_infos:
        environment = trainer_environment(rank_info, job, int(runtime.get("threads", 1)), os.environ, attempt)
        if work.next_target is not None:
            environment["PAUSE"] = str(attempt.pause.absolute())
        out, err = attempt.stdout(rank_info.rank), attempt.stderr(rank_info.rank)
        start = TrainerStart(work.run.config, work.until, environment, out, err, inherit)
        processes[rank_info.rank] = (work.trainers if here.world == 1 else FRESH).start(start)
        signals.watch(processes[rank_info.rank])
    watch = Watch(work.run, attempt, here.world, bounds(work, runtime))
    elsewhere = [attempt.rank(rank) for rank in range(here.world) if rank not in processes] if here.first else []
    pauses = Pauses(attempt, work.next_target) if here.first else None

    def look() -> bool:
        if pauses is not None:
            pauses.look()
        if this_round.taken(processes[here.rank].returncode) or this_round.over() is not None:
            kill(processes)
        return watch.look(processes)

    first = wait_together(processes, look, lambda: any(p.exists() for p in elsewhere))
    kills = memory_kills() - kills
    if first is not None and not this_round.taken(processes[here.rank].returncode):
        # Ranks fail together: each one's stderr says whether it caused the failure or lost its peer.
        for rank in sorted({first, *failed_alone(processes)} - {here.rank}):
            ended = TrainerExit(_code(processes[rank]), watch.hang, kills)
            ending = conclude_rank(work, attempt, ended, signals, rank=rank, started=started)
            if ending.state == AttemptState.FAILED:
                write_json(attempt.rank(rank), record(attempt, ending, started, rank))
    return TrainerExit(_code(processes[here.rank]), watch.hang, kills)


def _code(ended: Started) -> int:
    assert ended.returncode is not None
    return ended.returncode


class Pauses:
    """Answers a trainer that has paused (see train.runtime.pause)."""

    def __init__(self, attempt: AttemptFolder, next_target: Callable[[], int | None] | None) -> None:
        self._asked = attempt.pause.with_name(f"{attempt.pause.name}.asked")
        self._answer = attempt.pause.with_name(f"{attempt.pause.name}.answer")
        self._next_target, self._answered = next_target, 0

    def look(self) -> None:
        """Answer if there is a new question."""
        asked = read_record(self._asked, shapes.PAUSE)
        if asked is None or asked["number"] <= self._answered:
            return
        self._answered = asked["number"]
        until = None if self._next_target is None else self._next_target()
        write_json(self._answer, {"number": self._answered, "until": until})


def bounds(work: JobContext, runtime: Mapping[str, Any]) -> Bounds:
    """Return how long the run may make no progress: the cluster's floor, and the config's limit for its start."""
    floor = work.resources.get("hang_floor_seconds", FLOOR_SECONDS)
    peers = float(runtime.get("timeout_seconds", 600.0)) + PEERS_MARGIN if work.rank_info.world > 1 else 0.0
    return Bounds(float(floor), float(runtime.get("start_seconds", START_SECONDS)), peers)


def trainer_environment(
    rank_info: RankInfo,
    job: Mapping[str, Any],
    threads: int,
    inherited: Mapping[str, str],
    attempt: AttemptFolder | None = None,
) -> dict[str, str]:
    """Return the trainer's environment: torchrun's variables if there are several ranks, none of them for one."""
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    others = (*ours, "SLURM_STEP_NUM_TASKS")  # by which a trainer that srun starts itself knows its ranks
    environment = {name: value for name, value in inherited.items() if name not in others}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[name] = str(threads)
    if job.get("code"):  # for the manifests of checkpoints
        changed = " (changed since)" if job.get("source") == "other" else ""
        environment["CODE_VERSION"] = f"{job['code']}{changed}"
    root = str(Path(study.__file__).resolve().parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, inherited.get("PYTHONPATH")) if p)
    if attempt is not None:
        environment["HEARTBEAT"] = str(attempt.beat(rank_info.rank).absolute())
        environment["HEARTBEAT_WHERE"] = inherited.get("SLURMD_NODENAME") or str(job.get("host", ""))
    if rank_info.world > 1:
        values = (rank_info.rank, rank_info.world, rank_info.local_rank, job["address"], job["port"])
        environment.update(zip(ours, map(str, values), strict=True))
        if attempt is not None:  # where NCCL's flight recorder writes when a collective times out
            traces = str(attempt.path.absolute() / "nccl-trace-rank-")
            environment.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", traces)
    return environment


def classify_attempt(
    work: JobContext, attempt: AttemptFolder, ran: TrainerExit, signals: Signals, started: float
) -> Ending:
    """Return how the attempt ended; another rank's failure comes before what the first rank saw of it."""
    if ran.returncode == 0 and work.until is not None and finished(work.run) is None:
        return Ending(Kind.PAUSED, 0)
    ending = conclude_rank(work, attempt, ran, signals, rank=0, started=started)
    peers = [p for p in (read_record(attempt.rank(r), shapes.RANK_END) for r in range(1, work.rank_info.world)) if p]
    if ending.state in (AttemptState.COMPLETED, AttemptState.DIVERGED) or not peers:
        return ending
    peers.sort(key=lambda peer: float(peer["ended"]))
    told = [
        Ending(
            Kind(peer.get("kind", "unknown")),
            peer.get("exit_code"),
            peer.get("signal"),
            f"rank {peer['rank']}: {peer['error']}",
            f"rank {peer['rank']}: {peer.get('headline') or headline(str(peer['error']))}",
            int(peer["rank"]),
        )
        for peer in peers
    ]
    return root([ending, *told] if ending.kind == Kind.HANG else [*told, ending])


def conclude_rank(
    work: JobContext, attempt: AttemptFolder, ran: TrainerExit, signals: Signals, *, rank: int, started: float
) -> Ending:
    """Return how one rank ended, without regard to the others."""
    outcome = finished(work.run)
    ending = classify(
        Evidence(
            returncode=ran.returncode,
            received=tuple(signals.received),
            outcome=outcome.state if outcome else AttemptState.COMPLETED if rank else None,
            cancelled=work.cancelled,
            time_left=time_left(work, started),
            notice=float(work.resources.get("signal_seconds") or 0.0),
            stderr=tail(attempt.stderr(rank), WORDS_BYTES),
            hang=ran.hang,
            memory_kills=ran.memory_kills,
        )
    )
    if ending.kind in (Kind.UNKNOWN, Kind.CODE_ERROR, Kind.KILLED, Kind.DISK_FULL):
        full = next((path for path in (work.run.path, Path(tempfile.gettempdir())) if is_full(path)), None)
        if full == work.run.path or (full and ending.kind == Kind.DISK_FULL):
            return replace(ending, kind=Kind.DISK_FULL, why=f"no space left in {full}")
    return ending


def told_to_end(work: JobContext, signals: Signals, started: float) -> Ending:
    """Return the ending of an attempt that was told to end before its trainer started."""
    left, notice = time_left(work, started), float(work.resources.get("signal_seconds") or 0.0)
    seen = Evidence(INTERRUPTED, tuple(signals.received), cancelled=work.cancelled, time_left=left, notice=notice)
    return classify(seen)


def not_run(error: OSError) -> Ending:
    """Return the ending of an attempt whose trainer could not be started."""
    kind = by_words(str(error))
    return Ending(Kind.BAD_CONFIG if kind == Kind.UNKNOWN else kind, why=f"the trainer could not be run: {error}")


def time_left(work: JobContext, started: float) -> float | None:
    """Return the seconds to the job's time limit; None where there is none.

    started: of the attempt, by time.monotonic, as a node's clock may be set meanwhile. The job began then too, unless
    it has trained other points before (JOB_BEGAN).
    """
    return left_of(work.resources, float(os.environ.get(JOB_BEGAN, started)))


def left_of(resources: Mapping[str, Any], began: float) -> float | None:
    """Return the seconds to the time limit of a job that began at `began`, by time.monotonic; None without a limit."""
    minutes = resources.get("time_minutes")
    return None if minutes is None else began + 60 * float(minutes) - time.monotonic()


def record(attempt: AttemptFolder, ending: Ending, started: float, rank: int) -> dict[str, Any]:
    """Return what the outcome file of an attempt, or of one of its ranks, says. Secrets are left out.

    Where an attempt's end follows from another rank's, that rank and its words alone are written: those of the ranks
    that lost it say nothing of the cause. started: by time.monotonic.
    """
    from study.storage.secrets import redactor, scrub

    failed = ending.state == AttemptState.FAILED
    for path in (attempt.stdout(rank), attempt.stderr(rank)):
        scrub(path, os.environ)
    text = tail(attempt.stderr(rank), WORDS_BYTES)
    said = last_lines(attempt.stderr(rank)) if failed and ending.rank is None else []
    error = "\n".join([*([ending.why] if ending.why else []), *said]) or None
    hide = redactor(os.environ)
    return {
        "state": ending.state,
        "kind": ending.kind,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "ended": round(time.time(), 3),
        "seconds": round(time.monotonic() - started, 3),
        "headline": hide(_says_most(ending, text)) if failed else None,
        "error": None if error is None else hide(error),
        "rank": rank if ending.rank is None else ending.rank,
    }


def _says_most(ending: Ending, text: str) -> str:
    """Return a failure's one-line summary: of the rank that caused it; for a killed one its signal, not its stderr."""
    if ending.headline:
        return ending.headline
    # Who aborts has said why. Whatever else had no last word: its stderr ends with warnings.
    speechless = ending.signal not in (None, signal.SIGABRT) or ending.kind in (Kind.KILLED, Kind.HANG, Kind.NO_OUTCOME)
    if ending.why and speechless:
        return ending.why
    return headline(text) or ending.why or ""


def wait_for_first(attempt: AttemptFolder) -> bool:
    """Wait until the first rank has written how the attempt ended; False if it does not.

    SLURM kills a job's other tasks as soon as one of them fails: the first must have written its outcome by then.
    """
    limit = time.monotonic() + FIRST_SECONDS
    while not attempt.outcome.exists():
        if time.monotonic() > limit:
            return False
        time.sleep(0.2)
    return True
