"""Where SLURM is missing it is installed, or the reason is said; with CI=true that is a failure."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.conftest import require_slurm
from tests.slurm import install

ABSENT = "no-such-daemon"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program of the cluster be missing."""
    monkeypatch.setattr(install, "PROGRAMS", ("sh", ABSENT))


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put an apt-get first on PATH that notes how it was called; return its notes."""
    notes = tmp_path / "notes"
    fake = tmp_path / "apt-get"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n', encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(install, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return notes


def test_nothing_is_installed_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch, apt: Path) -> None:
    monkeypatch.setattr(install, "PROGRAMS", ("sh",))
    assert install.install() is None
    assert not apt.exists()


def test_root_on_debian_installs_the_packages(absent: None, apt: Path) -> None:
    reason = install.install()
    update, wanted, extras = apt.read_text(encoding="utf-8").splitlines()
    assert update.startswith("update")
    assert wanted.split()[-len(install.PACKAGES) :] == list(install.PACKAGES)
    assert extras.split()[-len(install.EXTRAS) :] == list(install.EXTRAS)
    assert reason is not None and ABSENT in reason, "it is still missing, and that is said"
    assert not install.POLICY.exists(), "what keeps daemons from starting is removed again"


def test_failing_installation_says_why(absent: None, apt: Path) -> None:
    fake = apt.with_name("apt-get")
    fake.write_text("#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n", encoding="utf-8")
    assert install.install() == "apt-get install failed with exit code 100: E: Unable to locate package"


def test_extras_that_cannot_be_had_are_said_and_fail_nothing(
    absent: None, apt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = apt.with_name("apt-get")
    fake.write_text(f"#!/bin/sh\nfor last; do :; done\n[ $last != {install.EXTRAS[-1]} ]\n", encoding="utf-8")
    reason = install.install()
    assert reason is not None and reason.startswith(ABSENT), "what is missing of SLURM, nothing of the extras"
    assert "some tests will be skipped: apt-get install failed with exit code 1" in capsys.readouterr().out


def test_plain_user_installs_nothing_and_is_told_what_to_do(
    absent: None, apt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = install.install()
    assert reason is not None and ABSENT in reason and "python -m tests.slurm.install" in reason
    assert not apt.exists()


def test_missing_cluster_skips_with_the_reason_and_fails_in_ci(absent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=ABSENT):
        require_slurm()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=ABSENT):
        require_slurm()


def test_other_systems_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert install.unavailable() == "SLURM runs on Linux, this is darwin"
