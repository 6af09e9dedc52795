"""Reading the events of a Chrome trace as torch's profiler (Kineto) writes it, plain or gzipped, one at a time.

The file is decoded piece by piece, so that memory holds one piece and not half a gigabyte of it. ValueError, of one
line, for a file that is no such trace or not a whole one.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

VERSION = 1
"""Kineto's `schemaVersion`."""
PIECE = 1 << 22
"""Characters read at a time."""
LARGEST = 16 * PIECE
"""Characters of a header, or of one event, at most: what is longer is no header, and no event."""
AGAIN = "record it again: python -m study diagnose RUN says how"

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_between = re.compile(r"[\s,]*").match
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Header:
    """What a trace says before its events: the rank that wrote it, if any, and the names of its GPUs."""

    rank: int | None = None
    devices: tuple[str, ...] = ()


class TraceFile:
    """One trace, to be read once: first the header, then the events."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path
        self._buffer = ""

    def read(self) -> tuple[Header, Iterator[dict[str, Any]]]:
        """Return the header and the events in the file's order. ValueError where it is not a trace, also on the way."""
        try:
            file = self._open()
        except FileNotFoundError:
            raise ValueError(f"{self._path} is not there: {AGAIN}") from None
        found = self._find_events(file)
        header = self._header(self._buffer[: found.start()])
        return header, self._events(file, found.end())

    def _open(self) -> IO[str]:
        with self._path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        if packed:
            return gzip.open(self._path, "rt", encoding="utf-8", errors="replace")
        return self._path.open(encoding="utf-8", errors="replace")

    def _more(self, file: IO[str]) -> str:
        try:
            return file.read(PIECE)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ValueError(f"{self._path} is cut off or damaged (gzip): {AGAIN}") from None

    def _find_events(self, file: IO[str]) -> re.Match[str]:
        while True:
            found = _EVENTS.search(self._buffer)
            if found is not None:
                return found
            more = self._more(file) if len(self._buffer) < LARGEST else ""
            if not more:
                break
            self._buffer += more
        begins = self._buffer.lstrip()[:1]
        if not begins:
            raise ValueError(f"{self._path} is empty: {AGAIN}")
        if begins == "[":
            raise ValueError(
                f"{self._path} is a list of events, as torch wrote before Kineto (version {VERSION} is read): {AGAIN}"
            )
        if begins != "{" or "schemaVersion" not in self._buffer:
            raise ValueError(f"{self._path} is no trace of torch's profiler (it has no traceEvents): {AGAIN}")
        raise ValueError(f"{self._path} is cut off before its first event: {AGAIN}")

    def _header(self, text: str) -> Header:
        try:
            said = json.loads(text.rstrip().rstrip(",") + "}")
        except (ValueError, RecursionError):
            raise ValueError(
                f"{self._path} is no trace of torch's profiler (its header is not JSON): {AGAIN}"
            ) from None
        version = said.get("schemaVersion")
        if version != VERSION:
            has = "no schemaVersion" if version is None else f"schemaVersion {version!r}"
            raise ValueError(
                f"{self._path} has {has}, version {VERSION} is read: record it with torch 2, or "
                "open it at https://ui.perfetto.dev"
            )
        about, devices = said.get("distributedInfo"), said.get("deviceProperties")
        rank = about.get("rank") if isinstance(about, dict) else None
        listed = devices if isinstance(devices, list) else []
        names = tuple(str(one.get("name", "")) for one in listed if isinstance(one, dict))
        return Header(rank if isinstance(rank, int) else None, names)

    def _events(self, file: IO[str], begin: int) -> Iterator[dict[str, Any]]:
        text, place, count = self._buffer, begin, 0
        self._buffer = ""
        decode, between = _decode, _between
        with file:
            while True:
                place = between(text, place).end()  # type: ignore[union-attr]
                try:
                    event, place = decode(text, place)
                except (ValueError, RecursionError):
                    if text.startswith("]", place):
                        return
                    more = self._more(file) if len(text) - place < LARGEST else ""
                    if not more:
                        raise self._broken(text[place:], count) from None
                    text, place = text[place:] + more, 0
                    continue
                count += 1
                if isinstance(event, dict):
                    yield event

    def _broken(self, rest: str, count: int) -> ValueError:
        if len(rest) >= LARGEST or (rest and rest[0] != "{"):
            return ValueError(f"{self._path} is damaged after {count} events: {AGAIN}")
        return ValueError(
            f"{self._path} is cut off after {count} events (the run ended or the disk was full while it was written): "
            f"{AGAIN}"
        )
