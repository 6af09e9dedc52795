"""Reading raw files: every format becomes a stream of (name, bytes) or of (name, why it is broken)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from train.data.corpus.parts import Part
from train.data.corpus.walk import SourceFile
from train.spec.extensions import CONTAINERS, kind_of

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Raw:
    """A document as it was found: its name in reports and its bytes, or why it cannot be read.

    parts: of a document that has a loss mask, instead of its bytes.
    """

    name: str
    content: bytes
    broken: str | None = None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Columns:
    """Where a record has its text, and what stands before it and does not count (None: nothing)."""

    text: str
    prompt: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The columns, first to last, with the key that names each."""
        prompt = {} if self.prompt is None else {self.prompt: "data.prompt_column"}
        return prompt | {self.text: "data.text_column"}

    def raw(self, name: str, texts: list[bytes]) -> Raw:
        """Return the document of a record that has these texts in its columns."""
        *before, text = texts
        if not before:
            return Raw(name, text)
        return Raw(name, b"", parts=(*((one, False) for one in before), (text, True)))


def documents(file: SourceFile, columns: Columns) -> Iterator[Raw]:
    """Yield the documents of one file; one that is no table of records counts as a whole.

    Raises ValueError, naming the file, when a container is damaged or has no text in a column: then an unknown number
    of documents is lost. A single broken document is yielded as such.
    """
    kind = _kind(file)
    if kind == ".parquet":
        yield from _parquet(file, columns)
    elif kind in CONTAINERS:
        yield from _jsonl(file, columns)
    else:
        try:
            yield Raw(file.name, Path(file.path).read_bytes())
        except OSError as error:
            yield Raw(file.name, b"", f"cannot be read: {error.strerror}")


def _kind(file: SourceFile) -> str | None:
    """Return the extension by which a file is read; that of a link is its own, not that of what it leads to."""
    return file.kind or kind_of(file.path, CONTAINERS)


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
        except ValueError:
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
        raise ValueError(_no_column(file, columns, missing, sorted(fields)))


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


def _parquet(file: SourceFile, columns: Columns) -> Iterator[Raw]:
    import pyarrow
    import pyarrow.parquet

    try:
        content = pyarrow.parquet.ParquetFile(file.path)
        kinds = {field.name: field.type for field in content.schema_arrow}
        for column, key in columns.named.items():
            if column not in kinds:
                raise ValueError(_no_column(file, columns, column, list(kinds)))
            if not _is_text(kinds[column], pyarrow):
                raise ValueError(f"{key}={column}: this column of {file.path} is {kinds[column]}, not text")
        row = 0
        for batch in content.iter_batches(batch_size=1024, columns=list(columns.named)):
            read = [batch.column(one).cast(pyarrow.large_binary()).to_pylist() for one in columns.named]
            for texts in zip(*read, strict=True):
                name = f"{file.name}:{row}"
                row += 1
                yield Raw(name, b"", "null") if None in texts else columns.raw(name, list(texts))
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"data.source: {file.path} is damaged or not parquet ({first})") from None


def _is_text(kind: Any, pyarrow: Any) -> bool:
    types = pyarrow.types
    return any(check(kind) for check in (types.is_string, types.is_large_string, types.is_string_view))


def _no_column(file: SourceFile, columns: Columns, column: str, there: list[str]) -> str:
    return f"{columns.named[column]}={column}: {file.path} has no such column; it has {', '.join(there) or 'none'}"
