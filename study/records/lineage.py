"""Points that go on from another point's checkpoint: who their parent is, what they cost, when they may start.

A branch's loss belongs to all the tokens that its weights have seen, so its budget counts its parent's tokens. What it
spends is only what comes after them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from study.records.frozen_config import flops_per_token
from study.records.point import Point
from train.spec.config import RunConfig
from train.spec.lineage import Parent, parse

_PLACE = re.compile(r"point:(?P<number>\d+)@(?P<tokens>\d+)")

DERIVED = tuple(
    f"schedule.{name}=" for name in ("warmup_fraction", "decay_fraction", "final_lr_fraction", "decay_shape")
)
"""Overrides of trunks and branches that follow from their tokens: nobody recognises a point by them."""


def reference(number: int, tokens: int) -> str:
    """Return how to name a parent whose key is not known yet: by its number among the points of one command."""
    return f"point:{number}@{tokens}"


def bind_parent(run: RunConfig, keys: Sequence[str]) -> RunConfig:
    """Return the config with the key of its parent in the place of its number; `keys`: of the points before it."""
    found = _PLACE.fullmatch(run.schedule.parent or "")
    if found is None:
        return run
    assert int(found["number"]) < len(keys), "a parent comes before its branches"
    parent = Parent(keys[int(found["number"])], int(found["tokens"]))
    return replace(run, schedule=replace(run.schedule, parent=str(parent)))


def name_parent(overrides: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides with the key of the parent in the place of its number."""

    def key(found: re.Match[str]) -> str:
        return str(Parent(keys[int(found["number"])], int(found["tokens"])))

    return tuple(_PLACE.sub(key, line) if line.startswith("schedule.parent=") else line for line in overrides)


def parent_of(config: RunConfig) -> Parent | None:
    """Return the point that a frozen config goes on from; None where it starts from scratch or from a folder."""
    return parse(config.schedule.parent)


def branches(points: Iterable[Point], key: str) -> list[str]:
    """Return the keys of the points that go on from this one."""
    above = ((point.key, parse(point.parent)) for point in points)
    return [branch for branch, parent in above if parent is not None and parent.key == key]


def own_tokens(config: RunConfig) -> int:
    """Return the tokens that a run trains on itself [tokens]: its budget without its parent's."""
    assert config.budget.tokens is not None, "a frozen config says its tokens"
    parent = parent_of(config)
    return config.budget.tokens - (0 if parent is None else parent.tokens)


def own_flops(config: RunConfig) -> float:
    """Return the training FLOPs that a run spends itself, by train.spec.counts."""
    return flops_per_token(config) * own_tokens(config)


def waiting(points: Mapping[str, Point], completed: Collection[str]) -> dict[str, str]:
    """Return the points that cannot start yet, with the parent that each of them waits for."""
    above = {key: parse(point.parent) for key, point in points.items()}
    return {key: parent.key for key, parent in above.items() if parent is not None and parent.key not in completed}


def stranded(points: Mapping[str, Point], lost: Collection[str]) -> set[str]:
    """Return the points that can no longer start by themselves: an ancestor of theirs is one of `lost`."""
    found: set[str] = set()
    above = {key: parent.key for key, point in points.items() if (parent := parse(point.parent)) is not None}
    while more := {key for key, parent in above.items() if key not in found and (parent in lost or parent in found)}:
        found |= more
    return found


def parents(points: Iterable[Point]) -> set[str]:
    """Return the keys that these points go on from."""
    return {parent.key for point in points if (parent := parse(point.parent)) is not None}


def check(points: Iterable[Point], known: Mapping[str, Point]) -> None:
    """Raise ValueError where a parent is not in the study, or does not end where its branch begins."""
    together = {**known, **{point.key: point for point in points}}
    for point in together.values():
        parent = parse(point.parent)
        if parent is None:
            continue
        source = together.get(parent.key)
        if source is None:
            raise ValueError(
                f"schedule.parent={parent}: the study has no point {parent.key}: a branch and its parent are in one "
                "study; for a run elsewhere give the folder of its checkpoint"
            )
        if source.config.budget.tokens != parent.tokens:
            raise ValueError(
                f"schedule.parent={parent}: point {parent.key} ends at {source.config.budget.tokens} tokens, and only "
                "there a checkpoint is certain to be kept: branch from that"
            )
