"""A fit is scored on runs that it has not seen."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis import fit, score
from tests.analysis import studies


def test_unseen_runs_are_foreseen_and_seen_ones_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budgets = (4e11, 1.2e12, 4e12, 1.3e13, 4e13)
    every = studies.isoflop(0, noise=0.001, budgets=budgets)
    every[every["flops"] < 2e13].to_csv(tmp_path / "seen.csv", index=False)
    every.to_csv(tmp_path / "all.csv", index=False)
    asked = [f"runs={tmp_path / 'seen.csv'}", f"out={tmp_path}", "resamples=20", "report=no", "sensitivity=no"]
    assert fit.main(asked) == 0
    given = [f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 'all.csv'}", f"out={tmp_path}"]
    assert score.main(given) == 0
    said = capsys.readouterr().out
    assert "20 rows that the fit has seen left out" in said
    found = json.loads((tmp_path / "score.json").read_text())
    assert len(found["lines"]) == 5
    assert found["factor"] == pytest.approx(4e13 / 1.3e13)
    assert found["mean_abs_relative_error"] < 0.005
    truth = {round(n): loss for n, loss in zip(every["params"], every["loss"], strict=True)}
    for line in found["lines"]:
        assert line["observed"] == pytest.approx(truth[round(line["params"])])
        assert line["relative_error"] == pytest.approx(line["predicted"] / line["observed"] - 1)
    worse = every[every["flops"] > 2e13].assign(loss=lambda t: 0.95 * t["loss"])
    worse.to_csv(tmp_path / "worse.csv", index=False)
    assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 'worse.csv'}"]) == 0
    assert "all too high" in capsys.readouterr().out


def test_what_cannot_be_scored_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = studies.isoflop(0, noise=0.001)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert (
        fit.main([f"runs={tmp_path / 't.csv'}", f"out={tmp_path}", "resamples=0", "report=no", "sensitivity=no"]) == 0
    )
    assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 't.csv'}"]) == 2
    assert "the fit has seen all of them" in capsys.readouterr().err
    pd.concat([table, table.assign(loss=3.0)]).to_csv(tmp_path / "b.csv", index=False)
    given = [f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 'b.csv'}", "loss_unit=bits per byte"]
    assert score.main(given) == 2
    assert "give loss_unit=nats per token" in capsys.readouterr().err
    assert score.main(["fit=/nowhere/fit.json", f"runs={tmp_path / 't.csv'}"]) == 2
