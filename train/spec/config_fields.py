"""Fields of config sections: a default, its one-line help, its allowed values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, field
from typing import Any


def key(default: Any, help: str, choices: Collection[str] = (), former: Any = MISSING) -> Any:
    """Return a dataclass field with its default, its one-line help and its allowed values.

    former: of a key that is new, the value that says what runs did before there was the key (see train.spec.later).
    """
    later = {} if former is MISSING else {"former": former}
    return field(default=default, metadata={"help": help, "choices": choices, **later})


def section(kind: type, help: str) -> Any:
    """Return a dataclass field that holds another section, made from its defaults."""
    return field(default_factory=kind, metadata={"help": help})
