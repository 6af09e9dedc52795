from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from errno import EACCES
from pathlib import Path
from typing import Any

import pytest

from analysis import score
from analysis.report import __main__ as report
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


AGAIN = "run analysis.fit again"
DAMAGED: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "empty": (b" \n", "is no fit.json (it is empty); python -m analysis.fit writes one"),
    "cut": (b'{"format": 1, "study": "a', "is no fit.json (it breaks off); python -m analysis.fit writes one"),
    "cut before a value": (b'{"format":', "is no fit.json (it breaks off); python -m analysis.fit writes one"),
    "not JSON": (b"format: 1\n", "is no fit.json (line 1, column 1 is no JSON); python -m analysis.fit writes one"),
    "not text": (b"\xff\xfe", "is no fit.json (it is no text in UTF-8); python -m analysis.fit writes one"),
    "nested": (b"[" * 200_000, "is no fit.json (it is nested too deeply); python -m analysis.fit writes one"),
    "digits": (b"1" * 5000, "is no fit.json (a number has too many digits); python -m analysis.fit writes one"),
    "a list": (b"[]", "is no fit.json (it holds no object); python -m analysis.fit writes one"),
    "another format": ({"format": 2}, f"has the format 2, not 1; {AGAIN}"),
    "no format": (b"{}", f"has the format None, not 1; {AGAIN}"),
    "a text for a number": (
        {"confidence": "x"}, f".confidence is 'x', not a number; was it written by another version? {AGAIN}"
    ),
    "a number for a text": ({"study": 3}, f".study is 3, not a text; was it written by another version? {AGAIN}"),
    "no list": ({"checks": 3}, f".checks is 3, not a list; was it written by another version? {AGAIN}"),
    "no object": ({"runs": None}, f".runs is None, not an object; was it written by another version? {AGAIN}"),
    "too long an interval": (
        {"intervals": {"E": [1, 2, 3]}},
        f".intervals.E is [1, 2, 3], not a list of 2; was it written by another version? {AGAIN}",
    ),
    "approaches": (
        {"record": {"approaches": [3]}},
        f".record.approaches[0] is 3, not an object; was it written by another version? {AGAIN}",
    ),
    "curves": (
        {"record": {"curves": [{}]}},
        f".record.curves[0] has no key 'run'; was it written by another version? {AGAIN}",
    ),
}  # fmt: skip
"""What stands in fit.json, or in its fields, and what is said of that after the name of the file."""
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "analysis.summary": main,
    "analysis.report": report.main,
    "analysis.score": lambda words: score.main([*words, "runs=docs/example-runs.csv"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_fit_is_told_in_one_line_by_every_command_that_reads_one(
    command: str, name: str, fit: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (held, said) = tmp_path / "fit.json", DAMAGED[name]
    path.write_bytes(held if isinstance(held, bytes) else json.dumps(fit | held).encode())
    assert COMMANDS[command]([f"fit={path}"]) == 2
    out, err = capsys.readouterr()
    dot = "" if said.startswith(".") else " "
    assert (out, err) == ("", f"{command}: fit={path}{dot}{said}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fit_that_is_not_there_is_told_likewise(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none" / "fit.json", tmp_path / "file" / "fit.json"):
        assert COMMANDS[command]([f"fit={path}"]) == 2
        remedy = f"run python -m analysis.fit runs=... out={path.parent}"
        assert capsys.readouterr().err == f"{command}: fit={path} does not exist; {remedy}\n"
    assert COMMANDS[command]([f"fit={tmp_path}"]) == 2
    remedy = f"give the fit in it, fit={tmp_path / 'fit.json'}"
    assert capsys.readouterr().err == f"{command}: fit={tmp_path} is a folder: {remedy}\n"

    def refused(path: Path, *_: object) -> str:
        raise PermissionError(EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refused)  # a superuser may read everything
    assert COMMANDS[command](["fit=fit.json"]) == 2
    remedy = "correct that, or give another fit="
    assert capsys.readouterr().err == f"{command}: fit=fit.json cannot be read: Permission denied; {remedy}\n"


def test_a_fit_of_another_form_is_named_without_a_traceback(
    fit: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fit.json"
    fit["record"] = {
        "approaches": [{"approach": "1 hull", "params": 1e6, "note": "early"}, {"approach": "3 surface", "params": 2e6}]
    }
    refused = 0
    for value in ([fit], None, 3, "x", *spoilt(fit, "fit", 300)):
        path.write_text(json.dumps(value), encoding="utf-8")
        code = main([f"fit={path}"])
        said = capsys.readouterr()
        assert code in (0, 2)
        if code == 2:
            refused += 1
            assert said.err.startswith(f"analysis.summary: fit={path}")
            assert said.err.count("\n") == 1 and not said.out
    assert refused > 100
