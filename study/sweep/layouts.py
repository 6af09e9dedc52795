"""parallel=auto: the layout of new points is chosen by the search; points that the study has keep theirs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from study.config.compose import Composed
from study.config.given import parts
from study.executors import load
from study.planning.parallel.auto import Chooser, is_auto, with_ranks
from study.planning.plan import folder_of, points_of
from study.planning.ranks import tasks
from study.records.corpus import Corpus, corpus_of
from study.records.point import Point
from study.records.points import load_points
from study.storage.layout import StudyFolder
from study.text import counted
from train.spec.axes import MESH_AXES
from train.spec.config import RunConfig

Report = Callable[[str], None]
TELL_SECONDS = 2.0
SHOWN = 4
"""Most keys of points in one line."""


@dataclass(frozen=True)
class LaidOut:
    """Points with their layouts, as composed and as resolved, and lines that say which layouts were chosen."""

    composed: Sequence[Composed]
    resolved: Sequence[RunConfig]
    said: Sequence[str] = ()


def lay_out(composed: Sequence[Composed], resolved: Sequence[RunConfig], report: Report) -> LaidOut:
    """Return the points with a layout for each that asks for parallel=auto; ValueError where none fits."""
    if not any(map(is_auto, resolved)):
        return LaidOut(composed, resolved)
    composed = [_with_ranks(one, run) for one, run in zip(composed, resolved, strict=True)]
    folder = folder_of(composed[0].config)
    known = load_points(folder) if folder.points.is_file() else {}
    points = points_of(composed, resolved, _fingerprints(resolved))
    chooser, runs, kept, told = Chooser(), list[RunConfig](), 0, -TELL_SECONDS
    why: dict[str, list[str]] = {}
    for place, (one, run, point) in enumerate(zip(composed, resolved, points, strict=True), 1):
        if not is_auto(run):
            runs.append(run)
        elif point.key in known:
            runs.append(_kept(run, known[point.key], one, folder))
            kept += 1
        else:
            if time.monotonic() - told > TELL_SECONDS:
                report(f"Choosing layouts (parallel=auto): point {place} of {len(points)}")
                told = time.monotonic()
            choice = chooser.choose(run, one.config, one.overrides)
            runs.append(choice.run)
            why.setdefault(choice.why, []).append(point.key)
    said = [f"Layout of {_named(keys, len(points))}: {reason}" for reason, keys in why.items()]
    if kept:
        said.append(f"{counted(kept, 'point')} of the study {'keep' if kept > 1 else 'keeps'} the layout of before.")
    return LaidOut(composed, runs, said)


def _with_ranks(one: Composed, run: RunConfig) -> Composed:
    if not is_auto(run):
        return one
    return replace(one, config=replace(one.config, cluster=with_ranks(one.config.cluster)))


def _fingerprints(resolved: Sequence[RunConfig]) -> dict[Corpus, str]:
    """Return the fingerprints of the prepared corpora; the study has no points of others."""
    found = {corpus: corpus.find() for corpus in dict.fromkeys(map(corpus_of, resolved))}
    return {corpus: manifest.fingerprint for corpus, manifest in found.items() if manifest is not None}


def _kept(run: RunConfig, point: Point, one: Composed, folder: StudyFolder) -> RunConfig:
    """Return the run with the layout of the study's point; ValueError where the command gives it other ranks."""
    before, cluster = point.config, one.config.cluster
    ranks, given = _ranks(before), tasks(cluster)
    if ranks not in (None, given) and "gpus" not in parts(cluster) and not folder.run(point.key).outcome.exists():
        made = "gpus_per_node" if load(cluster.executor).allocates else "tasks_per_node"
        raise ValueError(
            f"point {point.key} has been laid out on {counted(ranks, 'rank')} and keeps that, but "
            f"cluster.nodes={cluster.nodes} and cluster.{made} give it {given}: give it as many, or take another "
            "study.name for points that are laid out anew"
        )
    runtime = replace(run.runtime, device=before.runtime.device)
    return replace(run, parallel=before.parallel, memory=before.memory, compile=before.compile, runtime=runtime)


def _ranks(run: RunConfig) -> int | None:
    """Return how many ranks a layout needs; None where it takes as many as there are."""
    sizes = [getattr(run.parallel, name) for name in MESH_AXES]
    return None if None in sizes else math.prod(sizes)


def _named(keys: Sequence[str], points: int) -> str:
    if len(keys) == points:
        return "all points" if points > 1 else keys[0]
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more
