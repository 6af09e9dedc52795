"""Which files of a folder are text, by the ends of their names: ``data.extensions`` in its one form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PLAIN = (".txt", ".md", ".py", ".rst")
"""Files that are one document each, where nothing else is asked for."""
CONTAINERS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
"""Files of many records."""
DEFAULT = PLAIN + CONTAINERS
ARROW = ".arrow"
"""A file of records as Hugging Face datasets are saved; read where it is asked for, or where the source is one."""
RECORDS = (*CONTAINERS, ARROW)

_EXTENSION = re.compile(r"(\.[\w+#-]+)+")


def canonical(extensions: Iterable[str], source: str | None, key: str = "data.extensions") -> tuple[str, ...]:
    """Return extensions in lower case with their dot, each once and in order; () where that is what () means.

    They say nothing without a folder (`source` is None): then (), too. Raises ValueError that names `key`.
    """
    found = set()
    for given in extensions:
        one = given.strip().lower()
        one = one if one.startswith(".") else f".{one}"
        if not _EXTENSION.fullmatch(one):
            raise ValueError(f"{key}: {given!r} is no extension: write it as .c, in a list like [.c,.h,.rs]")
        found.add(one)
    return () if source is None or found == set(DEFAULT) else tuple(sorted(found))


def extension_of(name: str, extensions: Sequence[str]) -> str | None:
    """Return the longest of the extensions with which a file's name ends, in whatever case; None: with none."""
    lower = name.lower()
    if not lower.endswith(tuple(extensions)):
        return None
    return max((one for one in extensions if lower.endswith(one)), key=len)
