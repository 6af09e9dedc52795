"""Several small points in one job, side by side: each lane has its own devices, cores and share of a GPU's memory.

Each point claims its attempt and writes its ending, and fails or is cancelled alone. Where a job has more points than
lanes, each lane runs one after the other (study.job.lanes).
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from study.executors import load
from study.failures.kinds import INTERRUPTED, Evidence, Kind, classify
from study.job.attempt import JOB_BEGAN, left_of
from study.job.interruption import ask_scheduler
from study.job.lanes import FreshLane, Lane, LaneShare, Queue, WarmLane
from study.process.children import Signals
from study.records import ledger
from study.status.states import TURN_NEVER_CAME
from study.storage.files import write_atomic
from study.storage.layout import StudyFolder
from train.spec.gpu_share import SHARED_BY, VARIABLE

DEVICES = "CUDA_VISIBLE_DEVICES"
MODE_SECONDS = 30.0
"""How long nvidia-smi may take to say the GPUs' compute mode."""
START_SECONDS = 60.0
"""How long the multi-process service may take to start; without it, points share the GPU by time slices."""
QUIT_SECONDS = 60.0
"""How long the multi-process service may take to end; SLURM ends what is left of it with the job."""


def run_packed(study: StudyFolder, batch: ledger.Batch, index: int, signals: Signals) -> int:
    """Run the points of job `index` of a batch to their ends; return the job's exit code (:func:`exit_code`).

    A point that fails or is cancelled does not affect the others. Where the job is told to end, running points end, and
    those that have not begun wait to be submitted again.
    """
    began = time.monotonic()
    keys = batch.of_task(index)
    stays = batch.takes_turns and bool(batch.resources.get("warm", True))
    how = batch.resources.get("pack_gpus")
    with multi_process_service(how == "mps") as variables, _notes(how in ("slices", "mps")) as notes:
        begin = {JOB_BEGAN: repr(began)} if batch.takes_turns else {}
        parts = lane_shares(batch, len(keys), {**os.environ, **variables, **begin}, bool(variables), notes)
        if how in ("slices", "mps") and not variables and exclusive():
            parts = one_a_gpu(parts)
        lanes: list[Lane] = [(WarmLane if stays else FreshLane)(study, batch, index, part) for part in parts]
        queue = Queue(study, batch, keys, lanes, lambda busy: say_who_shares(parts, busy))
        queue.run(signals)
    if queue.waiting:
        _hand_back(study, batch, queue.waiting, signals, began)
    return exit_code([*queue.codes, *([INTERRUPTED] if queue.waiting else [])])


def lane_shares(
    batch: ledger.Batch, points: int, environment: dict[str, str], behind_service: bool, notes: Path | None = None
) -> list[LaneShare]:
    """Return the environment and cores of each lane of a job; there are no more lanes than points.

    behind_service: GPUs are numbered as the multi-process service does. notes: a folder with a file for each shared
    GPU, which says how many points are on it.
    """
    shape, count = batch.resources, min(batch.lanes, points)
    cores = shares(sorted(os.sched_getaffinity(0)), batch.lanes, int(shape.get("cpus_per_task") or 1))
    visible = numbered(environment.get(DEVICES)) if behind_service else environment.get(DEVICES)
    how = shape.get("pack_gpus")
    gpus = devices(visible, count, int(shape.get("gpus_per_node") or 0), how)
    part, there = {}, len((visible or "").split(","))
    # Lanes that stay empty count: each share of the memory is fixed from the start.
    if gpus is not None and how != "own":
        each = math.ceil(batch.lanes / there)
        part = {VARIABLE: repr(1 / each)} if each > 1 else {}
    made = []
    for lane in range(count):
        own = {} if gpus is None else {DEVICES: gpus[lane]}
        own |= {SHARED_BY: str(notes / str(lane % there))} if part and notes is not None else {}
        made.append(LaneShare({**environment, **part, **own}, cores[lane] if cores else ()))
    return made


@contextmanager
def _notes(wanted: bool) -> Iterator[Path | None]:
    """Yield a temporary folder on this host for the notes on shared GPUs; None: none is wanted, or none can be made."""
    folder = None
    if wanted:
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="gpus-", dir=os.environ.get("TMPDIR")))
    try:
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def say_who_shares(parts: Sequence[LaneShare], busy: Sequence[int]) -> None:
    """Write down how many points are on each shared GPU now: trainers read it when they measure their own speed.

    busy: numbers of the lanes that have a point.
    """
    places = [part.environment.get(SHARED_BY) for part in parts]
    counts = Counter(places[lane] for lane in busy)
    for place in {place for place in places if place is not None}:
        with suppress(OSError):  # without the file, a trainer assumes that all lanes are busy
            write_atomic(Path(place), f"{counts[place]}\n")


