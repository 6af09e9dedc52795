"""A folder of results is looked at before the work that fills it."""

import errno
import os
from pathlib import Path

import pytest

from analysis.text import commandline
from analysis.text.files import check_folder, write


def test_a_folder_that_is_or_can_be_made_is_let_pass_and_not_made(tmp_path: Path) -> None:
    check_folder("out", tmp_path)
    check_folder("out", tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_a_key_that_is_given_two_values_is_refused() -> None:
    keys = [commandline.Key("budget", "FLOPs", read=commandline.number)]
    with pytest.raises(ValueError, match=r"^budget is given twice: budget=1e17 and budget=1e18; leave one out$"):
        commandline.parse(["budget=1e17", "budget=1e18"], keys)
    assert commandline.parse(["budget=1e17", "--budget=1e17"], keys) == {"budget": 1e17}


def test_files_and_broken_links_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"out={file}/x: {file} is a file, not a folder"):
        check_folder("out", file / "x")
    with pytest.raises(ValueError, match=f"out={link}: {link} is a link to nowhere"):
        check_folder("out", link)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be written to; give another folder"):
        check_folder("out", tmp_path / "new")


def test_a_full_disk_is_said_with_the_file_which_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fit.json"
    path.write_text("earlier")

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)

    def act(_: object) -> int:
        write(path, "later")
        return 0

    assert commandline.run("analysis.fit", "", [commandline.Key("out", "")], act, ["out=x"]) == 2
    assert capsys.readouterr().err == (
        f"analysis.fit: {path}: No space left on device; make room, or give another path\n"
    )
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("fit.json", "earlier")]
