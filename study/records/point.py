"""A point: its frozen config, its key, its line in a study's file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from study.storage.jsonl import Log, compact
from study.storage.layout import StudyFolder

if TYPE_CHECKING:
    from train.spec.config import RunConfig


class Point:
    """A frozen config, its key, and the overrides that a person would recognise it by.

    A point of a study's file has its config as text. A look at a study takes from that what it needs, and the config
    itself is built when it is first asked for.
    """

    def __init__(self, key: str, config: RunConfig | str, overrides: tuple[str, ...] = ()) -> None:
        """config: or its JSON, as the study's file has it."""
        self.key, self.overrides = key, overrides
        self._text = ""
        if isinstance(config, str):
            self._text = config
        else:
            self.config = config

    @cached_property
    def config(self) -> RunConfig:
        """The config. Raises ValueError where it is read first and says what none can say."""
        from study.records.frozen_config import run_config

        try:
            return run_config(self.raw)
        except ValueError as error:
            raise ValueError(f"point {self.key}: {error}") from error

    @property
    def text(self) -> str:
        """The config as JSON text, as it was written."""
        return self._text or compact(asdict(self.config))

    @property
    def raw(self) -> dict[str, Any]:
        """The config as JSON, as it was written: nothing is checked, nothing converted."""
        found: dict[str, Any] = json.loads(self._text) if self._text else asdict(self.config)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return (self.key, self.config, self.overrides) == (other.key, other.config, other.overrides)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Point({self.key!r}, overrides={self.overrides!r})"

    def called(self, overrides: tuple[str, ...]) -> Point:
        """Return the point by other overrides."""
        return Point(self.key, self._text or self.config, overrides)

    @cached_property
    def tokens(self) -> int:
        """The budget [tokens]; 0 where it says none. Kept: a look that sees bad ends asks for it three times."""
        said = self.section("budget").get("tokens", 0)
        return said if type(said) is int else self.config.budget.tokens or 0

    @property
    def parent(self) -> str | None:
        """What the run goes on from, as its config says it."""
        found = self._section("schedule")
        if found is None:
            return self.config.schedule.parent
        said = None if '"parent":null' in found else json.loads(found).get("parent")
        return None if said is None else str(said)

    @property
    def data_root(self) -> str:
        """The folder of prepared data that it reads."""
        said = self.section("runtime").get("data_root")
        return said if isinstance(said, str) else self.config.runtime.data_root

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs of a token, by train.spec.counts."""
        from study.records.frozen_config import flops_per_token, flops_per_token_of

        model, data = self._section("model"), self._section("data")
        if model is not None and data is not None:
            with suppress(TypeError, KeyError):  # what is wrong is said by the config as a whole
                return flops_per_token_of(model, data)
        return flops_per_token(self.config)

    @property
    def params(self) -> int:
        """Weights that take part in matrix products, by train.spec.counts."""
        from study.records.frozen_config import matmul_params_of

        model, data = self._section("model"), self._section("data")
        if model is not None and data is not None:
            with suppress(TypeError, KeyError):
                return matmul_params_of(model, data)
        from train.spec.counts import params

        return params(self.config.model, self.config.data.vocab_size).matmul

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the config as it was written: nothing is checked, nothing converted."""
        found = self._section(name)
        return (self.raw.get(name) or {}) if found is None else _parsed(found)

    def _section(self, name: str) -> str | None:
        """Return the text of a section that holds no other; None where it is not found as that."""
        mark = f'"{name}":{{'
        start = self._text.find(mark)
        if start < 0 or self._text.find(mark, start + 1) >= 0:
            return None
        begin = start + len(mark) - 1
        text = self._text[begin : self._text.find("}", begin) + 1]
        return None if "{" in text[1:] else text


def point(config: RunConfig, overrides: tuple[str, ...] = ()) -> Point:
    """Return the point of a resolved config (see train.spec.resolve)."""
    from study.records.frozen_config import key_of

    return Point(key_of(asdict(config)), config, overrides)


@cache
def _parsed(section: str) -> Mapping[str, Any]:
    """Return a section by its JSON. Kept: thousands of points have few sections that differ."""
    found: dict[str, Any] = json.loads(section)
    return found


def one_of_each(points: Iterable[Point], *sections: str) -> list[Point]:
    """Return one point for each way in which these sections of their configs are written, without reading them."""
    found: dict[object, Point] = {}
    for one in points:
        written = tuple(one._section(name) for name in sections)
        found.setdefault(one.key if None in written else written, one)
    return list(found.values())


KEY = re.compile(r"[0-9A-Za-z_-]{1,64}")
HEAD = '{"key":"'


def line_of(point: Point) -> str:
    """Return a point as its line in `points.jsonl`."""
    return compact({"key": point.key, "config": asdict(point.config), "overrides": list(point.overrides)})


def stored(line: str) -> Point:
    """Return the point of a line. Raises ValueError, KeyError or TypeError where it is not one."""
    key, mark, rest = line.removeprefix(HEAD).partition('","config":')
    text, _, overrides = rest.rpartition(',"overrides":')
    if line.startswith(HEAD) and mark and text.startswith("{") and overrides.endswith("]}"):
        said = json.loads(overrides[:-1])
    else:  # not as we write it
        entry = json.loads(line)
        key, text, said = entry["key"], compact(dict(entry["config"])), entry.get("overrides") or ()
    if not KEY.fullmatch(key):  # runs lie, and are removed, under their keys
        raise ValueError(key)
    return Point(key, text, tuple(said))


def point_log(folder: StudyFolder) -> Log[Point]:
    """Return the log of a study's points."""
    remedy = "remove that line and run the study's command again"
    return Log(folder.points, lambda line: stored(line.decode()), line_of, "a point", remedy)


def find_point(folder: StudyFolder, key: str) -> Point:
    """Return a point of a study, reading no other line as JSON. ValueError where there is none."""
    needle = f'"{key}"'.encode()
    with folder.points.open("rb") as lines:
        for line in lines:
            if needle in line and line.endswith(b"\n") and (found := stored(line.decode())).key == key:
                return found
    raise ValueError(f"{folder.points} has no point {key}: run the study's command again")


def has_branches(folder: StudyFolder, key: str) -> bool:
    """Say whether a point of the study goes on from this one, without reading every line as JSON."""
    return f'"parent":"{key}@' in folder.points.read_text(encoding="utf-8")
