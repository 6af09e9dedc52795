"""A prepared corpus of made-up tokens, for benchmarks and tests of the trainer that need no text."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from train.spec.manifest import FORMAT, Manifest, Settings, Shard, Split, TokenizerFile, fingerprint_of


def write_corpus(
    root: Path, vocab_size: int, train_tokens: int = 200_000, validation_tokens: int = 50_000, *, uniform: bool = False
) -> Path:
    """Write a prepared folder named `fake` under `root` and return it.

    Every second token is a function of the one before, which is drawn from a Zipf law: something to learn. Or all are
    drawn alike and independently: nothing to learn, and no row of an embedding hit more than another.
    """
    folder = root / f"fake-bpe{vocab_size}"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    rng = np.random.default_rng(0)
    splits = {
        "train": _split(folder, "train", train_tokens, vocab_size, rng, uniform=uniform),
        "validation": _split(folder, "validation", validation_tokens, vocab_size, rng, uniform=uniform),
    }
    tokenizer = TokenizerFile("bpe", vocab_size, hashlib.sha256(b"{}").hexdigest(), "tokenizer.json")
    manifest = Manifest(
        format=FORMAT,
        name="fake",
        tokenizer=tokenizer,
        separator_token=0,
        splits=splits,
        bytes_per_token=4.0,
        source="made up",
        settings=Settings(None, "text", "bpe", vocab_size, 0.02, None),
        skipped=(),
        skipped_counts={},
        fingerprint=fingerprint_of(tokenizer, 0, splits),
    )
    (folder / "manifest.json").write_text(manifest.dumps())
    return folder


def _split(folder: Path, name: str, tokens: int, vocab_size: int, rng: np.random.Generator, *, uniform: bool) -> Split:
    if uniform:
        draws = rng.integers(0, vocab_size, tokens)
    else:
        draws = np.minimum(rng.zipf(1.3, tokens), vocab_size - 1)
        draws[1::2] = (draws[: tokens // 2 * 2 : 2] * 7 + 3) % vocab_size
    shard, index = folder / f"{name}-00000.bin", folder / f"{name}-00000.idx"
    draws.astype("<u2" if vocab_size <= 65536 else "<u4").tofile(shard)
    np.array([0, tokens], dtype="<u8").tofile(index)
    entry = Shard(shard.name, tokens, 1, _sha256(shard), index.name, _sha256(index))
    return Split(documents=1, tokens=tokens, bytes=4 * tokens, bytes_per_token=4.0, shards=(entry,))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
