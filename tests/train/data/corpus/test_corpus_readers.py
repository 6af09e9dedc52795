"""Every format, whole and damaged."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from train.data.corpus.raw import Columns, Raw
from train.data.corpus.readers import documents
from train.data.corpus.source_files import chunked, list_environment, list_folder
from train.data.corpus.walk import SourceFile
from train.spec.extensions import canonical

RECORDS = [{"text": f"número {n}\n" * 50, "id": n} for n in range(200)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def _read(path: Path, text: str = "text", prompt: str | None = None) -> list[Raw]:
    return list(documents(SourceFile(path.name, str(path), path.stat().st_size), Columns(text, prompt)))


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _zstd_two_frames() -> bytes:
    pack = zstandard.ZstdCompressor().compress
    return pack(LINES[:5003]) + pack(LINES[5003:])


def test_all_formats_read_the_same(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [r["text"] for r in RECORDS]}), tmp_path / "a.parquet", row_group_size=30)
    expected = [str(record["text"]).encode() for record in RECORDS]
    files = [
        _write(tmp_path / "a.jsonl", LINES.rstrip(b"\n")),
        _write(tmp_path / "a.jsonl.gz", gzip.compress(LINES[:999]) + gzip.compress(LINES[999:])),
        _write(tmp_path / "a.jsonl.zst", _zstd_two_frames()),
        tmp_path / "a.parquet",
    ]
    for file in files:
        found = _read(file)
        assert [raw.content for raw in found] == expected, file
        assert not any(raw.broken for raw in found)


def test_broken_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good"}',
        b"{",
        b"[1]",
        b'{"txt": "x"}',
        b'{"text": 5}',
        b"",
        b'{"text": "\xff"}',
        b'{"text": ""}',
        b"[" * 200_000,
    ]
    found = _read(_write(tmp_path / "a.jsonl", b"\n".join(lines)))
    assert [(raw.name, raw.broken) for raw in found] == [
        ("a.jsonl:1", None),
        ("a.jsonl:2", "not JSON"),
        ("a.jsonl:3", "not a JSON object"),
        ("a.jsonl:4", "no field 'text'"),
        ("a.jsonl:5", "field 'text' is not text"),
        ("a.jsonl:7", "not UTF-8"),
        ("a.jsonl:8", None),
        ("a.jsonl:9", "not JSON"),
    ]


def test_nulls_of_a_column_are_broken_documents(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "b"]}), tmp_path / "a.parquet")
    assert [(raw.name, raw.broken) for raw in _read(tmp_path / "a.parquet")][1] == ("a.parquet:1", "null")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_wrong_column_names_the_right_ones(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"body": ["a"], "id": [1]}), tmp_path / "a.parquet")
    _write(tmp_path / "a.jsonl", b'{"body": "a", "id": 1}\n')
    with pytest.raises(ValueError, match=rf"data\.text_column=text: .*{name} has no such column; it has body, id"):
        _read(tmp_path / name)


def test_two_columns_of_one_name_matter_only_where_it_is_the_texts(tmp_path: Path) -> None:
    texts = pa.array(["a"])
    pq.write_table(pa.Table.from_arrays([texts, texts, texts], ["text", "id", "id"]), tmp_path / "a.parquet")
    assert [raw.content for raw in _read(tmp_path / "a.parquet")] == [b"a"]
    pq.write_table(pa.Table.from_arrays([texts, texts], ["text", "text"]), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"data\.text_column=text: .*b\.parquet has more than one column of this name"):
        _read(tmp_path / "b.parquet")


def test_a_column_of_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"data\.text_column=text: this column of .*a\.parquet is int64, not text"):
        _read(tmp_path / "a.parquet")


@pytest.mark.parametrize("kept", [0.5, 0.999])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_a_file_cut_off(tmp_path: Path, name: str, kept: float) -> None:
    pq.write_table(pa.table({"text": [r["text"] for r in RECORDS]}), tmp_path / "a.parquet")
    whole = {
        "a.jsonl.gz": gzip.compress(LINES),
        "a.jsonl.zst": zstandard.ZstdCompressor().compress(LINES),
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
    }[name]
    _write(tmp_path / name, whole[: min(int(len(whole) * kept), len(whole) - 1)])
    with pytest.raises(ValueError, match=rf"data\.source: .*{name} is damaged"):
        _read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_a_file_of_another_format(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        _read(_write(tmp_path / name, b"this is no archive at all, only text\n"))


def test_a_dangling_link_is_a_broken_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "nowhere")
    (file,) = list_folder(str(tmp_path)).files
    assert [raw.broken for raw in documents(file, Columns("text"))] == ["cannot be read: No such file or directory"]


def test_listing_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b.txt", "a.PY", "sub/c.jsonl.zst", ".hidden.txt", ".git/d.txt", "e.pdf"):
        _write(tmp_path / name, b"x")
    listing = list_folder(str(tmp_path))
    assert [file.name for file in listing.files] == ["a.PY", "b.txt", "sub/c.jsonl.zst"]
    assert [file.kind for file in listing.files] == [".py", ".txt", ".jsonl.zst"]
    assert [(one.file, one.why) for one in listing.skipped.first] == [("e.pdf", "not a text file by its name")]


def test_a_folder_of_mixed_kinds_by_extension(tmp_path: Path) -> None:
    (tmp_path / "drivers").mkdir()
    names = ("drivers/a.c", "drivers/b.H", "c.rs", "d.py", "e.jsonl.zst", "f.jsonl", "g.tar.c", "c", "README.md")
    for name in names:
        _write(tmp_path / name, b"x")
    listing = list_folder(str(tmp_path), canonical([".c", "h", ".jsonl.zst"], str(tmp_path)))
    assert [file.name for file in listing.files] == ["drivers/a.c", "drivers/b.H", "e.jsonl.zst", "g.tar.c"]
    assert [file.kind for file in listing.files] == [".c", ".h", ".jsonl.zst", ".c"]
    assert listing.skipped.counts == {"not a text file by its name": 5}
    with pytest.raises(ValueError, match=r"no file of \.go in this folder \(9 others are there; data\.extensions says"):
        list_folder(str(tmp_path), (".go",))


def test_bad_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "pdf").mkdir()
    _write(tmp_path / "pdf" / "a.pdf", b"")
    file = _write(tmp_path / "a.txt", b"x")
    for path, words in (
        (tmp_path / "none", "there is no such folder"),
        (file, "this is a file; name the folder"),
        (tmp_path / "empty", r"no file of \.txt, .*\.parquet in this folder$"),
        (tmp_path / "pdf", r"in this folder \(1 others are there; data\.extensions says which are text\)"),
    ):
        with pytest.raises(ValueError, match=rf"data\.source={path}: .*{words}"):
            list_folder(str(path))


def test_groups_hold_every_file_once() -> None:
    files = [SourceFile(f"{n}", f"/{n}", n * 100_000) for n in range(200)]
    groups = list(chunked(files))
    assert [file for group in groups for file in group] == files
    assert all(len(g) == 1 or sum(f.size for f in g) <= 8 << 20 for g in groups)


def test_the_environment_has_a_corpus_of_its_own() -> None:
    listing = list_environment()
    names = {file.name for file in listing.files}
    assert "stdlib/json/decoder.py" in names
    assert "site-packages/numpy/__init__.py" in names
    assert sum(file.size for file in listing.files) > 40_000_000
    assert not any("_vendor/" in name or "/site-packages/" in name for name in names)
