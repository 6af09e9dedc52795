"""`python -m study reproduce`: what `make study` runs."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

from study.config.tracking_uri import ui_command
from study.records.settings import load_submission
from study.storage.layout import StudyFolder
from study.text import duration
from study.tracking.all_sent import lacks_report
from study.tracking.links import study_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout; default: this directory")
    parser.add_argument(
        "--report", type=Path, default=Path("reports/isoflop"), help="folder of the report, within the checkout"
    )
    parser.add_argument("arguments", nargs="*", help="passed on to dvc repro")


def run(options: argparse.Namespace) -> int:
    """Run the pipeline and print its answer."""
    return reproduce(options.root.absolute(), options.report, options.arguments)


LOCK = Path(".dvc/tmp/reproduce.lock")


def reproduce(root: Path, report: Path, arguments: list[str]) -> int:
    """Run the pipeline of the checkout `root` and print what `report` (a folder) answers; return the exit code.

    Only one runs at a time: a second one waits for the first, which may be what a killed terminal left behind.
    Ctrl-C reaches every process of the terminal: each stage saves its work and ends, and the next run carries on.
    So it does on SIGTERM, which reaches this process alone and is passed on to the others as Ctrl-C.
    """
    if not (root / "dvc.yaml").is_file():
        raise ValueError(f"there is no dvc.yaml in {root}: run this in a checkout of the project")
    begun = time.monotonic()
    _allow_no_git(root)
    with _lock(root / LOCK) as held:
        forget_the_dead(root / ".dvc" / "tmp" / "rwlock")
        code = _dvc(root, arguments, held)
    if code != 0:
        print(
            "The study is not finished: what ran is kept, and the same command continues from there.", file=sys.stderr
        )
        return code
    show_report(root, report)
    _answer(root, report)
    print(f"Done in {duration(time.monotonic() - begun)}.")
    return 0


def _dvc(root: Path, arguments: list[str], held: IO[str]) -> int:
    """Run `dvc repro`; it inherits the lock, so that the lock lives exactly as long as the pipeline does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "dvc", "repro", *arguments]
    process = subprocess.Popen(command, cwd=root, env=environment, pass_fds=[held.fileno()])
    before = signal.signal(signal.SIGTERM, _interrupt_stages)
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal has sent it to every stage too: they are saving their work.
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt_stages(number: int, frame: FrameType | None) -> None:
    """Send SIGINT to what this process has started in its own process group, as a terminal does at Ctrl-C."""
    del number, frame
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            if os.getpgid(child.pid) == os.getpgrp():
                os.kill(child.pid, signal.SIGINT)


def _lock(path: Path) -> IO[str]:
    """Return the open, locked file; wait for another pipeline that holds it, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = path.open("a+")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.seek(0)
        print(f"This pipeline is already running (process {held.read().strip() or 'unknown'}): waiting for it to end.")
        fcntl.flock(held, fcntl.LOCK_EX)
    held.seek(0)
    held.truncate()
    held.write(f"{os.getpid()}\n")
    held.flush()
    return held


def forget_the_dead(path: Path) -> None:
    """Remove DVC's file of read and write locks if nobody who is named in it is alive, or if it was cut off.

    DVC forgets the dead by itself, but takes one that was killed and that nobody has reaped for the living.
    """
    try:
        locks = json.loads(path.read_text())
        holders = [*locks.get("write", {}).values(), *(one for many in locks.get("read", {}).values() for one in many)]
        pids = [int(holder["pid"]) for holder in holders]
    except FileNotFoundError:
        return
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        pids = []
    if not any(_is_dvc(pid) for pid in pids if 0 < pid < 1 << 31):
        path.unlink()


def _is_dvc(pid: int) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "dvc" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _allow_no_git(root: Path) -> None:
    """Let DVC work where the project was unpacked from an archive instead of cloned."""
    local = root / ".dvc" / "config.local"
    if not (root / ".git").exists() and not local.exists():
        local.write_text("[core]\n    no_scm = true\n")


def show_report(root: Path, report: Path) -> None:
    """Send a report that MLflow does not have.

    The stage that makes it has sent it, unless the store was away or DVC restored the report from its cache.
    """
    study, page = StudyFolder(root / "runs" / report.name), root / report / "report.html"
    if page.is_file() and study.tracking.is_file() and lacks_report(study):
        command = [sys.executable, "-m", "study.tracking", "sync", str(study.path)]
        # A store that is away is said on stderr; the report lies on disk in any case.
        subprocess.run(command, cwd=root, stdout=subprocess.DEVNULL, check=False)


def _answer(root: Path, report: Path) -> None:
    from analysis.report import sentences
    from analysis.report.terminal import summary
    from analysis.values import study_result

    if not (root / report / "fit.json").is_file():
        return  # only the first stages were asked for
    fit = study_result.load(root / report / "fit.json")
    print()
    print(summary(sentences.read(fit)))
    print(f"Report   {root / report / 'report.html'}")
    study = StudyFolder(root / "runs" / report.name)
    uri = load_submission(study).tracking.uri
    opened, page = ui_command(uri), study_page(study, uri)
    if not opened.startswith("mlflow "):
        print(f"Runs     {page or opened}")
        return
    print(f"Runs     .venv/bin/{opened}")
    print(f"         then open {page}" if page else "         python -m study sync has not sent them yet")
