"""Sources mixed by weight: the same global batches for every world, each source in its own order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from train.data.corpus.prepare import prepare
from train.data.dataset import TokenSequences, TrainingData, open_training
from train.data.mixture import BLOCK, Mixture, quotas
from train.data.prefetch import Prefetch
from train.prepare import report
from train.spec.config import DataConfig, SourceConfig
from train.spec.corpus_files import verify
from train.spec.manifest import read_manifest, settings_of
from train.spec.micro_batch import even_parts

Small = Callable[..., DataConfig]
Write = Callable[..., Path]


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataConfig, Path]:
    """A mixture of two small corpora of bytes, 3 to 1."""
    from tests.train.data.conftest import small, write_texts

    root = tmp_path_factory.mktemp("mixed")
    sources = tuple(
        SourceConfig(name, weight, str(write_texts(root / f"text-{name}", 25, seed)))
        for name, weight, seed in (("a", 3.0, 1), ("b", 1.0, 2))
    )
    config = small(None, name="both", tokenizer="bytes", vocab_size=257, sources=sources)
    prepare(config, root, workers=1)
    return config, root


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
    start=st.integers(0, 3 * BLOCK),
    cuts=st.lists(st.integers(0, 70), min_size=1, max_size=5),
)
def test_a_row_is_a_function_of_its_number(weights: list[float], seed: int, start: int, cuts: list[int]) -> None:
    which, index = Mixture(weights, seed).draw(start, sum(cuts))
    mixture, position = Mixture(weights, seed), start
    for cut in cuts:
        again, numbers = mixture.draw(position, cut)
        assert again.tolist() == which[position - start : position - start + cut].tolist()
        assert numbers.tolist() == index[position - start : position - start + cut].tolist()
        position += cut
    before = mixture.consumed(start)
    for source in range(len(weights)):  # every source is read row by row, none twice, none left out
        mine = index[which == source]
        assert mine.tolist() == list(range(before[source], before[source] + len(mine)))


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.floats(0.05, 1), min_size=2, max_size=4), start=st.integers(0, 2 * BLOCK))
def test_every_batch_has_nearly_the_wanted_composition(weights: list[float], start: int) -> None:
    which, _ = Mixture(weights, 1).draw(start, 256)
    for source, weight in enumerate(weights):
        assert abs(int((which == source).sum()) - 256 * weight / sum(weights)) < 4


def test_quotas_are_the_weights_and_refuse_what_gets_nothing() -> None:
    assert sum(quotas([1, 1, 1])) == BLOCK
    assert max(quotas([1, 1, 1])) - min(quotas([1, 1, 1])) == 1
    with pytest.raises(ValueError, match="must all be positive"):
        quotas([1.0, 0.0])
    with pytest.raises(ValueError, match=f"below 1/{BLOCK} of their sum"):
        quotas([1.0, 1e-6])


@settings(max_examples=25, deadline=None)
@given(step=st.integers(0, 400), batch=st.integers(1, 96), ranks=st.sampled_from([1, 4, 64]), micro=st.integers(1, 9))
def test_global_batches_are_the_same_for_every_world(
    mixed: tuple[DataConfig, Path], step: int, batch: int, ranks: int, micro: int
) -> None:
    config, root = mixed
    whole = open_training(config, root, 7).rows(step * batch, batch).inputs
    pieces, data = [], open_training(config, root, 7)
    for rank in range(ranks):
        share = range(batch * rank // ranks, batch * (rank + 1) // ranks)
        begin = step * batch + share.start
        for part in even_parts(len(share), micro):
            pieces.append(data.rows(begin, part).inputs)
            begin += part
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_an_exhausted_source_is_read_again_in_a_new_order(mixed: tuple[DataConfig, Path]) -> None:
    config, root = mixed
    data = open_training(config, root, 0)
    a, b = (source.rows for source in data.sources)
    total = 6 * (a.windows + b.windows)
    state = data.state(total)
    assert state["a"]["rows"] + state["b"]["rows"] == total
    assert state["a"]["rows"] == pytest.approx(0.75 * total, abs=4)
    for name, windows in (("a", a.windows), ("b", b.windows)):
        assert state[name]["rows"] == state[name]["epochs"] * windows + state[name]["into"]
        assert state[name]["epochs"] >= 2
    starts: dict[int, int] = {}
    for origin in data.origins(0, total):
        if origin.source == "b":
            starts.setdefault(origin.row, origin.offset)  # a window's first piece
    seen = list(starts.values())
    first, second = seen[: b.windows], seen[b.windows : 2 * b.windows]
    assert len(set(first)) == b.windows
    assert Counter(first) == Counter(second)
    assert first != second


def test_a_source_keeps_its_order_when_another_is_added(mixed: tuple[DataConfig, Path]) -> None:
    config, root = mixed
    data = open_training(config, root, 0)
    other = replace(config, sources=(replace(config.sources[0], weight=1.0), replace(config.sources[1], weight=9.0)))
    changed = open_training(other, root, 0)
    for ours, theirs in zip(data.sources, changed.sources, strict=True):
        np.testing.assert_array_equal(ours.rows.rows(0, 50).inputs, theirs.rows.rows(0, 50).inputs)
    assert data.sources[0].rows.order.seed != data.sources[1].rows.order.seed


def test_one_source_reads_as_it_always_did(prepared: Path, small: Small, texts: Path) -> None:
    data = open_training(small(texts), prepared.parent, 5)
    windows = TokenSequences(prepared, "train", 16, 5)
    np.testing.assert_array_equal(data.rows(33, 20).inputs, windows.rows(33, 20).inputs)
    assert data.state(windows.windows + 3)["small"] == {"rows": windows.windows + 3, "epochs": 1, "into": 3}


def test_a_mixture_is_a_prepared_folder_of_its_own(mixed: tuple[DataConfig, Path]) -> None:
    config, root = mixed
    place = prepare(config, root)
    manifest = verify(place)
    assert manifest.settings == settings_of(config)
    parts_ = [read_manifest(root / f"{name}-bytes257") for name in ("a", "b")]
    for split in ("train", "validation"):
        assert manifest.splits[split].tokens == sum(part.splits[split].tokens for part in parts_)
    assert [member.bytes_per_token for member in manifest.members] == [part.bytes_per_token for part in parts_]
    reweighted = replace(config, sources=tuple(replace(source, weight=1.0) for source in config.sources))
    assert prepare(reweighted, root) == place


def test_broken_documents_of_any_source_come_first(write_texts: Write, small: Small, tmp_path: Path) -> None:
    sources = []
    for name, file, content in (("a", "empty.txt", b" "), ("b", "latin.txt", b"caf\xe9")):
        text = write_texts(tmp_path / name, 25)
        (text / file).write_bytes(content)
        sources.append(SourceConfig(name, 1.0, str(text)))
    config = small(None, name="both", tokenizer="bytes", vocab_size=257, sources=tuple(sources))
    made = prepare(config, tmp_path, workers=1)
    assert report(made, read_manifest(made), None)[2] == (
        "broken documents: 1, the first is latin.txt: not UTF-8 (byte 3)"
    )


def test_sources_share_the_first_ones_tokenizer(tmp_path: Path, write_texts: Write, small: Small) -> None:
    sources = tuple(SourceConfig(n, 1.0, str(write_texts(tmp_path / f"t{n}", 25, s))) for n, s in (("x", 1), ("y", 2)))
    place = prepare(small(None, name="xy", sources=sources), tmp_path, workers=1)
    texts = {(tmp_path / f"{name}-bpe300" / "tokenizer.json").read_text() for name in ("x", "y", "xy")}
    assert len(texts) == 1
    prepare(small(tmp_path / "ty", name="y2"), tmp_path, workers=1)  # with a tokenizer of its own
    clash = (sources[0], replace(sources[1], name="y2"))
    with pytest.raises(ValueError, match=r"y2-bpe300 was prepared with other settings.*tokenizer_from=null there"):
        prepare(small(None, name="xy2", sources=clash), tmp_path, workers=1)
    assert open_training(small(None, name="xy", sources=sources), tmp_path, 0).names == ("x", "y")
    prepare(small(tmp_path / "ty", name="x", max_bytes=6000), tmp_path, workers=1, force=True)
    with pytest.raises(ValueError, match=f"x-bpe300 was prepared anew since the mixture {place} was"):
        open_training(small(None, name="xy", sources=sources), tmp_path, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sources": (SourceConfig("a"), SourceConfig("a"))}, "must all differ"),
        ({"sources": (SourceConfig("small"),)}, "must all differ"),
        ({"sources": (SourceConfig("a"),), "source": "/x"}, r"data\.source and data\.sources are both given"),
        ({"tokenizer": "bytes", "vocab_size": 257, "tokenizer_from": "a"}, "tokenizer_from is for data.tokenizer=bpe"),
        ({"source": ".", "tokenizer_from": "nowhere"}, r"data\.tokenizer_from=nowhere: there is no .*nowhere-bpe300"),
    ],
)
def test_mixtures_that_cannot_be(small: Small, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepare(small(None, **changes), tmp_path, workers=1)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"no", b"{}", b"[]", b'{"model": {"vocab": {"a": 0}}}'])
def test_a_file_that_is_no_tokenizer_is_named(small: Small, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    given = small(tmp_path / "not read", tokenizer_from=str(tmp_path / "tokenizer.model"))
    with pytest.raises(ValueError, match=r"data\.tokenizer_from=.*tokenizer\.model is no tokenizer\.json of the"):
        prepare(given, tmp_path, workers=1)


def test_a_tokenizer_that_does_not_fit_is_said_before_text_is_read(
    small: Small, tmp_path: Path, write_texts: Write
) -> None:
    prepare(small(write_texts(tmp_path / "texts", 25, 1), name="first"), tmp_path, workers=1)
    given = tmp_path / "first-bpe300" / "tokenizer.json"
    with pytest.raises(ValueError, match=r"data\.vocab_size=299 is too small: data\.tokenizer_from needs 300"):
        prepare(small(tmp_path / "not read", vocab_size=299, tokenizer_from=str(given)), tmp_path, workers=1)


def test_special_tokens_in_the_text_are_counted(small: Small, tmp_path: Path, write_texts: Write) -> None:
    """Text that names them becomes them, as in transformers; whoever prepares it is told."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|over|>"])
    (tmp_path / "hf").mkdir()
    tokenizer.save(str(tmp_path / "hf" / "tokenizer.json"))
    (tmp_path / "hf" / "tokenizer_config.json").write_text('{"eos_token": "<|over|>"}')
    texts = write_texts(tmp_path / "texts", 25, 1)
    config = small(texts, name="plain", tokenizer_from=str(tmp_path / "hf"))
    plain = read_manifest(prepare(config, tmp_path, workers=1))
    assert (plain.special_in_text, plain.separator_token) == (None, 256)
    assert "special_in_text" not in plain.dumps(), "as it was written before these were counted"
    for number, path in enumerate(sorted(texts.rglob("*.md"))[:5]):
        path.write_text(path.read_text("utf-8") + "<|over|> once" * number, "utf-8")
    target = prepare(replace(config, name="named"), tmp_path, workers=1)
    assert read_manifest(target).special_in_text == 10
    (said,) = [line for line in report(target, read_manifest(target), None) if "special tokens" in line]
    assert said.startswith("10 special tokens of data.tokenizer_from stand in the text by their names")
    sources = tuple(SourceConfig(name, 1.0, str(texts)) for name in ("plain", "named"))
    both = replace(config, name="both", source=None, sources=sources)
    assert read_manifest(prepare(both, tmp_path, workers=1)).special_in_text == 10


