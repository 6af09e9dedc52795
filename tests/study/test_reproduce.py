"""What `make study` does after the pipeline: the report goes to MLflow, and nothing is done twice."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from study import reproduce
from study.layout import StudyFolder

REPORT = Path("reports/isoflop")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose pipeline ends well at once."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.setattr(reproduce, "_dvc", lambda root, arguments, held: 0)
    return tmp_path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    given: list[list[str]] = []
    run = subprocess.run

    def note(command: list[str], **options: Any) -> Any:
        given.append(command[1:])
        return run(["true"], check=False)

    monkeypatch.setattr(subprocess, "run", note)
    return given


def written(path: Path, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    os.utime(path, (seconds, seconds))


def test_a_new_report_is_sent_to_mlflow_and_an_old_one_is_not(checkout: Path, commands: list[list[str]]) -> None:
    study = StudyFolder(checkout / "runs" / "isoflop")
    written(checkout / REPORT / "report.html", 2000.0)
    assert reproduce.reproduce(checkout, REPORT, []) == 0
    assert commands == [], "a study that is not tracked stays so"
    written(study.tracking, 1000.0)
    assert reproduce.reproduce(checkout, REPORT, []) == 0
    assert commands == [["-m", "study.tracking", "sync", str(study.path)]]
    written(study.tracking, 3000.0)
    assert reproduce.reproduce(checkout, REPORT, []) == 0
    assert len(commands) == 1


def test_the_first_stages_alone_have_no_answer_yet(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.reproduce(checkout, REPORT, ["prepare"]) == 0
    assert capsys.readouterr().out.startswith("Done in ")


def test_a_folder_without_the_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no dvc\.yaml in"):
        reproduce.reproduce(tmp_path, REPORT, [])
