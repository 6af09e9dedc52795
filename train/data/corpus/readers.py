"""Reading raw files: every format becomes a stream of (name, bytes) or of (name, why it is broken)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from train.data.corpus.parts import Part
from train.data.corpus.raw import Columns, Raw, no_column
from train.data.corpus.tables import arrow, parquet
from train.data.corpus.walk import SourceFile
from train.spec.extensions import ARROW, RECORDS, extension_of

_BLOCK = 1 << 20


def documents(file: SourceFile, columns: Columns) -> Iterator[Raw]:
    """Yield the documents of one file; one that is no table of records counts as a whole.

    Raises ValueError, naming the file, when a container is damaged or has no text in a column: then an unknown number
    of documents is lost. A single broken document is yielded as such.
    """
    kind = _kind(file)
    if kind == ".parquet":
        yield from parquet(file, columns)
    elif kind == ARROW:
        yield from arrow(file, columns)
    elif kind in RECORDS:
        yield from _jsonl(file, columns)
    else:
        try:
            yield Raw(file.name, Path(file.path).read_bytes())
        except OSError as error:
            yield Raw(file.name, b"", f"cannot be read: {error.strerror}")


def _kind(file: SourceFile) -> str | None:
    """Return the extension by which a file is read; that of a link is its own, not that of what it leads to."""
    return file.kind or extension_of(file.path, RECORDS)


def _jsonl(file: SourceFile, columns: Columns) -> Iterator[Raw]:
    found, fields, missing = 0, set[str](), columns.text
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        name = f"{file.name}:{number}"
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            yield Raw(name, b"", "not UTF-8")
            continue
        except (ValueError, RecursionError):  # the latter: brackets in brackets, a thousand deep
            yield Raw(name, b"", "not JSON")
            continue
        if not isinstance(record, dict):
            yield Raw(name, b"", "not a JSON object")
        elif absent := [one for one in columns.named if one not in record]:
            missing = absent[0]
            fields.update(list(record)[:20])
            yield Raw(name, b"", f"no field {missing!r}")
        else:
            found += 1
            yield _of_record(name, record, columns)
    if fields and not found:
        raise ValueError(no_column(file, columns, missing, sorted(fields)))


def _of_record(name: str, record: dict[str, Any], columns: Columns) -> Raw:
    """Return the document of a JSON object that has all columns."""
    if columns.prompt is None and isinstance(record[columns.text], list):
        return _of_segments(name, columns.text, record[columns.text])
    wrong = [one for one in columns.named if not isinstance(record[one], str)]
    if wrong:
        return Raw(name, b"", f"field {wrong[0]!r} is not text")
    return columns.raw(name, [record[one].encode("utf-8", "surrogatepass") for one in columns.named])


def _of_segments(name: str, column: str, segments: list[Any]) -> Raw:
    """Return the document of a list of segments, as Axolotl's template-free format has them."""
    parts: list[Part] = []
    for number, one in enumerate(segments):
        text, label = (one.get("text"), one.get("label")) if isinstance(one, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(label, bool):
            return Raw(name, b"", f'field {column!r}[{number}] is not {{"text": "…", "label": true or false}}')
        parts.append((text.encode("utf-8", "surrogatepass"), label))
    return Raw(name, b"", parts=tuple(parts))


def _lines(file: SourceFile) -> Iterator[bytes]:
    kind = _kind(file)
    try:
        with Path(file.path).open("rb") as stream:
            if kind == ".jsonl.gz":
                with gzip.open(stream) as unpacked:
                    yield from unpacked
            elif kind == ".jsonl.zst":
                yield from _zstd_lines(stream)
            else:
                yield from stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"data.source: {file.path} is damaged ({error}): it was probably cut off while copying; copy it again"
        ) from None
    except OSError as error:
        raise ValueError(f"data.source: {file.path} cannot be read ({error.strerror or error})") from None


def _zstd_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines of all frames; EOFError when the last frame has no end, which the library passes over in silence."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    rest, fresh = b"", True
    block = stream.read(_BLOCK)
    while block:
        fresh = False
        try:
            text = rest + frame.decompress(block)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
        lines = text.split(b"\n")
        rest = lines.pop()
        yield from lines
        if frame.eof:
            block, fresh = frame.unused_data, True
            frame = zstandard.ZstdDecompressor().decompressobj()
        else:
            block = b""
        block = block or stream.read(_BLOCK)
    if not fresh:
        raise EOFError("the compressed stream ends in the middle")
    if rest:
        yield rest
