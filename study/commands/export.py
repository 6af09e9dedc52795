"""`python -m study export STUDY POINT [--out FOLDER] [--name NAME] [--dtype TYPE]`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from study.cleanup import checkpoints
from study.commands import add_json, add_study, emit
from study.commands.sync import AWAY
from study.config import tracking_uri
from study.process.children import interpreter
from study.records.settings import find_study, load_submission
from study.status.observer import Observer
from study.status.selection import by_key
from study.storage.layout import RunFolder, StudyFolder
from study.tracking import Tracking

DTYPES = ("bfloat16", "float16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("point", metavar="POINT", help="key of a point, or a prefix of it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the Hugging Face folder here")
    parser.add_argument("--name", metavar="NAME", help="name of the registered model; default: the study's name")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the weights; default: bfloat16")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Export a point's newest checkpoint and register it in MLflow; what is registered already is not again."""
    folder = find_study(options.study, options.runs)
    observer = Observer(folder)
    key = by_key(list(observer.points.values()), options.point).key
    step = _newest(folder.run(key))
    tracking = load_submission(folder).tracking
    if not tracking.enabled and options.out is None:
        raise ValueError(
            f"{folder.name} is not tracked (tracking.enabled is false in {folder.study}): give --out FOLDER"
        )
    if options.out is not None:
        _check_out(options.out)
    found = {"point": key, "step": step, "out": None if options.out is None else str(options.out)}
    if not tracking.enabled:
        _exported(folder.run(key), options.out, options.dtype, step)
        return _print(options, folder, {**found, "model": None, "version": None, "new": False})
    return _tracked(options, observer, tracking, found)


def _tracked(options: argparse.Namespace, observer: Observer, tracking: Tracking, found: dict[str, object]) -> int:
    from study.tracking.model_registry import ModelRegistry
    from study.tracking.store import RunGoneError, RunRefusedError, StoreAwayError

    folder = observer.folder
    key, step, name = str(found["point"]), int(str(found["step"])), options.name or folder.name
    tags = {"point_key": key, "step": str(step), "dtype": options.dtype}
    try:
        registry = ModelRegistry(folder, tracking, observer)
        version = registry.version(name, tags)
        new = version is None
        if new or options.out is not None:
            with tempfile.TemporaryDirectory(dir=folder.run(key).path, prefix=".export-") as scratch:
                hub = Path(scratch) / "hub"
                _exported(folder.run(key), hub, options.dtype, step)
                if options.out is not None:
                    shutil.copytree(hub, options.out)
                if version is None:
                    version = registry.add(key, hub, name, tags)
    except (RunGoneError, RunRefusedError) as error:
        raise ValueError(f"MLflow refused the model {name!r}: {error}") from None
    except StoreAwayError as error:
        uri = tracking_uri.shown(tracking.uri)
        if options.json:
            emit("export", folder, {**found, "error": str(error)})
        print(f"study export: cannot write to {uri}: {error}\nNothing is lost: run it again later", file=sys.stderr)
        return AWAY
    return _print(options, folder, {**found, "model": name, "version": version, "new": new})


def _check_out(out: Path) -> None:
    """Raise ValueError where a folder exists already or cannot be made: before minutes of work, not after them."""
    if out.exists():
        raise ValueError(f"--out {out} exists: name a folder that does not")
    try:
        out.mkdir(parents=True)
        out.rmdir()
    except OSError as error:
        raise ValueError(f"--out {out} cannot be made ({error.strerror}): name another folder") from None


def _newest(run: RunFolder) -> int:
    """Return the step of a run's newest checkpoint. ValueError where it has none that is whole."""
    steps = [one.step for one in checkpoints.stored(run) if one.whole and not one.abandoned]
    if not steps:
        raise ValueError(f"{run.checkpoints} has no whole checkpoint: there is nothing to export")
    return max(steps)


def _exported(run: RunFolder, out: Path, dtype: str, step: int) -> None:
    """Write a Hugging Face folder, in a process of its own; ValueError with what that said where it cannot."""
    words = [f"run={run.path}", f"out={out.absolute()}", f"dtype={dtype}", f"step={step}"]
    done = subprocess.run(
        [*interpreter(), "-m", "train.hub", "export", *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().removeprefix("error: ") or f"train.hub ended with code {done.returncode}")


def _print(options: argparse.Namespace, folder: StudyFolder, found: dict[str, object]) -> int:
    if options.json:
        emit("export", folder, found)
        return 0
    print(f"{found['point']}: the checkpoint of step {found['step']:,}, {options.dtype}")
    if found["out"] is not None:
        print(f"  {found['out']}: for transformers, vLLM and others")
    if found["model"] is not None:
        was = "is" if found["new"] else "was already"
        print(f"  it {was} version {found['version']} of the model {found['model']!r} in MLflow:")
        print(f"  mlflow.transformers.load_model('models:/{found['model']}/{found['version']}')")
    return 0
