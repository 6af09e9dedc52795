"""Addresses of tracking stores: made absolute, checked, shown without credentials."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import quote, unquote

from study.storage.secrets import redactor

DEFAULT = "sqlite:///mlflow.db"
_DATABASES = ("postgresql", "mysql", "mssql")


def resolve(uri: str | None, base: Path) -> str:
    """Return the address with its SQLite file made absolute, relative to the folder `base`.

    Raises ValueError for an address that is neither SQLite nor a database server nor http(s).
    """
    text = (uri or DEFAULT).strip()
    if text.startswith("sqlite:///"):
        path = text.removeprefix("sqlite:///")
        if not path or path == ":memory:":
            raise ValueError(
                f"tracking.uri={text!r} names no file: use sqlite:///mlflow.db or sqlite:////absolute/path.db"
            )
        return f"sqlite:///{(base / path).absolute()}"
    if text.startswith(("http://", "https://")) or text.split("://")[0].split("+")[0] in _DATABASES:
        return text
    raise ValueError(
        f"tracking.uri={shown(text)!r} is not supported: use sqlite:///FILE, http(s)://HOST:PORT, "
        "or postgresql://, mysql://, mssql:// with the database's driver installed"
    )


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an absolute SQLite address; None for any other store."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


def moved(uri: str, then: Path, now: Path) -> str:
    """Return the address of a study whose folder of studies was `then` and is `now`: its database moved with it.

    It stays what it was where the database does not lie beside that folder, or still lies there alone.
    """
    database = sqlite_file(uri)
    if database is None or then == now or not database.is_relative_to(then.parent):
        return uri
    here = now.parent / database.relative_to(then.parent)
    return f"sqlite:///{here}" if here.exists() or not database.exists() else uri


def is_server(uri: str) -> bool:
    """Return whether the address is an MLflow server's, which keeps artifacts by itself."""
    return uri.startswith(("http://", "https://"))


def shown(uri: str) -> str:
    """Return the address without credentials, for people and for files."""
    return redactor({})(uri)


def identity(uri: str) -> str:
    """Return what tells stores apart in a file: the address without its credentials."""
    return shown(_without_credentials(uri))


def artifact_root(uri: str, study: str, base: Path) -> str | None:
    """Return where a study's artifacts go: beside the SQLite file, else in `base`; None: a server decides."""
    if is_server(uri):
        return None
    database = sqlite_file(uri)
    folder = (database.parent if database else base).absolute() / "mlartifacts" / study
    return f"file://{quote(str(folder))}"


def folder_of(location: str) -> Path | None:
    """Return the folder of an artifact location on this machine; None for any other."""
    return Path(unquote(location.removeprefix("file://"))) if location.startswith("file:///") else None


def ui_command(uri: str, port: int = 5000) -> str:
    """Return the one command that opens the store in MLflow's UI, on this machine's loopback only.

    For a server that is its address: it shows itself.
    """
    if is_server(uri):
        return shown(uri)
    command = ["mlflow", "ui", "--backend-store-uri", shown(uri), "--host", "127.0.0.1", "--port", str(port)]
    return shlex.join(command)


def _without_credentials(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
