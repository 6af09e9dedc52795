"""What a SLURM task or a local slot runs: `python -m study.job runs/STUDY --name BATCH [--index I]`.

It claims an attempt of one point, keeps the run's lock, starts the trainer, passes signals on and writes down how it
ended. It needs only the study's folder, so an array is complete the moment that sbatch returns. Exit codes: 0
completed, 3 diverged, 75 interrupted (resumable), 76 another attempt is advancing the run, 77 not wanted any more, or
not now for want of room on the disk, 128+n killed by signal n, else the trainer's own.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import study
from study.executors import load
from study.failures.kinds import HELD, AttemptState, Ending, Kind
from study.job.attempt import (
    JobContext,
    TrainerExit,
    classify_attempt,
    conclude_rank,
    finished,
    not_run,
    record,
    run_trainer,
    told_to_end,
    wait_for_first,
)
from study.job.interruption import ask_scheduler, wait_for_signal
from study.job.peers import is_time_to_look
from study.job.rendezvous import RendezvousRound, rendezvous
from study.planning.ranks import local_world
from study.process import code_snapshot
from study.process.children import Signals
from study.process.trainers import FRESH, Trainers
from study.records import ledger
from study.records.attempts import claim, process_identity
from study.records.checkpoints import pin
from study.records.point import find_point, has_branches
from study.records.shapes import JOB
from study.status.states import TURN_NEVER_CAME
from study.storage import room_taken
from study.storage.files import DiskReserve, RunLock, write_atomic, write_json
from study.storage.layout import AttemptFolder, StudyFolder
from study.storage.shapes import read_record

__all__ = ["HELD", "NOT_WANTED", "JobContext", "main", "run_first_rank", "run_other_rank"]

NOT_WANTED = 77
LOCK_SECONDS = 60.0
PEERS_SECONDS = 300.0
POLL_SECONDS = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Run one attempt and return the exit code that agrees with how it ended."""
    parser = argparse.ArgumentParser(prog="python -m study.job", description="Advance one point of a submitted batch.")
    parser.add_argument("folder", type=Path, help="the study's folder")
    parser.add_argument("--name", required=True, help="the batch's name in the ledger")
    parser.add_argument("--index", type=int, help="the job's place in the batch; default: as its executor numbered it")
    parser.add_argument("--slot", type=int, help="the point's place in a packed job; without it all are run")
    given = parser.parse_args(arguments)
    signals = Signals()
    signals.install()
    study = StudyFolder(given.folder.absolute())
    try:
        return _advance(study, given, signals)
    except OSError:
        if study.path.is_dir():
            raise
        print(
            f"study.job: {study.path} is gone: it was moved or removed after this job was submitted. Where the study "
            "is now, python -m study retry resumes its points",
            file=sys.stderr,
        )
        return 1


def _advance(study: StudyFolder, given: argparse.Namespace, signals: Signals) -> int:
    """Advance the point, or the points, of this job."""
    if not study.path.is_dir():
        raise FileNotFoundError(study.path)
    state = ledger.read(study)
    batch = state.batches.get(given.name)
    if batch is None:
        print(f"{study.ledger} has no batch {given.name!r}", file=sys.stderr)
        return NOT_WANTED
    executor = load(batch.executor)
    info = executor.rank_info(os.environ)
    index = info.index if given.index is None else given.index
    keys = batch.of_task(index)
    if not (given.slot or 0) < len(keys):
        print(f"{study.ledger} has no batch {given.name!r} with index {index}", file=sys.stderr)
        return NOT_WANTED
    if batch.points > 1 and given.slot is None:
        from study.job import packed

        code = packed.run_packed(study, batch, index, signals)
    else:
        code = run(study, state, batch, keys[given.slot or 0], signals)
    if executor.detached and given.slot is None and info.first:
        send_next(study, keys, told_to_end=bool(signals.received))
    return code


def run(
    study: StudyFolder,
    state: ledger.Ledger,
    batch: ledger.Batch,
    key: str,
    signals: Signals,
    *,
    trainers: Trainers = FRESH,
) -> int:
    """Run this process's part of one point, if it is still wanted; return the exit code."""
    why = unwanted(state, batch, key)
    if why:
        print(f"{key}: nothing to do: {why}", file=sys.stderr)
        return NOT_WANTED
    world = local_world(find_point(study, key).raw.get("parallel") or {}, _tasks(batch))
    rank_info = load(batch.executor).rank_info(os.environ, world)
    work = JobContext(study, batch, key, rank_info, trainers=trainers)
    done = finished(work.run)
    if done is not None:
        print(f"{key}: the run is {done.state} already")
        return done.code
    if not work.rank_info.first:
        return run_other_rank(work, signals)
    from study.job import disk_room

    if disk_room.left_unstarted(work, state):
        return NOT_WANTED
    try:
        return run_first_rank(work, signals)
    finally:
        room_taken.give_back(study, key)


