"""Syncing runs into SQLite, beside MLflow's own log_batch with the same number of values.

    python -m benchmarks.mlflow_sync [--runs 100] [--values 1000] [--scratch DIR] [--write]

Each side has a process and a fresh database of its own, makes its own runs, and writes as many metric values. MLflow's
side writes nothing but metrics, 1,000 values a call; ours also writes the parameters, tags, status and config.yaml of
each run, and reads the values from files. Each side's database is the one that it makes by itself: ours is in
write-ahead mode where the folder is on a local disk. Units: metric values per second of wall time, and per second of
processor time of the side's process, which other work on the machine changes less; importing mlflow and making the
database's schema are not counted on either side.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

from study.storage.layout import StudyFolder
from train.spec.command_line import Parser
from train.spec.config import RunConfig

METRICS = ("loss", "lr", "grad_norm", "tokens_per_second")
PER_STEP = len(METRICS) + 1  # and the tokens
TARGET = 0.9
SLICE = 10
"""Runs that one side writes before it is the other side's turn: whatever else the machine does falls on both."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.side:
        _serve(_SIDES[options.side](Path(options.folder), options.values))
        return 0
    options.load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        sides = [Side(name, Path(scratch) / name, options.values) for name in ("mlflow", "study")]
        for first in range(0, options.runs, SLICE):
            count = min(SLICE, options.runs - first)
            for side in sides if first // SLICE % 2 else reversed(sides):
                side.write(first, count)
        for side in sides:
            side.end()
    values = options.runs * options.values
    table = _table({side.name: (values / side.seconds, values / side.processor) for side in sides}, options)
    print(table)
    if options.write:
        path = Path(__file__).parent / "results" / "mlflow_sync.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(table + "\n")
    return 0 if sides[1].processor * TARGET <= sides[0].processor else 1


