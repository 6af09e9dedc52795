"""A copy of a study's folder (`cp -r`) reaches no job of the original; a folder that was moved or linked does."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Submit
from study.records import ledger, origin
from study.records.settings import load_submission
from study.status.observer import observe
from study.storage.layout import StudyFolder
from tests.study.support.stand_ins import slurm_commands
from tests.study.support.studies import SLOW, begin, end_group, make_study, states, supervisor, wait_until


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return slurm_commands(tmp_path / "slurm", monkeypatch, "7|0|RUNNING|None|s.w\\n7|1|PENDING|Priority|s.w\\n")


@pytest.fixture
def original(tmp_path: Path) -> StudyFolder:
    """Two points in jobs of SLURM, and one that waits to be submitted."""
    study, keys = make_study(tmp_path / "runs" / "s", [1, 2, 3])
    study.study.write_text("cluster: {executor: slurm, time_minutes: 5, code: live}\ntracking: {enabled: false}\n")
    first, second, third = keys.values()
    ledger.append(study, "waiting", keys=[first, second, third], resources={}, executor="slurm", code=None)
    ledger.append(study, "intent", name="s.w", executor="slurm", keys=[first, second], resources={}, code=None)
    ledger.append(study, "submitted", name="s.w", job_id="7")
    return study


def copied(study: StudyFolder, name: str = "copy") -> StudyFolder:
    return StudyFolder(Path(shutil.copytree(study.path, study.path.with_name(name))))


def shown(study: StudyFolder, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", str(study.path), "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_copy_never_cancels_the_originals_jobs(
    original: StudyFolder, told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(original)
    assert set(states(copy).values()) == {"pending"}
    assert main(["cancel", str(copy.path)]) == 0
    said = capsys.readouterr().out
    assert "3 points cancelled: 3 not started" in said
    assert str(original.path) in said.replace("\n    ", " ")
    assert not told.exists()
    assert sorted(states(original).values()) == ["queued", "running", "waiting"]
    assert main(["cancel", str(original.path)]) == 0
    assert told.read_text().split() == ["7_[0-1]"]


def test_a_look_at_a_copy_submits_nothing_and_says_whose_the_jobs_are(
    original: StudyFolder, told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(original)
    points = shown(copy, capsys)["points"]
    assert [point["elsewhere"] for point in points] == [str(original.path)] * 3
    assert main(["status", str(copy.path)]) == 0
    lines = capsys.readouterr().out
    assert f"a copy: the jobs of 3 points belong to the study at {original.path}" in lines.replace("\n    ", " ")
    assert "python -m study resume" in lines and "trains them here, too" in lines
    assert not told.exists()


def test_what_is_asked_for_in_a_copy_is_its_own(
    original: StudyFolder,
) -> None:
    copy = copied(original)
    before = original.ledger.read_bytes()
    known = ledger.read(copy)
    assert known.copy_of == str(original.path) and not known.waiting and not known.unclear
    ledger.append(copy, "intent", name="copy.w", executor="slurm", keys=list(known.elsewhere), resources={}, code=None)
    ledger.append(copy, "submitted", name="copy.w", job_id="9")
    known = ledger.read(copy)
    assert known.copy_of is None and not known.elsewhere
    assert [batch.name for batch in known.own_batches] == ["copy.w"]
    assert set(known.current.values()) == {"copy.w"} and len(known.current) == 3
    assert original.ledger.read_bytes() == before
    again = copied(copy, "again")
    assert set(ledger.read(again).elsewhere.values()) == {str(copy.path)}, "each copy is of its own original"


def test_points_of_a_copy_that_had_ended_are_as_they_were(original: StudyFolder, told: Path) -> None:
    key = next(iter(ledger.read(original).current))
    attempt = original.run(key).attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.job.write_text(json.dumps({"name": "s.w", "executor": "slurm", "job_id": "7_0", "nodes": ["n1"]}))
    attempt.outcome.write_text(json.dumps({"state": "failed", "kind": "code_error", "error": "no", "seconds": 1.0}))
    copy = copied(original)
    found = {status.key: status for status in observe(copy)}
    assert found[key].state == "failed" and found[key].kind == "code_error"
    before = copy.ledger.read_bytes()
    assert main(["status", str(copy.path)]) == 1
    assert copy.ledger.read_bytes() == before, "the policy of retries does not act on what ended elsewhere"


@pytest.mark.parametrize("way", ["moved", "linked", "begun anew", "moved and linked"])
def test_a_study_that_was_moved_or_is_reached_by_a_link_keeps_its_jobs(
    original: StudyFolder, told: Path, tmp_path: Path, way: str
) -> None:
    place = tmp_path / "elsewhere" / "s"
    place.parent.mkdir()
    if way == "linked":
        place.symlink_to(original.path)
    else:
        original.path.rename(place)
    if way == "moved and linked":
        original.path.symlink_to(place)
    if way == "begun anew":
        other, keys = make_study(original.path, [9])
        ledger.append(other, "waiting", keys=list(keys.values()), resources={}, executor="slurm", code=None)
    study = StudyFolder(place)
    known = ledger.read(study)
    assert known.copy_of is None and not known.elsewhere
    assert main(["cancel", str(place)]) == 0
    assert told.read_text().split() == ["7_[0-1]"]


def test_one_folder_by_two_mounts_is_one_study(
    original: StudyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two mounts of a file system have two device numbers; the numbers of its files are the same."""
    link = tmp_path / "mount"
    link.symlink_to(original.path)
    monkeypatch.setattr(os.path, "samestat", lambda one, other: False)
    assert not origin.is_another(str(original.path), StudyFolder(link))
    assert origin.is_another(str(original.path), copied(original))


def test_what_cannot_be_looked_at_is_anothers(original: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copied(original)
    stat_of = Path.stat

    def refusing(path: Path, **options: Any) -> os.stat_result:
        if path == original.path:
            raise PermissionError(13, "Permission denied", str(path))
        return stat_of(path, **options)

    monkeypatch.setattr(Path, "stat", refusing)
    assert origin.is_another(str(original.path), copy)


def test_runs_of_this_machine_are_not_told_to_stop_by_a_copy(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [SLOW])
    process = begin(study)
    try:
        key = keys[SLOW]
        wait_until("it runs", lambda: states(study)[key] == "running")
        copy = copied(study)
        assert states(copy)[key] == "pending"
        assert main(["cancel", str(copy.path)]) == 0
        assert states(copy)[key] == "cancelled"
        os.kill(supervisor(study, key), 0)
        assert states(study)[key] == "running"
        assert main(["retry", str(copy.path), "--state=cancelled", "--json"]) == 2, "local runs show their progress"
        step(copy, Services(), Submit([key], load_submission(copy).cluster, retried=[key]))
        assert states(copy)[key] == "pending", "it waits for a slot, and is not taken for the one that runs there"
        assert ledger.read(copy).batch(key) is not None
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        end_group(process)
