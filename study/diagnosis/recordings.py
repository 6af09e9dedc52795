"""Finding a run's recordings, and the commands that make one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from study.records.checkpoints import saved
from study.records.points import load_points
from study.records.settings import find_study
from study.storage.layout import RunFolder, StudyFolder

STEPS = 20
"""Steps that a run is trained on to be recorded."""
_OURS = re.compile(r"step-(\d+)-rank-(\d+)\.json(\.gz)?")


@dataclass(frozen=True)
class Target:
    """What is diagnosed: a run's folder, if it is one, and the traces of one recording, by rank; none where none is."""

    name: str
    run: RunFolder | None
    traces: Sequence[Path]


def find(name: str, points: Sequence[str], runs: Path, step: int | None = None) -> Target:
    """Return the run, folder or trace that a name means; of several recordings the latest, or the one of `step`.

    A name is a trace's file, a folder with traces, a run's folder, or a study, whose point is given by its key.
    Raises ValueError where nothing of that name is there, or more than one thing.
    """
    if not name:
        raise ValueError("RUN is empty: give a run's folder, a study, a trace or a folder of traces")
    path = Path(name)
    if path.is_file():
        _refuse_points(name, "a trace", points)
        if step is not None:
            raise ValueError(f"--step {step} chooses from several recordings, and {name} is one: leave it out")
        return Target(name, None, [path])
    if path.is_dir() and not (path / "points.jsonl").exists():
        _refuse_points(name, "no study", points)
        return _in_folder(name, path, step)
    if not path.exists() and ("/" in name or name.endswith((".json", ".gz"))) and not (runs / name).exists():
        raise ValueError(f"{name} is not there: give a run's folder, a study, a trace or a folder of traces")
    folder = find_study(name, runs)
    run = _run_of(folder, points)
    return Target(run.path.name, run, recording(run.path / "profile", step))


def _refuse_points(name: str, what: str, points: Sequence[str]) -> None:
    """Raise ValueError for points that are asked of what has none."""
    if points:
        key, equals, value = points[0].partition("=")
        cure = f"did you mean --{key} {value}?" if equals else "leave it out"
        raise ValueError(f"{points[0]!r} would be the key of a point, and {name} is {what}: {cure}")


def _in_folder(name: str, path: Path, step: int | None) -> Target:
    if any((path / part).exists() for part in ("config.yaml", "metrics.jsonl", "profile")):
        return Target(name, RunFolder(path), recording(path / "profile", step))
    traces = recording(path, step)
    if not traces:
        raise ValueError(
            f"{path} has neither a run (config.yaml, metrics.jsonl) nor traces (*.json, *.json.gz): give a run's "
            "folder, a study, a trace or a folder of traces"
        )
    return Target(name, None, traces)


def _run_of(folder: StudyFolder, points: Sequence[str]) -> RunFolder:
    keys = list(load_points(folder))
    found = [key for key in keys if any(key.startswith(given) for given in points)] if points else keys
    if len(found) == 1:
        return folder.run(found[0])
    recorded = [key for key in found or keys if (folder.run(key).path / "profile").is_dir()]
    some = recorded or found or keys
    which = "those with a recording are" if recorded else "the keys are"
    listed = ", ".join(some[:5]) + (", …" if len(some) > 5 else "")
    raise ValueError(f"{folder.name}: name one of its {len(keys)} points: {which} {listed}")


def recording(folder: Path, step: int | None = None) -> list[Path]:
    """Return the traces of one recording in a folder, by rank: of the latest, or the one of this step.

    Traces of other tools, which do not say a step in their names, are taken as one recording, a rank each. ValueError
    where there is no recording of that step.
    """
    ours: dict[int, dict[int, Path]] = {}
    others = []
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")]):
        said = _OURS.fullmatch(path.name)
        if said is None:
            others.append(path)
        else:
            ours.setdefault(int(said[1]), {})[int(said[2])] = path
    if step is not None and step not in ours:
        there = ", ".join(map(str, sorted(ours))) or "none"
        raise ValueError(f"{folder} has no recording that ends at step {step}: there are {there}")
    if not ours:
        return others
    chosen = ours[max(ours) if step is None else step]
    return [chosen[rank] for rank in sorted(chosen)]


def trace_commands(run: RunFolder | None, tokens_per_step: int | None) -> list[str]:
    """Return the commands that record some steps of a run from its newest checkpoint on, and look at them."""
    there = [] if run is None else saved(run)
    if run is None or not there or there[-1].tokens <= 0:
        return ["python -m study.sweep STUDY'S-KEYS profile.start=20 profile.ranks=all profile.shapes=true"]
    newest = there[-1]
    further = STEPS * (tokens_per_step or newest.tokens // max(1, newest.step))
    out = run.path.with_name(f"{run.path.name}-profiled")
    ended = run.outcome.exists()
    length = f"--tokens {further}" if ended else "--same"
    until = "" if ended else f" --until {newest.tokens + further}"
    keys = f"profile.start={newest.step + 5} profile.ranks=all profile.shapes=true"
    old, new = shlex.quote(str(run.path)), shlex.quote(str(out))
    return [
        f"python -m train.branch --parent {old} --out {new} {length} --set {keys}",
        f"python -m train.run --config {new}/config.yaml{until}",
        f"python -m study diagnose {new}",
    ]


def nsys_command(run: RunFolder | None) -> str:
    """Return the command for those who have Nsight Systems; profile.nvtx=true marks the phases in it."""
    folder = "RUN" if run is None else shlex.quote(str(run.path))
    return f"nsys profile --trace cuda,nvtx,osrt --output slow python -m train.run --config {folder}/config.yaml"
