"""What commands say where a disk is full or not theirs: one line, and no traceback."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from study.__main__ import main
from study.commands import cancel


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "No space left on device: make room, then run the same command again"),
        (errno.EDQUOT, "Disk quota exceeded: make room, then run the same command again"),
        (
            errno.EROFS,
            "Read-only file system: changing a study writes there; status, watch, show, logs and cost only read",
        ),
        (errno.EEXIST, "it is a file where a folder is needed: name another"),
        (
            errno.EACCES,
            "Permission denied: changing a study writes there; status, watch, show, logs and cost only read",
        ),
    ],
)
def test_a_disk_that_takes_nothing_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, said: str
) -> None:
    def run(options: object) -> int:
        raise OSError(number, os.strerror(number), str(tmp_path / "ledger.lock"))

    monkeypatch.setattr(cancel, "run", run)
    assert main(["cancel", "theirs", "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.err == f"study cancel: {tmp_path}/ledger.lock: {said}\n"
    assert json.loads(shown.out)["error"] == f"{tmp_path}/ledger.lock: {said}"


def test_an_error_that_is_no_state_of_the_disk_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: object) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file", "forgotten")

    monkeypatch.setattr(cancel, "run", run)
    with pytest.raises(FileNotFoundError):
        main(["cancel", "theirs"])
