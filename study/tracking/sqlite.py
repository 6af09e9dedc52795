"""Making MLflow's SQLite database: all of it or nothing, also when killed in the middle."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from study.storage.mounts import file_system

STALE_SECONDS = 600.0
CACHE_KIB = 65_536
LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"})
SIDECARS = ("-journal", "-wal", "-shm")


def create_database(path: Path, artifacts: str) -> bool:
    """Create the SQLite file with MLflow's schema if it is absent; return whether this call made it.

    MLflow migrates a new file step by step and a kill leaves it half made, which MLflow then refuses to open. So it
    is made under another name, and gets its own by a hard link, which only one of several processes can.
    """
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        if path.exists():  # made by another process meanwhile: its log is not to be swept
            return False
        _sweep(path)
        staged = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.new")
        try:
            _schema(staged, artifacts)
            return _publish(staged, path)
        finally:
            for ending in ("", *SIDECARS):
                staged.with_name(staged.name + ending).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold an advisory lock on the folder itself, which leaves no file behind; without one where there are none."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def tune() -> None:
    """Give every SQLite connection of this process a larger page cache: memory only, nothing of durability changes."""
    import sqlite3

    import sqlalchemy

    def enlarge(connection: Any, _: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", enlarge)


def _schema(path: Path, artifacts: str) -> None:
    """Let MLflow make its schema in a file that no other process uses, without an fsync until the end."""
    import logging

    import sqlalchemy
    from mlflow.store.tracking import sqlalchemy_store

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def hasten(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", hasten)
    try:
        make: Any = sqlalchemy_store.SqlAlchemyStore
        store = make(f"sqlite:///{path}", artifacts)
        store.engine.dispose()
    finally:
        sqlalchemy.event.remove(sqlalchemy.engine.Engine, "connect", hasten)
    if write_ahead_is_safe(path):
        _write_ahead(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_ahead_is_safe(path: Path) -> bool:
    """Return whether the file lies on a local file system: SQLite's write-ahead log shares memory between processes."""
    return file_system(path) in LOCAL_FILE_SYSTEMS


def _write_ahead(path: Path) -> None:
    """Switch the file to write-ahead logging, for good: a commit then waits for the disk once instead of four times.

    It is as durable as before (SQLite's `synchronous` stays FULL), and readers such as the UI never wait for writers.
    """
    import sqlite3

    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def _publish(staged: Path, path: Path) -> bool:
    try:
        os.link(staged, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        staged.rename(path)
    return True


def _sweep(path: Path) -> None:
    """Remove what killed processes left behind: half-made files, and what belonged to a database that was removed.

    A log that outlives its database would be taken for the new one's.
    """
    for sidecar in SIDECARS:
        path.with_name(path.name + sidecar).unlink(missing_ok=True)
    for left in path.parent.glob(f".{path.name}.*.new*"):
        try:
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()
        except FileNotFoundError:
            continue


def move_artifacts(database: Path, experiment: str, there: str, here: str) -> None:
    """Replace the beginning of where the artifacts of an experiment and its runs lie, in one transaction."""
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(
                f"update {table} set {column} = ? || substr({column}, ?)"
                f" where experiment_id = ? and substr({column}, 1, ?) = ?",
                (here, len(there) + 1, experiment, len(there), there),
            )
