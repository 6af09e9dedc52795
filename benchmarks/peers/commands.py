"""Commands with a clock and an end, and the jobs of SLURM that a way of doing a study leaves behind."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 1.0


class WayError(RuntimeError):
    """A way did not get to its end; the message says why."""


def last_lines(path: Path, count: int = 3) -> str:
    """Return the end of a log in one line, without the command above it; "" where there is none."""
    if not path.is_file():
        return ""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return " / ".join([line for line in lines if line and not line.startswith("$ ")][-count:])


@dataclass(frozen=True)
class Shell:
    """Where commands run, with which variables, and until when; each one's output goes to a file of its own.

    until: a time of `time.monotonic` [s].
    """

    folder: Path
    environment: Mapping[str, str]
    until: float

    def run(self, name: str, *command: str, good: Sequence[int] = (0,)) -> Path:
        """Run a command to its end; return the file that holds its output.

        Raises WayError with the command's last lines where it fails, and where it has not ended in time.
        """
        log = self.folder / f"{name}.log"
        with log.open("w", encoding="utf-8") as out:
            print(f"$ {shlex.join(command)}", file=out, flush=True)
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(max(0.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise WayError(f"{name} had not ended when its time was over: {last_lines(log)}") from None
            finally:
                _end(process)
        if code not in good:
            raise WayError(f"{name} ended with exit code {code}: {last_lines(log)}")
        return log

    def said(self, *command: str) -> str:
        """Return what a quick command prints on stdout, "" where it fails."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout if done.returncode == 0 else ""

    def queued(self, jobs: str) -> bool:
        """Return whether SLURM still has one of these jobs (`--name=…` or `--jobs=…`)."""
        return bool(self.said("squeue", "--noheader", "--format=%i", jobs).strip())

    def wait(self, jobs: str) -> None:
        """Wait until SLURM has none of these jobs any more; WayError where that takes too long."""
        while self.queued(jobs):
            if time.monotonic() > self.until:
                raise WayError("jobs had not ended when the time was over")
            time.sleep(POLL_SECONDS)

    def cancel(self, selection: str, jobs: str) -> None:
        """Cancel jobs (`scancel` of this selection) and wait a little until SLURM has none of them."""
        self.said("scancel", "--quiet", selection)
        end = time.monotonic() + 30
        while self.queued(jobs) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a command."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue


class Sampler:
    """The share of time in which GPUs ran a kernel, as nvidia-smi samples it twice a second; nothing without it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sampler:
        program = shutil.which("nvidia-smi")
        if program is not None:
            query = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=500")
            with self.path.open("wb") as out:
                self._process = subprocess.Popen((program, *query), stdout=out, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def busy(self, seconds: float) -> float | None:
        """Return the GPU-seconds in which kernels ran, of a way that took so long [s]; None where that is not known."""
        return None if self._process is None else busy(self.path.read_text(encoding="utf-8"), seconds)


def busy(samples: str, seconds: float) -> float | None:
    """Return GPU-seconds from lines of nvidia-smi, "index, percent"; None where there are none."""
    shares: dict[str, list[float]] = {}
    for line in samples.splitlines():
        index, _, percent = line.partition(",")
        if percent.strip().isdigit():
            shares.setdefault(index, []).append(int(percent) / 100)
    return sum(sum(found) / len(found) for found in shares.values()) * seconds if shares else None