def _hand_back(study: StudyFolder, batch: ledger.Batch, keys: Sequence[str], signals: Signals, began: float) -> None:
    """Queue the points that have not begun again, where a time limit or a preemption ended the job, not a person."""
    left, notice = left_of(batch.resources, began), float(batch.resources.get("signal_seconds") or 0.0)
    ending = classify(Evidence(INTERRUPTED, tuple(signals.received), time_left=left, notice=notice))
    executor = load(batch.executor)
    ending = ask_scheduler(ending, executor, executor.rank_info(os.environ).job_id)
    if ending.kind in (Kind.TIME_LIMIT, Kind.PREEMPTED):
        from study.reconcile.dependencies import queued_again

        ledger.extend(study, [queued_again(study, batch, keys, TURN_NEVER_CAME)])


def devices(visible: str | None, count: int, each: int, how: str | None = "own") -> list[str] | None:
    """Return CUDA_VISIBLE_DEVICES of each of `count` points; None where the job has none.

    how: "own": `each` GPUs for every point alone; "slices", "mps": one of the job's GPUs, shared in rotation.
    """
    names = [name for name in (visible or "").split(",") if name]
    if not names or not each:
        return None
    if how != "own":
        return [names[slot % len(names)] for slot in range(count)]
    if len(names) < count * each:
        raise ValueError(f"{count} packed points need {count * each} GPUs, but the job sees {visible}")
    return [",".join(names[slot * each : (slot + 1) * each]) for slot in range(count)]


def numbered(visible: str | None) -> str | None:
    """Return the numbers under which clients of the multi-process service see the GPUs it was started with.

    It counts them from 0, so that a client of a job on GPU 3 that asked for "3" would find none.
    """
    names = [name for name in (visible or "").split(",") if name]
    return ",".join(str(place) for place in range(len(names))) or None


def shares(cores: Sequence[int], count: int, each: int) -> list[tuple[int, ...]]:
    """Return the cores of each of `count` points, `each` of them; empty (no binding) unless the job has just these."""
    if len(cores) != count * each:
        return []
    return [tuple(cores[slot * each : (slot + 1) * each]) for slot in range(count)]


def exit_code(codes: Sequence[int]) -> int:
    """Return the job's exit code: 0 if all points completed, 75 if one can be resumed, else the first failed one's."""
    bad = [code if code >= 0 else 128 - code for code in codes if code != 0]
    return 0 if not bad else INTERRUPTED if INTERRUPTED in bad else bad[0]


def one_a_gpu(parts: Sequence[LaneShare]) -> list[LaneShare]:
    """Return one lane for each GPU, for GPUs in exclusive compute mode, which take one process at a time."""
    print(
        f"the GPU takes one process at a time: points run one after the other instead of {len(parts)}", file=sys.stderr
    )
    first = {part.environment.get(DEVICES): part for part in reversed(parts)}
    return [part for part in parts if part is first[part.environment.get(DEVICES)]]


def exclusive() -> bool:
    """Return whether this node's GPUs take one process at a time (compute mode), or none at all."""
    command = ("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")
    try:
        modes = subprocess.run(command, capture_output=True, text=True, check=True, timeout=MODE_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return any(line.strip() not in ("", "Default") for line in modes.splitlines())


@contextmanager
def multi_process_service(wanted: bool) -> Iterator[dict[str, str]]:
    """Run NVIDIA's multi-process service for this job, if wanted; yield the variables by which processes find it."""
    if not wanted:
        yield {}
        return
    # A folder of its own: the service of a job that has just ended here may still use the usual one.
    folder = tempfile.mkdtemp(prefix="mps-", dir=os.environ.get("TMPDIR"))
    variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    environment = {**os.environ, **variables}
    try:
        if not _start_service(environment):
            yield {}
            return
        try:
            yield variables
        finally:
            _end_service(environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start_service(environment: Mapping[str, str]) -> bool:
    """Start the multi-process service in the background; return whether that worked."""
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True, timeout=START_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the multi-process service did not start ({error}): points take turns on the GPU", file=sys.stderr)
        return False
    return True


def _end_service(environment: Mapping[str, str]) -> None:
    """Tell the multi-process service to end. The points have ended: where it does not, they have not failed."""
    command = ["nvidia-cuda-mps-control"]
    try:
        subprocess.run(command, input=b"quit\n", env=environment, check=False, timeout=QUIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"the multi-process service did not end ({error})", file=sys.stderr)