def test_reading_ahead_gives_what_reading_gives(mixed: tuple[DataConfig, Path]) -> None:
    config, root = mixed
    data, plain = open_training(config, root, 0), open_training(config, root, 0)
    calls: list[tuple[int, int]] = []

    def read(request: tuple[int, int]) -> np.ndarray:
        calls.append(request)
        return data.rows(*request).inputs

    ahead = Prefetch(read, 2)
    wanted = [(0, 4), (4, 4), (8, 4), (100, 2), (102, 2), (12, 4)]  # a jump, and back
    for request in wanted:
        follow = [(request[0] + n * request[1], request[1]) for n in (1, 2)]
        np.testing.assert_array_equal(ahead.take(request, follow), plain.rows(*request).inputs)
    ahead.close()
    assert Counter(calls)[4, 4] == Counter(calls)[8, 4] == 1  # what was read ahead was not read again
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_an_error_while_reading_ahead_is_raised_where_it_is_taken() -> None:
    def read(request: int) -> int:
        if request == 1:
            raise ValueError("shard 7 is damaged")
        return request

    ahead = Prefetch(read, 1)
    assert ahead.take(0, [1]) == 0
    with pytest.raises(ValueError, match="shard 7 is damaged"):
        ahead.take(1, [2])
    assert ahead.take(2) == 2
    ahead.close()


def test_training_data_needs_no_rows_for_an_empty_share(mixed: tuple[DataConfig, Path]) -> None:
    config, root = mixed
    data: TrainingData = open_training(config, root, 0)
    assert data.rows(5, 0).inputs.shape == (0, 16)
    assert data.origins(5, 0) == []
