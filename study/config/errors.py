"""What a person is told when a config is wrong: the key, the value, what is allowed, the nearest valid key."""

from __future__ import annotations

import difflib
import errno
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from study.config.schema import sections

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

UNQUOTED = re.compile(r"[^\w\s/\\+.$%*@?|:,=()\[\]{}-]", re.ASCII)
"""A sign that Hydra's grammar knows in quotes only."""


TOLD = {
    r"Multiple values for ([\w/]+)\.": r"+\1=… adds what a config has already: write \1=OPTION",
    r"Interpolation key '([^']*)' not found\s+full_key: (\S+)": (
        r"\2 refers to ${\1}, which is no key: name one in full, as ${model.width}"
    ),
    r'resolving interpolation: "?(.*?)"?\s+full_key: (\S+)': r"\2 cannot be resolved: \1",
}
"""What Hydra and OmegaConf say of values, and how it is said here."""

OPTIONS = "cluster.sbatch"
"""A key whose value has keys that no schema knows."""
SHORTEST = 3
"""Letters that a word needs for a longer one to be taken for it."""


def valid_keys() -> list[str]:
    """Return every key of the schema, dotted."""
    return [key.path for part in sections() for key in part.keys]


def unknown_key(path: str) -> str:
    """Return the message for a key that is not in the schema."""
    from study.config.compose import conf_folder

    if path.isidentifier() and (conf_folder() / path).is_dir() and path not in {part.path for part in sections()}:
        return f"{path}= is a group that is added to a config: write +{path}=OPTION"
    if path.startswith(f"{OPTIONS}."):
        option = path.removeprefix(f"{OPTIONS}.")
        return f"unknown key {path!r}: sbatch's options are given together, as '{OPTIONS}={{{option}: VALUE}}'"
    return f"unknown key {path!r}: {_suggestion(path)}"


def unknown_keys(plain: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys of a config that are not in the schema."""
    known, parts = set(valid_keys()), {part.path for part in sections()}
    return list(_unknown(plain, "", known, parts))


def missing_values(plain: Mapping[str, Any]) -> str:
    """Return the message for the first value that must still be given (`???`), or nothing."""
    for path, value in _leaves(plain, ""):
        if value == "???":
            return f"{path} has no value yet: give it, as {path}=…"
    return ""


def check_nothing_removed(overrides: Iterable[Override]) -> None:
    """Raise ValueError for a word that deletes (`~model`, `~optim.lr`) or that empties a section (`model=null`).

    What a config lacks would be the default, which is not what such a word says.
    """
    parts = [part.path for part in sections() if part.path]
    for override in overrides:
        key = override.key_or_group
        if not key:
            raise ValueError(f"{override.input_line} has no key before its =: write KEY=VALUE")
        if key in parts and None in _values(override):
            raise ValueError(
                f"{key}=null is not allowed: a section cannot be empty; leave the word out, or give a key of it, as "
                f"{_first_key(key)}=…"
            )
        if not override.is_delete() or override.is_hydra_override():
            continue
        if key not in (*valid_keys(), *parts):
            raise ValueError(unknown_key(key))
        instead = f"{key}=OPTION" if key in parts else f"{key}=VALUE, or {key}=null for none where that is allowed"
        raise ValueError(
            f"{override.input_line}: nothing can be deleted from a config; leave the word out, or give {instead}"
        )


def check_listed(override: Override) -> None:
    """Raise ValueError for a range without values that can be listed, and for a glob that no option fits."""
    from hydra.core.override_parser.types import Glob, RangeSweep

    value, line = override.value(), override.input_line or ""
    if isinstance(value, RangeSweep):
        if not all(math.isfinite(one) for one in (value.start, value.stop, value.step) if one is not None):
            raise ValueError(f"{line}: start, stop and step of a range must be finite numbers")
        if value.step == 0:
            raise ValueError(f"{line}: the step of a range must not be 0")
    if isinstance(value, Glob):
        group, loader = override.key_or_group, override.config_loader
        options = [] if loader is None else loader.get_group_options(group)
        if not options:
            raise ValueError(f"{line}: a glob is over the options of a group, and {group} has none: list its values")
        if not value.filter(options):
            raise ValueError(f"{line} fits no option of {group}: there are {', '.join(sorted(options))}")


def _values(override: Override) -> list[Any]:
    """Return the value that an override gives, or all that it lists after -m; nothing of a deletion or a range."""
    if override.is_delete():
        return []
    value = override.value()
    return list(getattr(value, "list", None) or []) if override.is_sweep_override() else [value]


def _first_key(section: str) -> str:
    return next(part.keys[0].path for part in sections() if part.path == section)


def explain(error: ValueError, plain: Mapping[str, Any]) -> str:
    """Return the message for a config that does not fit the schema; unknown keys name the nearest of all keys."""
    unknown = unknown_keys(plain)
    return unknown_key(unknown[0]) if unknown else str(error)


def from_hydra(error: BaseException) -> str:
    """Return one or two lines for an error of Hydra or OmegaConf, said in this project's words where it is known."""
    text = _whole(error)
    if found := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        return _unknown_option(found[1], found[2], re.findall(r"^\t(\S+)$", text.split("Config search path")[0], re.M))
    if found := re.search(
        r"(?:Could not override|Could not delete from config\.|Error merging override) '?\+*([\w./@]+)", text
    ):
        known = [*valid_keys(), *(part.path for part in sections())]
        if "To append to your default list use" in text:
            return f"{found[1]}= is a group that is added to a config: write +{found[1]}=OPTION"
        if not found[1].startswith("hydra.") and found[1] not in known:
            return unknown_key(found[1])
    if found := re.search(r"Cannot find primary config '([^']+)'", text):
        return f"--config-name={found[1]}: there is no such config; --config-dir DIR names the folder that holds it"
    if "OverrideParse" in type(error).__name__:
        return unreadable(str(getattr(error, "override", "")))
    told = (found.expand(ours) for said, ours in TOLD.items() if (found := re.search(said, text)))
    return next(told, _first_lines(text))


def from_system(error: OSError) -> str | None:
    """Return the message for a file that cannot be written or read; None for an error of another kind."""
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}{error.strerror}: make room, then run the same command again"
    if error.errno == errno.EEXIST:
        return f"{where}it is a file where a folder is needed: name another"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{where}{error.strerror}: changing a study writes there; status, watch, show, logs and cost only read"
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ESTALE, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP):
        return f"{where}{error.strerror}"
    return None


