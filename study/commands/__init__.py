"""The commands of `python -m study`, one file each; only the one that is called is imported."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from study.storage.layout import StudyFolder

COMMANDS = {
    "list": "every study in one line: its points by state, and when something last happened",
    "status": "every point by state, failures by class, GPU-hours, time left; exit code 1 if a point failed",
    "watch": "how the points get on, live, until all of them ended; Ctrl-C only stops watching",
    "show": "one point: how its config differs, attempts with nodes and ends, checkpoints, where MLflow shows it",
    "logs": "what a point printed; without a point, which points have logs",
    "cancel": "stop points: running ones write a checkpoint, waiting ones are not started",
    "retry": "points that failed, were killed or ran out of time go on from their checkpoints; "
    "those that were cancelled with --state cancelled",
    "resume": "submit whatever of the study is due: what waits, what was interrupted, what never went out",
    "reconcile": "settle submissions of unclear fate and submit what waits; --force gives up those that SLURM is "
    "silent about",
    "enqueue": "let a search try settings of yours next",
    "export-curves": "a study's learning curves as a table, to replay schedulers on (python -m sweeps.replay)",
    "plot": "pictures of a search: survival by rung, curves, settings; a population's lineage and schedule",
    "optuna": "fill the Optuna storage of a search, for optuna-dashboard and Optuna's plots",
    "gc": "remove checkpoints that nothing needs any more; without --yes it only says which",
    "cost": "GPU-hours asked, used, lost to failures and idle, requeued and failed attempts included",
    "sync": "bring MLflow up to date",
    "dashboard": "MLflow's pages for a study, on this machine's loopback, with its columns and charts prepared",
    "doctor": "what this machine and its cluster allow, tried in a test job; writes a conf/cluster/*.yaml for them",
    "completion": "the shell script that completes commands, studies, points, keys and states",
    "reproduce": "the whole pipeline, data -> sweep -> fit -> report, as make study runs it",
}

FORMAT = 1
"""Version of every command's JSON: within it fields are added, never renamed, removed or given another meaning."""
DEFAULT_RUNS = Path("runs")
"""Where studies lie unless --runs says otherwise; before the first study it is not there."""

EXIT_CODES = """\
exit codes: 0 all well; 1 it worked, and something needs a look (a point failed, a check did not pass);
  2 nothing was done, the message on stderr says what to change; 75 MLflow's store is away, try again later;
  130 stopped by Ctrl-C."""


class Command(Protocol):
    """What a command's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Run it and return the exit code; ValueError is for what the user can put right."""


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a study."""
    parser.add_argument("study", metavar="STUDY", help="the study's name, or its folder")
    add_runs(parser)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where studies lie."""
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS, metavar="DIR", help="folder of all studies")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for machines: one JSON object on stdout, also for an error (docs/commands.md says its shape)."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text (docs/commands.md)")


def add_point(parser: argparse.ArgumentParser) -> None:
    """Add the two ways to name points by key: as words behind the study, or with --point."""
    parser.add_argument("points", nargs="*", metavar="POINT", help="a point's key, or the beginning of it")
    parser.add_argument("--point", action="append", default=[], metavar="KEY", help="the same as an option")


def add_selection(parser: argparse.ArgumentParser, default: str, help: str) -> None:
    """Add the options that choose points: by state, by key, by values of their configs."""
    parser.add_argument("--state", metavar="STATES", help=f"{help}; default: {default}")
    add_point(parser)
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only points whose config says so, as model.width=512,768 or 'optim.lr<1e-3' (= != < <= > >=); each "
        "further --where narrows the choice",
    )


def emit(command: str, folder: StudyFolder | None, fields: Mapping[str, Any], compact: bool = False) -> None:
    """Print a command's one JSON object: format, command, study and folder first."""
    about = {} if folder is None else {"study": folder.name, "folder": str(folder.path)}
    whole = {"format": FORMAT, "command": command, **about, **fields}
    try:
        text = json.dumps(whole, allow_nan=False, separators=(",", ":") if compact else None)
    except ValueError:  # JSON has no word for a loss that is not a number
        text = json.dumps(_finite(whole), allow_nan=False)
    print(text, flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):  # the name `list` here may be the command's module
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
