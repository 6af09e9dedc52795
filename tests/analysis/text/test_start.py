"""How a command of the analysis begins: not beside another `train`, which is not run."""

from pathlib import Path

import pytest

import train
import train.spec.interrupts
from analysis.text.start import start


def test_another_train_is_named_and_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train").mkdir()
    assert start(lambda: pytest.fail("the command ran"), "analysis.fit", tmp_path) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"analysis.fit: Python finds another train than ours: {Path(train.__file__)}, not {tmp_path}"
    )
    assert said.count("\n") == 1


def test_beside_our_own_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.spec.interrupts, "guarded", lambda main, command: (main(), command))
    assert start(lambda: 3, "analysis.fit") == (3, "analysis.fit")  # type: ignore[comparison-overlap]
