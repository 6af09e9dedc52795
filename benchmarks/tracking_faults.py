"""Metrics into MLflow while everything fails: afterwards the store has to equal the spools, to the last value.

`python -m benchmarks.tracking_faults [--runs 64] [--parts 12]`. While `--runs` runs append records in torn pieces, one
syncer follows them into each of three stores, which are worn down differently:

sqlite: the syncer is killed outright at random moments, another process reads the database all the time.
server: an `mlflow server` on SQLite behind a proxy at which one request in five fails: 500 before or after its effect,
a cut connection, a 502 with HTML; the server is killed with all its processes, and stays away for a while.
postgresql: the same with PostgreSQL behind the server, and it is the database that is killed outright.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.study.support import postgres
from tests.study.support.made import Made, Row, complete, expected, lines_of, make_study, start_run, stored
from tests.study.support.proxy import Trouble, proxy
from tests.study.tracking.test_tracking_server import free_port, served
from train.spec.command_line import Parser

REPOSITORY = Path(__file__).parents[1]
STEPS_A_PART = 15
AWAY_SECONDS = 30.0


@dataclass(frozen=True)
class Worn:
    """What became of one store."""

    store: str
    what: str
    values: int
    twice: int
    lost: int
    runs: int
    seconds: float

    def row(self) -> str:
        """Return a line of the table."""
        good = "equal" if not self.twice and not self.lost else "NOT EQUAL"
        return (
            f"{self.store:<12}{self.values:>9,}{self.twice:>7}{self.lost:>6}{self.runs:>6}{self.seconds:>8.0f}  "
            f"{good:<11}{self.what}"
        )


class Writers:
    """All runs writing at once, in pieces that end anywhere."""

    def __init__(self, made: Made, seed: int) -> None:
        self._made, self._dice = made, random.Random(seed)
        self._left = dict.fromkeys(range(len(made.keys)), b"")
        self._step = 0
        for index in self._left:
            start_run(made.run(index))

    def write(self, steps: int) -> None:
        """Append so many steps of every run, in turns."""
        for _ in range(steps):
            self._step += 1
            for index, left in self._left.items():
                text = left + lines_of(self._step).encode()
                cut = self._dice.randrange(len(text) + 1)
                self._append(index, text[:cut])
                self._left[index] = text[cut:]

    def finish(self) -> None:
        """Write what is left of the last lines; half of the runs complete."""
        for index, left in self._left.items():
            self._append(index, left)
            if index % 2:
                complete(self._made.run(index))

    def _append(self, index: int, text: bytes) -> None:
        with self._made.run(index).metrics.open("ab") as file:
            file.write(text)


def sqlite_worn(folder: Path, runs: int, parts: int) -> Worn:
    made = make_study(folder / "runs" / "iso", runs)
    writers, dice, uri = Writers(made, 1), random.Random(2), f"sqlite:///{folder}/mlflow.db"
    database, begun, over = folder / "mlflow.db", time.monotonic(), threading.Event()
    _sync(folder, uri).wait()
    reader = threading.Thread(target=_read_on, args=(database, over), daemon=True)
    reader.start()
    for _ in range(parts):
        process = _sync(folder, uri, "--follow", "--interval", "0.1")
        writers.write(STEPS_A_PART)
        time.sleep(dice.uniform(0.5, 5.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    writers.finish()
    assert _sync(folder, uri).wait() == 0
    over.set()
    reader.join()
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("select count(*) from runs where lifecycle_stage = 'active'").fetchone()
    what = f"{parts} kill -9 of the syncer; one reader all the time"
    return _compared("sqlite", what, made, stored(database, "iso"), runs=count, begun=begun)


def server_worn(folder: Path, runs: int, parts: int) -> Worn:
    made = make_study(folder / "runs" / "iso", runs)
    database, begun = folder / "mlflow.db", time.monotonic()
    _sync(folder, f"sqlite:///{database}").wait()  # makes the schema
    writers, front, back = Writers(made, 3), free_port(), free_port()
    trouble, kills = Trouble(back, share=0.2), 3
    url, line = f"http://127.0.0.1:{back}", _server(back, f"sqlite:///{database}", folder)
    with proxy(front, trouble):
        follower = _sync(folder, f"http://127.0.0.1:{front}", "--follow", "--interval", "0.2")
        for kill in range(kills):
            with served(line, folder, url):
                for _ in range(parts // kills):
                    writers.write(STEPS_A_PART)
                    time.sleep(1.0)
            time.sleep(AWAY_SECONDS if kill == 1 else 1.0)
        writers.finish()
        trouble.share = 0.0
        with served(line, folder, url):
            follower.terminate()
            assert follower.wait(600) == 0
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("select count(*) from runs where lifecycle_stage = 'active'").fetchone()
    what = f"{kills} kill -9 of mlflow server, away for {AWAY_SECONDS:.0f} s, {_failures(trouble)}"
    return _compared("server", what, made, stored(database, "iso"), runs=count, begun=begun)


def postgresql_worn(folder: Path, runs: int, parts: int) -> Worn:
    made, begun = make_study(folder / "runs" / "iso", runs), time.monotonic()
    writers, front, back = Writers(made, 4), free_port(), free_port()
    trouble, kills = Trouble(back, share=0.2), 2
    with ExitStack() as stack:
        database = stack.enter_context(postgres.running(free_port()))
        stack.enter_context(served(_server(back, database.uri, folder), folder, f"http://127.0.0.1:{back}"))
        stack.enter_context(proxy(front, trouble))
        follower = _sync(folder, f"http://127.0.0.1:{front}", "--follow", "--interval", "0.2")
        for _ in range(kills):
            for _ in range(parts // kills):
                writers.write(STEPS_A_PART)
                time.sleep(1.0)
            database.kill()
            time.sleep(2.0)
            database.start()
        writers.finish()
        trouble.share = 0.0
        follower.terminate()
        assert follower.wait(600) == 0
        have, count = database.stored("iso"), database.runs()
    what = f"{kills} kill -9 of PostgreSQL behind mlflow server, {_failures(trouble)}"
    return _compared("postgresql", what, made, have, runs=count, begun=begun)


def _compared(store: str, what: str, made: Made, have: Sequence[Row], *, runs: int, begun: float) -> Worn:
    want, found = Counter[Row](expected(made)), Counter[Row](have)
    extra = runs - len(made.keys) - 1
    return Worn(
        store=store,
        what=what,
        values=want.total(),
        twice=(found - want).total() + max(0, extra),
        lost=(want - found).total() + max(0, -extra),
        runs=runs,
        seconds=time.monotonic() - begun,
    )


def _failures(trouble: Trouble) -> str:
    failed = sum(count for kind, count in trouble.done.items() if kind != "passed")
    return f"{failed} of {trouble.done.total()} requests failed on the way"


def _server(port: int, uri: str, folder: Path) -> list[str]:
    line = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    return [*line, "--backend-store-uri", uri, "--artifacts-destination", str(folder / "artifacts")]


def _sync(folder: Path, uri: str, *options: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    with (folder / "sync.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "study.tracking", "sync", "runs/iso", "--uri", uri, *options],
            cwd=folder,
            env={**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _read_on(database: Path, over: threading.Event) -> None:
    """Read as the UI does, so that the syncer's writes meet a reader."""
    while not over.wait(0.2):
        with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
            connection.execute("select run_uuid, max(step), count(*) from metrics group by run_uuid").fetchall()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o711)  # PostgreSQL runs as another user
        yield Path(scratch)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.tracking_faults", description="Tracking under faults.")
    parser.add_argument("--runs", type=int, default=64, help="runs that write at once")
    parser.add_argument("--parts", type=int, default=12, help="how often everything is written on and something fails")
    options = parser.parse_args(arguments)
    print(f"{options.runs} runs write at once, lines torn anywhere; one syncer follows\n")
    print(f"{'store':<12}{'values':>9}{'twice':>7}{'lost':>6}{'runs':>6}{'s':>8}  {'spools':<11}what was done")
    stores: dict[str, Callable[[Path, int, int], Worn]] = {"sqlite": sqlite_worn, "server": server_worn}
    why = postgres.unavailable()
    if why is None:
        stores["postgresql"] = postgresql_worn
    good = True
    for wear in stores.values():
        with _folder() as folder:
            worn = wear(folder, options.runs, options.parts)
        good &= not worn.twice and not worn.lost
        print(worn.row(), flush=True)
    if why is not None:
        print(f"postgresql: not tried: {why}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
