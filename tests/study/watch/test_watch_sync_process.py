"""The process beside a followed study that sends to MLflow: what it says at the end is so."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.storage.layout import StudyFolder
from study.watch.sync_process import SyncProcess


class Scripted(SyncProcess):
    """A sync process whose two ways to run are shell scripts: until it is told to end, and once."""

    def __init__(self, folder: StudyFolder, following: str, once: str) -> None:
        super().__init__(folder)
        self._enabled = True
        self.scripts = {"--follow": following, "": once}

    def _start(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(["bash", "-c", self.scripts["".join(options)]], stdout=log, stderr=log)


def ended(folder: StudyFolder, following: str, once: str) -> None:
    folder.jobs.mkdir(parents=True, exist_ok=True)
    with Scripted(folder, following, once) as process:
        process.finish(SimpleNamespace(requests=0))


def test_one_that_is_told_to_end_before_it_listens_sends_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study that is over from the start tells it to end while Python still starts."""
    folder = StudyFolder(tmp_path / "done")
    ended(folder, "exec sleep 600", f"touch {tmp_path}/sent")
    assert (tmp_path / "sent").exists()
    assert capsys.readouterr().out == ""


def test_one_that_fails_says_why_in_its_own_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an earlier process said of another day is not the reason."""
    folder = StudyFolder(tmp_path / "away")
    folder.jobs.mkdir(parents=True)
    (folder.jobs / "sync.log").write_text("away: 9 of 9 runs sent\n")
    ended(folder, "exec sleep 600", "exit 75")
    assert "MLflow is not up to date (stopped)" in capsys.readouterr().out
    ended(folder, "exec sleep 600", "echo the server is away; exit 75")
    assert "MLflow is not up to date (the server is away)" in capsys.readouterr().out


def test_what_stays_wrong_is_said_at_once_and_not_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package that is missing would be looked for once more at the end, which takes seconds."""
    folder = StudyFolder(tmp_path / "without")
    folder.jobs.mkdir(parents=True)
    with Scripted(folder, "echo no module named this; exit 2", f"touch {tmp_path}/again") as process:
        while not process.ended:
            time.sleep(0.01)
        assert process.trouble() == "nothing is sent to MLflow: no module named this"
        assert process.trouble() is None, "said once"
        process.finish(SimpleNamespace(requests=0))
    assert "MLflow is not up to date (no module named this)" in capsys.readouterr().out
    assert not (tmp_path / "again").exists()
    with Scripted(folder, "exit 137", f"touch {tmp_path}/again") as process:
        while not process.ended:  # or it is told to end before it has, and that is what it ends of
            time.sleep(0.01)
        process.finish(SimpleNamespace(requests=0))
    assert (tmp_path / "again").exists(), "one that was killed is tried again"
