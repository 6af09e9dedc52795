"""Copies of the code: whole or not there, shared by the studies beside them, kept as long as one of them needs it."""

import os
import signal
import stat
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import study
from study.cleanup import code
from study.executors.base import JobRequest
from study.executors.job_spec import JobSpec
from study.executors.slurm import sbatch
from study.process import code_snapshot, code_version
from study.reconcile import units
from study.records import ledger
from study.storage.files import locked, write_json
from study.storage.layout import StudyFolder

SOURCES = {"study/__init__.py": "", "study/a.py": "one = 1\n", "train/b.py": "two = 2\n", "conf/c.yaml": "three: 3\n"}
SHAPE = replace(JobSpec(), code="frozen").record()
LONG_AGO = time.time() - 10 * code.GRACE_SECONDS


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout that this process takes for its own."""
    root = tmp_path / "repo"
    for name, text in {**SOURCES, "tests/t.py": "", ".gitignore": "study/local.py\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    monkeypatch.setattr(study, "__file__", str(root / "study" / "__init__.py"))
    return root


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    made = StudyFolder(tmp_path / "runs" / "s")
    made.path.mkdir(parents=True)
    return made


def texts(copy: Path) -> dict[str, str]:
    return {str(p.relative_to(copy)): p.read_text() for p in copy.rglob("*") if p.is_file() and p.suffix != ".json"}


def shelf(folder: StudyFolder) -> set[str]:
    return {p.name for p in (folder.path.parent / code_snapshot.SHELF).iterdir() if p.is_dir()}


def test_a_copy_is_what_stands_in_the_checkout_and_all_studies_share_it(checkout: Path, folder: StudyFolder) -> None:
    (checkout / "study" / "a.py").write_text("one = 'changed'\n")
    (checkout / "train" / "new.py").write_text("four = 4\n")
    (checkout / "study" / "local.py").write_text("ignored = True\n")
    (checkout / "train" / "b.py").chmod(0o640)
    os.utime(checkout / "conf" / "c.yaml", (1, 1))
    version = code_snapshot.take(folder, "frozen")
    copy = code_snapshot.source(folder, "frozen", version.id)
    assert copy is not None
    assert texts(copy) == {**SOURCES, "study/a.py": "one = 'changed'\n", "train/new.py": "four = 4\n"}
    assert stat.S_IMODE((copy / "train" / "b.py").stat().st_mode) == 0o440, "for those who may read the original"
    about = (copy / "conf" / "c.yaml").stat()
    assert about.st_mtime == 1
    assert about.st_atime > LONG_AGO
    before = (copy / "study" / "a.py").stat().st_ino
    other = StudyFolder(folder.path.with_name("other"))
    assert code_snapshot.take(other, "frozen") == version
    assert code_snapshot.source(other, "frozen", version.id) == copy
    assert (copy / "study" / "a.py").stat().st_ino == before
    (checkout / "study" / "a.py").write_text("one = 5\n")
    assert code_snapshot.take(other, "frozen").id != version.id
    assert len(shelf(folder)) == 2
    assert (copy / "study" / "a.py").read_text() == "one = 'changed'\n"
    assert code_snapshot.take(folder, "live").id not in (version.id, "") and len(shelf(folder)) == 2


def take_and_die(folder: StudyFolder, moment: int) -> None:
    """Take a copy, killed for good before the `moment`-th time that it writes a file, or gives the copy its name."""
    left = [moment]

    def fatal(real: Any) -> Any:
        def called(*words: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*words)

        return called

    for holder, name in ((code_snapshot, "_write"), (code_snapshot, "write_json"), (Path, "rename")):
        setattr(holder, name, fatal(getattr(holder, name)))
    try:
        code_snapshot.take(folder, "frozen")
    finally:
        os._exit(0)


def test_a_kill_at_any_point_leaves_no_copy_and_nothing_in_the_way(checkout: Path, folder: StudyFolder) -> None:
    version = code_version.current()
    for moment in range(len(SOURCES) + 2):
        child = os.fork()
        if child == 0:
            take_and_die(folder, moment)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, moment
        assert not code_snapshot.is_whole(code_snapshot.snapshot_path(folder, version.id))
        assert len(shelf(folder)) <= 1, "each removes what those before it left"
        with pytest.raises(ValueError, match="is gone: cancel them"):
            code_snapshot.source(folder, "frozen", version.id)
    assert [one.kept for one in code.collect(folder.path.parent, time.time(), True)] == [""]
    assert shelf(folder) == set()
    assert texts(code_snapshot.snapshot_path(folder, code_snapshot.take(folder, "frozen").id)) == SOURCES
    assert shelf(folder) == {version.id}


def test_what_a_purge_of_old_files_left_of_a_copy_is_made_whole_again(checkout: Path, folder: StudyFolder) -> None:
    copy = code_snapshot.snapshot_path(folder, code_snapshot.take(folder, "frozen").id)
    for path in (copy / code_version.MARKER, copy / "train" / "b.py"):
        path.unlink()
    assert code_snapshot.snapshot_path(folder, code_snapshot.take(folder, "frozen").id) == copy
    assert texts(copy) == SOURCES
    assert code_snapshot.is_whole(copy)


def test_who_cannot_copy_says_who_is_in_the_way(
    checkout: Path, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_snapshot, "LOCK_SECONDS", 0.0)
    place = folder.path.parent / code_snapshot.SHELF
    place.mkdir()
    with locked(place / "lock"), pytest.raises(ValueError, match=rf"{place}: another process has been copying code"):
        code_snapshot.take(folder, "frozen")
    code_snapshot.take(folder, "frozen")


@pytest.mark.parametrize("edits", [1, 10])
def test_what_is_edited_meanwhile_is_never_mixed(
    edits: int, checkout: Path, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = code_snapshot._write, [edits]

    def edited(original: Path, path: Path, data: bytes) -> None:
        if original.name == "b.py" and left[0]:
            left[0] -= 1
            (checkout / "study" / "a.py").write_text(f"one = 'edit {left[0]}'\n")
        write(original, path, data)

    monkeypatch.setattr(code_snapshot, "_write", edited)
    if edits > code_snapshot.TRIES:
        with pytest.raises(ValueError, match=r"cluster.code=frozen: the sources in .* change while they are copied"):
            code_snapshot.take(folder, "frozen")
        assert shelf(folder) == set()
    else:
        version = code_snapshot.take(folder, "frozen")
        assert version == code_version.current()
        assert texts(code_snapshot.snapshot_path(folder, version.id))["study/a.py"] == "one = 'edit 0'\n"


def test_a_source_that_holds_a_secret_is_not_copied(
    checkout: Path, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "correct horse")
    (checkout / "train" / "b.py").write_text("connect('correct horse')\n")
    with pytest.raises(ValueError, match=r"train/b.py holds a secret .*take cluster.code=live") as refused:
        code_snapshot.take(folder, "frozen")
    assert "correct horse" not in str(refused.value)
    assert shelf(folder) == set()


def test_a_job_tells_by_the_sources_whether_it_runs_what_was_recorded(
    checkout: Path, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = code_snapshot.take(folder, "frozen").id
    source = checkout / "study" / "a.py"
    assert code_snapshot.ran(folder, version, "live") == "live"
    os.utime(source, (1, 1))
    assert code_snapshot.ran(folder, version, "live") == "live", "touched, or checked out again, and the same"
    (checkout / "conf" / "c.yaml").write_text("three: 4\n")
    assert code_snapshot.ran(folder, version, "live") == "live", "no job reads it"
    source.write_text("one = 2\n")
    assert code_snapshot.ran(folder, version, "live") == "other"
    assert code_snapshot.ran(folder, version, "frozen") == "other", "the copy was not imported"
    with monkeypatch.context() as patch:
        patch.setattr(code_version, "_content", lambda root: (root / "gone.py").read_text())
        assert code_snapshot.ran(folder, version, "live") == "other", (
            "replaced while it is read: no reason to fail a job"
        )
    assert code_snapshot.ran(folder, None, "live") is None
    assert code_snapshot.ran(folder, "abc-clean", "live") is None, "recorded before there were fingerprints"
    copy = code_snapshot.snapshot_path(folder, version)
    monkeypatch.setattr(study, "__file__", str(copy / "study" / "__init__.py"))
    assert code_snapshot.ran(folder, version, "frozen") == "frozen"
    assert code_snapshot.ran(folder, "abc-clean", "frozen") == "other"
    # What a job submits that itself runs in a copy: each batch from where it belongs.
    assert code_version.home() == checkout
    live, own = (sbatch.render(JobRequest(folder, JobSpec(), "n", 1, copy=c)) for c in (None, copy))
    assert f"export PYTHONPATH={checkout}${{PYTHONPATH:+:$PYTHONPATH}}\n" in live
    assert f'export PYTHONPATH={copy}:"$PWD":{checkout}${{PYTHONPATH:+:$PYTHONPATH}}\n' in own
    assert (" -P -u -m study.job " in own, " -P " in live) == (True, False)


def test_units_of_a_search_run_what_its_command_froze(checkout: Path, folder: StudyFolder) -> None:
    frozen_shape = replace(JobSpec(), code="frozen")
    units.choose_code(folder, "frozen")
    first = units._code(folder, frozen_shape)
    (checkout / "train" / "b.py").write_text("two = 3\n")
    assert units._code(folder, frozen_shape) == first, "whoever submits a unit, and whenever"
    now = code_version.current().id
    assert units._code(folder, JobSpec()) == now != first
    units.choose_code(folder, "frozen")
    assert units._code(folder, frozen_shape) == now
    assert [event["event"] for event in ledger.read_events(folder.ledger)] == ["code", "code"]


WAITING = {"event": "waiting", "keys": ["k"], "resources": SHAPE, "code": "v"}
BATCH = [
    {"event": "intent", "name": "s.1", "executor": "slurm", "keys": ["k"], "resources": SHAPE, "code": "v"},
    {"event": "submitted", "name": "s.1", "job_id": "7"},
]
LIVE = {"event": "waiting", "keys": ["k"], "resources": JobSpec().record(), "code": "v"}
CANCELLED = {"event": "cancelled", "keys": ["k"]}


@pytest.mark.parametrize(
    ("events", "ended_days_ago", "changed_days_ago", "kept"),
    [
        ([WAITING], None, 9, True),
        ([LIVE], None, 9, False),
        ([{"event": "code", "code": "v"}], None, 0, True),
        (BATCH, None, 9, True),
        (BATCH, 9, 9, False),
        (BATCH, 9, 0, True),
        (BATCH, 0, 9, True),
        ([*BATCH, CANCELLED], None, 9, False),
        ([*BATCH, CANCELLED], None, 0, True),
        ([*BATCH, {"event": "abandoned", "name": "s.1", "why": "x"}], None, 9, False),
        ([*BATCH, {**WAITING, "code": "w"}], None, 9, False),
    ],
)
def test_a_copy_is_kept_while_jobs_may_start_from_it(
    folder: StudyFolder, events: list[dict[str, Any]], ended_days_ago: int | None, changed_days_ago: int, kept: bool
) -> None:
    ended = None if ended_days_ago is None else time.time() - 86400 * ended_days_ago
    changed = time.time() - 86400 * changed_days_ago
    copy = code_snapshot.snapshot_path(folder, "v")
    copy.mkdir(parents=True)
    write_json(copy / code_version.MARKER, {"id": "v"})
    os.utime(copy / code_version.MARKER, (LONG_AGO, LONG_AGO))
    ledger.extend(folder, events)
    if ended is not None:
        folder.run("k").path.mkdir()
        write_json(folder.run("k").outcome, {})
        os.utime(folder.run("k").outcome, (ended, ended))
    os.utime(folder.ledger, (changed, changed))
    (said,) = code.collect(folder.path.parent, time.time(), really=False)
    assert (bool(said.kept), copy.is_dir()) == (kept, True)
    code.collect(folder.path.parent, time.time(), really=True)
    assert shelf(folder) == ({"v"} if kept else set())
    if not kept:
        copy.mkdir()
        write_json(copy / code_version.MARKER, {"id": "v"})
        assert code.collect(folder.path.parent, time.time(), True)[0].kept == "it was requested a moment ago"
