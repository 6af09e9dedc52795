"""From checked configs to points: everything derived is filled in, paths are absolute, and the key is the hash."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

from study.config.schema import StudyConfig
from study.records.corpus import Corpus, corpus_of
from study.records.point import Point, point, point_log
from study.storage.files import locked
from study.storage.layout import StudyFolder
from train.spec.config import BudgetConfig, RunConfig
from train.spec.resolve import resolve


def resolve_run(config: StudyConfig, given: Sequence[str] = ()) -> RunConfig:
    """Return the run's config with absolute paths and everything but the corpus's fingerprint.

    `given`: the overrides that a person would recognise it by. ValueError where values contradict each other.
    """
    if config.data.source == "":
        raise ValueError("data.source has no value yet: give the folder of your text, as data.source=/folder")
    return resolve(absolute(replace(config.run(), budget=one_budget(config.budget, given))))


def to_point(run: RunConfig, fingerprints: Mapping[Corpus, str], given: Sequence[str] = ()) -> Point:
    """Return the point of a resolved config, with the fingerprint of its corpus where that is known.

    ValueError where the config asks for another fingerprint.
    """
    fingerprint = fingerprints.get(corpus_of(run), run.data.fingerprint)
    if run.data.fingerprint not in (None, fingerprint):
        raise ValueError(
            f"data.fingerprint={run.data.fingerprint} was asked for, but the prepared corpus has {fingerprint}: "
            "prepare the data it came from, or leave data.fingerprint out"
        )
    return point(replace(run, data=replace(run.data, fingerprint=fingerprint)), tuple(given))


def one_budget(budget: BudgetConfig, given: Sequence[str]) -> BudgetConfig:
    """Return the budget as it was said last: one named in an override replaces what a preset says."""
    names = [f.name for f in fields(BudgetConfig)]
    named = {line.partition("=")[0].lstrip("+").removeprefix("budget.") for line in given}
    said = [name for name in names if name in named and getattr(budget, name) is not None]
    return replace(budget, **{name: None for name in names if name not in said}) if said else budget


def absolute(run: RunConfig) -> RunConfig:
    """Return the config with absolute paths: a job starts in another directory than the one it was submitted from."""
    source = run.data.source
    return replace(
        run,
        data=replace(run.data, source=None if source is None else _absolute(source)),
        runtime=replace(run.runtime, data_root=_absolute(run.runtime.data_root)),
    )


def append_points(folder: StudyFolder, points: Iterable[Point], known: Collection[str] | None = None) -> list[Point]:
    """Append the points that the study does not hold yet, and return them; under the study's lock, in one write.

    `known`: keys that it holds, for a caller who is the only one to append; None: they are read. Points that go on from
    checkpoints of other studies are appended under the locks of these too, which whoever removes checkpoints there
    holds. Raises ValueError where such a checkpoint is gone.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    points = list(points)
    sources = {place: study for point in points if (place := point.config.schedule.parent) and (study := _owner(place))}
    with ExitStack() as stack:
        # In one order for all, so that nobody waits in a ring.
        for study in sorted({folder.path.resolve(), *sources.values()}):
            stack.enter_context(locked(StudyFolder(study).lock))
        for place in sources:
            if not Path(place).expanduser().is_dir():
                raise ValueError(f"schedule.parent={place}: there is no such checkpoint (any more): name another one")
        known = set(known_keys(folder)) if known is None else known
        new = list({p.key: p for p in points if p.key not in known}.values())
        if new:
            point_log(folder).append(new)
    return new


def _owner(parent: str) -> Path | None:
    """Return the study that a checkpoint's folder lies in (STUDY/KEY/checkpoints/NAME); None where that is none."""
    folder = Path(parent).expanduser()
    study = folder.parent.parent.parent
    return study.resolve() if folder.is_absolute() and StudyFolder(study).points.is_file() else None


def known_keys(folder: StudyFolder) -> list[str]:
    """Return the keys of the study's points, oldest first."""
    return list(load_points(folder))


def load_points(folder: StudyFolder) -> dict[str, Point]:
    """Return the study's points by key, oldest first; empty if there is no such study.

    Raises ValueError where a line is not a point.
    """
    return {point.key: point for point in point_log(folder).read()}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
