"""Why a tracking store cannot be used, in one line with its cure: asked of the store, or read from MLflow's errors.

MLflow tries a database that it cannot open ten times, a minute and a half in all, before it says so. Standard library.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

PATIENCE_SECONDS = 5.0
"""How long a lock or a host may take to answer."""
MAGIC = b"SQLite format 3\x00"
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
LONGEST = 300
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Words = Callable[[str, str], str]


def refusal(uri: str, *, key: str = "tracking.uri", write: bool = True) -> str:
    """Return why the store at an absolute address cannot be opened, and the cure; "" where nothing speaks against it.

    Nothing is changed. An SQLite file that is absent may be made and is no reason. key: what names the store.
    """
    if uri.startswith("sqlite:///"):
        return _sqlite(Path(uri.removeprefix("sqlite:///").partition("?")[0]), key, write)
    scheme = uri.partition("://")[0].partition("+")[0]
    return _host(uri, PORTS[scheme], key) if scheme in PORTS else ""


def past_proxies(uri: str) -> None:
    """Let this process reach a server on this machine without the site's proxy, which knows no way back here.

    Where the address is one of loopback, it is added to the environment's no_proxy; else nothing is changed.
    """
    try:
        host = urlsplit(uri).hostname
    except ValueError:
        return
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    if host in LOOPBACK and host not in names and names != ["*"]:
        os.environ["no_proxy"] = ",".join([*names, host])


def in_words(text: str, uri: str, *, key: str = "tracking.uri") -> str:
    """Return an error of MLflow, SQLAlchemy or requests as what is wrong and one cure; else its first line. Pure."""
    if found := re.search(r"found version (\w+), but expected", text):
        return _other_version(found[1], uri, _knows(found[1]))
    for pattern, words in _SAID:
        if found := re.search(pattern, text, re.I):
            return words(found[0], key)
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("(raised as a result of")]
    return lines[0][:LONGEST] if lines else "no reason given"


def damaged(file: Path | str, why: str) -> str:
    """Return what is wrong with a file that is no whole database, and the cure."""
    return f"{file} is no whole SQLite database ({why}): move it away, and the next sync makes it anew from the runs"


def _sqlite(file: Path, key: str, write: bool) -> str:
    nearest = next(parent for parent in file.parents if parent.exists() or parent == parent.parent)
    other = f"name another file with {key}=sqlite:///FILE"
    if not nearest.is_dir():
        return f"{nearest} is a file, not a folder: {other}"
    try:
        with file.open("rb") as opened:
            begins = opened.read(len(MAGIC))
    except FileNotFoundError:
        return ""
    except IsADirectoryError:
        return f"{file} is a folder, not a database: {other}"
    except OSError as error:
        ask = "ask its owner for the right to it, or " if error.errno in (errno.EACCES, errno.EPERM) else ""
        return f"{file}: {error.strerror}: {ask}{other}"
    if begins and begins != MAGIC:
        return damaged(file, f"it begins with {begins.decode('utf-8', 'replace').strip()!r}")
    return _opened(file, key, write) if begins else ""


def _opened(file: Path, key: str, write: bool) -> str:
    """Look into a database, and for writing take its lock for a moment; what SQLite says against that."""
    try:
        with closing(sqlite3.connect(file, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            tables = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
            versions = (
                connection.execute("select version_num from alembic_version").fetchall()
                if ("alembic_version",) in tables
                else []
            )
            if write:
                connection.execute("begin immediate")
                connection.execute("rollback")
    except sqlite3.Error as error:
        said = in_words(str(error), f"sqlite:///{file}", key=key)
        return said if str(file) in said else f"{file}: {said}"
    unknown = [version for (version,) in versions if not _knows(str(version))]
    return _other_version(str(unknown[0]), f"sqlite:///{file}", known=False) if unknown else ""


def _host(uri: str, port: int, key: str) -> str:
    """Ask a database server's port for an answer; "" also where the address leaves its host to the driver."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname or "", parts.port or port
    except ValueError as error:
        return f"the address cannot be read ({error}): correct {key}"
    if not host or "," in parts.netloc or "host=" in parts.query:
        return ""
    try:
        socket.create_connection((host, port), PATIENCE_SECONDS).close()
    except OSError as error:
        return in_words(str(error), uri, key=key)
    return ""


def _knows(version: str) -> bool:
    """Whether the installed MLflow has heard of this version of its tables; MLflow is not imported."""
    spec = find_spec("mlflow")
    if spec is None or spec.origin is None:
        return True
    folder = Path(spec.origin).parent / "store" / "db_migrations" / "versions"
    return not folder.is_dir() or any(folder.glob(f"{version}_*.py"))


def _other_version(version: str, uri: str, known: bool) -> str:
    if known:
        shown = re.sub(r"://[^/@\s]*@", "://***@", uri)
        return f"an older MLflow made its tables: copy the database, then run `mlflow db upgrade {shown}`"
    return f"a newer MLflow made its tables (version {version}): install that MLflow here, or take another store"


_SAID: tuple[tuple[str, Words], ...] = (
    (r"file is not a database|file is encrypted|disk image is malformed", lambda said, _: damaged("the file", said)),
    (
        r"database (?:table )?is locked",
        lambda *_: "the database is locked by another process: end that one (fuser FILE names it), or try again later",
    ),
    (
        r"database or disk is full|No space left on device|Disk quota exceeded",
        lambda said, _: f"{said}: make room, and the next sync goes on",
    ),
    (
        r"readonly database|Read-only file system",
        lambda said, key: f"{said}: make it writable, or name another file with {key}=sqlite:///FILE",
    ),
    (
        r"unable to open database file",
        lambda said, key: f"{said}: its folder must allow reading and writing; name another with {key}=sqlite:///FILE",
    ),
    (r"Connection refused", lambda said, key: f"{said}: start that server, or correct {key}"),
    (
        r"Failed to resolve|Name or service not known|Temporary failure in name resolution|nodename nor servname",
        lambda _, key: f"no host of that name is known: correct {key}, or look whether the network is there",
    ),
    (
        r"Network is unreachable|No route to host|Connection reset by peer|Connection aborted",
        lambda said, key: f"{said}: look whether the network is there, or correct {key}",
    ),
    (
        r"timed out|timeout",
        lambda _, key: f"it does not answer in time: look whether the server is well, or correct {key}",
    ),
    (
        r"error code 40[13]|authentication failed",
        lambda *_: (
            "it wants to know who asks: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN"
        ),
    ),
    (
        r"error code 4\d\d != 200",
        lambda said, key: f"what answers there is no MLflow server ({said.removesuffix(' != 200')}): correct {key}",
    ),
    (
        r"error code 5\d\d",
        lambda said, _: f"the server failed ({said}): its own log says why; try again once it is well",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        lambda *_: "its certificate is not trusted: set MLFLOW_TRACKING_SERVER_CERT_PATH to the site's certificates",
    ),
    (
        r"No module named '(?:psycopg2?|pymysql|MySQLdb|pyodbc|pymssql)'",
        lambda said, _: f"{said}, the database's driver: pip install {_driver(said)}",
    ),
)


def _driver(said: str) -> str:
    name = said.split("'")[1]
    return {"psycopg2": "psycopg2-binary", "psycopg": "'psycopg[binary]'", "MySQLdb": "mysqlclient"}.get(name, name)