def _tasks(batch: ledger.Batch) -> int:
    """Return how many processes a run of a batch was given; what runs on this machine has them said as one number."""
    asked = batch.resources
    return int(asked.get("tasks") or int(asked.get("nodes") or 1) * int(asked.get("tasks_per_node") or 1))


def unwanted(state: ledger.Ledger, batch: ledger.Batch, key: str) -> str | None:
    """Return why a job must not run its point: the fence for a submission that arrived after it was abandoned."""
    if batch.abandoned is not None:
        return f"batch {batch.name} was abandoned ({batch.abandoned})"
    if key in state.cancelled:
        return "the point was cancelled"
    if state.current.get(key) != batch.name:
        return f"the point now belongs to batch {state.current.get(key)}"
    return None


def send_next(study: StudyFolder, ended: Sequence[str], told_to_end: bool = False) -> None:
    """Submit points that wait for room, now that these have ended; errors are printed, as this job is done anyway.

    told_to_end: this job was told to end. It then submits only if its points were cancelled, which says nothing of
    those that wait, or if some of its points were handed back and wait again.
    """
    state = ledger.read(study)
    handed_back = any(state.waiting[key].why == TURN_NEVER_CAME for key in state.waiting.keys() & set(ended))
    if told_to_end and not (handed_back or state.cancelled.issuperset(ended)):
        return
    if not (state.waiting or state.unclear):
        return
    from study.reconcile.services import Services
    from study.reconcile.step import step
    from study.reconcile.triggers import JobEnd

    try:
        step(study, Services(), JobEnd(ended))
    except Exception as error:
        print(f"points that wait were not submitted: {error}", file=sys.stderr)


def run_first_rank(work: JobContext, signals: Signals) -> int:
    """Claim an attempt and run it: the first rank."""
    run = work.run
    run.path.mkdir(parents=True, exist_ok=True)
    lock = RunLock(run.lock)
    if not _acquire(lock, signals):
        _leave_to_other(work, signals)
        return HELD
    done = finished(run)
    if done is not None:
        return done.code
    config = freeze_config(work)
    number, attempt = claim(run)
    started = time.monotonic()
    job = describe(work)
    write_json(attempt.job, job)
    reserve = DiskReserve(run.reserve)
    print(f"{work.key}: attempt {number} on {job['host']}{_said_of_code(job)}", flush=True)
    ending = _accounted(work, number)
    if ending is None:
        ending = _train(work, config, RendezvousRound(attempt, job, 0), signals, started=started, lock=lock)
        ending = ask_scheduler(ending, load(work.rank_info.executor), work.rank_info.job_id)
    reserve.release()
    write_json(attempt.outcome, record(attempt, ending, started, 0))
    if ending.state == AttemptState.COMPLETED and has_branches(work.study, work.key):
        pin(run, int(config["budget"]["tokens"]))
    lock.close()
    print(f"{work.key}: {ending.state}" + (f": {ending.why}" if ending.why else ""), flush=True)
    looks_after_study = load(work.rank_info.executor).detached and work.unit is None
    if looks_after_study and (ending.code or is_time_to_look(work.study, work.key)):
        from study.job.ending import after

        after(work, number, ending, job)
    return ending.code


def _leave_to_other(work: JobContext, signals: Signals) -> None:
    """Write down that this job left its run to the attempt that holds the lock."""
    print(f"{work.key}: another attempt holds {work.run.lock}: leaving the run to it", file=sys.stderr)
    if not signals.received:  # a job that was told to end while it waited for the lock left nothing to anybody
        note = {"name": work.batch.name, "job_id": work.rank_info.job_id, "time": time.time()}
        write_json(work.run.left_to, note)


def _train(
    work: JobContext,
    config: dict[str, Any],
    first_round: RendezvousRound,
    signals: Signals,
    *,
    started: float,
    lock: RunLock,
) -> Ending:
    """Run the trainer to its end, unless the job was told to end before; return how the attempt ended.

    The trainer inherits the lock, so that the run stays locked as long as any of its processes lives.
    """
    # A cancel since the ledger was read could not signal this process: its job.json was not there yet.
    if signals.received or work.cancelled:
        return told_to_end(work, signals, started)
    try:
        ran = _meet_and_advance(work, config, first_round, signals, (lock.fileno(),))
        return classify_attempt(work, first_round.attempt, ran, signals, started)
    except OSError as error:
        return not_run(error)


def _meet_and_advance(
    work: JobContext, config: dict[str, Any], this_round: RendezvousRound, signals: Signals, inherit: tuple[int, ...]
) -> TrainerExit:
    """Run the trainer to its end, on another port for all ranks where theirs was taken meanwhile."""
    while True:
        ran = run_trainer(work, config, this_round, signals, inherit=inherit)
        wait_for_signal(ran, signals, load(work.rank_info.executor))
        if signals.received or not this_round.taken(ran.returncode):
            return ran
        number = this_round.number + 1
        address, port = _address_and_port(work, number)
        print(f"{work.key}: port {this_round.job['port']} was taken: the ranks meet at port {port}", flush=True)
        job = {**this_round.job, "address": address, "port": port, "round": number}
        this_round = RendezvousRound(this_round.attempt, job, 0)
        write_json(this_round.attempt.job, job)


