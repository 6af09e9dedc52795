"""Documents in rows: every token is predicted once, from its own document, and its origin is known."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.data.batch import Rows
from train.data.best_fit import fit, patterns
from train.data.dataset import Source, TokenSequences, TrainingData
from train.spec.labels import IGNORED
from train.spec.manifest import FILE, Manifest, Settings, Shard, Split, TokenizerFile, fingerprint_of

SEPARATOR = 99


def write_documents(folder: Path, shards: list[list[int]], vocab_size: int = 100) -> list[list[int]]:
    """Write a corpus whose documents have these sizes (separator included), of distinct random tokens; return them."""
    draw = np.random.default_rng(len(shards))
    kind = "<u2" if vocab_size <= 65536 else "<u4"
    documents, entries = [], []
    for number, sizes in enumerate(shards):
        mine = [[*draw.integers(0, SEPARATOR, size - 1).tolist(), SEPARATOR] for size in sizes]
        content = np.array([token for one in mine for token in one]).astype(kind).tobytes()
        index = np.cumsum([0, *sizes]).astype("<u8").tobytes()
        name = f"train-{number:05d}"
        (folder / f"{name}.bin").write_bytes(content)
        (folder / f"{name}.idx").write_bytes(index)
        hashes = [hashlib.sha256(one).hexdigest() for one in (content, index)]
        entries.append(Shard(f"{name}.bin", sum(sizes), len(sizes), hashes[0], f"{name}.idx", hashes[1]))
        documents += mine
    tokens = sum(map(len, documents))
    split = Split(len(documents), tokens, tokens, 1.0, tuple(entries))
    splits = {"train": split, "validation": split}
    tokenizer = TokenizerFile("bpe", vocab_size, "", None)
    made = Settings(None, "text", "bpe", vocab_size, 0.5, None)
    print_ = fingerprint_of(tokenizer, SEPARATOR, splits)
    manifest = Manifest(1, "made", tokenizer, SEPARATOR, splits, 1.0, "here", made, (), {}, print_)
    (folder / FILE).write_text(manifest.dumps(), "utf-8")
    return documents


def document_pieces(rows: Rows) -> list[tuple[list[int], list[int]]]:
    """Return (inputs, trained targets) of every document of every row; checks that positions restart in each."""
    assert rows.documents is not None
    assert rows.positions is not None
    pieces = []
    for row in range(len(rows)):
        for document in np.unique(rows.documents[row]):
            here = np.flatnonzero(rows.documents[row] == document)
            assert here.tolist() == list(range(here[0], here[-1] + 1))
            assert rows.positions[row, here].tolist() == list(range(len(here)))
            targets = rows.targets[row, here]
            if (targets != IGNORED).any():
                assert (targets != IGNORED).all()
                pieces.append((rows.inputs[row, here].tolist(), targets.tolist()))
    return pieces


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=3), st.integers(1, 16))
def test_fitted_rows_hold_every_token_once(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[int]], length: int
) -> None:
    if sum(map(sum, shards)) <= length:
        return
    folder = tmp_path_factory.mktemp("fit")
    documents = write_documents(folder, shards)
    data = TokenSequences(folder, "train", length, 0, "fit")
    pieces = document_pieces(data.rows(0, data.windows))
    wanted = []
    for document in documents:
        inputs = [SEPARATOR, *document[:-1]]
        for begin in range(0, len(document), length):
            wanted.append((inputs[begin : begin + length], document[begin : begin + length]))
    assert sorted(pieces) == sorted(wanted)


def test_masked_windows_keep_text_and_targets_of_plain_ones(tmp_path: Path) -> None:
    write_documents(tmp_path, [[3, 9, 1, 30], [7, 2, 2, 25]])
    plain = TokenSequences(tmp_path, "train", 8, 5)
    kept = TokenSequences(tmp_path, "train", 8, 5, "mask")
    one, other = plain.rows(0, 9), kept.rows(0, 9)
    np.testing.assert_array_equal(one.inputs, other.inputs)
    np.testing.assert_array_equal(one.targets, other.targets)
    assert one.positions is None
    assert one.documents is None
    for inputs, _ in document_pieces(other):
        assert SEPARATOR not in inputs[1:]  # a separator only ever begins a document
    assert sum(len(targets) for _, targets in document_pieces(other)) == 72


def naive_best_fit(sizes: list[int], length: int) -> list[list[int]]:
    rows: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in rows if sum(row) + size <= length]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            rows.append([size])
    return rows


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=60))))
def test_patterns_are_best_fit_decreasing(case: tuple[int, list[int]]) -> None:
    length, sizes = case
    found = patterns(np.bincount(sizes, minlength=length + 1).tolist(), length)
    rows = Counter(
        tuple(size for size, times in pattern for _ in range(times)) for pattern, count in found for _ in range(count)
    )
    wanted = Counter(map(tuple, naive_best_fit(sizes, length)))
    # Rows with the same room are interchangeable, so that only how full the rows are is unique.
    assert Counter(map(sum, rows.elements())) == Counter(map(sum, wanted.elements()))
    assert sorted(size for row in rows.elements() for size in row) == sorted(sizes)
    assert all(sum(row) <= length for row in rows)


def test_a_million_documents_are_fitted_with_little_padding() -> None:
    sizes = np.minimum(np.random.default_rng(0).lognormal(6, 1, 1_000_000).astype(np.int64) + 1, 100_000)
    packed = fit(np.cumsum(sizes) - sizes, sizes, 2048)
    assert int(packed.tokens.sum()) == int(sizes.sum())
    assert len(packed) * 2048 < 1.002 * int(sizes.sum())


def test_origins_lead_back_to_the_tokens(tmp_path: Path) -> None:
    places = []
    for number, shards in enumerate([[[3, 9, 1, 30], [7, 2, 2, 25]], [[50], [40, 1, 8]]]):
        place = tmp_path / str(number)
        place.mkdir()
        write_documents(place, shards)
        places.append(place)
    for packing in ("concatenate", "mask", "fit"):
        sources = [
            Source(f"s{number}", 1.0 + number, TokenSequences(place, "train", 8, 3, packing))
            for number, place in enumerate(places)
        ]
        data = TrainingData(sources, 3)
        rows, origins = data.rows(40, 6), data.origins(40, 6)
        assert {origin.source for origin in origins} == {"s0", "s1"}
        for row in range(6):
            found: list[int] = []
            for origin in origins:
                if origin.row != 40 + row:
                    continue
                shard: npt.NDArray[np.uint16] = np.fromfile(origin.shard, dtype="<u2")
                index = np.fromfile(origin.shard.replace(".bin", ".idx"), dtype="<u8")
                assert index[origin.document] <= origin.offset
                assert origin.offset + origin.tokens <= index[origin.document + 1]
                found += shard[origin.offset : origin.offset + origin.tokens].tolist()
            targets = rows.targets[row]
            assert found == targets[targets != IGNORED].tolist()


def test_large_vocabularies_have_wide_tokens(tmp_path: Path) -> None:
    documents = write_documents(tmp_path, [[20, 20]], vocab_size=70_000)
    shard = tmp_path / "train-00000.bin"
    assert shard.stat().st_size == 40 * 4
    rows = TokenSequences(tmp_path, "train", 13, 0).rows(0, 3)
    tokens = [token for document in documents for token in document]
    assert sorted(map(tuple, rows.inputs.tolist())) == sorted(tuple(tokens[n : n + 13]) for n in (0, 13, 26))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train-00000.bin", b"\xff\xff\x01\x00" + b"\0" * 76, r"token 0 is 65535, the vocabulary has 100.*ff ff 01"),
        ("train-00000.bin", b"\x1f\x8b\x08" + b"\1" * 10, r"has 13 bytes, the manifest says 80.*1f 8b 08 .*\(gzip\)"),
        ("train-00000.bin", b"version https://git-lfs.github.com/spec/v1\n", r"Git LFS pointer"),
        ("train-00000.idx", b"<html>" + b"\0" * 18, r"\.idx is damaged.*3c 68 74 6d 6c 3e.*web page"),
    ],
)
def test_a_bad_shard_is_named_with_its_first_bytes(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    write_documents(tmp_path, [[20, 20]])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        TokenSequences(tmp_path, "train", 8, 0, "fit").rows(0, 5)


def test_an_unknown_packing_is_refused(tmp_path: Path) -> None:
    write_documents(tmp_path, [[20, 20]])
    with pytest.raises(ValueError, match=r"data\.packing='dense' is not allowed: choose one of concatenate, mask, fit"):
        TokenSequences(tmp_path, "train", 8, 0, "dense")
    shutil.rmtree(tmp_path)
