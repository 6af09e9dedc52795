"""Reading raw files: every format becomes a stream of (name, bytes) or of (name, why it is broken)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from train.data.corpus.source_files import SourceFile

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Raw:
    """A document as it was found: its name in reports and its bytes, or why it cannot be read."""

    name: str
    content: bytes
    broken: str | None = None


def documents(file: SourceFile, column: str) -> Iterator[Raw]:
    """Yield the documents of one file.

    Raises ValueError, naming the file, when a container is damaged or has no text in `column` (data.text_column): then
    an unknown number of documents is lost. A single broken document is yielded as such.
    """
    lower = file.path.lower()
    if lower.endswith(".parquet"):
        yield from _parquet(file, column)
    elif lower.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
        yield from _jsonl(file, column)
    else:
        try:
            yield Raw(file.name, Path(file.path).read_bytes())
        except OSError as error:
            yield Raw(file.name, b"", f"cannot be read: {error.strerror}")


def _jsonl(file: SourceFile, column: str) -> Iterator[Raw]:
    found, fields = 0, set[str]()
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        name = f"{file.name}:{number}"
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            yield Raw(name, b"", "not UTF-8")
            continue
        except ValueError:
            yield Raw(name, b"", "not JSON")
            continue
        if not isinstance(record, dict):
            yield Raw(name, b"", "not a JSON object")
        elif column not in record:
            fields.update(list(record)[:20])
            yield Raw(name, b"", f"no field {column!r}")
        elif not isinstance(record[column], str):
            found += 1
            yield Raw(name, b"", f"field {column!r} is not text")
        else:
            found += 1
            yield Raw(name, record[column].encode("utf-8", "surrogatepass"))
    if fields and not found:
        raise ValueError(_no_column(file, column, sorted(fields)))


def _lines(file: SourceFile) -> Iterator[bytes]:
    lower = file.path.lower()
    try:
        with Path(file.path).open("rb") as stream:
            if lower.endswith(".gz"):
                with gzip.open(stream) as unpacked:
                    yield from unpacked
            elif lower.endswith(".zst"):
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


def _parquet(file: SourceFile, column: str) -> Iterator[Raw]:
    import pyarrow
    import pyarrow.parquet

    try:
        content = pyarrow.parquet.ParquetFile(file.path)
        kinds = {field.name: field.type for field in content.schema_arrow}
        if column not in kinds:
            raise ValueError(_no_column(file, column, list(kinds)))
        if not _is_text(kinds[column], pyarrow):
            raise ValueError(f"data.text_column={column}: this column of {file.path} is {kinds[column]}, not text")
        row = 0
        for batch in content.iter_batches(batch_size=1024, columns=[column]):
            for value in batch.column(0).cast(pyarrow.large_binary()).to_pylist():
                name = f"{file.name}:{row}"
                row += 1
                yield Raw(name, b"", "null") if value is None else Raw(name, value)
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"data.source: {file.path} is damaged or not parquet ({first})") from None


def _is_text(kind: Any, pyarrow: Any) -> bool:
    types = pyarrow.types
    return any(check(kind) for check in (types.is_string, types.is_large_string, types.is_string_view))


def _no_column(file: SourceFile, column: str, there: list[str]) -> str:
    return f"data.text_column={column}: {file.path} has no such column; it has {', '.join(there) or 'none'}"
