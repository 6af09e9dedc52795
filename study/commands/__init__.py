"""The commands of `python -m study`, one per file; only the one that is called is imported."""

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
    "list": "all studies, one per line: points by state, time of the last change",
    "status": "points by state, failures by kind, GPU-hours, time left; exit code 1 if a point failed",
    "watch": "live progress until all points have ended; Ctrl-C only stops watching",
    "show": "one point: config differences, attempts with nodes and outcomes, checkpoints, its MLflow run",
    "logs": "the output of a point; without a point, list the points that have logs",
    "diagnose": "why a run is slow: shares of its step, what limits it, the first thing to try",
    "cancel": "cancel points: running ones save a checkpoint, waiting ones are not started",
    "retry": "resume points that failed, were killed or ran out of time from their checkpoints; "
    "cancelled ones with --state cancelled",
    "resume": "submit the points of a study that wait, were interrupted or were never submitted",
    "reconcile": "resolve unclear submissions and submit waiting points; --force gives up those that SLURM does "
    "not confirm",
    "enqueue": "add settings that a search is to try next",
    "export-curves": "export learning curves to replay schedulers on them (python -m sweeps.replay)",
    "plot": "plots of a search: survival by rung, curves, settings; a population's lineage and schedule",
    "optuna": "write a search to an Optuna storage, for optuna-dashboard and Optuna's plots",
    "gc": "remove checkpoints that are no longer needed; without --yes only list them",
    "plan": "predict before anything runs: memory: what each GPU holds; step: how long a step takes; "
    "parallel: the fastest layout",
    "cost": "GPU-hours requested, used, lost to failures and idle, including requeued and failed attempts",
    "sync": "send new values to MLflow",
    "export": "export a point's weights for transformers and vLLM, and register them as a model in MLflow",
    "dashboard": "serve MLflow for a study on 127.0.0.1, with its columns and charts set up",
    "doctor": "probe this machine and its cluster, with a test job; write a conf/cluster/*.yaml for them",
    "bench": "measure or compare: comm: links and GPUs; pipeline: pipeline schedules by simulation; "
    "strategies: DDP, FSDP1 and FSDP2 side by side",
    "completion": "print the shell script that completes commands, studies, points, keys and states",
    "reproduce": "run the whole pipeline, data -> sweep -> fit -> report, as make study does",
}

FORMAT = 1
"""Version of every command's JSON: within it fields are added, never renamed, removed or given another meaning."""
DEFAULT_RUNS = Path("runs")
"""Where studies lie unless --runs says otherwise; before the first study it is not there."""

EXIT_CODES = """\
exit codes:
  0   success
  1   done, but something needs attention (a point failed, a check did not pass)
  2   nothing was done: the message on stderr says what to change
  75  MLflow's store is unreachable: try again later
  130 stopped by Ctrl-C"""


class Joined(argparse.Action):
    """Keep every value of an option that is given again, with commas, as in one list."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Add a value."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


class Command(Protocol):
    """What a command's module offers; with sub-commands also `about(words)`, the help on the one that words name."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Run it and return the exit code; ValueError is for what the user can put right."""


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a study."""
    parser.add_argument("study", metavar="STUDY", help="name or folder of the study")
    add_runs(parser)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where studies lie."""
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS, metavar="DIR", help="folder of the studies")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for machines: one JSON object on stdout, also for an error (docs/json.md says its shape)."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text (docs/json.md)")


def add_point(parser: argparse.ArgumentParser) -> None:
    """Add the two ways to name points by key: as words behind the study, or with --point."""
    parser.add_argument("points", nargs="*", metavar="POINT", help="key of a point, a prefix of it, or its job, as 7_0")
    parser.add_argument("--point", action="append", default=[], metavar="KEY", help="the same, as an option")


def add_selection(parser: argparse.ArgumentParser, default: str, help: str) -> None:
    """Add the options that choose points: by state, by key, by values of their configs."""
    parser.add_argument("--state", metavar="STATES", action=Joined, help=f"{help}; default: {default}")
    add_point(parser)
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only points whose config matches, as model.width=512,768 or 'optim.lr<1e-3' (= != < <= > >=); several "
        "--where combine with and",
    )


def selection(options: argparse.Namespace, state: str | None) -> list[str]:
    """Return the words of a command that select the points that --where and keys do here, in these states."""
    words = [] if state is None else ["--state", state]
    for key in (*options.points, *options.point):
        words += ["--point", key]
    for said in options.where:
        words += ["--where", said]
    return words


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
