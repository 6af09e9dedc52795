"""What ranks that time collectives wrote down, and the links that follow from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.spec.communication.cluster import Compute
from train.spec.communication.fit import LinkFit, Timed, fit_link
from train.spec.from_mapping import read


@dataclass(frozen=True)
class TimedPoint:
    """A collective as it was timed on links of a level; spread: of its rounds, (longest - shortest) / median."""

    level: str
    timed: Timed
    spread: float


@dataclass(frozen=True)
class Results:
    """What ranks wrote: who they are, points, ceilings of a device if there is one, and whether they have ended."""

    about: Mapping[str, Any]
    points: tuple[TimedPoint, ...]
    device: Compute | None
    complete: bool


@dataclass(frozen=True)
class Fits:
    """A link for each level and collective, by both names; why: where the points show none."""

    found: Mapping[tuple[str, str], LinkFit]
    why: Mapping[tuple[str, str], str] = field(default_factory=dict)


def results_of(path: Path) -> Results:
    """Return what ranks have written so far; ValueError where the file is none of theirs."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise ValueError(f"results={path}: there is no such file; `python -m train.measure --out` writes one") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise ValueError(f"results={path} is not what `python -m train.measure` writes: it is no text file") from None
    about: Mapping[str, Any] = {}
    points: list[TimedPoint] = []
    device, complete = None, False
    for number, line in enumerate(lines[:-1], 1):  # the last one may be half written
        try:
            ((kind, what),) = json.loads(line).items()
            if kind == "about":
                about = dict(what)
            elif kind == "point":
                spread, level = float(what.pop("spread")), str(what.pop("level"))
                points.append(TimedPoint(level, read(Timed, what), spread))
            elif kind == "device":
                device = read(Compute, what)
            complete = complete or kind == "done"
        except (ValueError, KeyError, AttributeError, TypeError, ArithmeticError, RecursionError) as error:
            raise ValueError(
                f"results={path}: line {number} is not what `python -m train.measure` writes: {error}"
            ) from None
    return Results(about, tuple(points), device, complete)


def fits_of(points: Sequence[TimedPoint]) -> Fits:
    """Return the links of each level and collective that has sizes enough."""
    kinds: dict[tuple[str, str], list[Timed]] = {}
    for point in points:
        kinds.setdefault((point.level, point.timed.collective), []).append(point.timed)
    found, why = {}, {}
    for kind, timed in kinds.items():
        try:
            found[kind] = fit_link(timed)
        except ValueError as error:
            why[kind] = str(error)
    return Fits(found, why)