class Side:
    """One of the two: a process of its own that writes a slice of runs whenever it is told to."""

    def __init__(self, name: str, folder: Path, values: int) -> None:
        folder.mkdir()
        self.name = name
        self.seconds, self.processor = 0.0, 0.0
        line = [sys.executable, "-m", "benchmarks.mlflow_sync", "--side", name, "--folder", str(folder)]
        self._process = subprocess.Popen(
            [*line, "--values", str(values)],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def write(self, first: int, count: int) -> None:
        """Write this slice of runs and count the seconds that it took."""
        assert self._process.stdin is not None
        print(first, count, file=self._process.stdin, flush=True)
        seconds, processor = map(float, self._answer().split())
        self.seconds += seconds
        self.processor += processor

    def end(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, f"{self.name} died"
        return answer


Writer = Callable[[int, int], Callable[[], None]]
"""Makes a slice of runs ready, and returns what writes it."""


def _serve(write: Writer) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        first, count = map(int, line.split())
        work = write(first, count)
        begin, processor = time.perf_counter(), time.process_time()
        work()
        print(time.perf_counter() - begin, time.process_time() - processor, flush=True)


def _mlflow(folder: Path, values: int) -> Writer:
    """Return MLflow's own client at work: create_run, then log_batch with 1,000 values a call."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.create_experiment("bench", str(folder / "mlartifacts"))

    def write(first: int, count: int) -> Callable[[], None]:
        return lambda: work(first, count)

    def work(first: int, count: int) -> None:
        for run in range(first, first + count):
            made = client.create_run(experiment)
            metrics = [
                Metric(f"train_{name}", _value(run, step, column), 1_760_000_000_000 + step * 125, step)
                for step in range(values // PER_STEP)
                for column, name in enumerate((*METRICS, "tokens"))
            ]
            for start in range(0, len(metrics), 1000):
                client.log_batch(made.info.run_id, metrics[start : start + 1000])

    return write


def _study(folder: Path, values: int) -> Writer:
    """Return the syncer at work on a study of completed runs, of which more and more appear."""
    from study.tracking.syncer import open_syncer

    place = StudyFolder(folder / "runs" / "bench")
    place.path.mkdir(parents=True)
    _make_runs(place, 0, 1, values)
    syncer = open_syncer(place, f"sqlite:///{folder / 'mlflow.db'}")
    syncer.sync()  # the experiment, the study's own run, and one run that is not counted

    def write(first: int, count: int) -> Callable[[], None]:
        _make_runs(place, first + 1, count, values)
        return lambda: work(count)

    def work(count: int) -> None:
        done = syncer.sync()
        assert (done.created, done.values) == (count, count * values), done

    return write


_SIDES: dict[str, Callable[[Path, int], Writer]] = {"mlflow": _mlflow, "study": _study}


def _value(run: int, step: int, column: int) -> float:
    return (run * 31 + step * 7 + column) / 97


def _make_runs(folder: StudyFolder, first: int, count: int, values: int) -> None:
    keys = {f"{run:012x}": run for run in range(first, first + count)}
    config = asdict(RunConfig())
    with folder.points.open("a") as points:
        for key, run in keys.items():
            _make_run(folder, run, key, values)
            points.write(json.dumps({"key": key, "config": {**config, "seed": run}, "overrides": [f"seed={run}"]}))
            points.write("\n")
    intent = {"time": 1.0, "event": "intent", "name": f"b{first}", "executor": "local", "keys": list(keys)}
    with folder.ledger.open("a") as ledger:
        ledger.write(json.dumps(intent) + "\n")


def _make_run(folder: StudyFolder, run: int, key: str, values: int) -> None:
    place = folder.run(key)
    place.attempt(1).path.mkdir(parents=True)
    place.config.write_text(f"seed: {run}\n")
    job = {"name": "b", "executor": "local", "job_id": "local-1", "host": "n1", "nodes": ["n1"], "started": 1.0}
    place.attempt(1).job.write_text(json.dumps(job))
    place.attempt(1).outcome.write_text(json.dumps({"state": "completed", "ended": 2.0}))
    place.outcome.write_text(json.dumps({"format": 1, "state": "completed", "step": values}))
    with place.metrics.open("w") as spool:
        for step in range(values // PER_STEP):
            metrics = {name: _value(run, step, column) for column, name in enumerate(METRICS)}
            record = {"kind": "train", "step": step, "tokens": step, "time": step / 8, "metrics": metrics}
            spool.write(json.dumps(record) + "\n")


def _table(rates: Mapping[str, tuple[float, float]], options: argparse.Namespace) -> str:
    ratios = [ours / theirs for ours, theirs in zip(rates["study"], rates["mlflow"], strict=True)]
    rows = {"MLflow create_run + log_batch(1000)": rates["mlflow"], "study.tracking sync": rates["study"]}
    return "\n".join(
        [
            f"{options.runs} runs x {options.values} metric values into SQLite, in turns of {SLICE} runs",
            f"{date.today()}, {os.cpu_count()} cores (load before the run: {options.load:.1f}), "
            f"Python {platform.python_version()}, mlflow {version('mlflow')}",
            "",
            f"{'values a second of':<38}{'wall time':>10}{'processor time':>16}",
            *(f"{name:<38}{wall:>10,.0f}{processor:>16,.0f}" for name, (wall, processor) in rows.items()),
            f"{'ratio (at least ' + str(TARGET) + ' of processor time)':<38}{ratios[0]:>10.2f}{ratios[1]:>16.2f}",
        ]
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.mlflow_sync", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs (1000 for the full size)")
    parser.add_argument("--values", type=int, default=1000, help="metric values of each run, a multiple of 5")
    parser.add_argument("--scratch", help="folder for the databases; default: the system's temporary folder")
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results/mlflow_sync.txt")
    parser.add_argument("--side", choices=("mlflow", "study"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.values % PER_STEP:
        parser.error(f"--values={options.values} is not a multiple of {PER_STEP}")
    return options


if __name__ == "__main__":
    sys.exit(main())
