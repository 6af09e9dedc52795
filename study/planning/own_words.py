"""Words of a plan's command line that are its own, apart from the keys and groups of a study."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.text.commandline import refuse_repeated

MEMORY = "cluster.gpu_memory_gb"
"""The key that says how much memory a GPU has [GB]."""


def split(words: Sequence[str], own: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the words that are named in `own` by name, and the others.

    own: what each word says. ValueError for a word that is misspelt, empty or given twice.
    """
    refuse_repeated(words)
    found: dict[str, str] = {}
    rest = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in own:
            if not value:
                raise ValueError(f"{name}= has no value; it says: {own[name]}")
            found[name] = value
        elif equals and "." not in name and "/" not in name and (near := _meant(name, own)):
            raise ValueError(f"unknown key {name!r} in {word}: did you mean {near}={value}?")
        else:
            rest.append(word)
    return found, rest


def number(name: str, said: str | None) -> int | None:
    """Return a word's whole number of at least 1; None where it is not said."""
    if said is None:
        return None
    if not said.isdecimal() or int(said) < 1:
        raise ValueError(f"{name}={said} is not allowed: a whole number of at least 1")
    return int(said)


def folder(own: Mapping[str, str], means: Mapping[str, str]) -> Path | None:
    """Return the folder that out= names; None where it is not said."""
    out = Path(own["out"]) if "out" in own else None
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"out={out} is a file: give the {means['out']}")
    return out


def _meant(name: str, own: Mapping[str, str]) -> str | None:
    """Return the own word that a misspelt one stands for, where it is nearer to that than to any group."""
    from study.config.schema import sections

    groups = [part.path for part in sections() if part.path]
    found = difflib.get_close_matches(name.lstrip("+~"), [*own, *groups, "dry_run", "wait", "seed"], n=1, cutoff=0.7)
    return found[0] if found and found[0] in own else None


def gpu_bytes(said: float) -> int:
    """Return a GPU's memory [bytes] by cluster.gpu_memory_gb; ValueError for what no GPU has."""
    if not said > 0:
        raise ValueError(f"{MEMORY}={said:g} is not allowed: GB of one GPU, more than 0")
    return round(said * 1e9)
