"""What a plan answers, to people and to scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What a plan says: as text, as fields of JSON. refusal: one line where the answer is no.

    code: the exit code where it is not: 130 if Ctrl-C ended it, and this is what there was until then; 1 if something
    that was run failed.
    """

    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    code: int = 0


def write(out: Path | None, name: str, page: str, rows: str, draw: Callable[[Path], Sequence[Path]]) -> list[str]:
    """Write NAME.md, NAME.csv and what `draw` draws into `out`, made if need be; return the files. None: write none."""
    if out is None:
        return []
    out.mkdir(parents=True, exist_ok=True)
    markdown, table = out / f"{name}.md", out / f"{name}.csv"
    markdown.write_text(page, "utf-8")
    table.write_text(rows, "utf-8")
    return [str(path) for path in (markdown, table, *draw(out))]
