import subprocess
import sys
from pathlib import Path

import pytest

from study.process import code_version
from study.process.code_version import CodeVersion, current, load, save
from study.storage.layout import StudyFolder


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "study").mkdir(parents=True)
    (root / "study" / "a.py").write_text("one = 1\n")
    (root / ".gitignore").write_text("runs/\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    version = current(checkout)
    assert version.id == f"{git(checkout, 'rev-parse', '--short=12', 'HEAD').strip()}-clean"
    assert not version.dirty


def test_all_that_jobs_import_tells_one_version_from_another() -> None:
    code = (
        "import sys, study.job, study.workers.worker, study.workers.unit_jobs\n"
        "print('\\n'.join(m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    root = code_version.home()
    ours = {str(Path(name).relative_to(root)) for name in said.split() if Path(name).is_relative_to(root)}
    ours = {name for name in ours if name.startswith(code_version.PACKAGES)}
    assert "study/job/__main__.py" in ours
    assert ours <= {name for name, _ in code_version._walk(str(root))}


def test_an_editors_lock_beside_a_source_changes_no_fingerprint(checkout: Path) -> None:
    before = code_version.fingerprint(checkout)
    (checkout / "study" / ".#a.py").symlink_to("somebody@host.123:456")
    (checkout / "train").mkdir()
    (checkout / "train" / ".#b.py").symlink_to("somebody@host.123:456")
    assert code_version.fingerprint(checkout) == before


def test_a_git_that_gives_no_answer_is_said(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\nexec sleep 20\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(code_version, "GIT_SECONDS", 0.2)
    with pytest.raises(ValueError, match="git rev-parse gave no answer in"):
        current(checkout)


def test_the_patch_restores_changed_new_and_removed_files(checkout: Path, tmp_path: Path) -> None:
    (checkout / "study" / "gone.py").write_text("x\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "second")
    (checkout / "study" / "a.py").write_text("one = 2\n")
    (checkout / "study" / "gone.py").unlink()
    (checkout / "study" / "new file.py").write_text("three = 3\n")
    latin = "price = '3 £'\r\n".encode("latin-1")
    (checkout / "study" / "latin.txt").write_bytes(latin)
    (checkout / "study" / "notes.bin").write_bytes(b"\0" * 10)
    (checkout / "runs").mkdir()
    (checkout / "runs" / "b.py").write_text("ignored\n")
    status = git(checkout, "status", "--porcelain")
    version = current(checkout)
    assert version.dirty
    assert git(checkout, "status", "--porcelain") == status, "the index of the user stays as it is"
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(checkout), str(clone))
    patch = save(version, StudyFolder(tmp_path / "s")).with_suffix(".patch")
    git(clone, "apply", "--whitespace=nowarn", str(patch))
    assert (clone / "study" / "latin.txt").read_bytes() == latin
    found = {str(p.relative_to(clone)): p.read_text() for p in clone.rglob("*.py")}
    assert found == {"study/a.py": "one = 2\n", "study/new file.py": "three = 3\n"}


def test_another_change_is_another_version(checkout: Path) -> None:
    (checkout / "study" / "a.py").write_text("one = 2\n")
    first = current(checkout)
    assert current(checkout) == first
    (checkout / "study" / "a.py").write_text("one = 3\n")
    assert current(checkout).id != first.id
    assert current(checkout).sha == first.sha


def test_results_that_git_tracks_are_no_code(checkout: Path) -> None:
    (checkout / "dvc.lock").write_text("schema: '2.0'\n")
    (checkout / "reports" / "isoflop").mkdir(parents=True)
    (checkout / "reports" / "isoflop" / "metrics.json").write_text("{}\n")
    git(checkout, "add", "dvc.lock", "reports")
    assert not code_version.current(checkout).dirty


def test_before_the_first_commit(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "a.py").write_text("one = 1\n")
    git(tmp_path, "init", "-q")
    version = current(tmp_path)
    assert version.sha == "no-commit"
    assert "+one = 1" in version.patch


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_INDEX_FILE"])
def test_a_repository_that_the_environment_names_is_not_this_codes(
    name: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git's hooks are run, and what they start."""
    mine = current(checkout)
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv(name, str(other / ".git" / {"GIT_DIR": "", "GIT_INDEX_FILE": "index"}[name]))
    assert current(checkout) == mine


def test_without_git(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "a.py").write_text("one = 1\n")
    version = current(tmp_path)
    assert version.sha == "no-git"
    assert version.note
    (tmp_path / "study" / "a.py").write_text("one = 2\n")
    assert current(tmp_path).id != version.id


def test_an_environment_ignored_by_the_checkout_around_it_is_not_its_commit(checkout: Path) -> None:
    inside = checkout / "runs" / "site-packages"
    (inside / "study").mkdir(parents=True)
    (inside / "study" / "a.py").write_text("one = 1\n")
    assert current(inside).sha == "no-git"


def test_saved_once_with_its_patch(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    version = CodeVersion("abc", "12345678", "diff\n")
    path = save(version, folder)
    assert path.name == "abc-12345678.json"
    assert (folder.code / "abc-12345678.patch").read_text() == "diff\n"
    before = path.stat().st_mtime_ns
    assert save(version, folder) == path
    assert path.stat().st_mtime_ns == before
    assert load(folder, version.id)["dirty"] is True
