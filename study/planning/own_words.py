"""Words of a plan's command line that are its own, apart from the keys and groups of a study."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.text.commandline import refuse_repeated

MEMORY = "cluster.gpu_memory_gb"
"""The key that says how much memory a GPU has [GB]."""
MOST_MEMORY = 10_000
"""Far above any GPU [GB]."""


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


def number(name: str, said: str | None, most: int = 10**6) -> int | None:
    """Return a word's whole number of at least 1 and at most `most` (1024, 1e3); None where it is not said."""
    if said is None:
        return None
    try:
        found = float(said)
    except ValueError:
        found = math.nan
    if not 1 <= found <= most or found != int(found):
        raise ValueError(f"{name}={said} is not allowed: a whole number from 1 to {most:,}")
    return int(found)


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
    if not 0 < said <= MOST_MEMORY:
        raise ValueError(f"{MEMORY}={said:g} is not allowed: GB of one GPU, more than 0 and at most {MOST_MEMORY:,}")
    return round(said * 1e9)
