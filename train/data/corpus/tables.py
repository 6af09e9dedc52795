"""Tables of records: parquet, and Arrow as Hugging Face datasets are saved; a few rows in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from train.data.corpus.raw import Columns, Raw, no_column
from train.data.corpus.walk import SourceFile

_ROWS = 256
_BUFFER = 1 << 20
_FILE_BEGINS = b"ARROW1"
_STREAM_ENDS = b"\xff\xff\xff\xff\0\0\0\0"


def parquet(file: SourceFile, columns: Columns) -> Iterator[Raw]:
    """Yield the rows of a parquet file. Raises ValueError where it is damaged or has no text in a column."""
    import pyarrow
    import pyarrow.parquet

    try:
        # Without a buffer a row group's column is read whole, which may be a gigabyte.
        with pyarrow.parquet.ParquetFile(file.path, buffer_size=_BUFFER, pre_buffer=False) as content:
            _check(file, columns, content.schema_arrow)
            yield from _rows(file, columns, content.iter_batches(batch_size=_ROWS, columns=list(columns.named)))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"data.source: {file.path} is damaged or not parquet ({_first_line(error)})") from None


def arrow(file: SourceFile, columns: Columns) -> Iterator[Raw]:
    """Yield the rows of an Arrow file, a stream of batches or with a footer. ValueError as of `parquet`."""
    import pyarrow

    try:
        with ExitStack() as stack:
            # It is read, not mapped: what is mapped counts as a process's memory, whoever could take it back.
            source = stack.enter_context(pyarrow.OSFile(file.path))
            begins, ends = source.read(len(_FILE_BEGINS)), b""
            if source.size() >= len(_STREAM_ENDS):
                source.seek(source.size() - len(_STREAM_ENDS))
                ends = source.read()
            source.seek(0)
            if begins == _FILE_BEGINS:
                footed = stack.enter_context(pyarrow.ipc.open_file(source))
                schema, batches = footed.schema, (footed.get_batch(n) for n in range(footed.num_record_batches))
            else:
                stream = stack.enter_context(pyarrow.ipc.open_stream(source))
                schema, batches = stream.schema, stream
                if ends != _STREAM_ENDS:
                    raise OSError("the stream has no end: it was probably cut off while copying")
            _check(file, columns, schema)
            taken = (batch.select(list(columns.named)) for batch in batches)
            pieces = (one.slice(begin, _ROWS) for one in taken for begin in range(0, one.num_rows, _ROWS))
            yield from _rows(file, columns, pieces)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"data.source: {file.path} is damaged or not Arrow ({_first_line(error)})") from None


def _rows(file: SourceFile, columns: Columns, batches: Iterable[Any]) -> Iterator[Raw]:
    import pyarrow

    row = 0
    for batch in batches:
        read = [batch.column(one).cast(pyarrow.large_binary()).to_pylist() for one in columns.named]
        for texts in zip(*read, strict=True):
            name = f"{file.name}:{row}"
            row += 1
            yield Raw(name, b"", "null") if None in texts else columns.raw(name, list(texts))


def _check(file: SourceFile, columns: Columns, schema: Any) -> None:
    """Raise ValueError where a column is missing or is no text."""
    from pyarrow import types

    kinds = {field.name: field.type for field in schema}
    for column, key in columns.named.items():
        if schema.names.count(column) > 1:
            raise ValueError(f"{key}={column}: {file.path} has more than one column of this name; rename all but one")
        if column not in kinds:
            raise ValueError(no_column(file, columns, column, list(kinds)))
        kind = kinds[column]
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ValueError(f"{key}={column}: this column of {file.path} is {kind}, not text")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
