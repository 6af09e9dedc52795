"""Loss masks from the records to the rows: what does not count is read, and nothing is trained to predict it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.train.data.conftest import small
from tests.train.data.loss_masks import bytes_config, dialogues, remask
from tests.train.data.test_data_packing import write_documents
from train.data.batch import Rows
from train.data.corpus.prepare import prepare
from train.data.dataset import TokenSequences, open_training
from train.data.validation import open_validation
from train.prepare import report
from train.spec.config import EvalConfig, RunConfig, RuntimeConfig, SourceConfig
from train.spec.corpus_files import verify
from train.spec.labels import IGNORED
from train.spec.manifest import FILE, Manifest, read_manifest

Record = Mapping[str, object]

PACKINGS = ("concatenate", "mask", "fit")


def _folder(place: Path, records: Sequence[Record]) -> Path:
    place.mkdir(parents=True)
    (place / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return place


def _segments(*parts: tuple[str, bool]) -> Record:
    return {"text": [{"label": label, "text": text} for text, label in parts]}


def _prompts(count: int = 60, seed: int = 0) -> list[Record]:
    return [{"prompt": prompt, "completion": completion} for prompt, completion in dialogues(seed, count)]


def _stored(folder: Path) -> dict[bytes, list[bool]]:
    """Return the text of every document of a corpus of bytes, and which of its tokens count, the separator last."""
    found = {}
    for split in read_manifest(folder).splits.values():
        for shard in split.shards:
            tokens = np.fromfile(folder / shard.file, dtype="<u2")
            counts = np.ones(len(tokens), dtype=bool)
            edges = [] if shard.mask is None else np.fromfile(folder / shard.mask.file, dtype="<u8").tolist()
            for begin, end in zip(edges[::2], edges[1::2], strict=True):
                counts[begin:end] = False
            assert shard.counted == counts.sum()
            for begin, end in pairwise(np.fromfile(folder / shard.index, dtype="<u8").tolist()):
                found[bytes(tokens[begin : end - 1].tolist())] = counts[begin:end].tolist()
    return found


@st.composite
def _masked_shards(draw: st.DrawFn) -> tuple[list[list[int]], list[list[bool]]]:
    """Return the sizes of the documents of some shards, and whether each token counts, in runs."""
    shards = draw(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=3))
    counts = []
    for sizes in shards:
        runs = draw(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=20))
        flags = [flag for length, flag in runs for _ in range(length)]
        counts.append((flags + [draw(st.booleans())] * sum(sizes))[: sum(sizes)])
    return shards, counts


@settings(max_examples=60, deadline=None)
@given(_masked_shards(), st.integers(1, 16), st.integers(0, 9))
def test_the_mask_of_every_row_is_that_of_its_tokens(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[list[int]], list[list[bool]]], length: int, seed: int
) -> None:
    shards, counts = case
    if sum(map(sum, shards)) <= length:
        return
    folder = tmp_path_factory.mktemp("masked")
    write_documents(folder, shards)
    places = np.arange(sum(map(sum, shards)))
    stream = np.concatenate([np.fromfile(one, dtype="<u2") for one in sorted(folder.glob("*.bin"))])
    flat = [flag for one in counts for flag in one]
    for packing in PACKINGS:
        remask(folder, None)
        whole = TokenSequences(folder, "train", length, seed, packing)
        plain = whole.rows(0, whole.windows + 3)  # into the next epoch
        remask(folder, counts)
        rows = TokenSequences(folder, "train", length, seed, packing).rows(0, whole.windows + 3)
        np.testing.assert_array_equal(rows.inputs, plain.inputs)
        for row, number in enumerate(whole.order.run(0, whole.windows + 3).tolist()):
            mine = np.concatenate([places[start : start + tokens] for start, tokens in whole.packing.pieces(number)])
            assert stream[mine].tolist() == plain.targets[row, : len(mine)].tolist()
            wanted = [int(stream[place]) if flat[place] else IGNORED for place in mine]
            assert rows.targets[row].tolist() == wanted + [IGNORED] * (length - len(mine))


def test_prompts_are_masked_and_completions_end_with_a_token_that_counts(tmp_path: Path) -> None:
    records = _prompts()
    place = prepare(bytes_config(_folder(tmp_path / "talk", records)), tmp_path, workers=1)
    wanted = {
        f"{one['prompt']}{one['completion']}".encode(): [False] * len(str(one["prompt"]))
        + [True] * (len(str(one["completion"])) + 1)
        for one in records
    }
    assert _stored(place) == wanted
    manifest = verify(place)
    for split in manifest.splits.values():
        assert 0 < split.counted < split.tokens
        assert split.bytes_per_token == (split.counted - split.documents) / split.counted
    assert sum(split.bytes for split in manifest.splits.values()) == sum(map(len, wanted))
    train, held_out = manifest.splits["train"].counted, manifest.splits["validation"].counted
    assert f"the loss counts {train:,} training and {held_out:,} validation tokens" in report(place, manifest, None)[1]


def test_segments_count_by_their_labels(tmp_path: Path) -> None:
    turns = [_segments((f"q{n}", False), ("a é", True), ("", True), ("q2", False), (" b\n ", True)) for n in range(30)]
    masked = _segments(("nothing of this", False), (" counts", False))
    ends_masked = _segments(("yes", True), ("no", False))
    records = [*turns, masked, ends_masked, {"text": "plain text  \n"}, _segments(("", False), ("", True))]
    config = bytes_config(_folder(tmp_path / "talk", records), prompt_column=None, text_column="text")
    place = prepare(config, tmp_path, workers=1)
    found = _stored(place)
    for n in range(30):
        question = [False] * len(f"q{n}")
        assert found[f"q{n}a éq2 b\n ".encode()] == question + [True] * 4 + [False] * 2 + [True] * 5
    assert found[b"nothing of this counts"] == [False] * 23
    assert found[b"yesno"] == [True] * 3 + [False] * 3
    assert found[b"plain text\n"] == [True] * 12
    assert len(found) == 33
    assert read_manifest(place).skipped_counts == {"empty": 1}


def test_a_bpe_encodes_each_part_on_its_own(tmp_path: Path) -> None:
    source = _folder(tmp_path / "talk", [{"prompt": f"{n} ab", "completion": "cd ef"} for n in range(40)])
    bpe = {"tokenizer": "bpe", "vocab_size": 262, "sequence_length": 4}
    place = prepare(bytes_config(source, **bpe), tmp_path, workers=1)
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    assert [token for token in tokenizer.get_vocab() if "Ā" in token] == ["Ā"]  # of marks (NUL) nothing was learned
    shard = read_manifest(place).splits["train"].shards[0]
    assert shard.mask is not None
    tokens, starts, edges = (
        np.fromfile(place / name, dtype=kind).tolist()
        for name, kind in ((shard.file, "<u2"), (shard.index, "<u8"), (shard.mask.file, "<u8"))
    )
    assert edges[::2] == starts[:-1]
    for begin, answer, end in zip(starts, edges[1::2], starts[1:], strict=False):
        prompt = tokenizer.decode(tokens[begin:answer])
        assert prompt.endswith(" ab")
        assert tokens[begin:answer] == tokenizer.encode(prompt).ids
        assert tokens[answer:end] == [*tokenizer.encode("cd ef").ids, 261]


def test_every_format_and_number_of_workers_gives_the_same_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = _prompts(200)
    prompts = prepare(bytes_config(_folder(tmp_path / "talk", records)), tmp_path / "jsonl", workers=1)
    (tmp_path / "table").mkdir()
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "table" / "a.parquet")
    parquet = prepare(bytes_config(tmp_path / "table"), tmp_path / "parquet", workers=1)
    turns = [_segments((str(one["prompt"]), False), (str(one["completion"]), True)) for one in records]
    config = bytes_config(_folder(tmp_path / "turns", turns), prompt_column=None, text_column="text")
    segments = prepare(config, tmp_path / "segments", workers=1)
    prints = {read_manifest(place).fingerprint for place in (prompts, parquet, segments)}
    assert len(prints) == 1
    monkeypatch.setattr("train.data.corpus.source_files.CHUNK_BYTES", 2000)
    monkeypatch.setattr("train.data.corpus.write_shards.SMALLEST_SHARD", 1500)
    several = [prepare(config, tmp_path / f"several-{count}", workers=count) for count in (1, 2)]
    one, two = ({path.name: path.read_bytes() for path in place.iterdir()} for place in several)
    assert one == two
    assert sum(name.endswith(".mask") for name in one) > 3
    assert _stored(several[0]) == _stored(segments)


def test_a_mask_is_part_of_what_a_document_is(tmp_path: Path) -> None:
    twice = [_segments(("ab", False), ("c", True)), _segments(("ab", False), ("c", True))]
    other = [_segments(("a", False), ("bc", True)), {"text": "abc"}]
    more = [_segments((f"more {n}", True)) for n in range(20)]
    config = bytes_config(_folder(tmp_path / "talk", [*twice, *other, *more]), prompt_column=None, text_column="text")
    manifest = read_manifest(prepare(config, tmp_path, workers=1))
    assert manifest.skipped_counts == {"duplicate": 1}
    assert sum(split.documents for split in manifest.splits.values()) == 23


def test_a_corpus_without_masks_is_what_it_was_before_there_were_masks(texts: Path, tmp_path: Path) -> None:
    place = prepare(small(texts, tokenizer="bytes", vocab_size=257), tmp_path, workers=1)
    assert read_manifest(place).fingerprint == "8b0e2d872af4"
    written = (place / FILE).read_text("utf-8")
    assert '"mask"' not in written
    assert "prompt_column" not in written
    assert not list(place.glob("*.mask"))
    assert "loss counts" not in "".join(report(place, read_manifest(place), None))


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_mixture_masks_the_rows_of_the_source_that_has_masks(tmp_path: Path, texts: Path, packing: str) -> None:
    talk = str(_folder(tmp_path / "talk", _prompts()))
    sources = (
        SourceConfig("talk", 1.0, talk, "completion", prompt_column="prompt"),
        SourceConfig("prose", 2.0, str(texts)),
    )
    data = small(None, name="both", tokenizer="bytes", vocab_size=257, sources=sources, packing=packing)
    manifest = verify(prepare(data, tmp_path, workers=1))
    rows = open_training(data, tmp_path, 3)
    parts = {name: read_manifest(tmp_path / f"{name}-bytes257") for name in ("talk", "prose")}
    for split, joined in manifest.splits.items():
        assert joined.counted == sum(part.splits[split].counted for part in parts.values())
    assert joined.counted < joined.tokens

    owners = {origin.row: origin.source for origin in rows.origins(0, 60)}
    read = rows.rows(0, 60)
    for row in range(60):
        lower = np.isin(read.inputs[row, 1:], list(range(ord("a"), ord("k"))))
        ignored = read.targets[row, :-1] == IGNORED
        if owners[row] == "talk":
            assert ignored[lower].all()
            assert not ignored[~lower & (read.inputs[row, 1:] != 256)].any()
        elif packing != "fit":
            assert not ignored.any()
    np.testing.assert_array_equal(rows.rows(17, 9).targets, read.targets[17:26])

    config = RunConfig(data=data, eval=EvalConfig(sequences=8), runtime=RuntimeConfig(data_root=str(tmp_path)))
    held_out = open_validation(config)
    ignored = (held_out.rows.targets == IGNORED).any(axis=1)
    assert ignored[held_out.source == 0].any()
    assert held_out.source_bytes == tuple(parts[name].bytes_per_token for name in ("talk", "prose"))


def _windows_of(folder: Path) -> Rows:
    return TokenSequences(folder, "train", 8, 0).rows(0, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0" * 32, r"\.mask is damaged: it does not hold 4 growing offsets around 9 tokens; it begins with 00 00"),
        (np.array([0, 4, 15, 99], "<u8").tobytes(), "is damaged"),
        (np.array([0, 3, 15, 20], "<u8").tobytes(), "is damaged"),
        (b"version https://git-lfs", r"has 23 bytes, the manifest says 32; .*Git LFS pointer"),
        (None, r"train-00000\.mask is missing"),
    ],
    ids=["zeros", "beyond the end", "of other tokens", "another size", "gone"],
)
def test_a_bad_mask_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    write_documents(tmp_path, [[20, 20]])
    remask(tmp_path, [[*([False] * 4), *([True] * 11), *([False] * 5), *([True] * 20)]])
    assert (_windows_of(tmp_path).targets == IGNORED).any()
    path = tmp_path / "train-00000.mask"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        _windows_of(tmp_path)


def test_a_changed_mask_is_found_by_verify(tmp_path: Path) -> None:
    place = prepare(bytes_config(_folder(tmp_path / "talk", _prompts())), tmp_path, workers=1)
    path = place / "train-00000.mask"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"train-00000\.mask was changed after preparation: its sha256"):
        verify(place)


def test_broken_records_are_named_with_file_line_and_field(tmp_path: Path) -> None:
    bad: list[Record] = [{"completion": "x"}, {"prompt": None, "completion": "x"}, {"prompt": "a\0", "completion": "x"}]
    source = _folder(tmp_path / "talk", [*_prompts(), *bad])
    manifest = read_manifest(prepare(bytes_config(source), tmp_path, workers=1))
    assert [(one.file, one.why) for one in manifest.skipped] == [
        ("a.jsonl:61", "no field 'prompt'"),
        ("a.jsonl:62", "field 'prompt' is not text"),
        ("a.jsonl:63", "binary data (a NUL byte)"),
    ]
    wrong: list[Record] = [{"text": ["a"]}, {"text": [{"text": "a", "label": True}, {"text": "a", "label": 1}]}]
    config = bytes_config(
        _folder(tmp_path / "turns", [*wrong, *({"text": f"text {n}"} for n in range(20))]), name="turns",
        prompt_column=None, text_column="text",
    )  # fmt: skip
    assert [(one.file, one.why) for one in read_manifest(prepare(config, tmp_path, workers=1)).skipped] == [
        ("a.jsonl:1", 'field \'text\'[0] is not {"text": "…", "label": true or false}'),
        ("a.jsonl:2", 'field \'text\'[1] is not {"text": "…", "label": true or false}'),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_wrong_prompt_column_names_the_right_ones(tmp_path: Path, kind: str) -> None:
    source = _folder(tmp_path / "talk", _prompts())
    if kind == "parquet":
        (source / "a.jsonl").unlink()
        pq.write_table(pa.Table.from_pylist(_prompts()), source / "a.parquet")
    with pytest.raises(
        ValueError, match=rf"data\.prompt_column=question: .*a\.{kind} has no such column; it has .*prompt"
    ):
        prepare(bytes_config(source, prompt_column="question"), tmp_path, workers=1)


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    source = _folder(tmp_path / "talk", _prompts())
    with pytest.raises(ValueError, match=r"data\.prompt_column and data\.text_column are both completion"):
        prepare(bytes_config(source, prompt_column="completion"), tmp_path, workers=1)
    hidden = _folder(tmp_path / "hidden", [_segments((f"text number {n}", False)) for n in range(40)])
    with pytest.raises(ValueError, match=r"the loss would count no text of the train split \(\d+ tokens\)"):
        prepare(bytes_config(hidden, prompt_column=None, text_column="text"), tmp_path, workers=1)
    silent = _folder(tmp_path / "silent", [{**one, "completion": ""} for one in _prompts()])  # only separators count
    with pytest.raises(ValueError, match="the loss would count no text of the train split"):
        prepare(bytes_config(silent), tmp_path, workers=1)
    prepare(bytes_config(source), tmp_path, workers=1)
    with pytest.raises(ValueError, match=r"data\.prompt_column=prompt there, null here"):
        prepare(bytes_config(source, prompt_column=None), tmp_path, workers=1)


def test_validation_rows_of_which_nothing_counts_are_refused(tmp_path: Path) -> None:
    records = [_segments((f"text {n} " * 20, False)) for n in range(60)] + [_segments(("yes", True))] * 1
    records += [_segments((f"yes {n}", True)) for n in range(40)]
    data = bytes_config(_folder(tmp_path / "talk", records), prompt_column=None, text_column="text")
    prepare(data, tmp_path, workers=1)
    config = RunConfig(data=data, eval=EvalConfig(sequences=1), runtime=RuntimeConfig(data_root=str(tmp_path)))
    with pytest.raises(ValueError, match=r"eval\.sequences: the loss counts no token of the 1 validation sequences"):
        open_validation(config)


def test_a_manifest_of_before_opens_and_one_without_the_mask_reads_every_token(tmp_path: Path) -> None:
    place = prepare(bytes_config(_folder(tmp_path / "talk", _prompts())), tmp_path, workers=1)
    other = remask(Path(shutil.copytree(place, tmp_path / "other")), None)
    assert '"mask"' not in (other / FILE).read_text("utf-8")
    manifest: Manifest = read_manifest(other)
    assert manifest.splits["train"].counted == manifest.splits["train"].tokens
    rows = TokenSequences(other, "train", 16, 0).rows(0, 5)
    assert not (rows.targets == IGNORED).any()
