"""What preparing says while it runs and where it cannot go on."""

from __future__ import annotations

from typing import Protocol

from train.spec.config import DataConfig


class Progress(Protocol):
    """Who is told how far preparing has come."""

    def __call__(self, stage: str, share: float, size: int = 0) -> None:
        """Take notice of the share of a stage that is done, and of how much the stage has to do [bytes; 0: unknown]."""


def too_short(split: str, tokens: int, config: DataConfig) -> str:
    """Return the message for a split that is shorter than one sequence."""
    return (
        f"the {split} split has {tokens} tokens, one sequence needs {config.sequence_length + 1}: {_change(split)} "
        f"data.validation_fraction={config.validation_fraction}, lower data.sequence_length={config.sequence_length}, "
        f"or give more text (data.source={as_yaml(config.source)}, data.max_bytes={as_yaml(config.max_bytes)})"
    )


def no_document(split: str, documents: int, config: DataConfig) -> str:
    """Return the message for a split that gets none of the documents there are."""
    return (
        f"the {split} split has 0 tokens: it got none of the {documents} documents of data.source="
        f"{as_yaml(config.source)}, which are kept whole: cut the text into more of them, as files or as lines of "
        f"a .jsonl file, or {_change(split)} data.validation_fraction={config.validation_fraction}"
    )


def _change(split: str) -> str:
    """Return what data.validation_fraction has to do for a split to grow."""
    return "raise" if split == "validation" else "lower"


def as_yaml(value: object) -> str:
    """Return a value as YAML writes it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(as_yaml, value))}]"
    return "null" if value is None else str(value)
