"""A PostgreSQL of a test's own, in a folder, on loopback; it can be killed outright and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from study.records.metric_names import DERIVED
from tests.study.support.made import NAN, Row

PROGRAMS = ("initdb", "postgres", "pg_isready")
ROOT = Path("/usr/lib/postgresql")
START_SECONDS = 900.0


def folder_of_programs() -> Path | None:
    """Return where PostgreSQL's server programs lie, the newest version's; None where there are none."""
    found = sorted(ROOT.glob("*/bin"), key=lambda path: int(path.parent.name)) if ROOT.is_dir() else []
    on_path = shutil.which("postgres")
    candidates = [*reversed(found), *([Path(on_path).parent] if on_path else [])]
    return next((path for path in candidates if all((path / name).exists() for name in PROGRAMS)), None)


def unavailable() -> str | None:
    """Return why no PostgreSQL can run here, or None if it can."""
    if folder_of_programs() is None:
        return "PostgreSQL's programs are not here: on Debian or Ubuntu, apt-get install postgresql"
    if find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'psycopg[binary]'"
    if os.geteuid() == 0 and not _has_user():
        return "PostgreSQL does not run as root, and there is no user called postgres"
    return None


@dataclass
class Postgres:
    """One server: its data in `folder`, on this port of loopback, trusting whoever connects."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """MLflow's address of the database."""
        return f"postgresql+psycopg://{self._user}@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Make the data folder."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, self._user, self._user)
        self._call("initdb", "--pgdata", str(self.folder / "data"), "--auth=trust", "--no-sync", "--encoding=UTF8")

    def start(self) -> None:
        """Start it and wait until it answers; processes of a killed one may hold its memory for a moment."""
        limit = time.monotonic() + START_SECONDS
        ask = [str(_programs() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ask, check=False).returncode != 0:
            if self._process is None or self._process.poll() is not None:
                self._launch()
            assert time.monotonic() < limit, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.2)

    def _launch(self) -> None:
        options = ("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(_programs() / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._identity,
            )

    def kill(self) -> None:
        """Kill it outright: its other processes follow. Its write-ahead log is what it starts from again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stored(self, study: str, table: str = "metrics") -> list[Row]:
        """Return a metrics table as MLflow holds it, as tests.study.support.made.stored does for SQLite."""
        import psycopg

        query = f"""
            select t.value, m.key, m.value, m.timestamp, m.step, m.is_nan from {table} m
            join runs r on r.run_uuid = m.run_uuid and r.lifecycle_stage = 'active'
            join experiments e on e.experiment_id = r.experiment_id and e.name = %s
            join tags t on t.run_uuid = m.run_uuid and t.key = 'point_key'"""
        with psycopg.connect(self.uri.replace("+psycopg", "")) as connection:
            rows = connection.execute(query, (study,)).fetchall()
        found = [row for row in rows if row[1] not in DERIVED]
        return sorted((k, name, NAN if nan else v, stamp, step) for k, name, v, stamp, step, nan in found)

    def runs(self) -> int:
        """Return how many runs there are that are not deleted."""
        import psycopg

        with psycopg.connect(self.uri.replace("+psycopg", "")) as connection:
            found = connection.execute("select count(*) from runs where lifecycle_stage = 'active'").fetchone()
        assert found is not None
        return int(found[0])

    @property
    def _user(self) -> str:
        import getpass

        return "postgres" if os.geteuid() == 0 else getpass.getuser()

    @property
    def _identity(self) -> dict[str, Any]:
        """Whom it runs as: it refuses to be root."""
        return {"user": self._user, "group": self._user, "extra_groups": []} if os.geteuid() == 0 else {}

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(_programs() / program), *arguments],
            check=False,
            cwd=self.folder,
            capture_output=True,
            text=True,
            **self._identity,
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def running(port: int) -> Iterator[Postgres]:
    """Run a new PostgreSQL in a folder of its own; kill it in the end."""
    # Not in a test's folder: pytest closes those to the user that PostgreSQL runs as.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True, dir=_open_to_all()) as folder:
        one = Postgres(Path(folder), port)
        one.make()
        try:
            one.start()
            yield one
        finally:
            one.kill()


def _open_to_all() -> Path:
    """Return a folder for temporary files that every user reaches: TMPDIR may be closed to others."""
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    everyone = (
        place for place in candidates if all(part.stat().st_mode & 0o001 for part in (place, *place.resolve().parents))
    )
    return next(everyone, candidates[0])


def _has_user() -> bool:
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return False
    return True


def _programs() -> Path:
    found = folder_of_programs()
    assert found is not None
    return found
