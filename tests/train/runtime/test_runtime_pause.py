"""A paused trainer that is told to go on takes the steps that it would have taken anyway."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.train.runs import read_outcome, values, write_config
from train import run
from train.spec.config import RunConfig


def answer(place: Path, answers: list[int | None]) -> None:
    """Answer one pause after the other."""
    for number, until in enumerate(answers, start=1):
        limit = time.monotonic() + 900
        while time.monotonic() < limit:
            asked = place.with_name("pause.asked")
            if asked.exists() and json.loads(asked.read_text())["number"] == number:
                break
            time.sleep(0.01)
        staged = place.with_name("pause.staged")
        staged.write_text(json.dumps({"number": number, "until": until}))
        staged.rename(place.with_name("pause.answer"))


def test_it_goes_on_as_if_it_had_not_paused(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = tiny.batch.tokens
    assert batch is not None and tiny.budget.tokens is not None
    assert run.main(["--config", str(write_config(tmp_path / "straight", tiny))]) == 0
    monkeypatch.setenv("PAUSE", str(tmp_path / "pause"))
    config = str(write_config(tmp_path / "paused", tiny))
    starter = threading.Thread(target=answer, args=(tmp_path / "pause", [12 * batch, None]))
    starter.start()
    assert run.main(["--config", config, "--until", str(5 * batch)]) == 0
    starter.join()
    assert [row[1] for row in values(tmp_path / "paused") if row[0] == "train"][-1] == 12
    (tmp_path / "pause.asked").unlink()
    starter = threading.Thread(target=answer, args=(tmp_path / "pause", [tiny.budget.tokens]))
    starter.start()
    assert run.main(["--config", config, "--until", str(20 * batch)]) == 0
    starter.join()
    paused = {("validation", step) for step in (5, 12, 20)}
    straight = values(tmp_path / "straight")
    both = {row[:2] for row in straight}
    ours = [row for row in values(tmp_path / "paused") if row[:2] not in paused - both]
    assert ours == straight
    assert read_outcome(tmp_path / "paused")["loss"] == read_outcome(tmp_path / "straight")["loss"]


def test_a_pause_that_cannot_be_written_down_ends_the_run_as_one_without_an_answer(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAUSE", str(tmp_path / "gone" / "pause"))
    config = write_config(tmp_path / "paused", tiny)
    assert run.main(["--config", str(config), "--until", "640"]) == run.REACHED
    assert "cannot ask whether to continue" in capsys.readouterr().err
    assert (config.parent / "checkpoints" / "step-000000005").is_dir()
