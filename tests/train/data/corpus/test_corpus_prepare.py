"""Preparing: the whole text once, the same bytes for the same input, and all or nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer

from tests.environment import python_path
from tests.late import pressed_as_it_begins
from train.data.corpus import prepare as prepare_module
from train.data.corpus.clean import normalised
from train.data.corpus.prepare import prepare
from train.data.corpus.workers import KilledError
from train.data.corpus.write_shards import ShardTask, Written, write
from train.prepare import by_kind, report
from train.spec.config import DataConfig
from train.spec.corpus_files import verify
from train.spec.manifest import Kind, Manifest, read_manifest

Make = Callable[..., DataConfig]
WriteTexts = Callable[..., Path]
REPOSITORY = Path(__file__).parents[4]


def _documents(folder: Path, split: str) -> Iterator[bytes]:
    """Yield the documents of a prepared folder as text."""
    manifest = read_manifest(folder)
    bpe = Tokenizer.from_file(str(folder / "tokenizer.json")) if manifest.tokenizer.file else None
    for shard in manifest.splits[split].shards:
        tokens = np.fromfile(folder / shard.file, dtype="<u2")
        offsets = np.fromfile(folder / shard.index, dtype="<u8").astype(int)
        assert len(offsets) == shard.documents + 1
        assert offsets[-1] == len(tokens) == shard.tokens
        for first, last in pairwise(offsets):
            assert tokens[last - 1] == manifest.separator_token
            document = tokens[first : last - 1].tolist()
            yield bpe.decode(document, skip_special_tokens=False).encode() if bpe else bytes(document)


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _raw(folder: Path) -> set[bytes]:
    return {normalised(path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("changes", [{}, {"tokenizer": "bytes", "vocab_size": 257}])
def test_the_shards_hold_the_text_each_document_once(
    texts: Path, small: Make, tmp_path: Path, changes: dict[str, object]
) -> None:
    folder = prepare(small(texts, **changes), tmp_path, workers=1)
    train, held_out = list(_documents(folder, "train")), list(_documents(folder, "validation"))
    assert len(train) + len(held_out) == 60
    assert set(train) | set(held_out) == _raw(texts)
    assert not set(train) & set(held_out)
    assert len(held_out) > 3

    manifest = verify(folder)
    assert folder.name == f"small-{manifest.tokenizer.kind}{manifest.tokenizer.vocab_size}"
    assert manifest.splits["train"].documents == len(train)
    assert manifest.splits["train"].bytes == sum(map(len, train))
    for split in manifest.splits.values():
        assert split.bytes_per_token == split.bytes / split.tokens
    assert manifest.bytes_per_token == manifest.splits["validation"].bytes_per_token
    assert manifest.separator_token == manifest.tokenizer.vocab_size - 1
    assert manifest.skipped_counts == {}


def test_workers_places_and_file_names_do_not_matter(
    texts: Path, prepared: Path, small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.data.corpus.source_files.CHUNK_BYTES", 2000)
    monkeypatch.setattr("train.data.corpus.write_shards.SMALLEST_SHARD", 1500)
    one = prepare(small(texts), tmp_path / "one", workers=1)
    three = prepare(small(texts), tmp_path / "three", workers=3)
    assert len(read_manifest(one).splits["train"].shards) > 3
    assert _content(one) == _content(three)
    tokens = b"".join((one / s.file).read_bytes() for s in read_manifest(one).splits["train"].shards)
    assert tokens == (prepared / "train-00000.bin").read_bytes()  # cut otherwise, but the same row of tokens

    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for number, path in enumerate(sorted(p for p in texts.rglob("*") if p.is_file())):
        (renamed / f"{97 * number % 1000}.txt").write_bytes(path.read_bytes().replace(b"\n", b" \r\n") + b"\n\n")
    again = read_manifest(prepare(small(renamed, name="other"), tmp_path / "again", workers=2))
    assert again.fingerprint == read_manifest(one).fingerprint
    assert again.source != read_manifest(one).source


def test_a_corpus_is_what_earlier_versions_made_of_the_same_text(texts: Path, small: Make, tmp_path: Path) -> None:
    folder = prepare(small(texts, tokenizer="bytes", vocab_size=257), tmp_path, workers=1)
    assert read_manifest(folder).fingerprint == "8b0e2d872af4"
    assert "extensions" not in (folder / "manifest.json").read_text()


def test_only_files_of_the_extensions_are_read(texts: Path, small: Make, tmp_path: Path) -> None:
    manifest = read_manifest(prepare(small(texts, extensions=("PY", ".rs")), tmp_path, workers=1))
    assert manifest.settings.extensions == (".py", ".rs")
    assert manifest.skipped_counts == {"not a text file by its name": 30}
    assert sum(split.documents for split in manifest.splits.values()) == 30
    again = prepare(small(texts, extensions=(".rs", ".py")), tmp_path)
    assert read_manifest(again) == manifest
    with pytest.raises(ValueError, match=r"data\.extensions=\[\.py,\.rs\] there, \[\.c\] here"):
        prepare(small(texts, extensions=(".c",)), tmp_path)


def test_other_text_has_another_fingerprint(texts: Path, prepared: Path, small: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(texts, tmp_path / "texts"))
    (source / "one_more.txt").write_text("one more document, held out or not\n", "utf-8")
    other = prepare(small(source), tmp_path, workers=1)
    assert read_manifest(other).fingerprint != read_manifest(prepared).fingerprint


def test_what_is_left_out_is_counted(texts: Path, small: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(texts, tmp_path / "texts"))
    one = next(source.glob("*.py"))
    (source / "copy.txt").write_bytes(one.read_bytes() + b"  \n\n")
    (source / "empty.txt").write_bytes(b"\n \n")
    (source / "latin.txt").write_bytes(b"caf\xe9\n")
    (source / "binary.txt").write_bytes(b"a\0b")
    (source / "image.png").write_bytes(b"")
    (source / "lines.jsonl").write_bytes(b'{"text": "a line of its own"}\n{"text": 3}\n')
    manifest = read_manifest(prepare(small(source), tmp_path, workers=1))
    assert manifest.skipped_counts == {"broken": 3, "duplicate": 1, "empty": 1, "not a text file by its name": 1}
    assert [(one.file, one.why) for one in manifest.skipped] == [
        ("binary.txt", "binary data (a NUL byte)"),
        ("latin.txt", "not UTF-8 (byte 3)"),
        ("lines.jsonl:2", "field 'text' is not text"),
        ("empty.txt", "empty"),
        ("image.png", "not a text file by its name"),
    ]
    assert sum(split.documents for split in manifest.splits.values()) == 61
    told = "left out: 3 broken, 1 duplicate, 1 empty, 1 not a text file by its name"
    assert report(Path("d"), manifest, 1.0)[1] == f"{told} (5 named in d/manifest.json)"
    copies = replace(manifest, skipped=(), skipped_counts={"duplicate": 2})
    assert report(Path("d"), copies, None)[1:] == ["left out: 2 duplicate", *by_kind(manifest.kinds)]


def test_documents_bytes_and_tokens_are_counted_by_kind(texts: Path, small: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(texts, tmp_path / "texts"))
    (source / "a_copy.txt").write_bytes(next(source.glob("*.py")).read_bytes())
    (source / "lines.jsonl").write_bytes(b'{"text": "a line of its own"}\n{"text": "another, so there are two"}\n')
    manifest = read_manifest(prepare(small(source, tokenizer="bytes", vocab_size=257), tmp_path, workers=1))
    kinds = {one.kind: one for one in manifest.kinds}
    assert {kind: one.documents for kind, one in kinds.items()} == {".jsonl": 2, ".md": 30, ".py": 29, ".txt": 1}
    assert kinds[".jsonl"] == Kind(".jsonl", 2, 44, 46)
    markdown = [normalised(path.read_bytes()) for path in source.rglob("*.md")]
    assert kinds[".md"] == Kind(".md", 30, sum(map(len, markdown)), sum(map(len, markdown)) + 30)
    for name in ("documents", "bytes", "tokens"):
        whole = sum(getattr(split, name) for split in manifest.splits.values())
        assert sum(getattr(one, name) for one in manifest.kinds) == whole, name
    table = by_kind(manifest.kinds)
    assert [line.split()[0] for line in table] == ["files", ".py", ".md", ".txt", ".jsonl"]
    assert table[-1].split() == [".jsonl", "2", "44", "46", "0.96"]
    assert by_kind(()) == []
    assert by_kind([Kind(f".{n:02d}", 1, 9, 3) for n in range(25)])[-2:] == [
        ".19            1      9       3         3.00",
        "and 5 kinds more",
    ]


def test_max_bytes_takes_the_first_documents_by_hash(texts: Path, prepared: Path, small: Make, tmp_path: Path) -> None:
    total = sum(split.bytes for split in read_manifest(prepared).splits.values())
    half = prepare(small(texts, max_bytes=total // 2, vocab_size=280), tmp_path, workers=1)
    size = sum(split.bytes for split in read_manifest(half).splits.values())
    assert total // 2 - 2000 < size <= total // 2
    for split in ("train", "validation"):
        all_of_it = list(_documents(prepared, split))
        assert list(_documents(half, split)) == all_of_it[: len(list(_documents(half, split)))]
    assert read_manifest(half).skipped_counts["over data.max_bytes"] > 10


def test_the_environment_is_read_by_its_rules(
    small: Make, write_texts: WriteTexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = {name: write_texts(tmp_path / name, 30, seed) for seed, name in enumerate(("stdlib", "purelib"))}
    (roots["stdlib"] / "site-packages").mkdir()
    (roots["stdlib"] / "site-packages" / "not_ours.py").write_text("not = 'entered'\n")
    (roots["purelib"] / "_vendor").mkdir()
    (roots["purelib"] / "_vendor" / "copied.py").write_text("copied = True\n")
    (roots["purelib"] / "made.py").write_text("# generated by make\nx = True\n")
    (roots["purelib"] / "LICENSE.txt").write_text("You may.\n")
    (roots["purelib"] / "bad.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    paths = {"stdlib": roots["stdlib"], "purelib": roots["purelib"], "platlib": roots["purelib"]}
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(paths[name]))
    folder = prepare(small(None), tmp_path / "data", workers=1)
    manifest = read_manifest(folder)
    assert manifest.skipped_counts == {"broken": 1, "generated": 1, "licence": 1, "vendored": 1}
    assert manifest.skipped[0].file == "site-packages/bad.py"
    assert manifest.settings.source is None
    assert sum(split.documents for split in manifest.splits.values()) == 60


def test_a_second_call_does_nothing_even_when_the_source_changed(texts: Path, small: Make, tmp_path: Path) -> None:
    source = Path(shutil.copytree(texts, tmp_path / "texts"))
    stages: list[str] = []
    folder = prepare(small(source), tmp_path, lambda stage, *_: stages.append(stage), workers=1)
    assert list(dict.fromkeys(stages)) == ["listing files", "reading", "training the tokenizer", "encoding"]
    before = folder.stat().st_ino, read_manifest(folder).fingerprint
    stages.clear()
    shutil.rmtree(source)
    assert prepare(small(source), tmp_path, lambda stage, *_: stages.append(stage)) == folder
    assert (folder.stat().st_ino, read_manifest(folder).fingerprint) == before
    assert stages == []


@pytest.mark.parametrize(
    ("key", "values"),
    [("max_bytes", ("null", 5000)), ("validation_fraction", ("0.2", 0.3)), ("text_column", ("text", "body"))],
)
def test_other_settings_under_the_same_name(
    texts: Path, prepared: Path, small: Make, key: str, values: tuple[str, object]
) -> None:
    there, here = values
    before = _content(prepared)
    with pytest.raises(
        ValueError, match=rf"other settings: data\.{key}={there} there, {here} here. Choose another data"
    ):
        prepare(small(texts, **{key: here}), prepared.parent)
    assert _content(prepared) == before


def test_another_source_under_the_same_name_and_force(texts: Path, small: Make, tmp_path: Path) -> None:
    folder = prepare(small(texts), tmp_path, workers=1)
    before = read_manifest(folder)
    source = Path(shutil.copytree(texts, tmp_path / "texts"))
    (source / "new.txt").write_text("a new document\n")
    with pytest.raises(ValueError, match=rf"data\.source={texts} there, {source} here"):
        prepare(small(source), tmp_path)
    after = read_manifest(prepare(small(source), tmp_path, force=True, workers=1))
    assert after.fingerprint != before.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == [".small-bpe300.lock", "small-bpe300", "texts"]


def test_sequence_length_is_no_setting_but_must_fit(texts: Path, prepared: Path, small: Make) -> None:
    assert prepare(small(texts, sequence_length=32), prepared.parent) == prepared
    with pytest.raises(ValueError, match=r"train split has \d+ tokens, one sequence needs 1000001"):
        prepare(small(texts, sequence_length=1_000_000), prepared.parent)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer": "bytes"}, r"data\.vocab_size=300 is not allowed with data\.tokenizer=bytes: it is 257"),
        ({"vocab_size": 257}, r"data\.vocab_size=257 is not allowed: 258 to 1048576"),
        ({"vocab_size": 2000000}, r"data\.vocab_size=2000000 is not allowed"),
        ({"vocab_size": 30000}, r"data\.vocab_size=30000 is too large for this text.*set data\.vocab_size=\d+ or less"),
        ({"validation_fraction": 0.0}, r"data\.validation_fraction=0\.0 is not allowed"),
        ({"validation_fraction": 1.0}, r"data\.validation_fraction=1\.0 is not allowed"),
        ({"validation_fraction": 1e-9}, r"validation split has 0 tokens.*raise data\.validation_fraction=1e-09"),
        ({"validation_fraction": 0.999999}, r"train split has 0 tokens.*lower data\.validation_fraction"),
        ({"max_bytes": 0}, r"data\.max_bytes=0 is not allowed"),
        ({"max_bytes": 3}, r"data\.max_bytes=3 is less than the first document needs"),
        ({"name": "a/b"}, r"data\.name='a/b' is not allowed"),
        ({"sequence_length": 100000}, r"train split has \d+ tokens, one sequence needs 100001"),
        ({"source": "/no/such/folder"}, r"data\.source=/no/such/folder: there is no such folder"),
    ],
)
def test_settings_that_cannot_be(
    texts: Path, small: Make, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        prepare(small(texts, **changes), tmp_path, workers=1)
    assert not [path for path in tmp_path.glob("*") if path.is_dir()]
    assert not list(tmp_path.glob(".*staging*"))


def test_nothing_is_left_where_ctrl_c_comes_as_the_corpus_is_put_in_its_place(
    texts: Path, small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "deferred", pressed_as_it_begins())
    with pytest.raises(KeyboardInterrupt):
        prepare(small(texts), tmp_path / "data", workers=1)
    assert not list((tmp_path / "data").glob(".*staging*"))
    (made,) = (path for path in (tmp_path / "data").iterdir() if path.is_dir())
    verify(made)


def test_one_large_document_cannot_be_in_both_splits(small: Make, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "all.txt").write_text("much text\n" * 10_000)
    words = r"split has 0 tokens: it got none of the 1 documents of data\.source=.*: cut the text into more of them"
    with pytest.raises(ValueError, match=words):
        prepare(small(tmp_path / "text", tokenizer="bytes", vocab_size=257), tmp_path, workers=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_sources(
    small: Make, write_texts: WriteTexts, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.data.corpus.source_files.CHUNK_BYTES", 1)
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("a.txt", "b.txt"):
        (broken / name).write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(
        ValueError, match=r"none of its 2 files can be used \(2 broken documents\); the first is a\.txt"
    ):
        prepare(small(broken), tmp_path, workers=workers)
    column = write_texts(tmp_path / "column", 5)
    (column / "lines.jsonl").write_text(json.dumps({"body": "x"}))
    with pytest.raises(ValueError, match=r"data\.text_column=text: .*lines\.jsonl has no such column; it has body"):
        prepare(small(column), tmp_path, workers=workers)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_not_ours_is_left_alone(texts: Path, small: Make, tmp_path: Path, force: bool) -> None:
    (tmp_path / "small-bpe300").mkdir()
    (tmp_path / "small-bpe300" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"small-bpe300 exists but is no prepared corpus \(it has no manifest\.json\)"):
        prepare(small(texts), tmp_path, force=force)
    assert (tmp_path / "small-bpe300" / "thesis.txt").read_text() == "mine"


def test_an_empty_folder_is_filled(texts: Path, small: Make, tmp_path: Path) -> None:
    (tmp_path / "small-bpe300").mkdir()
    verify(prepare(small(texts), tmp_path, workers=1))


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_tampering_is_found(prepared: Path, tmp_path: Path, suffix: str) -> None:
    copy = Path(shutil.copytree(prepared, tmp_path / "copy"))
    path = copy / f"train-00000{suffix}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"train-00000\{suffix} was changed after preparation: its sha256 is"):
        verify(copy)


def test_a_changed_tokenizer_is_found(prepared: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(prepared, tmp_path / "copy"))
    with (copy / "tokenizer.json").open("a") as stream:
        stream.write("\n")
    with pytest.raises(ValueError, match=r"tokenizer\.json was changed"):
        verify(copy)


SCRIPT = """
import os, signal, sys
from pathlib import Path
import train.data.corpus.source_files as sources, train.data.corpus.write_shards as shards
from train.data.corpus.prepare import prepare
from train.spec.config import DataConfig

