"""From override lists to checked configs, fast: Hydra composes once per set of group choices, we do the rest.

Hydra needs 40 to 60 ms to compose one point. But points of a sweep mostly differ in values, and Hydra applies values
after all groups are merged. So the groups are composed once, values are set in plain dicts, and interpolations are
resolved where there are any. Everything less simple than setting an existing key (additions, deletions, mappings,
list items) goes through Hydra itself, so that a point is always what Hydra would have composed. What Hydra composed
to begin a multirun is taken where a point has the same groups and sets at least the same values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import study
from study.config import limits, search_keys
from study.config.errors import explain, missing_values
from study.config.given import without_given
from study.config.schema import StudyConfig
from train.spec.from_mapping import read

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

SIMPLE_KEY = re.compile(r"\w+(\.\w+)*")


def conf_folder() -> Path:
    """Return the folder of the config groups: beside the package, in a checkout as in an installed wheel."""
    return Path(study.__file__).resolve().parents[1] / "conf"


def own_conf_folder() -> Path:
    """Return the folder for config groups of this site: the checkout's, else `conf` in the working directory.

    What an installed wheel has beside its packages is replaced with the next version, and is not the user's to edit.
    """
    folder = conf_folder()
    return folder if (folder.parent / "pyproject.toml").is_file() else Path("conf").absolute()


class Source(Protocol):
    """What composes configs: Hydra's config loader, or a stand-in."""

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """Return the job's config (without the `hydra` node), interpolations not yet resolved."""

    def is_group(self, name: str) -> bool:
        """Return whether `name` is a config group."""


@dataclass(frozen=True)
class Begun:
    """A job's config that Hydra has composed already, interpolations not yet resolved, and the overrides in it."""

    config: Mapping[str, Any]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class _Base:
    """Composed groups as plain dicts. values: keys set in them already, which a point must set as well."""

    config: dict[str, Any]
    interpolated: bool
    values: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Composed:
    """One checked config and the override list it came from."""

    config: StudyConfig
    overrides: tuple[str, ...]


class Composer:
    """Composes many override lists, sharing the work that they have in common."""

    def __init__(self, source: Source, begun: Begun | None = None) -> None:
        """`begun`: what need not be composed again."""
        self._source, self._begun = source, begun
        self._bases: dict[tuple[str, ...], _Base] = {}
        self._is_group = cache(source.is_group)
        self._parse = cache(_parser())

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Return the checked config of one override list; ValueError names the key, the value and what is allowed."""
        config = check(self.plain(overrides))
        if not config.paths.runs:
            raise ValueError("paths.runs= is empty: name the folder of all studies; paths.runs=. is this one")
        limits.check(config)
        typed = [self._parse(line).key_or_group for line in overrides]
        search_keys.check(config.search.name, typed)
        cluster = without_given(config.cluster, typed)
        return Composed(config if cluster is config.cluster else replace(config, cluster=cluster), tuple(overrides))

    def plain(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return what Hydra would compose, resolved, as plain dicts and lists; not yet checked."""
        groups, values = self._parted(overrides)
        base = self._base(groups, frozenset(override.key_or_group for override in values))
        config, interpolated = base.config, base.interpolated
        for override in values:
            changed = _set(config, override) if is_simple(override) else None
            if changed is None:
                return _resolved(self._source.load(overrides))
            config = changed
            interpolated = interpolated or _has_interpolation(override.value())
        return _resolved(config) if interpolated else config

    def parsed(self, line: str) -> Override:
        """Return one override as Hydra's grammar reads it."""
        return self._parse(line)

    def _goes_to_hydra(self, override: Override) -> bool:
        key = override.key_or_group
        if override.is_hydra_override() or override.package is not None:
            return True
        # Groups are named with slashes: to look for one takes Hydra 30 ms, and most overrides are dotted keys.
        return "." not in key and self._is_group(key)

    def _parted(self, overrides: Sequence[str]) -> tuple[tuple[str, ...], list[Override]]:
        """Return the lines that are Hydra's, and the overrides that set values."""
        groups: list[str] = []
        values: list[Override] = []
        for line in overrides:
            parsed = self._parse(line)
            if self._goes_to_hydra(parsed):
                groups.append(parsed.input_line or "")
            else:
                values.append(parsed)
        return tuple(groups), values

    def _base(self, groups: tuple[str, ...], values: frozenset[str]) -> _Base:
        """Return the groups' config; values: the keys that will be set in it."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            ours, set_already = self._parted(begun.overrides)
            if all(map(is_simple, set_already)):
                keys = frozenset(override.key_or_group for override in set_already)
                self._bases[ours] = _Base(dict(begun.config), _has_interpolation(dict(begun.config)), keys)
        if groups not in self._bases or not self._bases[groups].values <= values:
            from omegaconf import OmegaConf

            plain = OmegaConf.to_container(self._source.load(groups), resolve=False)
            assert isinstance(plain, dict)
            named: dict[str, Any] = {str(name): value for name, value in plain.items()}
            self._bases[groups] = _Base(named, _has_interpolation(named))
        return self._bases[groups]


class HydraSource:
    """Hydra's config loader, for the plugins: everything is relative to the multirun's own config."""

    def __init__(self, loader: Any, master: DictConfig) -> None:
        self._loader = loader
        self._master = master

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """Return the job's config for a full list of overrides."""
        return _job(self._loader.load_sweep_config(self._master, list(overrides)))

    def begun(self) -> Begun | None:
        """Return what Hydra composed to begin with, without lists after -m; None where a group has no option yet."""
        from omegaconf import OmegaConf

        hydra = self._master.hydra
        if OmegaConf.missing_keys(hydra.runtime.choices):
            return None
        parse, lines = _parser(), OmegaConf.to_container(hydra.overrides.task, resolve=False)
        plain = OmegaConf.to_container(_job(self._master), resolve=False)
        assert isinstance(plain, dict) and isinstance(lines, list)
        fixed = tuple(line for line in map(str, lines) if not parse(line).is_sweep_override())
        return Begun({str(name): value for name, value in plain.items()}, fixed)

    def is_group(self, name: str) -> bool:
        """Return whether there is a group of that name on the search path."""
        # Asked itself, the loader copies the repository and parses its search path anew for every name.
        return bool(self._loader.repository.get_group_options(name, results_filter=None))


