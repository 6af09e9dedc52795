"""How a command of the analysis begins: not beside another `train`, which is not run."""

from pathlib import Path

import pytest

import train
import train.spec.interrupts
from analysis.text.start import start


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that are run, instead of being run."""
    found: list[str] = []
    monkeypatch.setattr(train.spec.interrupts, "run", found.append)
    return found


def test_another_train_is_named_and_nothing_runs(
    tmp_path: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(SystemExit) as ended:
        start("analysis.report.__main__", tmp_path)
    assert (ended.value.code, ran) == (2, [])
    said = capsys.readouterr().err
    assert said.startswith(
        f"analysis.report: Python finds another train than ours: {Path(train.__file__)}, not {tmp_path}"
    )
    assert said.count("\n") == 1


def test_beside_our_own_it_runs(ran: list[str]) -> None:
    start("analysis.fit")
    assert ran == ["analysis.fit"]
