"""Settings as YAML, read and written with numbers as people write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number, as in YAML 1.2 and in Hydra; PyYAML alone takes it for text.

    A key that a mapping has twice is an error, as YAML says; PyYAML alone takes the last one without a word.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node; ConstructorError for a key given twice."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Safe YAML that puts quotes around text which :class:`_Loader`, Hydra or YAML 1.2 would take for a number.

    One in a few hundred hashes is such a text: 8474e0692244 is also a float, and an infinite one.
    """


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def dump(value: Any, **options: Any) -> str:
    """Return a value as YAML text that :func:`read_mapping` reads as the same value; keys keep their order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options))


def why_unreadable(error: Exception) -> str:
    """Return what is wrong with a text that is not YAML, in one line: the problem and its place."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte 0x{error.object[error.start]:02x} at position {error.start} is not UTF-8 text"
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem and mark is not None:
        return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
    return " ".join(str(error).split())


def value_of(assignment: str) -> Any:
    """Return the value of a command line's `key=value`, which is YAML; ValueError that quotes it where it is not."""
    try:
        return yaml.load(assignment.partition("=")[2], Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{assignment}: the value is not YAML: {why_unreadable(error)}") from None


def read_mapping(path: Path, of: str = "sections (model, data, budget, ...)") -> dict[str, Any]:
    """Return the mapping in a YAML file; ValueError that names the file where there is none. of: what it should be."""
    try:
        mapping = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder: name the file in it, as {path}/config.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {why_unreadable(error)}") from None
    if not isinstance(mapping, dict):
        raise ValueError(f"{path} holds no mapping of {of}")
    return mapping
