"""The child process that ships metrics to MLflow while a study is followed, so that nothing here waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, Self

from study.process.children import job_environment, spawn
from study.records.settings import load_submission, reference
from study.storage.files import file_size
from study.storage.layout import StudyFolder
from study.storage.mounts import may_write
from train.spec.interrupts import WRONG

END_SECONDS = 15.0
FINAL_SECONDS = 900.0
TAIL_BYTES = 4096


class Stoppable(Protocol):
    """Counts requests to stop."""

    requests: int


class SyncProcess:
    """Runs `python -m study.tracking sync STUDY --follow` in the background, if tracking is on.

    if_needed: not where every point has ended and was sent, by the study's own files, nor for who can only read it.
    """

    def __init__(self, folder: StudyFolder, if_needed: bool = False) -> None:
        self._folder, self._if_needed = folder, if_needed
        self._enabled = load_submission(folder).tracking.enabled and find_spec("study.tracking") is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # bytes of the log that earlier processes wrote
        self._told = False

    def __enter__(self) -> Self:
        if self._enabled and not (self._if_needed and self._is_needless()):
            self._process = self._spawn("--follow")
        return self

    def _is_needless(self) -> bool:
        if not may_write(self._folder.path):
            return True  # what was sent could not be written down
        if not self._folder.tracking.exists():
            return False
        from study.tracking.all_sent import is_all_sent

        return is_all_sent(self._folder)

    def __exit__(self, *error: object) -> None:
        self._end()

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself: the store cannot be written to, and its log says why."""
        return self._process is None or self._process.poll() is not None

    def trouble(self) -> str | None:
        """Return why nothing is sent, once: where that stays so until somebody changes it; else None.

        That is so where the process ended with WRONG, as it does where a package is missing.
        """
        if self._told or self._process is None or self._process.poll() != WRONG:
            return None
        self._told = True
        said = "".join(self._messages()[-1:]).removeprefix("study.tracking: ")
        return f"nothing is sent to MLflow: {said or 'its process has ended'}"

    def finish(self, stop: Stoppable) -> None:
        """Let it send the rest and end; a tracking server that is away costs a warning, never a result."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
        elif self._process.returncode != WRONG:
            self._process = self._spawn()
        code = self._wait(stop)
        if code == -signal.SIGTERM and not stop.requests:
            # It was told to end before it could listen, as in a study that was over from the start: nothing was sent.
            self._process = self._spawn()
            code = self._wait(stop)
        self._end()
        if code != 0:
            said = "; ".join(self._messages()[-2:])
            print(
                f"MLflow is not up to date ({said or 'stopped'}): the run folders hold everything, and "
                f"python -m study sync {reference(self._folder)} brings it up to date",
                flush=True,
            )

    def _wait(self, stop: Stoppable) -> int | None:
        """Wait for the process, but not for ever, nor through a request to stop; return its exit code, if any."""
        assert self._process is not None
        limit = time.monotonic() + FINAL_SECONDS
        while self._process.poll() is None and time.monotonic() < limit and not stop.requests:
            time.sleep(0.05)
        return self._process.poll()

    def _messages(self) -> list[str]:
        """Return what the last process wrote into the log; others, of other days, wrote before it."""
        with self._log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return [line.rstrip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]

    def _spawn(self, *options: str) -> subprocess.Popen[bytes]:
        self._folder.jobs.mkdir(parents=True, exist_ok=True)
        self._log_start = file_size(self._log)
        return self._start(options)

    def _start(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "study.tracking", "sync", str(self._folder.path.absolute()), *options]
        return spawn(command, job_environment(os.environ), self._log, self._log)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def _log(self) -> Path:
        return self._folder.jobs / "sync.log"
