"""Faults of what a study leans on: submitting process, disk, tracking server, syncer; and how fast checkpoints are."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks._faults_field import Field, Result, times_run, train_losses
from tests.slurm.cluster import wait_for
from tests.slurm.test_slurm_submission import SEEDS, STUDY, killed_around_sbatch
from tests.study.support.made import Made, Row, append, complete, expected, make_study, start_run, stored
from tests.study.tracking.test_tracking_server import free_port, served

REPOSITORY = Path(__file__).parents[1]
DISK_BYTES = 4 << 20
KILLS = 8


def submitter_killed(field: Field) -> Result:
    """Kill the submitter before sbatch, while its request is on its way, and before it learns the job id."""
    moments = {"never": 0.0, "late": 3.0, "after": 0.0}
    ran: Counter[int] = Counter()
    begun = time.monotonic()
    for moment, late in moments.items():
        folder = field.lab.folder / f"submitter-{moment}"
        folder.mkdir()
        lab = replace(field.lab, folder=folder).with_trainer("quick")
        killed_around_sbatch(lab, moment, late)
        lab.sweep(*STUDY, "wait=true")
        ran.update(times_run(lab.run_folder("s", key)) for key in lab.keys("s"))
    points = SEEDS * len(moments)
    return Result(
        "kill -9 of the submitter",
        tried=len(moments),
        survived=len(moments) if ran == {1: points} else 0,
        kinds="-",
        by="the same command",
        duplicates=sum(count for times, count in ran.items() if times > 1),
        lost=ran[0],
        seconds=(time.monotonic() - begun) / len(moments),
        note=f"{points} points; before, during and after sbatch; time: the whole command again",
    )


def disk_full(field: Field) -> Result:
    """Fill the disk that the runs are on, see them fail as that, make room, and go on."""
    home = field.lab.folder / "disk"
    (home / "runs").mkdir(parents=True)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(home / "runs")],
        check=False,
        capture_output=True,
    )
    if mount.returncode:
        return Result("the disk is full", 0, 0, "-", "-", note="not tried: mounting a small disk needs root")
    try:
        patient = replace(field, lab=replace(field.lab, folder=home)).patient("full")
        patient.wait_for_step()
        filler = home / "runs" / "filler"
        patient.last, patient.at = {key: max(train_losses(patient.run(key))) for key in patient.keys}, time.time()
        _fill(filler, home / "runs")
        patient.slow.unlink(missing_ok=True)
        wait_for("failures", lambda: {p["state"] for p in patient.lab.points("full")} == {"failed"}, 120, every=2.0)
        kinds = {str(p.get("kind")) for p in patient.lab.points("full")}
        filler.unlink()
        patient.at = time.time()
        patient.retry("failed")
        patient.recovered()
        result = patient.result(
            "the disk is full",
            note="saves that fail are tried again for 5 min before that ends the run; time: since there was room again",
        )
        return replace(result, kinds=", ".join(sorted(kinds)))
    finally:
        subprocess.run(["umount", "--lazy", str(home / "runs")], check=False)


def _fill(filler: Path, disk: Path) -> None:
    """Leave a few pages: metrics may still fit, a checkpoint does not."""
    status = os.statvfs(disk)
    room = status.f_bavail * status.f_frsize - 8192
    filler.write_bytes(bytes(max(0, room)))


def syncer_killed(field: Field) -> Result:
    """Kill the syncer at random moments while four runs write; then compare store and spools."""
    folder = field.lab.folder / "syncer"
    made = _growing(folder)
    uri = f"sqlite:///{folder}/mlflow.db"
    dice = random.Random(1)
    begun = time.monotonic()
    _sync(folder, uri).wait()
    for kill in range(1, KILLS + 1):
        _grow(made, kill)
        process = _sync(folder, uri, "--follow", "--interval", "0.1")
        time.sleep(dice.uniform(1.0, 6.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    _sync(folder, uri).wait()
    note = f"{len(expected(made)):,} values in SQLite; time: all kills and the last sync"
    return _compared("kill -9 of the syncer", made, folder, KILLS, seconds=time.monotonic() - begun, note=note)


def server_killed(field: Field) -> Result:
    """Kill the MLflow server, all of its processes, while a syncer follows growing runs."""
    folder = field.lab.folder / "server"
    made = _growing(folder)
    _sync(folder, f"sqlite:///{folder}/mlflow.db").wait()  # makes the schema
    port = free_port()
    follower = _sync(folder, f"http://127.0.0.1:{port}", "--follow", "--interval", "0.2")
    begun = time.monotonic()
    kills = 3
    try:
        for kill in range(1, kills + 1):
            with served(_server(port, folder), folder, f"http://127.0.0.1:{port}"):
                have = len(stored(folder / "mlflow.db", "iso"))
                _grow(made, kill, 200)
                _await_more(folder, have)
        with served(_server(port, folder), folder, f"http://127.0.0.1:{port}"):
            follower.terminate()
            follower.wait(300)
    finally:
        follower.kill()
        follower.wait()
    note = f"{len(expected(made)):,} values through mlflow server; time: all kills and restarts"
    return _compared("kill -9 of the MLflow server", made, folder, kills, seconds=time.monotonic() - begun, note=note)


def _server(port: int, folder: Path) -> list[str]:
    text = f"mlflow server --host 127.0.0.1 --port {port} --workers 1 --backend-store-uri sqlite:///{folder}/mlflow.db"
    return [*text.split(), "--artifacts-destination", str(folder / "artifacts")]


def _await_more(folder: Path, have: int) -> None:
    limit = time.monotonic() + 120
    while len(stored(folder / "mlflow.db", "iso")) <= have and time.monotonic() < limit:
        time.sleep(0.05)


def _growing(folder: Path) -> Made:
    made = make_study(folder / "runs" / "iso", 4)
    for index in range(4):
        start_run(made.run(index))
    _grow(made, 0)
    return made


def _grow(made: Made, part: int, steps: int = 120) -> None:
    for index in range(4):
        done = len((made.run(index).metrics).read_bytes().split(b'"kind": "train"')) - 1 if part else 0
        append(made.run(index), done + 1, done + steps)


def _sync(folder: Path, uri: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "study.tracking", "sync", "runs/iso", "--uri", uri, *options]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment = {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)


def _compared(fault: str, made: Made, folder: Path, kills: int, *, seconds: float, note: str) -> Result:
    complete(made.run(0))
    want, have = Counter[Row](expected(made)), Counter[Row](stored(folder / "mlflow.db", "iso"))
    return Result(
        fault,
        tried=kills,
        survived=kills if want == have else 0,
        kinds="-",
        by="the next syncer" if "syncer" in fault else "the same syncer",
        duplicates=(have - want).total(),
        lost=(want - have).total(),
        seconds=seconds,
        note=note,
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def checkpoint_speed() -> list[str]:
    """Save and load a checkpoint of some 130 MB five times each; lines with the median speeds."""
    import statistics

    import torch
    from torch import nn

    from train import checkpoint

    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(10)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    state = checkpoint.collect([model], [optimizer])
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values()) / 1e6
    saves, handed, loads = [], [], []
    with _scratch() as root:
        saver = checkpoint.Saver(root)
        for step in range(1, 6):
            begun = time.perf_counter()
            saver.save(step, state, {"progress": {"step": step}, "identity": {}})
            handed.append(time.perf_counter() - begun)
            saver.wait()
            saves.append(time.perf_counter() - begun)
        for _ in range(5):
            begun = time.perf_counter()
            found = checkpoint.newest(root)
            assert found is not None
            checkpoint.restore(found, [model], [optimizer])
            loads.append(time.perf_counter() - begun)
    saving, hand, loading = (statistics.median(times) for times in (saves, handed, loads))
    return [
        f"checkpoint of {size:.0f} MB (weights and both moments, one process), median of 5:",
        f"  save, written, synced and hashed   {size / saving:>7.0f} MB/s  ({saving:.2f} s)",
        f"  of it the training waits           {hand:>7.3f} s  (the copy; the rest happens beside it)",
        f"  verify and load                    {size / loading:>7.0f} MB/s  ({loading:.2f} s)",
    ]
