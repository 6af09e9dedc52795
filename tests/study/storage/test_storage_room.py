"""Whether a disk has room: bytes and files, as far as its file system says."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.storage.room import check_room, is_full


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ({}, False),
        ({"f_bavail": 255}, True),
        ({"f_bavail": 256}, False),
        ({"f_favail": 0}, True),
        ({"f_files": 0, "f_favail": 0}, False),  # it does not count files
        ({"f_blocks": 0, "f_bavail": 0}, False),  # it says nothing at all
    ],
)
def test_a_disk_is_full_without_bytes_or_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, int], full: bool
) -> None:
    disk = {"f_frsize": 4096, "f_blocks": 10**6, "f_bavail": 10**5, "f_files": 10**4, "f_favail": 10, **said}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**disk))
    assert is_full(tmp_path) == full
    assert is_full(tmp_path, 10**12) == (disk["f_blocks"] > 0), "less than is asked for"
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'") if full else nullcontext():
        check_room(tmp_path)


def test_a_folder_that_is_not_there_is_not_called_full(tmp_path: Path) -> None:
    assert not is_full(tmp_path / "gone")
