"""Hugging Face datasets where they lie, as `save_to_disk` leaves them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from train.data.corpus.prepare import prepare
from train.data.corpus.raw import Columns, Raw
from train.data.corpus.readers import documents
from train.data.corpus.source_files import list_folder
from train.data.corpus.walk import SourceFile
from train.spec.config import DataConfig
from train.spec.manifest import Kind, read_manifest

ROWS = [f"row {number} of a dataset, with an é\n" * 20 for number in range(700)]
SCHEMA = pa.schema({"text": pa.string(), "id": pa.int64()})


def _stream(path: Path, rows: Sequence[str | None], batch: int = 300) -> Path:
    """Write an Arrow stream as `datasets` does."""
    with pa.ipc.new_stream(path, SCHEMA) as writer:
        for begin in range(0, len(rows), batch):
            part = list(rows[begin : begin + batch])
            writer.write_batch(pa.record_batch({"text": part, "id": list(range(len(part)))}, schema=SCHEMA))
    return path


def _saved(folder: Path, *shards: list[str], **state: object) -> Path:
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        _stream(folder / name, rows)
    plain: dict[str, object] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "d2d4f0e4a1b0c1f5",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(plain | state))
    (folder / "dataset_info.json").write_text('{"citation": "", "description": "", "features": {}}')
    return folder


def _dictionary(folder: Path, **splits: list[str]) -> Path:
    for name, rows in splits.items():
        _saved(folder / name, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def _read(path: Path, text: str = "text") -> list[Raw]:
    return list(documents(SourceFile(path.name, str(path), path.stat().st_size), Columns(text)))


def test_a_saved_dataset_is_its_own_files_whatever_else_lies_there(tmp_path: Path) -> None:
    folder = _saved(tmp_path / "set", ROWS[:400], ROWS[400:])
    (folder / "README.md").write_text("no row of it")
    _stream(folder / "cache-0123456789abcdef.arrow", ["a filtered copy"])
    for extensions in ((), (".c",)):
        files = list_folder(str(folder), extensions).files
        assert [file.name for file in files] == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    found = [raw for file in files for raw in documents(file, Columns("text"))]
    assert [raw.content.decode() for raw in found] == ROWS
    assert [found[0].name, found[399].name, found[400].name] == [
        "data-00000-of-00002.arrow:0",
        "data-00000-of-00002.arrow:399",
        "data-00001-of-00002.arrow:0",
    ]


def test_it_becomes_the_corpus_that_the_same_text_as_files_becomes(
    small: Callable[..., DataConfig], tmp_path: Path
) -> None:
    folder, plain = _dictionary(tmp_path / "sets", train=ROWS, test=["no"]), tmp_path / "plain"
    plain.mkdir()
    for number, text in enumerate(ROWS):
        (plain / f"{number}.txt").write_text(text)
    bytewise = {"tokenizer": "bytes", "vocab_size": 257}
    made = read_manifest(prepare(small(folder, **bytewise), tmp_path / "a", workers=1))
    assert made.fingerprint == read_manifest(prepare(small(plain, **bytewise), tmp_path / "b", workers=1)).fingerprint
    size = sum(len(text.encode()) for text in ROWS)
    assert made.kinds == (Kind(".arrow", 700, size, size + 700),)


def test_a_dictionary_has_its_train_split_or_says_which_there_are(tmp_path: Path) -> None:
    folder = _dictionary(tmp_path / "both", test=ROWS[:3], train=ROWS[3:5])
    assert [file.name for file in list_folder(str(folder)).files] == ["train/data-00000-of-00001.arrow"]
    assert [file.name for file in list_folder(str(folder / "test")).files] == ["data-00000-of-00001.arrow"]
    without = _dictionary(tmp_path / "without", validation=ROWS[:3], test=ROWS[3:5])
    words = rf"splits validation, test and no train: name the folder of one, as data\.source={without}/validation$"
    with pytest.raises(ValueError, match=words):
        list_folder(str(without))


def test_datasets_in_a_folder_of_other_text_are_read_where_arrow_is_asked_for(tmp_path: Path) -> None:
    _dictionary(tmp_path / "sets", train=ROWS[:2], test=ROWS[2:4])
    _saved(tmp_path / "one", ROWS[4:5])
    (tmp_path / "a.c").write_text("int a;\n")
    listing = list_folder(str(tmp_path), (".arrow", ".c"))
    assert [file.name for file in listing.files] == [
        "a.c",
        "one/data-00000-of-00001.arrow",
        "sets/train/data-00000-of-00001.arrow",
    ]
    assert listing.skipped.counts == {"not a text file by its name": 7, "another split than train": 1}
    with pytest.raises(ValueError, match=r"no file of .* in this folder \(11 others are there; data\.extensions says"):
        list_folder(str(tmp_path))


def test_both_forms_of_arrow_read_the_same_and_nulls_are_broken(tmp_path: Path) -> None:
    stream = _stream(tmp_path / "a.arrow", [*ROWS[:299], None, *ROWS[299:600]])
    table = pa.ipc.open_stream(stream).read_all()
    with pa.ipc.new_file(tmp_path / "b.arrow", SCHEMA) as writer:
        writer.write_table(table)
    for path in (stream, tmp_path / "b.arrow"):
        found = _read(path)
        assert [raw.content.decode() for raw in found if not raw.broken] == ROWS[:600]
        assert [(raw.name, raw.broken) for raw in found if raw.broken] == [(f"{path.name}:299", "null")]


@pytest.mark.parametrize("kept", [0, 5, 200, 0.3, 0.999, -8])
def test_a_file_cut_off(tmp_path: Path, kept: float) -> None:
    path = _stream(tmp_path / "a.arrow", ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else int(kept)])
    with pytest.raises(ValueError, match=r"data\.source: .*a\.arrow is damaged or not Arrow"):
        _read(path)


def test_a_column_that_is_missing_or_no_text(tmp_path: Path) -> None:
    path = _stream(tmp_path / "a.arrow", ["x"])
    with pytest.raises(ValueError, match=r"data\.text_column=body: .*a\.arrow has no such column; it has text, id"):
        _read(path, "body")
    with pytest.raises(ValueError, match=r"data\.text_column=id: this column of .*a\.arrow is int64, not text"):
        _read(path, "id")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, r"save it again after dataset\.flatten_indices"),
        ({"_data_files": [{"filename": "../../secret.arrow"}]}, r"names \.\./\.\./secret\.arrow, which is not in"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, r"gone\.arrow cannot be read .*copy the dataset again"),
    ],
)
def test_a_dataset_that_is_not_whole(tmp_path: Path, state: dict[str, object], words: str) -> None:
    folder = _saved(tmp_path / "set", ROWS[:2], **state)
    with pytest.raises(ValueError, match=words):
        list_folder(str(folder))


def test_a_state_that_is_no_json(tmp_path: Path) -> None:
    folder = _saved(tmp_path / "set", ROWS[:2])
    (folder / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"state\.json of a saved dataset cannot be read"):
        list_folder(str(folder))
