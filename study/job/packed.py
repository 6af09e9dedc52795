"""Several small points in one job, side by side: one process each, with devices and cores of its own.

Each is a `python -m study.job` that claims its attempt, writes its ending and fails or is cancelled alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from study.failures.kinds import INTERRUPTED
from study.process.children import Signals, die_with_parent, interpreter
from study.records import ledger
from study.storage.layout import StudyFolder

POLL_SECONDS = 0.5
LEDGER_SECONDS = 5.0
DEVICES = "CUDA_VISIBLE_DEVICES"


def run_packed(study: StudyFolder, batch: ledger.Batch, index: int, signals: Signals) -> int:
    """Run the points of job `index` of a packed batch to their ends; return the exit code that stands for all.

    One that fails leaves the others alone; one that is cancelled is told to end, the others go on.
    """
    keys = batch.of_task(index)
    shape = batch.resources
    cores = shares(sorted(os.sched_getaffinity(0)), batch.pack, int(shape.get("cpus_per_task") or 1))
    with multi_process_service(shape.get("pack_gpus") == "mps") as variables:
        visible = numbered(os.environ.get(DEVICES)) if variables else os.environ.get(DEVICES)
        gpus = devices(visible, len(keys), int(shape.get("gpus_per_node") or 0), shape.get("pack_gpus"))
        processes = {}
        for slot, key in enumerate(keys):
            command = [*interpreter(), "-m", "study.job", str(study.path), "--name", batch.name]
            command += ["--index", str(index), "--slot", str(slot)]
            environment = {**os.environ, **variables}
            if gpus is not None:
                environment[DEVICES] = gpus[slot]
            processes[key] = _start(command, environment, cores[slot] if cores else ())
            signals.watch(processes[key])
        _wait(study, processes)
    return exit_code([process.returncode for process in processes.values()])


def devices(visible: str | None, count: int, each: int, how: str | None = "own") -> list[str] | None:
    """Return what each of `count` points may see of the job's GPUs; None where the job names none.

    own: `each` GPUs that no other has. slices, mps: one of the job's GPUs, in turn.
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
    """Return the cores of each point, where the job is bound to as many as it asked for; else none are bound."""
    if len(cores) != count * each:
        return []
    return [tuple(cores[slot * each : (slot + 1) * each]) for slot in range(count)]


def exit_code(codes: Sequence[int]) -> int:
    """Return the exit code of the job: 0 if all points completed, 75 if one is to be resumed, else a failed one's."""
    bad = [code if code >= 0 else 128 - code for code in codes if code != 0]
    return 0 if not bad else INTERRUPTED if INTERRUPTED in bad else bad[0]


def _start(command: Sequence[str], environment: Mapping[str, str], cores: Sequence[int]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        env=dict(environment),
        start_new_session=True,  # SLURM signals a task's whole group: each process hears of it once, from here
        preexec_fn=die_with_parent(),  # noqa: PLW1509 - one thread
    )
    if cores:
        with suppress(OSError):  # it has ended already, or the site does not let us: it has all of the job's cores
            os.sched_setaffinity(process.pid, cores)
    return process


def _wait(study: StudyFolder, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Wait for all; those that the ledger calls cancelled meanwhile are told to end."""
    told: set[str] = set()
    looked, size = time.monotonic(), -1
    while any(process.poll() is None for process in processes.values()):
        time.sleep(POLL_SECONDS)
        if time.monotonic() - looked < LEDGER_SECONDS:
            continue
        looked = time.monotonic()
        try:
            now = study.ledger.stat().st_size
            if now == size:
                continue
            size, cancelled = now, ledger.read(study).cancelled
        except (OSError, ValueError):
            continue  # the file system is slow or somebody edits: the points go on
        for key, process in processes.items():
            if key in cancelled and key not in told and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                told.add(key)


@contextmanager
def multi_process_service(wanted: bool) -> Iterator[dict[str, str]]:
    """Run NVIDIA's multi-process service for this job, if wanted; yield the variables by which processes find it."""
    if not wanted:
        yield {}
        return
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"mps-{os.getpid()}"
    folder.mkdir(parents=True)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **variables}, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the multi-process service did not start ({error}): points take turns on the GPU", file=sys.stderr)
        yield {}
        return
    try:
        yield variables
    finally:
        subprocess.run(
            ["nvidia-cuda-mps-control"], input=b"quit\n", env={**os.environ, **variables}, check=False, timeout=60
        )
