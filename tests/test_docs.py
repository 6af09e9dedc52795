"""The docs say what the code says."""

from __future__ import annotations

import pytest

from docs import make_tables
from sweeps.designs import DESIGNS
from sweeps.schedulers import SCHEDULERS


def test_tables_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["make_tables.py", "--check"])
    assert make_tables.main() == 0, capsys.readouterr().out


def test_every_design_and_scheduler_can_be_chosen_by_its_file() -> None:
    from study.sweep.help import options

    assert {*DESIGNS, *SCHEDULERS} <= options([make_tables.HERE.parent / "conf"])["search"].keys()
