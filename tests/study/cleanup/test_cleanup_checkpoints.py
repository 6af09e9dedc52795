from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from study.__main__ import main
from study.cleanup import checkpoints as retention
from study.cleanup import preparations
from study.cleanup.checkpoints import KeepRules, Needs, keep, parse, prune
from study.records import checkpoints, points
from study.records.checkpoints import ABANDONED, PIN, Checkpoint, saved
from study.records.point import point
from study.records.points import append_points, known_keys
from study.search.trial_queue import TrialQueue
from study.storage.files import RunLock, locked
from study.storage.layout import RunFolder, StudyFolder
from tests.study.support.searches import make_search
from tests.study.support.studies import REPOSITORY, environment, make_study, seeded, study_command
from train.data.corpus.prepare import prepare
from train.spec.config import BudgetConfig, DataConfig, RunConfig
from train.spec.resolve import resolve

NOBODY = Needs({}, frozenset())


def checkpoint(run: RunFolder, step: int, loss: float | None = None, pinned: bool = False, size: int = 100) -> Path:
    """Write a checkpoint of 10 tokens a step as the trainer lays it out."""
    folder = run.checkpoints / f"step-{step:09d}"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"x" * size)
    manifest = {
        "format": 2,
        "progress": {"step": step, "tokens": 10 * step, "validation_loss": loss},
        "identity": {},
        "files": {"__0_0.distcp": {"bytes": 100}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if pinned:
        (folder / PIN).touch()
    return folder


def stored(
    steps: Sequence[int], losses: Sequence[float] = (), torn: Sequence[int] = (), abandoned: Sequence[int] = ()
) -> list[Checkpoint]:
    known: Sequence[float | None] = losses or [None] * len(steps)
    pairs = zip(steps, known, strict=True)
    return [
        Checkpoint(Path(str(s)), s, 10 * s, loss, whole=s not in torn, abandoned=s in abandoned) for s, loss in pairs
    ]


@pytest.mark.parametrize(
    ("policy", "found", "needed", "unfinished", "stays"),
    [
        (KeepRules(last=1), stored([1, 2, 3]), [], False, {3}),
        (KeepRules(last=2), stored([1, 2, 3]), [], True, {2, 3}),
        (KeepRules(last=0), stored([1, 2, 3]), [], False, set()),
        (KeepRules(last=0), stored([1, 2, 3]), [], True, {3}),
        (KeepRules(last=0), stored([1, 2, 3], torn=[3]), [], True, {2}),
        (KeepRules(last=1), stored([1, 2, 3], torn=[3]), [], False, {2}),
        (KeepRules(last=1, best=1), stored([1, 2, 3], [2.0, 1.0, 3.0]), [], False, {2, 3}),
        (KeepRules(last=0, best=1), stored([1, 2, 3], [1.0, 1.0, 3.0]), [], False, {2}),
        (KeepRules(last=1, every=2), stored([1, 2, 3, 4, 5]), [], False, {2, 4, 5}),
        (KeepRules(last=1), stored([1, 2, 3]), [10], False, {1, 3}),
        (KeepRules(last=9), stored([1, 2]), [], False, {1, 2}),
        (KeepRules(last=1), [], [], True, set()),
        (KeepRules(last=1, best=1, every=3), stored([1, 2, 3], [3.0, 2.0, 1.0], abandoned=[3]), [30], True, {2}),
    ],
)
def test_which_checkpoints_stay(
    policy: KeepRules, found: list[Checkpoint], needed: list[int], unfinished: bool, stays: set[int]
) -> None:
    assert {int(str(f)) for f in keep(found, policy, frozenset(needed), unfinished)} == stays


def test_a_checkpoint_of_an_abandoned_path_is_found_and_stays_only_pinned(tmp_path: Path) -> None:
    run = StudyFolder(tmp_path).run("a" * 12)
    marked: dict[int, tuple[str, ...]] = {1: (), 2: (ABANDONED,), 3: (ABANDONED, PIN)}
    for step, marks in marked.items():
        folder = checkpoint(run, step)
        for mark in marks:
            (folder / mark).touch()
    (run.checkpoints / "step-000000002").rename(run.checkpoints / "abandoned-1-step-000000002")
    assert [one.tokens for one in checkpoints.saved(run)] == [10]
    found = retention.stored(run)
    assert [(one.step, one.abandoned, one.pinned) for one in found] == [
        (1, False, False),
        (2, True, False),
        (3, True, True),
    ]
    assert {f.name for f in keep(found, KeepRules(last=1), frozenset({20}), True)} == {
        "step-000000001",
        "step-000000003",
    }


def test_the_words_of_a_policy() -> None:
    assert parse("last=2, best=1") == KeepRules(2, 1, 0)
    assert parse("every=100") == KeepRules(0, 0, 100)
    with pytest.raises(ValueError, match="'newest=2' is not a rule: write last=N"):
        parse("newest=2")


def test_pins_branches_and_running_attempts_are_left_alone(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "runs" / "trunk", [1, 2, 3])
    for key in keys.values():
        for step in (10, 20, 30):
            checkpoint(study.run(key), step)
    (study.run(keys[1]).checkpoints / "step-000000010" / PIN).touch()
    base = seeded(4).config
    branch = point(resolve(replace(base, schedule=replace(base.schedule, parent=f"{keys[2]}@200"))))
    append_points(study, [branch])
    other, _ = make_study(tmp_path / "runs" / "neighbour", [7])
    named = str(study.run(keys[1]).checkpoints / "step-000000020")
    append_points(other, [point(resolve(replace(base, schedule=replace(base.schedule, parent=named))))])
    lock = RunLock(study.run(keys[3]).lock)
    assert lock.acquire()
    tried = study_command("gc", "trunk", cwd=tmp_path)
    assert "2 checkpoints would be removed" not in tried.stdout, tried.stdout
    assert [len(saved(study.run(k))) for k in keys.values()] == [3, 3, 3], "nothing is removed without --yes"
    done = json.loads(study_command("gc", "trunk", "--yes", "--json", cwd=tmp_path).stdout)
    assert {run["key"]: run["remove"] for run in done["runs"]} == {
        keys[1]: [],
        keys[2]: ["step-000000010"],
        keys[3]: [],
    }
    assert done["bytes"] > 100
    assert {run["key"]: run["skipped"] for run in done["runs"]}[keys[3]] == "an attempt is advancing it"
    assert [one.tokens for one in saved(study.run(keys[2]))] == [200, 300]
    lock.close()
    study.run(branch.key).path.mkdir()
    study.run(branch.key).outcome.write_text('{"state": "completed"}')
    assert study_command("gc", "trunk", "--yes", "--where", "seed=2", cwd=tmp_path).returncode == 0
    assert [one.tokens for one in saved(study.run(keys[2]))] == [300], "the branch has its outcome"
    assert [len(saved(study.run(keys[n]))) for n in (1, 3)] == [3, 3]


def test_the_command_that_is_offered_removes_what_was_listed_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study, keys = make_study(tmp_path / "runs" / "s", [1, 2, 3])
    for key in keys.values():
        for step in (10, 20):
            checkpoint(study.run(key), step, loss=1.0)
        study.run(key).outcome.write_text('{"state": "completed"}')
    chosen = ["--where", "seed<3", "--point", keys[2], "--state", "completed,failed"]
    assert main(["gc", "s", "--keep", "last=1, every=15", *chosen]) == 0
    *_, offered = capsys.readouterr().out.splitlines()
    assert offered.endswith("# removes them")
    program, _, name, *words = shlex.split(offered, comments=True)
    assert (program, name, words[0]) == ("python", "study", "gc")
    assert main(words) == 0
    assert [len(saved(study.run(keys[seed]))) for seed in (1, 2, 3)] == [2, 1, 2]


def test_what_is_added_meanwhile_is_seen_and_nothing_is_added_while_names_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches are added at the worst moments: after gc has looked at the study, and while it removes."""
    study, keys = make_study(tmp_path / "runs" / "trunk", [1, 2])
    for key in keys.values():
        for step in (10, 20, 30):
            checkpoint(study.run(key), step)
    base = seeded(4).config
    other, _ = make_study(tmp_path / "runs" / "neighbour", [7])
    named = str(study.run(keys[2]).checkpoints / "step-000000020")
    held: list[str] = []

    def branch(folder: StudyFolder, parent: str) -> None:
        append_points(folder, [point(resolve(replace(base, schedule=replace(base.schedule, parent=parent))))])

    def look_and_let_others_add(run: RunFolder) -> list[Checkpoint]:
        found = stored_in(run)
        branch(study, f"{keys[1]}@100")
        branch(other, named)
        return found

    def decide_while_nobody_adds(*arguments: Any) -> dict[Path, str]:
        with pytest.raises(TimeoutError), locked(study.lock, 0):
            pass
        held.append("the study's lock")
        return keep(*arguments)

    stored_in = retention.stored
    monkeypatch.setattr(retention, "stored", look_and_let_others_add)
    monkeypatch.setattr(retention, "keep", decide_while_nobody_adds)
    assert main(["gc", "trunk", "--yes", "--runs", str(tmp_path / "runs")]) == 0
    assert [one.tokens for one in saved(study.run(keys[1]))] == [100, 300]
    assert [one.tokens for one in saved(study.run(keys[2]))] == [200, 300]
    assert len(held) == 2
    gone = str(study.run(keys[2]).checkpoints / "step-000000010")
    with pytest.raises(ValueError, match=r"there is no such checkpoint \(any more\)"):
        branch(other, gone)


def test_a_branch_of_another_study_is_added_under_both_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, keys = make_study(tmp_path / "runs" / "trunk", [1])
    named = checkpoint(study.run(keys[1]), 10)
    taken: list[Path] = []

    def noted(path: Path, timeout: float = -1) -> Any:
        taken.append(path)
        return locked(path, timeout)

    monkeypatch.setattr(points, "locked", noted)
    base = seeded(4).config
    other = StudyFolder(tmp_path / "runs" / "a-branch")
    append_points(other, [point(resolve(replace(base, schedule=replace(base.schedule, parent=str(named)))))])
    assert taken == sorted(one.lock.resolve() for one in (study, other))


def test_a_search_that_goes_on_again_stops_gc_before_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_search(tmp_path / "runs" / "found")
    append_points(study, [seeded(1)])
    (key,) = known_keys(study)
    for step in (10, 20):
        checkpoint(study.run(key), step)
    TrialQueue.of(study).record_control("stopped")
    stored_in = retention.stored

    def look_and_let_it_go_on(run: RunFolder) -> list[Checkpoint]:
        TrialQueue.of(study).record_control("resumed")
        return stored_in(run)

    monkeypatch.setattr(retention, "stored", look_and_let_it_go_on)
    assert main(["gc", "found", "--yes", "--runs", str(tmp_path / "runs")]) == 2
    assert len(saved(study.run(key))) == 2


KILLED = """
import os, shutil, signal, sys
from contextlib import nullcontext
from pathlib import Path
from study.storage.layout import RunFolder
from study.cleanup.checkpoints import KeepRules, Needs, prune
calls = iter(range(100))
def counted(function):
    def call(*arguments, **options):
        if next(calls) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
Path.rename = counted(Path.rename)
os.rmdir, os.unlink = counted(os.rmdir), counted(os.unlink)
prune(RunFolder(Path(sys.argv[1])), KeepRules(1), lambda: nullcontext(Needs({}, frozenset())), True)
"""


def test_killed_anywhere_it_leaves_whole_checkpoints_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    for moment in range(5):
        for step in (10, 20, 30):
            if not (run.checkpoints / f"step-{step:09d}").exists():
                checkpoint(run, step)
        command = [sys.executable, "-c", KILLED, str(run.path), str(moment)]
        done = subprocess.run(command, env=environment(), cwd=REPOSITORY, check=False)
        assert done.returncode == -signal.SIGKILL, f"moment {moment}"
        for one in saved(run):
            assert (one.folder / "__0_0.distcp").stat().st_size == 100
        assert saved(run)[-1].tokens == 300
    assert prune(run, KeepRules(1), lambda: nullcontext(NOBODY), really=True).bytes > 0
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000030"]


def test_what_is_no_rule_is_refused(tmp_path: Path) -> None:
    make_study(tmp_path / "runs" / "s", [1])
    done = study_command("gc", "s", "--keep", "first=1", cwd=tmp_path)
    assert (done.returncode, "'first=1' is not a rule" in done.stderr) == (2, True)


def test_a_search_that_goes_on_is_left_alone_until_it_is_cancelled(tmp_path: Path) -> None:
    make_search(tmp_path / "runs" / "found")
    refused = study_command("gc", "found", "--yes", cwd=tmp_path)
    assert (refused.returncode, "is a search that still runs" in refused.stderr) == (2, True)
    (entry,) = json.loads(study_command("list", "--json", cwd=tmp_path).stdout)["studies"]
    assert (entry["kind"], entry["points"], entry["problem"]) == ("search", 0, "")
    whole = study_command("cancel", "found", "--where", "seed=1", cwd=tmp_path)
    assert (whole.returncode, "is cancelled as a whole" in whole.stderr) == (2, True)
    assert study_command("cancel", "found", cwd=tmp_path).returncode == 0
    done = study_command("gc", "found", "--yes", cwd=tmp_path)
    assert (done.returncode, "nothing to remove" in done.stdout) == (0, True), done.stderr


def dead() -> int:
    """Return the number of a process that is no more."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_what_killed_preparations_left_is_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, host, gone = tmp_path / "data", os.uname().nodename, dead()
    root.mkdir()

    def staging(name: str, by: str | None, lock: bool = True) -> Path:
        place = root / f".{name}.staging-0123abcd"
        (place / "built").mkdir(parents=True)
        (place / "built/train.bin").write_bytes(b"x" * 100)
        if by is not None:
            (place / "prepared-by").write_text(by + "\n")
        if lock:
            (root / f".{name}.lock").touch()
        return place

    def scratch(name: str, file: str = "data.yaml") -> Path:
        place = root / f".prepare-{name}"
        place.mkdir()
        (place / file).write_text("data: {}\n")
        return place

    left = {staging("killed-bytes257", f"{host} {gone}"), scratch(f"{host}-{gone}-abc")}
    held = staging("held-bytes257", f"{host} {gone}")
    stays = {
        held, staging("runs-bytes257", f"{host} {os.getpid()}"), staging("away-bytes257", f"elsewhere {gone}"),
        staging("mine", None), staging("unlocked", f"{host} {gone}", lock=False), scratch(f"{host}-{os.getpid()}-abc"),
        scratch(f"elsewhere-{gone}-abc"), scratch(f"{host}-{gone}-mine", "mine.txt"),
    }  # fmt: skip
    (root / ".linked.staging-0123abcd").symlink_to(tmp_path)
    study = StudyFolder(tmp_path / "s")
    base = RunConfig()
    config = replace(base, runtime=replace(base.runtime, data_root=str(root)), budget=BudgetConfig(tokens=12_800))
    append_points(study, [point(resolve(config), ())])
    study.study.write_text("tracking: {enabled: false}\n")
    with FileLock(root / ".held-bytes257.lock"):
        assert main(["gc", str(study.path)]) == 0
        said = capsys.readouterr().out
        assert all(str(place) in said for place in left) and not any(str(place) in said for place in stays)
        assert "left by killed preparations of data: would be removed (--yes)" in said and all(p.exists() for p in left)
        assert main(["gc", str(study.path), "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)["preparations"]
        assert {Path(one["folder"]) for one in listed} == left and sum(one["bytes"] for one in listed) > 100
        assert main(["gc", str(study.path), "--yes"]) == 0
    assert "left by killed preparations of data: removed" in capsys.readouterr().out
    assert not any(place.exists() for place in left)
    assert all((place / "built/train.bin").is_file() for place in stays if "staging" in place.name)
    assert all(any(place.iterdir()) for place in stays) and (root / ".linked.staging-0123abcd").is_symlink()


def test_a_preparation_that_is_killed_leaves_what_gc_takes_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("words and more words\n" * 2000)
    config = DataConfig(name="d", source=str(tmp_path / "text"), sequence_length=32)
    monkeypatch.setattr("train.data.corpus.build.build", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        prepare(config, tmp_path / "data", workers=1)
        os._exit(0)
    os.waitpid(child, 0)
    (found,) = preparations.collect([tmp_path / "data"], really=True)
    assert found.folder.name.startswith(".d-") and list((tmp_path / "data").glob("*.staging-*")) == []
