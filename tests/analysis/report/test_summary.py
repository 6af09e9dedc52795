from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.report.terminal import law_text, summary
from analysis.summary import main
from tests.study.support.spoilt import spoilt

FIT = Path(__file__).parents[1] / "data" / "fit_example.json"


@pytest.fixture
def fit() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(FIT.read_text())
    return value


def test_it_says_law_size_interval_extrapolation_backtest_and_path(fit: dict[str, Any]) -> None:
    lines = dict(line.split("  ", 1) for line in summary(fit, "reports/x/report.html").splitlines())
    found = {name: text.strip() for name, text in lines.items()}
    assert found["fitted law"].startswith("L(N, D) = E + 45.1/N^0.326 + 101/D^0.304 nats per token")
    assert "E not identified: at most 2.41" in found["fitted law"]
    assert "1.93" not in found["fitted law"]
    assert found["train next"].startswith("5.13M (3.59M to 7.70M) matmul parameters on 148M (100M to 213M) tokens")
    assert "5e15 FLOPs" in found["train next"]
    assert found["expect"] == "loss 2.630 (2.591 to 2.667) nats per token (at this N and D by the frontier)"
    assert found["frontier"] == "N* = 5.13M (C / 5e15)^0.491, exponent 0.431 to 0.561 (by the valleys)"
    assert "not used: the recommendation is by the valleys" in found["fitted law"]
    assert "no test reaches the recommendation's 10x" in found["backtest"]
    assert found["extrapolation"] == "10x beyond the largest run"
    assert found["backtest"].startswith("0.81 % error")
    assert found["report"] == "reports/x/report.html"


def test_it_is_plain_ascii_and_short(fit: dict[str, Any]) -> None:
    text = summary(fit, "r.html")
    assert text.isascii()
    assert len(text.splitlines()) <= 9


def test_without_an_answer_it_says_why(fit: dict[str, Any]) -> None:
    for block in (fit["fits"]["surface"], fit["fits"]["valleys"]):
        block.update(status="not possible", reason="only 2 runs", params={}, exponents={})
    fit.update(recommendation=None, backtest=None)
    fit["checks"] = [{"code": "few", "message": "too few runs", "advice": "add budgets", "level": "error"}]
    text = summary(fit)
    assert text.count("none: only 2 runs") == 2
    assert "no recommendation" in text
    assert "at least three budgets" in text
    assert "too few runs: add budgets" in text
    assert "report" not in text


def test_why_nothing_is_recommended_is_said_once(fit: dict[str, Any]) -> None:
    fit["recommendation"] = None
    why = {"code": "no_recommendation", "message": "no valley has a minimum", "advice": "add runs", "level": "error"}
    fit["checks"] = [why]
    alone, below = summary(fit), summary(fit, told=True)
    assert alone.count("no valley has a minimum") == 1 and "but         no recommendation: add runs" in alone
    assert "no valley" not in below and "no recommendation: see above" in below and "\nbut" not in below
    assert "no test reaches" not in alone, "there is nothing to reach"


def test_missing_intervals_are_named(fit: dict[str, Any]) -> None:
    fit["recommendation"]["intervals"] = {"params": None}
    assert summary(fit).count("no interval") == 3


def test_exponents_are_not_replaced_inside_other_names() -> None:
    block = {"form": "a + alpha^a", "params": {"a": 2.0}, "identified": {}}
    assert law_text(block) == "2.00 + alpha^2.00"


def test_the_command_prints_it_without_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys; from analysis import summary\n"
        f"code = summary.main(['fit={FIT}'])\n"
        "heavy = {'matplotlib', 'pandas', 'numpy', 'scipy'} & set(sys.modules)\n"
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=900, capture_output=True, text=True)
    assert "fitted law" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["fit=/nowhere/fit.json"], ["fit"], ["fit=x", "colour=red"]])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


def test_a_report_beside_the_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fit.json").write_text(FIT.read_text())
    (tmp_path / "report.html").write_text("")
    assert main([f"fit={tmp_path / 'fit.json'}"]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out


def test_a_fit_of_another_form_is_named_without_a_traceback(
    fit: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fit.json"
    refused = 0
    for value in ([fit], None, 3, "x", *spoilt(fit, "fit", 150)):
        path.write_text(json.dumps(value), encoding="utf-8")
        code = main([f"fit={path}"])
        said = capsys.readouterr()
        assert code in (0, 2)
        if code == 2:
            refused += 1
            assert said.err.startswith(f"fit={path} is no fit.json of this version (")
            assert said.err.endswith("run python -m analysis.fit again\n") and not said.out
    assert refused > 10
