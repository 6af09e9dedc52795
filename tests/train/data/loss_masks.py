"""Loss masks put on prepared corpora, or taken off, by hand."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from train.spec.config import DataConfig
from train.spec.manifest import FILE, LossMask, Shard, fingerprint_of, read_manifest

LOWER = frozenset(range(ord("a"), ord("z") + 1))
"""Of the tokens of `dialogues`, which are bytes, those that no completion has."""


def dialogues(seed: int, count: int) -> list[tuple[str, str]]:
    """Return different prompts, of small letters alone, and completions without any."""
    draw = random.Random(seed)

    def text(letters: str, least: int, most: int) -> str:
        return "".join(draw.choices(letters, k=draw.randint(least, most)))

    return [(text("abcdefghij", 12, 30), text("ABC 12\n", 0 if n % 5 else 40, 50)) for n in range(count)]


def bytes_config(source: Path, **changes: object) -> DataConfig:
    """Return settings for `dialogues` in a folder: a token a byte."""
    values = {"name": "talk", "source": str(source), "tokenizer": "bytes", "vocab_size": 257, "sequence_length": 16}
    masked = {"validation_fraction": 0.3, "prompt_column": "prompt", "text_column": "completion"}
    return DataConfig(**(values | masked | changes))  # type: ignore[arg-type]


def remask(folder: Path, counts: Sequence[Sequence[bool]] | None) -> Path:
    """Give the training shards of a folder masks by whether each of their tokens counts; None: take all masks off."""
    manifest = read_manifest(folder)
    splits = {
        name: replace(split, shards=tuple(replace(shard, mask=None) for shard in split.shards))
        for name, split in manifest.splits.items()
    }
    if counts is not None:
        shards = [_masked(folder, *one) for one in zip(splits["train"].shards, counts, strict=True)]
        splits["train"] = replace(splits["train"], shards=tuple(shards))
    made = fingerprint_of(manifest.tokenizer, manifest.separator_token, splits)
    (folder / FILE).write_text(replace(manifest, splits=splits, fingerprint=made).dumps(), "utf-8")
    return folder


def _masked(folder: Path, shard: Shard, counts: Sequence[bool]) -> Shard:
    hidden = [False, *(not one for one in counts), False]
    edges = [place for place in range(len(counts) + 1) if hidden[place] != hidden[place + 1]]
    if not edges:
        return shard
    content = np.array(edges, dtype="<u8").tobytes()
    path = (folder / shard.file).with_suffix(".mask")
    path.write_bytes(content)
    size = len(counts) - sum(counts)
    return replace(shard, mask=LossMask(path.name, len(edges), hashlib.sha256(content).hexdigest(), size, size))
