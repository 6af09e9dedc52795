"""The rolling backtest's table, file and exit code; what is asked reaches the backtest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis as sa
from analysis.backtest import main, text
from analysis.estimation import objectives
from analysis.laws.registry import FORMS
from analysis.values.study_result import Cut
from tests.analysis import studies

CUTS = [
    Cut(flops=1e12, rows=10, a=0.5, runs=((2e12, 0.01), (4e12, -0.0321)), mean_abs_relative_error=0.021),
    Cut(flops=2e12, rows=15, a=0.53, runs=((4e12, 0.004),), mean_abs_relative_error=0.004),
]
SAID = """\
  fitted up to  runs  exponent a   factor  runs above  mean |error|  largest run
    1e12 FLOPs    10       0.500       4x           2         2.1 %      -3.21 %
    2e12 FLOPs    15       0.530       2x           1        0.40 %      +0.40 %

a lies between 0.500 and 0.530 over the cuts: it drifts, so extrapolate with care"""


def test_the_command_prints_and_writes_the_cuts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    studies.isoflop().to_csv(tmp_path / "a.csv", index=False)
    seen: list[tuple[Any, ...]] = []
    found = [(cut, "") for cut in CUTS]

    def judged(rows: Any, loss: Any, cuts: int, name: str, **held: Any) -> list[tuple[Cut, str]]:
        seen.append((len(rows), loss, cuts, name, held))
        return found

    monkeypatch.setattr(sys.modules["analysis.backtest"], "judged", judged)
    out = tmp_path / "some" / "folder"
    given = [f"runs={tmp_path / 'a.csv'}"]
    for _ in range(2):
        assert main([*given, f"out={out}"]) == 0
        law = FORMS["chinchilla"].text
        assert capsys.readouterr().out == f"{law}\n\n{SAID}\nwrote {out}/backtest.json\n"
    written = (out / "backtest.json").read_text()
    kept = json.loads(written)
    assert written == json.dumps(kept, indent=1) + "\n"
    assert (kept["form"], [cut["a"] for cut in kept["cuts"]]) == (law, [0.5, 0.53])
    assert [cut["no_a"] for cut in kept["cuts"]] == ["", ""]
    assert seen[0] == (20, objectives.Huber(0.001), 8, "chinchilla", {"fix": {}, "tie": {}})
    assert main([*given, "delta=squared", "cuts=3", "form=kaplan", "fix=E:1.7", "tie=beta:alpha"]) == 0
    assert seen[2] == (20, objectives.Squared(), 3, "kaplan", {"fix": {"E": 1.7}, "tie": {"beta": "alpha"}})
    found.clear()
    assert main(given) == 2
    assert "20 runs at 4 budgets leave no cut with 8 runs of 3 sizes below and one above" in capsys.readouterr().err


def test_exponents_that_stay_do_not_drift() -> None:
    still = [*CUTS[:1], Cut(2e12, 15, 0.515, 0.004, ((4e12, 0.004),))]
    assert text(still).splitlines()[-1] == "a lies between 0.500 and 0.515 over the cuts"
    assert len(text(CUTS[:1]).splitlines()) == 2


def test_cuts_without_an_exponent_say_why_and_show_no_drift() -> None:
    cuts = [Cut(1e12 * 2**i, 10, None, 0.02, ((4e13, 0.01),)) for i in range(3)]
    said = text(cuts, ["one budget", "the fit did not converge", "one budget"]).splitlines()
    assert [line.split()[3] for line in said[1:4]] == ["-", "-", "-"]
    assert said[4:] == [
        "",
        "a is not identified up to 1e12 FLOPs, 4e12 FLOPs: one budget",
        "a is not identified up to 2e12 FLOPs: the fit did not converge",
    ]
    assert text(cuts, ["one budget"] * 3).splitlines()[4:] == ["", "a is not identified: one budget"]
    known = [cuts[0], *CUTS]
    assert text(known, ["one budget", "", ""]).splitlines()[-2:] == [
        "a is not identified up to 1e12 FLOPs: one budget",
        "a lies between 0.500 and 0.530 over the cuts: it drifts, so extrapolate with care",
    ]


def test_runs_of_one_ratio_have_no_exponent_at_any_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = np.geomspace(1e7, 1e9, 12)
    values = studies.loss(studies.LAW, params, 20 * params) * np.exp(0.002 * np.sin(7.0 * np.arange(12)))
    table = pd.DataFrame({"params": params, "tokens": 20 * params, "flops": 120 * params**2, "loss": values})
    table.to_csv(tmp_path / "ray.csv", index=False)
    main([f"runs={tmp_path / 'ray.csv'}", f"out={tmp_path}"])
    assert "\n\na is not identified: one ratio of tokens to parameters\n" in capsys.readouterr().out
    kept = json.loads((tmp_path / "backtest.json").read_text())["cuts"]
    assert {(cut["a"], cut["no_a"]) for cut in kept} == {(None, "one ratio of tokens to parameters")}
    frame = sa.backtest(tmp_path / "ray.csv")
    assert frame["a"].isna().all() and set(frame["no_a"]) == {"one ratio of tokens to parameters"}
