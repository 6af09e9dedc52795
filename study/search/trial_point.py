"""The point of a trial: its frozen config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from study.config.compose import check
from study.config.schema import StudyConfig
from study.records.point import Point
from study.records.points import resolve_run, to_point
from study.search.settings import Settings
from sweeps.history import Config
from train.spec.from_mapping import read
from train.spec.later import filled


def trial_point(
    settings: Settings, config: Config, origin: str | None = None, base: StudyConfig | None = None
) -> Point:
    """Return the point of a trial: the search's base config, fingerprint and all, with the trial's settings in it.

    origin: `<key>@<tokens>` of the checkpoint that it goes on from; None: it starts from scratch. base: the base
    config read, for who asks often: then only the sections are read that the trial's settings are in.
    """
    changed = dict(config) if origin is None else {**config, "schedule.parent": origin}
    plain: dict[str, Any] = filled(settings.base)
    for key, value in changed.items():
        plain = _with(plain, key.split("."), value)
    overrides = tuple(f"{key}={_short(value)}" for key, value in changed.items())
    return to_point(
        resolve_run(check(plain) if base is None else _reread(base, plain, changed), overrides), {}, overrides
    )


def _reread(base: StudyConfig, plain: dict[str, Any], changed: Config) -> StudyConfig:
    """Return a config with the sections read anew that hold the keys in `changed`; ValueError as of `check`."""
    names = {key.partition(".")[0] for key in changed}
    try:
        return replace(base, **{name: read(type(getattr(base, name)), plain[name], name) for name in names})
    except ValueError:
        return check(plain)


def _with(plain: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**plain, name: value}
    return {**plain, name: _with(plain[name], rest, value)}


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
