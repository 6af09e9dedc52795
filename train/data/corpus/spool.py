"""First pass: raw files to spools of documents in normal form.

Spooling freezes the text: the tokenizer and the shards are made from what was read once, even when the source changes
meanwhile, and every format looks the same from here on. It costs the size of the text on disk while preparing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from train.data.corpus.clean import digest, left_out_by_content, normalised
from train.data.corpus.done import fresh, key_of, record, recorded
from train.data.corpus.parts import joined
from train.data.corpus.raw import Columns, Raw
from train.data.corpus.readers import documents
from train.data.corpus.tally import Tally
from train.data.corpus.walk import SourceFile

DOCUMENT = np.dtype([("digest", ">u8", (4,)), ("size", ">u8"), ("kind", ">u2")])
"""A document in a spool's index: its hash, its size [bytes], and the number of its kind among the spool's."""

_DOCUMENT = struct.Struct(">32sQH")


@dataclass(frozen=True)
class SpoolTask:
    """Files for one process to read; `rules`: leave out generated text (the environment's sources only).

    folder: of spools; scratch: of files that are being written.
    """

    files: tuple[SourceFile, ...]
    columns: Columns
    rules: bool
    folder: Path
    scratch: Path

    @cached_property
    def key(self) -> str:
        """What names the text: files by name, path, size and time of change, and how they are read."""
        files = [(one.name, one.path, one.size, one.time, one.kind) for one in self.files]
        return key_of("spool", self.columns.text, self.columns.prompt, self.rules, files)

    @property
    def size(self) -> int:
        """How much there is to read [bytes]."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Spooled:
    """What one process read: where its text and the index of its documents lie, and what it left out."""

    text: Path
    index: Path
    documents: int
    kinds: tuple[str, ...]
    broken: Tally
    left_out: Tally

    def read_index(self) -> npt.NDArray[Any]:
        """Return the index of the documents, in the spool's order (`DOCUMENT`)."""
        return np.fromfile(self.index, dtype=DOCUMENT)


def spooled(task: SpoolTask) -> Spooled | None:
    """Return the spool of a task that has been finished before; None: it has not."""
    found = recorded(task.folder / f"{task.key}.json", task.key)
    return None if found is None else _spooled(task, found)


def spool(task: SpoolTask) -> Spooled:
    """Read the files of `task` into its spool. Raises ValueError when a container is damaged."""
    broken, left_out, kinds, size = Tally(), Tally(), dict[str, int](), 0
    index = bytearray()
    text_path, index_path = (task.folder / f"{task.key}{end}" for end in (".text", ".index"))
    with fresh(text_path, task.scratch) as stream:
        for file in task.files:
            kind = kinds.setdefault(file.kind, len(kinds))
            for name, text in _texts(file, task.columns, broken):
                why = "empty" if not text else left_out_by_content(text) if task.rules else None
                if why:
                    left_out.add(name, why)
                    continue
                stream.write(text)
                index += _DOCUMENT.pack(digest(text), len(text), kind)
                size += len(text)
    with fresh(index_path, task.scratch) as stream:
        stream.write(index)
    found = {
        "documents": len(index) // _DOCUMENT.size,
        "kinds": list(kinds),
        "broken": broken.plain(),
        "left_out": left_out.plain(),
    }
    record(task.folder / f"{task.key}.json", task.key, {text_path: size, index_path: len(index)}, found, task.scratch)
    return _spooled(task, found)


def _spooled(task: SpoolTask, found: dict[str, Any]) -> Spooled:
    return Spooled(
        text=task.folder / f"{task.key}.text",
        index=task.folder / f"{task.key}.index",
        documents=found["documents"],
        kinds=tuple(found["kinds"]),
        broken=Tally.of(found["broken"]),
        left_out=Tally.of(found["left_out"]),
    )


def _texts(file: SourceFile, columns: Columns, broken: Tally) -> Iterator[tuple[str, bytes]]:
    """Yield the documents of a file, in their normal form, with their names; those that are none go into `broken`."""
    for raw in documents(file, columns):
        text, why = _text(raw)
        if why is None:
            yield raw.name, text
        else:
            broken.add(raw.name, why)


def _text(raw: Raw) -> tuple[bytes, str | None]:
    """Return a document in its normal form, and why it is none."""
    if raw.broken is not None:
        return b"", raw.broken
    try:
        return joined(raw.parts) if raw.parts else normalised(raw.content), None
    except UnicodeDecodeError as error:
        return b"", f"not UTF-8 (byte {error.start})"
    except ValueError as error:
        return b"", str(error)