def unreadable(override: str) -> str:
    """Return the message for a word of the command line that Hydra's grammar has no meaning for."""
    key, equals, value = override.partition("=")
    if not equals:
        key, colon, value = override.partition(":")
        meant = f"{key}={value}" if colon else f"{key}=…"
        near = f": did you mean {meant}?" if key in valid_keys() or key.isidentifier() else ""
        return f"{override!r} is neither KEY=VALUE nor GROUP=OPTION{near}"
    said = f"cannot read the override {override}"
    if not re.fullmatch(r"[+~]*[\w./@$-]+", key, re.ASCII):
        return f"{said}: {key!r} is no key: python -m study.sweep --help lists every key"
    if any(value.count(a) != value.count(b) for a, b in ("()", "[]", "{}")):
        return f"{said}: a bracket in it is not closed"
    if "'" in value or '"' in value:
        return f"{said}: quotes in it are not closed, or stand inside quotes of the same kind"
    if sign := UNQUOTED.search(value):
        return f"{said}: {sign[0]!r} is allowed only inside quotes, as '{key}=\"{value}\"'"
    return f"{said}: it has a comma or another character too many"


def _unknown_option(group: str, option: str, options: list[str]) -> str:
    near = difflib.get_close_matches(option, options, n=1, cutoff=0.5)
    hint = f" (did you mean {group}={near[0]}?)" if near else ""
    if not options:
        return f"there is no config {group}/{option}"
    return f"{group}={option} is not an option of {group}: choose one of {', '.join(sorted(options))}{hint}"


def _suggestion(path: str) -> str:
    keys = valid_keys()
    leaf, section = path.rsplit(".", 1)[-1], path.rpartition(".")[0]
    names = {part.path for part in sections() if part.path}
    inside = [key for key in keys if key.rpartition(".")[0] == section] if section in names else []
    longer = [key for key in inside if key.startswith(f"{path}_")]
    if longer:
        return f"did you mean {' or '.join(longer)}?"
    leaves = [key.rsplit(".", 1)[-1] for key in inside]
    near = _abbreviated(leaf, leaves) or difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.5)
    if near:
        return f"did you mean {section}.{near[0]!s}?"
    same_leaf = [key for key in keys if key.rsplit(".", 1)[-1] == leaf]
    if same_leaf:
        return f"did you mean {' or '.join(same_leaf)}?"
    if inside:
        return f"the keys of {section} are {', '.join(key.rsplit('.', 1)[-1] for key in inside)}"
    close = difflib.get_close_matches(path, [*keys, *names], n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return "python -m study.sweep --help lists every key"


def _abbreviated(leaf: str, leaves: Iterable[str]) -> list[str]:
    """Return the key whose first word a longer word begins with, as mem_gb for memory; of several the longest."""
    first = {name: name.partition("_")[0] for name in leaves}
    found = [name for name, word in first.items() if len(word) >= SHORTEST and leaf.startswith(word)]
    return sorted(found, key=lambda name: len(first[name]))[-1:]


def _unknown(plain: Mapping[str, Any], prefix: str, known: set[str], parts: set[str]) -> Iterable[str]:
    for name, value in plain.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if path in parts and isinstance(value, Mapping):
            yield from _unknown(value, path, known, parts)
        elif path not in known and path not in parts:
            yield path


def _leaves(plain: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for name, value in plain.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        elif isinstance(value, list | tuple):
            named = {str(place): item for place, item in enumerate(value)}  # as Hydra names items: data.sources.1
            yield from _leaves(named, path)
        else:
            yield path, value


def _whole(error: BaseException) -> str:
    lines = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        lines.append(str(error))
    return "\n".join(lines)


def _first_lines(text: str) -> str:
    return "\n".join([line.strip() for line in text.splitlines() if line.strip()][:2])
