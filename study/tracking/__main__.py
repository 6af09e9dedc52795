"""`python -m study.tracking sync runs/STUDY [--follow]`: bring MLflow up to date with a study's files."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("study.tracking.__main__")

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.config.tracking_uri import DEFAULT, resolve, shown, ui_command
from study.storage.layout import StudyFolder
from study.storage.secrets import redactor
from study.tracking.all_sent import address
from study.tracking.links import study_page
from train.spec.interrupts import INTERRUPTED, came_of_ctrl_c

OK, REFUSED, USAGE, BROKEN, AWAY = 0, 1, 2, 70, 75
"""Exit codes: all sent; some runs refused by the store; wrong arguments; a defect; store away, run it again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    folder = StudyFolder(options.study)
    try:
        uri = _uri(options.uri, folder)
        if uri is None:
            print(f"{folder.name}: tracking.enabled is false in {folder.study}: nothing was sent")
            return OK
        return _follow(options, folder, uri) if options.follow else _once(options, folder, uri)
    except ValueError as error:
        print(f"study.tracking: {error}", file=sys.stderr)
        return USAGE
    except BaseException as error:
        if came_of_ctrl_c(error):  # an import that it broke off may end in another exception
            print("study.tracking: stopped; the next sync carries on from here", file=sys.stderr)
            return INTERRUPTED
        if not isinstance(error, Exception):
            raise
        # A defect: its traceback may hold an address with its credentials, and goes to a log.
        print(redactor(os.environ)(traceback.format_exc()), file=sys.stderr)
        return BROKEN


def _once(options: argparse.Namespace, folder: StudyFolder, uri: str) -> int:
    from study.tracking.follow import in_words
    from study.tracking.store import StoreAwayError
    from study.tracking.syncer import open_syncer

    try:
        syncer = open_syncer(folder, uri, options.report)
        try:
            done = syncer.sync(wait=1.0)
        except TimeoutError:
            if options.no_wait:
                print(f"{folder.name}: another process is syncing this study; left it to that one")
                return OK
            print(f"{folder.name}: another process is syncing this study; waiting for it", file=sys.stderr)
            done = syncer.sync()
    except (StoreAwayError, OSError) as error:
        print(_away(folder, uri, in_words(error)), file=sys.stderr)
        return AWAY
    return _summary(folder, uri, done)


def _follow(options: argparse.Namespace, folder: StudyFolder, uri: str) -> int:
    from study.tracking.follow import follow
    from study.tracking.syncer import open_syncer

    parent = options.parent if options.parent is not None else os.getppid() if options.until_idle else None
    os.nice(5)
    done, trouble = follow(
        lambda: open_syncer(folder, uri, options.report),
        options.interval,
        parent,
        lambda text: print(f"{folder.name}: {_address(uri, text)}{text}", file=sys.stderr, flush=True),
    )
    if trouble:
        print(_away(folder, uri, trouble), file=sys.stderr)
        return AWAY
    return _summary(folder, uri, done)


def _summary(folder: StudyFolder, uri: str, done: Any) -> int:
    print(
        f"{folder.name}: {done.started} of {done.points} runs in {shown(uri)} "
        f"({done.created} new, {done.values:,} new values); open it with: {ui_command(uri)}"
    )
    if page := study_page(folder, uri):
        print(f"{folder.name}: its page is then {page}")
    if done.unreadable:
        print(f"{folder.name}: {done.unreadable} lines of metrics.jsonl are not records: passed over", file=sys.stderr)
    for text in done.refused:
        print(f"{folder.name}: the store refused run {text}", file=sys.stderr)
    return REFUSED if done.refused else OK


def _address(uri: str, text: str) -> str:
    """Return the store's address as the beginning of a message; nothing where the message is about a file of ours."""
    return "" if text.startswith("/") else f"{shown(uri)}: "


def _away(folder: StudyFolder, uri: str, why: str) -> str:
    first = why.strip().splitlines()[0][:300] if why.strip() else "no reason given"
    if not _address(uri, first):
        return (
            f"study.tracking: {first}\n"
            f"Nothing is lost: once that can be written, run  python -m study.tracking sync {folder.path}"
        )
    return (
        f"study.tracking: cannot write to {shown(uri)}: {first}\n"
        f"Nothing is lost: once it is reachable, run  python -m study.tracking sync {folder.path}"
    )


def _uri(given: str | None, folder: StudyFolder) -> str | None:
    """Return the absolute address: the option's, else the study's, else the default; None if tracking is off."""
    return resolve(given, Path.cwd()) if given is not None else address(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m study.tracking", description="A study's files to MLflow.")
    commands = parser.add_subparsers(dest="command", required=True)
    sync = commands.add_parser("sync", help="send what MLflow does not have yet, once and only once")
    sync.add_argument("study", type=Path, metavar="runs/STUDY", help="the study's folder")
    sync.add_argument("--uri", help=f"the store; default: tracking.uri of the study, else {DEFAULT}")
    sync.add_argument("--report", type=Path, help="folder of the report to attach; default: reports/STUDY beside runs/")
    sync.add_argument("--no-wait", action="store_true", help="leave at once if another process is syncing the study")
    sync.add_argument("--follow", action="store_true", help="go on until SIGTERM or Ctrl-C, then send the rest and end")
    sync.add_argument("--interval", type=float, default=5.0, help="--follow: time between passes [s], default 5")
    sync.add_argument("--until-idle", action="store_true", help="--follow: also end when the starting process has gone")
    sync.add_argument("--parent", type=int, metavar="PID", help="--follow: the same, for a parent with this process id")
    return parser
