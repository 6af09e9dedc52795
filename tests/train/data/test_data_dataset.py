"""Sequences from shards: nothing lost, nothing doubled, whatever the calls."""

import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.data.dataset import TokenSequences
from train.spec.manifest import FILE, Manifest, Settings, Shard, Split, TokenizerFile, fingerprint_of, read_manifest


def _shard(folder: Path, name: str, tokens: npt.NDArray[np.uint16]) -> Shard:
    content, index = tokens.astype("<u2").tobytes(), np.array([0, len(tokens)], dtype="<u8").tobytes()
    (folder / f"{name}.bin").write_bytes(content)
    (folder / f"{name}.idx").write_bytes(index)
    hashes = [hashlib.sha256(one).hexdigest() for one in (content, index)]
    return Shard(f"{name}.bin", len(tokens), 1, hashes[0], f"{name}.idx", hashes[1])


def _corpus(folder: Path, sizes: list[int]) -> npt.NDArray[np.int64]:
    """Write a train split of random tokens in shards of these sizes, and return all its tokens."""
    tokens = np.random.default_rng(0).integers(0, 65536, sum(sizes), dtype=np.uint16)
    pieces = np.split(tokens, np.cumsum(sizes)[:-1])
    shards = tuple(_shard(folder, f"train-{n:05d}", piece) for n, piece in enumerate(pieces))
    held_out = (_shard(folder, "validation-00000", tokens[:100]),)
    splits = {
        "train": Split(len(shards), len(tokens), len(tokens), 1.0, shards),
        "validation": Split(1, len(tokens[:100]), 100, 1.0, held_out),
    }
    tokenizer = TokenizerFile("bytes", 65536, "", None)
    made = Settings(None, "text", "bytes", 65536, 0.5, None)
    fingerprint = fingerprint_of(tokenizer, 256, splits)
    manifest = Manifest(1, "made", tokenizer, 256, splits, 1.0, "here", made, (), {}, fingerprint)
    (folder / FILE).write_text(manifest.dumps(), "utf-8")
    return tokens.astype(np.int64)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=8), st.integers(1, 40))
def test_windows_together_are_the_whole(sizes: list[int], length: int) -> None:
    if sum(sizes) <= length:
        return
    with tempfile.TemporaryDirectory() as place:
        tokens = _corpus(Path(place), sizes)
        data = TokenSequences(place, "train", length, seed=3)
        rows = data.sequences(0, data.windows)
        assert rows.dtype == np.int64
        assert rows.shape == ((len(tokens) - 1) // length, length + 1)
        expected = [tokens[n * length : (n + 1) * length + 1].tolist() for n in range(data.windows)]
        assert sorted(rows.tolist()) == sorted(expected)


@settings(max_examples=15, deadline=None)
@given(start=st.integers(0, 5000), counts=st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_any_chunking_reads_the_same(prepared: Path, start: int, counts: list[int]) -> None:
    whole = TokenSequences(prepared, "train", 16, seed=5).sequences(start, sum(counts))
    data, position, pieces = TokenSequences(prepared, "train", 16, seed=5), start, []
    for count in counts:
        pieces.append(data.sequences(position, count))
        position += count
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_epochs_hold_the_same_windows_in_another_order(prepared: Path) -> None:
    data = TokenSequences(prepared, "train", 16, seed=0)
    first, second = data.sequences(0, data.windows), data.sequences(data.windows, data.windows)
    assert first.tolist() != second.tolist()
    assert sorted(first.tolist()) == sorted(second.tolist())
    other = TokenSequences(prepared, "train", 16, seed=1).sequences(0, data.windows)
    assert first.tolist() != other.tolist()


def test_validation_is_fixed_spread_and_from_its_own_split(prepared: Path) -> None:
    data = TokenSequences(prepared, "validation", 16, seed=0)
    tokens = np.fromfile(prepared / "validation-00000.bin", dtype="<u2")
    three = data.validation(3)
    expected = [tokens[s : s + 17].tolist() for s in (n * data.windows // 3 * 16 for n in range(3))]
    assert three.tolist() == expected
    assert TokenSequences(prepared, "train", 16, seed=9).validation(3).tolist() == expected
    assert len(data.validation(data.windows)) == data.windows


@pytest.mark.parametrize("count", [0, -1, 10**6])
def test_too_many_validation_sequences(prepared: Path, count: int) -> None:
    with pytest.raises(ValueError, match=rf"eval\.sequences={count} is not allowed.*has \d+ validation sequences"):
        TokenSequences(prepared, "validation", 16, 0).validation(count)


def test_too_short_a_split(prepared: Path) -> None:
    with pytest.raises(ValueError, match=r"validation split has \d+ tokens, one sequence needs 1000001.*sequence_l"):
        TokenSequences(prepared, "validation", 1_000_000, 0)


def test_wrong_arguments(prepared: Path) -> None:
    with pytest.raises(ValueError, match="split='test' is not allowed: choose one of train, validation"):
        TokenSequences(prepared, "test", 16, 0)
    with pytest.raises(ValueError, match=r"data\.sequence_length=0"):
        TokenSequences(prepared, "train", 0, 0)
    with pytest.raises(ValueError, match="start=-1"):
        TokenSequences(prepared, "train", 16, 0).sequences(-1, 2)


def test_a_shard_of_another_size_is_seen_at_open(prepared: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(prepared, tmp_path / "copy"))
    with (copy / "train-00000.bin").open("ab") as stream:
        stream.write(b"\0\0")
    size = (copy / "train-00000.bin").stat().st_size
    with pytest.raises(
        ValueError, match=rf"train-00000\.bin was changed.*has {size} bytes, the manifest says {size - 2}"
    ):
        TokenSequences(copy, "train", 16, 0)
    (copy / "train-00000.bin").unlink()
    with pytest.raises(ValueError, match=r"train-00000\.bin is missing: prepare it again"):
        TokenSequences(copy, "train", 16, 0)


def test_not_prepared_and_damaged_manifests(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not prepared: run `python -m train\.prepare`"):
        TokenSequences(tmp_path / "nothing", "train", 16, 0)
    text = (prepared / FILE).read_text("utf-8")
    for content, words in (
        (text[: len(text) // 2], "is damaged"),
        (text.replace('"format": 1', '"format": 2'), "format=2, this version reads format 1"),
        ("[]", "not a manifest of this version"),
        (text.replace('"documents"', '"dokuments"'), "not a manifest of this version"),
    ):
        (tmp_path / FILE).write_text(content, "utf-8")
        with pytest.raises(ValueError, match=words):
            read_manifest(tmp_path)
    manifest = read_manifest(prepared)
    edited = replace(manifest, separator_token=7)
    (tmp_path / FILE).write_text(edited.dumps(), "utf-8")
    with pytest.raises(ValueError, match=f"was changed: its fingerprint says {manifest.fingerprint}"):
        read_manifest(tmp_path)