def check(plain: Mapping[str, Any]) -> StudyConfig:
    """Return the typed config; ValueError for unknown keys, wrong types, values still to be given (`???`) or empty."""
    missing = missing_values(plain)
    if missing:
        raise ValueError(missing)
    try:
        config = read(StudyConfig, plain)
    except ValueError as error:
        raise ValueError(explain(error, plain)) from None
    blank = [field.name for field in fields(config.cluster) if getattr(config.cluster, field.name) == ""]
    if blank:
        raise ValueError(f"cluster.{blank[0]}= is empty: give a value, or cluster.{blank[0]}=null for none")
    return config


def _parser() -> Callable[[str], Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override


def _job(config: DictConfig) -> DictConfig:
    """Return a config without Hydra's own part."""
    from omegaconf import DictConfig, OmegaConf

    job = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
    assert isinstance(job, DictConfig)
    return job


def _resolved(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(OmegaConf.create(config) if isinstance(config, dict) else config, resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def _has_interpolation(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, dict):
        return any(_has_interpolation(item) for item in value.values())
    return isinstance(value, list) and any(_has_interpolation(item) for item in value)


def is_simple(override: Override) -> bool:
    """Return whether an override may be set without Hydra: another value of a key, no mapping or nested list. Pure."""
    value = override.value()
    if override.type.name != "CHANGE" or not SIMPLE_KEY.fullmatch(override.key_or_group):
        return False
    if isinstance(value, list):
        return not any(isinstance(item, list | dict) for item in value)
    return isinstance(value, str | int | float | bool | None)


def _set(config: dict[str, Any], override: Override) -> dict[str, Any] | None:
    """Return the config with one existing leaf changed, sharing the rest; None where there is no such leaf."""
    return _set_leaf(config, override.key_or_group.split("."), override.value())


def _set_leaf(config: dict[str, Any], path: list[str], value: Any) -> dict[str, Any] | None:
    name, rest = path[0], path[1:]
    if name not in config:
        return None
    inner = config[name]
    if not rest:
        return None if isinstance(inner, dict) else {**config, name: value}
    if not isinstance(inner, dict):
        return None
    changed = _set_leaf(inner, rest, value)
    return None if changed is None else {**config, name: changed}
