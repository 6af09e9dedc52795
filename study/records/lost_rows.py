"""Rows that a run's metrics.jsonl has lost for good, as the run noted when it resumed from beyond them."""

from __future__ import annotations

from study.records.shapes import METRICS
from study.storage.files import file_size
from study.storage.layout import RunFolder
from study.storage.shapes import record_in

KIND = b'"missing"'
BLOCK_BYTES = 1 << 22
Steps = tuple[int, int]
"""First and last step of a stretch of rows."""


def lost_rows(run: RunFolder) -> list[Steps]:
    """Return each stretch of steps whose rows are not written again."""
    return _read(run, 0)[1]


class LostRows:
    """The same of many runs that are looked at again and again: what an attempt has written is read once."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int | None, int, list[Steps]]] = {}

    def of(self, run: RunFolder, attempt: int | None) -> tuple[str, ...]:
        """Return the stretches as `FIRST-LAST`; attempt: the run's latest, which may have cut the file as it began."""
        key, size = run.path.name, file_size(run.metrics)
        known, end, found = self._seen.get(key, (attempt, 0, []))
        if known != attempt or size < end:
            end, found = 0, []
        if size > end:
            end, more = _read(run, end)
            self._seen[key] = (attempt, end, found := found + more)
        return tuple(f"{first}-{last}" for first, last in found)


def _read(run: RunFolder, offset: int) -> tuple[int, list[Steps]]:
    """Return where the last whole line ends [bytes], and what the lines from `offset` on say.

    Only lines that have the word are read as JSON.
    """
    found: list[Steps] = []
    try:
        with run.metrics.open("rb") as file:
            end, rest = file.seek(offset), b""
            while block := file.read(BLOCK_BYTES):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                end += len(whole) + len(newline)
                found += _in(whole + newline)
    except FileNotFoundError:
        return 0, []
    return end, found


def _in(lines: bytes) -> list[Steps]:
    found, place = list[Steps](), lines.find(KIND)
    while place >= 0:
        start, end = lines.rfind(b"\n", 0, place) + 1, lines.find(b"\n", place)
        record = record_in(lines[start:end].decode("utf-8", "replace"), METRICS)
        if record is not None and record["kind"] == "missing":
            first, last = (int(record["metrics"].get(name) or record["step"]) for name in ("from_step", "to_step"))
            found.append((first, last))
        place = lines.find(KIND, end)
    return found
