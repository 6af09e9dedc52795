"""A document as it was found, and where a record has its text."""

from __future__ import annotations

from dataclasses import dataclass

from train.data.corpus.parts import Part
from train.data.corpus.walk import SourceFile


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


def no_column(file: SourceFile, columns: Columns, column: str, there: list[str]) -> str:
    """Return the message for a file that has not this column, but those that are `there`."""
    return f"{columns.named[column]}={column}: {file.path} has no such column; it has {', '.join(there) or 'none'}"
