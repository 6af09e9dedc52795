"""What a command asks for, decided: the points in order, each once, and the cluster that each one goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from study.config.compose import Composed
from study.config.schema import ClusterConfig, StudyConfig
from study.records import lineage
from study.records.corpus import Corpus
from study.records.point import Point
from study.records.points import load_points, one_budget, to_point
from study.storage.layout import StudyFolder
from study.storage.study_names import check_place, check_study_name
from train.spec.config import SCIENTIFIC, RunConfig


@dataclass(frozen=True)
class StudyPlan:
    """Points to submit; `asked` counts them before duplicates were dropped."""

    folder: StudyFolder
    config: StudyConfig
    points: tuple[Point, ...]
    clusters: tuple[ClusterConfig, ...]
    asked: int

    def batches(self) -> list[tuple[ClusterConfig, list[Point]]]:
        """Return the points by the cluster section that they go to, in order."""
        by_cluster: dict[str, tuple[ClusterConfig, list[Point]]] = {}
        for point, cluster in zip(self.points, self.clusters, strict=True):
            by_cluster.setdefault(repr(cluster), (cluster, []))[1].append(point)
        return list(by_cluster.values())


def common(composed: Sequence[Composed]) -> StudyConfig:
    """Return a config that stands for all; ValueError where settings of the whole study differ between points.

    It is the first, with the budget as it was said last: what a preset says beside it holds for no point.
    """
    if not composed:
        raise ValueError("the search makes no points: give a value to each list after -m")
    first = composed[0].config
    folder = folder_of(first)
    check_study_name(first.study.name, begun=folder.points.is_file())
    check_place(folder)
    for part in ("study", "retry", "tracking", "paths", "dry_run", "wait"):
        mine = getattr(first, part)
        other = next((value for one in composed if (value := getattr(one.config, part)) != mine), mine)
        if other != mine:
            raise ValueError(
                f"{part} differs between points ({_unlike(mine, other)} and {_unlike(other, mine)}): "
                "it is one setting of the whole study, so it cannot be in a list after -m"
            )
    return replace(first, budget=one_budget(first.budget, composed[0].overrides))


UNKEYED = ("cluster", *(one.name for one in fields(RunConfig) if one.name not in SCIENTIFIC))
"""Sections that may differ between points, and by which none differs from another."""


def check_apart(composed: Sequence[Composed], resolved: Sequence[RunConfig]) -> None:
    """Raise ValueError where configs of one point differ, in what is no part of it: only one of them would be run."""
    unkeyed = UNKEYED if composed[0].config.search.name != "grid" else (*UNKEYED, "search")  # designs make points by it
    apart = [repr([getattr(one.config, name) for name in unkeyed]) for one in composed]
    if len(set(apart)) < 2:
        return
    first: dict[str, int] = {}
    for place, point in enumerate(points_of(composed, resolved, {})):
        earlier = first.setdefault(point.key, place)
        if apart[earlier] != apart[place]:
            one, other = composed[earlier], composed[place]
            raise ValueError(
                f"{_unkeyed(one, other, unkeyed)} and {_unkeyed(other, one, unkeyed)} make one and the same point: "
                f"{', '.join(unkeyed[:-1])} and {unkeyed[-1]} are no part of a point, so their keys cannot be in a "
                "list after -m; give one value, or run the command once for each with a study.name of its own"
            )


def _unkeyed(one: Composed, other: Composed, unkeyed: Sequence[str]) -> str:
    """Return what a config says otherwise than another in what is no part of a point, as it was typed if it was."""
    typed = [word for word in one.overrides if word not in other.overrides and _head(word) in unkeyed]
    section = next(name for name in unkeyed if getattr(one.config, name) != getattr(other.config, name))
    return " ".join(typed) or f"{section}.{_unlike(getattr(one.config, section), getattr(other.config, section))}"


def make_plan(
    composed: Sequence[Composed], resolved: Sequence[RunConfig], fingerprints: Mapping[Corpus, str]
) -> StudyPlan:
    """Return the frozen points, each once, named by the overrides that tell them apart."""
    config = common(composed)
    frozen: dict[str, tuple[Point, ClusterConfig]] = {}
    for point, one in zip(points_of(composed, resolved, fingerprints), composed, strict=True):
        frozen.setdefault(point.key, (point, one.config.cluster))
    shared = _shared([point.overrides for point, _ in frozen.values()])
    shared -= _news(shared, next(iter(frozen.values()))[0], folder_of(config))
    derived = lineage.DERIVED if lineage.parents(point for point, _ in frozen.values()) else ()
    points = tuple(p.called(_recognisable(p.overrides, shared, derived)) for p, _ in frozen.values())
    return StudyPlan(folder_of(config), config, points, tuple(c for _, c in frozen.values()), len(composed))


def points_of(
    composed: Sequence[Composed], resolved: Sequence[RunConfig], fingerprints: Mapping[Corpus, str]
) -> list[Point]:
    """Return the point of each config in order, its parent bound to the points before it."""
    points: list[Point] = []
    keys: list[str] = []
    for one, run in zip(composed, resolved, strict=True):
        points.append(to_point(lineage.bind_parent(run, keys), fingerprints, lineage.name_parent(one.overrides, keys)))
        keys.append(points[-1].key)
    return points


def folder_of(config: StudyConfig) -> StudyFolder:
    """Return the folder of the study that a config names."""
    return StudyFolder(Path(config.paths.runs).expanduser().absolute() / config.study.name)


def _shared(overrides: Sequence[Sequence[str]]) -> frozenset[str]:
    """Return the overrides that name no point, because all have them; of a single point those of its data."""
    if len(overrides) == 1:
        return frozenset(o for o in overrides[0] if _head(o) == "data")
    return frozenset(set.intersection(*(set(o) for o in overrides)))


def _news(shared: frozenset[str], first: Point, folder: StudyFolder) -> frozenset[str]:
    """Return the overrides that all new points share and a point already in the study has not: another seed, say."""
    new = first.raw
    single = {o: value for o in shared if not isinstance(value := _value(new, o), Mapping)}
    if not single or not folder.points.is_file():
        return frozenset()
    earlier = [point.raw for point in load_points(folder).values()]
    return frozenset(o for o, value in single.items() if any(_value(config, o) != value for config in earlier))


def _value(config: Mapping[str, Any], override: str) -> Any:
    """Return what a config has where an override sets it; None where it has nothing there."""
    found: Any = config
    for name in override.lstrip("+~").partition("=")[0].split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return list(found) if isinstance(found, tuple) else found


def _recognisable(overrides: Sequence[str], shared: frozenset[str], derived: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(o for o in overrides if _head(o) in SCIENTIFIC and o not in shared and not o.startswith(derived))


def _head(override: str) -> str:
    """Return the section or group that an override is about."""
    return override.lstrip("+~").partition("=")[0].partition(".")[0].partition("@")[0]


def _unlike(section: Any, other: Any) -> str:
    """Return what a section says otherwise than another."""
    if not is_dataclass(section) or isinstance(section, type):
        return str(section).lower()
    theirs = asdict(other)
    return ", ".join(f"{name}={value}" for name, value in asdict(section).items() if value != theirs[name])
