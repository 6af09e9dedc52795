"""A prepared corpus of made-up tokens: how long a step takes does not depend on what they say."""

from __future__ import annotations

import hashlib
import random
from array import array
from pathlib import Path

from train.spec.manifest import FORMAT, Manifest, Settings, Shard, Split, TokenizerFile, fingerprint_of

NAME = "made-up"
TOKENS = {"train": 200_000, "validation": 20_000}
_LONG = 1 << 16
"""Vocabularies up to this size are stored in two bytes a token, larger ones in four."""


def write_corpus(
    root: Path,
    vocabulary: int,
    train_tokens: int = TOKENS["train"],
    validation_tokens: int = TOKENS["validation"],
    corpus: str = NAME,
) -> None:
    """Write the corpus below `root`. Every second token follows from the one before it: something to learn."""
    folder = root / f"{corpus}-bpe{vocabulary}"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    draw = random.Random(0)
    splits = {}
    for name, count in (("train", train_tokens), ("validation", validation_tokens)):
        tokens, index = folder / f"{name}-00000.bin", folder / f"{name}-00000.idx"
        drawn = array("H" if vocabulary <= _LONG else "I")
        for _ in range(-(-count // 2)):
            first = draw.randrange(vocabulary)
            drawn.extend((first, (7 * first + 3) % vocabulary))
        tokens.write_bytes(drawn[:count].tobytes())
        index.write_bytes(array("Q", (0, count)).tobytes())
        shard = Shard(tokens.name, count, 1, _sha256(tokens), index.name, _sha256(index))
        splits[name] = Split(documents=1, tokens=count, bytes=4 * count, bytes_per_token=4.0, shards=(shard,))
    tokenizer = TokenizerFile("bpe", vocabulary, _sha256(folder / "tokenizer.json"), "tokenizer.json")
    manifest = Manifest(
        format=FORMAT,
        name=corpus,
        tokenizer=tokenizer,
        separator_token=0,
        splits=splits,
        bytes_per_token=4.0,
        source="random tokens",
        settings=Settings(None, "text", "bpe", vocabulary, 0.02, None),
        skipped=(),
        skipped_counts={},
        fingerprint=fingerprint_of(tokenizer, 0, splits),
    )
    (folder / "manifest.json").write_text(manifest.dumps(), encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