def progress(stage, share, size=0):
    print(stage, share, flush=True)
    if stage == {stage!r} and share >= {share}:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    sources.CHUNK_BYTES, shards.SMALLEST_SHARD = 2000, 1500
    rename, renames = Path.rename, []
    def counted(self, to):
        renames.append(to)
        if {stage!r} == "between the renames" and len(renames) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, to)
    Path.rename = counted
    prepare(DataConfig(**{config!r}), {root!r}, progress, force={force}, workers=2)
"""


def _start(
    folder: Path, config: DataConfig, root: Path, *, stage: str, share: float, force: bool
) -> "subprocess.Popen[str]":
    script = folder / "script.py"
    values = {"stage": stage, "share": share, "config": vars(config), "root": str(root), "force": force}
    script.write_text(SCRIPT.format(**values), "utf-8")
    environment = os.environ | {"PYTHONPATH": python_path()}
    command = [sys.executable, str(script)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _workers_of(root: Path) -> list[psutil.Process]:
    """Return the processes that still hold a file below `root` open, or work there."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(root) in one.path for one in process.open_files()) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("stage", "share"),
    [("reading", 0.3), ("training the tokenizer", 0.0), ("encoding", 0.5), ("between the renames", 0.0)],
)
def test_killed_anywhere_and_started_again(
    prepared: Path, small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, *, share: float
) -> None:
    monkeypatch.setattr("train.data.corpus.source_files.CHUNK_BYTES", 2000)
    monkeypatch.setattr("train.data.corpus.write_shards.SMALLEST_SHARD", 1500)
    root = tmp_path / "data"
    folder = root / "small-bpe300"
    config = small(Path(str(read_manifest(prepared).settings.source)))
    force = stage == "between the renames"
    if force:
        shutil.copytree(prepared, folder)
    process = _start(tmp_path, config, root, stage=stage, share=share, force=force)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == -signal.SIGKILL, errors
    assert not folder.exists()
    (staging,) = root.glob(".*staging*")
    built = {path.stem: path.stat().st_mtime_ns for path in staging.glob("built/*.bin")}
    finished = {path.stem: built[path.stem] for path in staging.glob("shards/*.json")}
    began: dict[str, float] = {}

    def watched(stage: str, share: float, size: int = 0) -> None:
        began.setdefault(stage, share)

    assert prepare(config, root, watched, workers=1) == folder
    assert (began["reading"] >= 0.3) if stage == "reading" else (began["reading"] == 1)
    assert began["encoding"] >= {"encoding": 0.5, "between the renames": 1}.get(stage, 0)
    assert len(finished) > 3 or stage in {"reading", "training the tokenizer"}
    assert {path.stem: path.stat().st_mtime_ns for path in folder.glob("*.bin") if path.stem in finished} == finished
    assert _content(folder) == _content(prepare(config, tmp_path / "undisturbed", workers=1))
    assert sorted(path.name for path in root.iterdir()) == [".small-bpe300.lock", "small-bpe300"]
    limit = time.monotonic() + 900
    while _workers_of(root) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not _workers_of(root)  # the workers ended with their parent


