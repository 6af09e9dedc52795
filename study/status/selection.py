"""Choosing points of a study by state, by the beginning of their key, or by values of their configs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from study.records.point import Point
from study.status import filters
from study.status.states import PointState, PointStatus

T = TypeVar("T", bound=PointStatus)


class Keyed(Protocol):
    """What a key names: a point, or its status."""

    @property
    def key(self) -> str:
        """The point's key."""


K = TypeVar("K", bound=Keyed)


def parse_states(text: str) -> frozenset[str]:
    """Return the states in a comma-separated list; `all` is every one. Raises ValueError that lists what is allowed."""
    states = [part.strip() for part in text.split(",") if part.strip()]
    for state in states:
        if state not in (*PointState, "all"):
            raise ValueError(f"--state {state!r} is not a state: choose among {', '.join(PointState)}, or all")
    return frozenset(PointState if "all" in states else map(PointState, states))


def by_key(points: Sequence[K], prefix: str) -> K:
    """Return the one point whose key begins so, or else whose job this is, as SLURM names it.

    Raises ValueError where there is none, or more than one.
    """
    found = [point for point in points if point.key.startswith(prefix)]
    of_job = [] if found else [point for point in points if getattr(point, "job_id", None) == prefix]
    found = found or of_job
    if len(found) == 1:
        return found[0]
    if not found:
        some = ", ".join(point.key for point in points[:5])
        raise ValueError(f"no point begins with {prefix!r}: the keys are {some}{', …' if len(points) > 5 else ''}")
    some = ", ".join(point.key for point in found[:5])
    if of_job:
        raise ValueError(f"{prefix!r} is the job of {len(found)} points ({some}): give the key of one")
    raise ValueError(f"{prefix!r} begins {len(found)} keys ({some}): give more of it")


def choose(statuses: Sequence[PointStatus], states: frozenset[str], prefixes: Sequence[str]) -> list[PointStatus]:
    """Return the points in one of these states, or those named; in the study's order."""
    if prefixes:
        keys = {by_key(statuses, prefix).key for prefix in prefixes}
        return [status for status in statuses if status.key in keys]
    return [status for status in statuses if status.state in states]


def selected(
    options: argparse.Namespace, statuses: Sequence[PointStatus], points: Mapping[str, Point], default: str
) -> list[PointStatus]:
    """Return the points that keys, --state and --where name together (study.commands.add_selection).

    Points named by key are taken in any state unless --state is given. Raises ValueError for what cannot be chosen.
    """
    states, given = parse_states(options.state or default), given_points(options)
    chosen = choose(statuses, states, given)
    if given and options.state:
        chosen = [status for status in chosen if status.state in states]
    if options.where:
        keys = filters.matching(points, [filters.parse(text) for text in options.where])
        chosen = [status for status in chosen if status.key in keys]
    return chosen


def given_points(options: argparse.Namespace) -> list[str]:
    """Return the keys, or beginnings of keys, that were given in either way."""
    return [*options.points, *options.point]


def one_point(options: argparse.Namespace) -> str:
    """Return the one key that was given; ValueError where none was, or several."""
    given = given_points(options)
    if len(given) != 1:
        said = f"{len(given)} were given ({', '.join(given)})" if given else "none was given"
        study = getattr(options, "study", "STUDY")
        raise ValueError(
            f"name one point by its key, or the beginning of it: {said}; python -m study status {study} lists them"
        )
    return given[0]