def _accounted(work: JobContext, number: int) -> Ending | None:
    """Record how the earlier start of a requeued job ended; return this attempt's end if there were too many starts."""
    if not work.rank_info.restart:
        return None
    from study.job.ending import account_for_restart

    try:
        return account_for_restart(work, number)
    except (ValueError, OSError) as error:
        print(f"{work.key}: it is not known how its earlier start ended: {error}", file=sys.stderr)
        return None


def run_other_rank(work: JobContext, signals: Signals, given_up: Callable[[], bool] = lambda: False) -> int:
    """Find the attempt that the first rank of this job claimed, and run this rank of it.

    `given_up`: whether the first rank has gone on without one.
    """
    found = _find_attempt(work, given_up)
    if found is None:
        print(
            f"{work.key}: rank 0 of job {work.rank_info.job_id} made no attempt in {PEERS_SECONDS:.0f} s",
            file=sys.stderr,
        )
        return HELD
    attempt, job = found
    started = time.monotonic()
    rank = work.rank_info.rank
    config = find_point(work.study, work.key).raw
    while True:
        this_round = RendezvousRound(attempt, job, rank)
        ran = run_trainer(work, config, this_round, signals)
        ending = conclude_rank(work, attempt, ran, signals, rank=rank, started=started)
        following = this_round.over() or (this_round.wait() if ending.kind == Kind.COMMUNICATION else None)
        if following is None or signals.received:
            break
        job = dict(following)
    if ending.state == AttemptState.FAILED:
        write_json(attempt.rank(rank), record(attempt, ending, started, rank))
    # The first rank's exit code says how the job ended; any other that is not 0 would have it killed on the spot.
    return 0 if ending.code == 0 or wait_for_first(attempt) else ending.code


def freeze_config(work: JobContext) -> dict[str, Any]:
    """Write the run's config.yaml from points.jsonl unless it is there, and return the config."""
    config = find_point(work.study, work.key).raw
    if not work.run.config.exists():
        from train.spec.yamlfile import dump

        write_atomic(work.run.config, dump(config))
    return config


def describe(work: JobContext) -> dict[str, Any]:
    """Return what job.json says of this attempt, the rendezvous of its ranks included."""
    import psutil

    rank_info = work.rank_info
    job: dict[str, Any] = {
        "name": work.batch.name,
        "executor": rank_info.executor,
        "job_id": rank_info.job_id,
        "restart": rank_info.restart,
        "nodes": list(rank_info.nodes),
        "pid": os.getpid(),
        "start_time": psutil.Process().create_time(),
        "process": process_identity(os.getpid()),
        "host": socket.gethostname(),
        "started": round(time.time(), 3),
        "code": work.batch.code,
        "source": code_snapshot.ran(work.study, work.batch.code, work.resources.get("code")),
        "world": rank_info.world,
        "unit": work.unit,
        "memory_gb": rank_info.memory_gb,
    }
    if rank_info.world > 1:
        job["address"], job["port"] = _address_and_port(work)
    return job


def _said_of_code(job: Mapping[str, Any]) -> str:
    """Return which code an attempt runs, for its log."""
    said = {
        "frozen": f", code {job['code']}, frozen in {Path(study.__file__).resolve().parents[1]}",
        "live": f", code {job['code']}",
        "other": f", with other code than was recorded for it ({job['code']})",
    }
    return said.get(str(job["source"]), "")


def _address_and_port(work: JobContext, taken: int = 0) -> tuple[str, int]:
    local = work.rank_info.starts_ranks
    return rendezvous(work.rank_info, "127.0.0.1" if local else work.batch.resources.get("master_addr"), taken)


def _acquire(lock: RunLock, signals: Signals) -> bool:
    """Wait a while for the lock: an attempt that was told to end may still be writing its checkpoint."""
    limit = time.monotonic() + LOCK_SECONDS
    while not lock.acquire():
        if time.monotonic() > limit or signals.received:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _find_attempt(work: JobContext, given_up: Callable[[], bool]) -> tuple[AttemptFolder, dict[str, Any]] | None:
    limit = time.monotonic() + PEERS_SECONDS
    while time.monotonic() < limit:
        for path in sorted(work.run.attempts.glob("*/job.json"), reverse=True):
            job = read_record(path, JOB)
            mine = (work.rank_info.job_id, work.rank_info.restart, work.unit)
            if job and (job.get("job_id"), job.get("restart"), job.get("unit")) == mine:
                return AttemptFolder(path.parent), job
        if given_up():
            return None
        time.sleep(POLL_SECONDS)
    return None


if __name__ == "__main__":
    sys.exit(main())