@pytest.mark.parametrize(
    "change", ["nothing", "a file", "a new file", "a spool", "a shard", "the tokenizer", "the code"]
)
def test_what_was_finished_is_used_where_nothing_has_changed(
    texts: Path, small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr("train.data.corpus.source_files.CHUNK_BYTES", 2000)
    monkeypatch.setattr("train.data.corpus.write_shards.SMALLEST_SHARD", 1500)
    source, calls, killed_at = Path(shutil.copytree(texts, tmp_path / "texts")), list[str](), [5]

    def counted(task: ShardTask) -> Written:
        calls.append(task.stem)
        if len(calls) == killed_at[0]:
            raise KilledError("a process was killed")
        return write(task)

    monkeypatch.setattr("train.data.corpus.build.write", counted)
    with pytest.raises(KilledError):
        prepare(small(source), tmp_path / "data", workers=1)
    (staging,) = (tmp_path / "data").glob(".*staging*")
    config = small(source)
    if change == "a file":
        next(source.glob("*.py")).write_text("changed = True\n")
    elif change == "a new file":
        (source / "zzz.txt").write_text("one more at the end\n")
    elif change == "a spool":
        spool = max(staging.glob("spools/*.text"))
        spool.write_bytes(spool.read_bytes()[:-1])
    elif change == "a shard":
        (staging / "built" / f"{calls[2]}.bin").write_bytes(b"")
    elif change == "the tokenizer":
        config = small(source, vocab_size=300, tokenizer="bpe", validation_fraction=0.25)
    elif change == "the code":
        monkeypatch.setattr("train.data.corpus.done.code", lambda: "other")
    first = calls[:4]
    calls.clear()
    killed_at[0] = 0
    folder = prepare(config, tmp_path / "data", workers=1)
    again = [stem for stem in first if stem in calls]
    assert again == {"nothing": [], "a spool": [], "a shard": [first[2]]}.get(change, first)
    assert _content(folder) == _content(prepare(config, tmp_path / "undisturbed", workers=1))
    assert [path.name for path in (tmp_path / "data").iterdir() if "staging" in path.name] == []


def test_two_at_once_prepare_once(texts: Path, prepared: Path, small: Make, tmp_path: Path) -> None:
    root = tmp_path / "data"
    both = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        both.append(_start(tmp_path / str(number), small(texts), root, stage="nowhere", share=2.0, force=False))
    outputs = [process.communicate(timeout=900) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("encoding 1.0" in out for out, _ in outputs) == 1
    manifest: Manifest = verify(root / "small-bpe300")
    assert replace(manifest.splits["train"], shards=()) == replace(read_manifest(prepared).splits["train"], shards=())
