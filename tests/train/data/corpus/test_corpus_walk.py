"""Walking a folder: links, cycles, what cannot be listed, many files."""

import os
from pathlib import Path

import pytest

from train.data.corpus.source_files import list_folder
from train.data.corpus.tally import LISTED, Tally


def _write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def _read(folder: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Return what is read under which name, and what is left out."""
    listing = list_folder(str(folder))
    assert all(file.time == Path(file.path).stat().st_mtime_ns for file in listing.files)
    return {file.name: Path(file.path).read_text() for file in listing.files}, dict(listing.skipped.counts)


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    root = _write(tmp_path / "root", "a/one.txt", "b/two.txt")
    outside = _write(tmp_path / "outside", "three.txt", "deep/four.txt")
    (root / "a" / "again").symlink_to(root / "b")
    (root / "a" / "up").symlink_to(root)
    (root / "b" / "other").symlink_to(outside)
    (root / "z").symlink_to(outside / "deep")
    (outside / "back").symlink_to(root / "a")
    (outside / "deep" / "self").symlink_to(outside)
    found, left_out = _read(root)
    assert found == {
        "a/one.txt": "a/one.txt",
        "b/two.txt": "b/two.txt",
        "b/other/three.txt": "three.txt",
        "b/other/deep/four.txt": "deep/four.txt",
    }
    assert left_out == {}


def test_a_link_to_a_folder_around_this_one_is_not_followed(tmp_path: Path) -> None:
    root = _write(tmp_path / "around" / "root", "a.txt")
    _write(tmp_path / "around", "no.txt")
    (root / "all").symlink_to(tmp_path / "around")
    (root / "machine").symlink_to("/")
    found, left_out = _read(root)
    assert found == {"a.txt": "a.txt"}
    assert left_out == {"a link to a folder around this one": 2}


def test_a_link_to_a_file_is_read_by_its_own_name_and_only_once(tmp_path: Path) -> None:
    root = _write(tmp_path / "root", "m.txt", "data.bin")
    _write(tmp_path, "outside.txt")
    (root / "a.txt").symlink_to(root / "m.txt")
    (root / "b.md").symlink_to(root / "data.bin")
    (root / "c.txt").symlink_to(tmp_path / "outside.txt")
    (root / "d.txt").symlink_to(root / "c.txt")
    (root / "gone.txt").symlink_to(root / "nowhere")
    listing = list_folder(str(root))
    assert [file.name for file in listing.files] == ["b.md", "c.txt", "gone.txt", "m.txt"]
    assert [file.kind for file in listing.files] == [".md", ".txt", ".txt", ".txt"]
    assert Path(listing.files[0].path).read_text() == "data.bin"
    assert listing.skipped.counts == {"a link to a file that is read already": 2, "not a text file by its name": 1}


def test_what_is_no_file_and_what_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _write(tmp_path / "root", "a.txt", "closed/b.txt")
    os.mkfifo(root / "pipe.txt")  # to read it would wait for ever
    scandir = os.scandir

    def refused(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refused)
    listing = list_folder(str(root))
    assert [file.name for file in listing.files] == ["a.txt"]
    assert [(one.file, one.why) for one in listing.skipped.first] == [
        ("closed/", "cannot be listed: Permission denied"),
        ("pipe.txt", "not a regular file"),
    ]


def test_a_tally_of_many_keeps_the_first_by_name() -> None:
    names = [f"{97 * number % 5003:04d}" for number in range(5003)]
    whole, halves = Tally(), [Tally(), Tally()]
    for number, name in enumerate(names):
        whole.add(name, "odd" if number % 2 else "even")
        halves[number % 2].add(name, "odd" if number % 2 else "even")
    joined = Tally()
    for half in halves:
        joined.add_all(half)
    for tally in (whole, joined):
        assert [one.file for one in tally.first] == sorted(names)[:LISTED]
        assert tally.counts == {"even": 2502, "odd": 2501}
        assert len(tally._kept) < 10 * LISTED
