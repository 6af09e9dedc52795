"""MLflow's own server for a study's store, on this machine's loopback only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from analysis.inputs.tracking_store import past_proxies
from study.process.children import spawn
from study.process.ports import is_free
from study.storage.files import last_lines

HOST = "127.0.0.1"
FIRST_PORT, PORTS = 5000, 100
START_SECONDS = 300.0
END_SECONDS = 10.0
POLL_SECONDS = 0.2
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # of no use to a study, and processes more
}


@dataclass(frozen=True)
class Server:
    """A running server: where it answers, and its first process."""

    address: str
    process: subprocess.Popen[bytes]

    @property
    def ended(self) -> bool:
        """Whether it has gone."""
        return self.process.poll() is not None


def free_port(wanted: int | None) -> int:
    """Return the port asked for, or the first free one from 5000 on. Raises ValueError where there is none."""
    ports = [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS)
    found = next((port for port in ports if is_free(port, HOST, reuse=True)), None)
    if found is not None:
        return found
    if wanted is not None:
        raise ValueError(f"--port {wanted} cannot be taken: leave it out, and a free one is found")
    raise ValueError(f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free: give one with --port")


def command(port: int, artifacts: Path) -> list[str]:
    """Return the command of the server; the store's address is not in it, for it may hold a password."""
    hosts = ",".join(f"{name}:{port}" for name in (HOST, "localhost"))
    words = ["server", "--host", HOST, "--port", str(port), "--workers", "1", "--allowed-hosts", hosts]
    words += ["--cors-allowed-origins", f"http://{HOST}:{port},http://localhost:{port}"]
    return [sys.executable, "-m", "mlflow", *words, "--artifacts-destination", str(artifacts)]


@contextmanager
def serving(uri: str, port: int, log: Path, stopped: Callable[[], bool]) -> Iterator[Server]:
    """Run the server of a store while the block runs; yield it once it answers.

    All of it has ended afterwards, and it ends with this process, however that dies. Raises ValueError with its last
    words where it does not start.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    environment = {**os.environ, **ENVIRONMENT, "MLFLOW_BACKEND_STORE_URI": uri}
    process = spawn(command(port, log.parent.parent / "mlartifacts"), environment, log, log)
    address = f"http://{HOST}:{port}"
    try:
        limit = time.monotonic() + START_SECONDS
        while why_no_answer(address):
            if process.poll() is not None or time.monotonic() > limit:
                said = "; ".join(last_lines(log)[-2:]) or "it said nothing"
                raise ValueError(f"the MLflow server did not start: {said} (all of it is in {log})")
            if stopped():
                raise KeyboardInterrupt
            time.sleep(POLL_SECONDS)
        yield Server(address, process)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started: they are a session of their own."""
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        limit = time.monotonic() + seconds
        while _any_left(process) and time.monotonic() < limit:
            time.sleep(0.05)
    process.wait()


def why_no_answer(address: str) -> str:
    """Return why a tracking server does not answer its health page; "" where it does, if only to ask who we are."""
    past_proxies(address)
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=5) as answer:
            return "" if answer.status == 200 else f"{address} answers {answer.status}"
    except urllib.error.HTTPError as error:
        return "" if error.code in (401, 403) else f"{address} answers {error.code}"
    except (OSError, ValueError) as error:
        return f"{address} does not answer: {error}"


def _any_left(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
