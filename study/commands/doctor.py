"""`python -m study doctor [--out FILE]`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import socket
import sys
import textwrap
import uuid
from collections.abc import Sequence
from pathlib import Path

from study import text as terminal
from study.commands import add_json, add_runs, emit
from study.doctor.checks import Check, CheckState

MARKS = {CheckState.OK: "ok", CheckState.WARNING: "!", CheckState.FAILED: "FAILED", CheckState.SKIPPED: "-"}
GROUP = "cluster"
"""The folder, in one of configs, where `cluster=NAME` finds NAME.yaml."""
TRIAL_MINUTES = 5
BESIDE = 60
"""Columns from which on what a check says stands beside its name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_runs(parser)
    parser.add_argument(
        "--partition", help="SLURM partition of the test job and of the file; default: the cluster's default"
    )
    parser.add_argument("--account", help="SLURM account of the test job and of the file")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the test job; 2 tests the network between nodes")
    parser.add_argument("--no-job", action="store_true", help="omit the test job")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest wait for the test job [s]; default 600")
    parser.add_argument(
        "--tracking", metavar="URI", help="MLflow store to test; default: the one in MLFLOW_TRACKING_URI"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write; default: conf/cluster/<this site>.yaml"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file with other content")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look, try and write; 1 if something that runs need does not work here."""
    from study.config.tracking_uri import DEFAULT
    from study.doctor import checks as look
    from study.doctor import site
    from study.storage.mounts import check_file, check_folder

    if options.nodes < 1:
        raise ValueError(f"--nodes {options.nodes} is not allowed: 1 or more")
    done: list[Check] = []

    def add(new: Sequence[Check]) -> None:
        done.extend(new)
        if not options.json:
            terminal.show(
                "\n".join(line for check in new for line in lines(check, min(terminal.WIDTH, terminal.columns())))
            )

    if options.out is not None:
        check_file(f"--out {options.out}", options.out, ".yaml")
    check_folder(f"--runs {options.runs}", options.runs)
    runs = options.runs.absolute()
    scratch = runs / f".doctor-{uuid.uuid4().hex[:8]}"
    machine = look.machine()
    add([machine, look.file_system(runs)])
    uri = options.tracking or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT
    add([look.tracking(uri)])
    scratch.mkdir()
    try:
        slurm, found = look.ask(None, scratch / "limits.json")
        add(found)
        settings = site.settings(slurm, machine.found, options.partition)
        settings |= {"account": options.account} if options.account else {}
        if not options.no_job:
            add(_try(scratch, settings, uri, options, slurm is not None))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    name = site.name_of(slurm, socket.gethostname().split(".")[0])
    path, written = _write(options, name, site.document(name, settings, done))
    code = 1 if any(check.state == CheckState.FAILED for check in done) else 0
    if options.json:
        rows = [dataclasses.asdict(check) for check in done]
        emit("doctor", None, {"site": name, "checks": rows, "cluster": settings, "file": str(path), "written": written})
    else:
        terminal.show("\n".join(closing(path, written=written, code=code)))
    return code


def lines(check: Check, width: int = terminal.WIDTH) -> list[str]:
    """Return a check in lines of `width` columns; in a narrow terminal its result is below its name."""
    head = f"{MARKS[check.state]:>6}  {check.name:<15} "
    indent = " " * (len(head) if width >= BESIDE else 8)
    first = head if width >= BESIDE else indent
    found = textwrap.wrap(check.said, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    return found if width >= BESIDE else [head.rstrip(), *found]


def _try(scratch: Path, settings: dict[str, object], uri: str, options: argparse.Namespace, slurm: bool) -> list[Check]:
    from study.config.schema import ClusterConfig
    from study.doctor import trial
    from study.executors import job_spec_of
    from train.spec.from_mapping import read

    def report(text: str) -> None:
        print(f"{'…':>6}  {text}", file=sys.stderr if options.json else sys.stdout, flush=True)

    if not slurm:
        report("testing torch in two processes of this machine")
        return trial.checks_of(trial.here(scratch, uri), socket.gethostname())
    tasks = 1 if options.nodes > 1 else 2
    gpus = {"gpus_per_node": tasks * int(str(settings.get("gpus_per_node") or 0))}
    small = {"nodes": options.nodes, "tasks_per_node": tasks, "time_minutes": TRIAL_MINUTES, "mem_gb": None, **gpus}
    small["time_minutes"] = min(TRIAL_MINUTES, int(str(settings["time_minutes"])))
    shape = job_spec_of(read(ClusterConfig, {**settings, **small}, "cluster"))
    return trial.checks_of(trial.on_slurm(scratch, shape, uri, options.seconds, report), socket.gethostname())


def _write(options: argparse.Namespace, name: str, text: str) -> tuple[Path, bool]:
    """Write the file, unless there is one that a person may have changed; return its place and whether it is so."""
    from study.config.compose import own_conf_folder
    from study.storage.files import write_atomic

    path: Path = (options.out or own_conf_folder() / GROUP / f"{name}.yaml").absolute()
    if path.exists() and path.read_text(encoding="utf-8") != text and not options.force:
        return path, False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}: name another file with --out") from None
    return path, True


def closing(path: Path, *, written: bool, code: int) -> list[str]:
    """Return what to do with the site's file: the command that tries it, after the one that moves it where needed."""
    from study.config.compose import conf_folder

    lines = ["", f"wrote {path}" if written else f"{path} is there and says otherwise: --force replaces it"]
    place = path.parent
    if place.name != GROUP:
        place /= GROUP
        moved = f"mkdir -p {shlex.quote(str(place))} && mv {shlex.quote(str(path))} {shlex.quote(str(place))}"
        lines.append(f"{moved}    # cluster= looks in folders of that name")
    own = place == conf_folder() / GROUP
    folder = "" if own else f" --config-dir {shlex.quote(str(place.parent))}"
    lines.append(
        f"python -m study.sweep{folder} study=smoke cluster={path.stem} dry_run=true    # shows the job script"
    )
    return [*lines, "fix what FAILED before you start runs here"] if code else lines
