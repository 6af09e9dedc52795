"""A store that cannot be used is refused in one line with its cure, before MLflow tries it for minutes."""

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from analysis.inputs import tracking_store
from analysis.inputs.study import from_mlflow
from analysis.inputs.tracking_store import in_words, past_proxies, refusal

CURES = {
    "(sqlite3.DatabaseError) database disk image is malformed\n[SQL: SELECT 1]": "move it away, and the next sync",
    "(raised as a result of autoflush)\n(sqlite3.OperationalError) database is locked": "end that one",
    "(sqlite3.OperationalError) database or disk is full": "make room",
    "(sqlite3.OperationalError) attempt to write a readonly database": "make it writable",
    "[Errno 30] Read-only file system": "make it writable",
    "(sqlite3.OperationalError) unable to open database file": "must allow reading and writing",
    "HTTPConnectionPool: Max retries exceeded (Caused by ... [Errno 111] Connection refused)": "start that server",
    "(Caused by NameResolutionError: Failed to resolve 'nohost')": "no host of that name",
    "HTTPConnectionPool(host='h', port=1): Read timed out. (read timeout=30)": "does not answer in time",
    "API request failed with error code 401 != 200. Response body: 'no'": "MLFLOW_TRACKING_USERNAME",
    "API request failed with error code 404 != 200. Response body: '<html>'": "no MLflow server (error code 404)",
    "API request failed with error code 503 != 200. Response body: ''": "its own log says why",
    "SSLError(SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED)": "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "No module named 'psycopg2'": "pip install psycopg2-binary",
}


def database(path: Path, version: str | None = None) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table alembic_version (version_num text)")
        if version:
            connection.execute("insert into alembic_version values (?)", (version,))
    return f"sqlite:///{path}"


@pytest.mark.parametrize(("said", "cure"), CURES.items())
def test_what_mlflow_says_becomes_one_line_with_its_cure(said: str, cure: str) -> None:
    line = in_words(said, "http://h:1")
    assert cure in line
    assert "\n" not in line


def test_what_is_not_known_is_said_as_it_was() -> None:
    assert in_words("boom\nsecond line", "http://h:1") == "boom"
    assert in_words(" ", "http://h:1") == "no reason given"


def test_files_that_are_no_database_are_named(tmp_path: Path) -> None:
    text, folder, empty = tmp_path / "text.db", tmp_path / "folder.db", tmp_path / "empty.db"
    text.write_text("hello")
    folder.mkdir()
    empty.touch()
    assert refusal(f"sqlite:///{text}").startswith(f"{text} is no whole SQLite database (it begins with 'hello')")
    assert refusal(f"sqlite:///{folder}").startswith(f"{folder} is a folder, not a database")
    assert refusal(f"sqlite:///{text}/mlflow.db").startswith(f"{text} is a file, not a folder")
    assert refusal(f"sqlite:///{empty}") == "", "SQLite takes it for a new one"
    assert refusal(f"sqlite:///{tmp_path}/new/mlflow.db") == ""
    assert not (tmp_path / "new").exists(), "to look makes nothing"
    assert text.read_text() == "hello"


def test_a_database_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    uri = database(file)
    assert refusal(uri) == ""
    file.write_bytes(file.read_bytes()[:4096])
    assert refusal(uri).startswith(f"{file}: the file is no whole SQLite database (")


def test_a_database_that_is_locked_or_of_a_newer_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_store, "PATIENCE_SECONDS", 0.05)
    uri = database(tmp_path / "mlflow.db", "ffffffffffff")
    said = refusal(uri)
    assert "a newer MLflow made its tables (version ffffffffffff)" in said
    with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        assert "is locked by another process" in refusal(uri)
        assert "newer" in refusal(uri, write=False), "reading waits for no writer"
        other.execute("rollback")


def test_the_schema_of_an_older_mlflow_is_upgraded_not_reinstalled() -> None:
    said = "Detected out-of-date database schema (found version 451aebb31d03, but expected dc11669786a5). Take a backup"
    line = in_words(said, "postgresql://me:hunter22@h/x")
    assert line.endswith("run `mlflow db upgrade postgresql://***@h/x`")


def test_a_database_server_that_is_away_is_found_at_once() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        assert refusal(f"postgresql://u:pw@127.0.0.1:{port}/x").startswith("Connection refused: start that server")
        taken.listen(1)
        assert refusal(f"mysql+pymysql://u:pw@127.0.0.1:{port}/x") == ""
    assert "cannot be read" in refusal("postgresql://u@h:port/x")
    assert refusal("postgresql:///x?host=/var/run") == "", "the driver knows where"


def test_a_fit_says_so_too(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("hello")
    with pytest.raises(ValueError, match=r"runs=mlflow:s: sqlite:.* cannot be read: .*move it away"):
        from_mlflow(f"sqlite:///{tmp_path}/mlflow.db", "s")


@pytest.mark.parametrize(
    ("uri", "before", "after"),
    [
        ("http://127.0.0.1:5000", "", "127.0.0.1"),
        ("http://me:pw@localhost:5000/x", "intra.example.org, 127.0.0.1", "intra.example.org,127.0.0.1,localhost"),
        ("http://[::1]:5000", "*", "*"),
        ("http://127.0.0.1:5000", " 127.0.0.1", " 127.0.0.1"),
        ("https://mlflow.example.org", "", ""),
        ("sqlite:////tmp/mlflow.db", "", ""),
        ("http://[::1", "", ""),
    ],
)
def test_a_server_on_this_machine_is_reached_without_the_sites_proxy(
    uri: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(given, before)
        past_proxies(uri)
        assert (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")) == after
