"""What of a fit the study's own run in MLflow shows."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study.storage.secrets import redactor
from study.tracking.facts import Facts
from study.tracking.law import backtest, formula, law_metrics, table
from study.tracking.mapping import corpora
from study.tracking.study_note import Row, Study, headline, note, run_note, totals
from study.tracking.syncer import Syncer
from tests.study.support.fake_store import FakeStore
from tests.study.support.made import Made, append, complete, make_study, start_run

FIT: dict[str, Any] = {
    "form": "E + A/N^alpha + B/D^beta",
    "status": "ok",
    "params": {"E": 2.2506036797, "A": 265.0, "B": 15.0, "alpha": 0.88433, "beta": 0.33363},
    "derived": {"a": 0.27392, "b": math.nan},
    "intervals": {"E": [2.1, 2.45], "A": [6.4, None]},
    "identified": {"B": {"identified": False, "side": "upper", "limit": 20.0}},
    "confidence": 0.95,
    "runs": {"used": 11, "total": 12},
    "recommendation": {
        "budget_flops": 3.2e11,
        "params": 20427.0,
        "tokens": 1.64e6,
        "intervals": {"params": [1e4, 3e4]},
    },
    "backtest": {"relative_error": 0.018, "held_out_budget": 1.6e10},
    "checks": [
        {"level": "warning", "message": "few sizes", "advice": "add some"},
        {"level": "note", "message": "fine", "advice": ""},
    ],
}
NO_LAW: list[dict[str, Any]] = [{}, {"status": "not possible", "reason": "two"}, {"params": {"a": 0.5}, "checks": None}]


def test_constants_optimum_and_backtest_with_intervals_are_metrics() -> None:
    assert law_metrics(FIT) == {
        "law/runs_used": 11,
        "law/runs_total": 12,
        "law/E": 2.2506,
        "law/E_low": 2.1,
        "law/E_high": 2.45,
        "law/A": 265,
        "law/A_low": 6.4,
        "law/alpha": 0.88433,
        "law/beta": 0.33363,
        "law/a": 0.27392,
        "optimum/flops": 3.2e11,
        "optimum/params": 20427,
        "optimum/params_low": 1e4,
        "optimum/params_high": 3e4,
        "optimum/tokens": 1.64e6,
        "backtest/relative_error": 0.018,
    }
    assert ("E", "2.25", "2.10 to 2.45") in table(FIT)
    assert ("A", "265", "at least 6.40") in table(FIT)
    assert ("B", "not identified", "at most 20.0") in table(FIT), "what is not known is said, with what is"
    assert [row[0] for row in table(FIT)][:5] == ["E", "A", "B", "alpha", "beta"], "unknown ones in their place"
    assert ("next run: parameters N\\*", "20.4K", "10.0K to 30.0K") in table(FIT), "as the report writes them"
    assert ("backtest: error", "+1.8 %", "") in table(FIT)
    assert table({"params": {"E": math.nan}, "identified": {"E": {"identified": False}}}) == []


@pytest.mark.parametrize("fit", NO_LAW)
def test_a_fit_without_a_law_says_what_it_has(fit: dict[str, Any]) -> None:
    assert set(law_metrics(fit)) <= {"law/a"}
    assert formula(fit) == ""
    assert note(Study("1", "p", [], "2 completed", fit)).startswith("**Law**: ")
    assert backtest(fit) == ""


def test_the_error_of_another_law_is_never_the_formula_s() -> None:
    fit = FIT | {"backtest": {**FIT["backtest"], "approach": "valleys"}}
    assert backtest(fit) == "backtest of the frontier 1.8 % too high at 1.6e10 FLOPs"
    assert headline(Study("7", "p", [], "2 completed", fit)).startswith("L = 2.25 + 265/N^0.884 + B/D^0.334 — [")
    own = FIT | {"backtest": {**FIT["backtest"], "approach": "law"}}
    assert backtest(own) == "backtest 1.8 % too high at 1.6e10 FLOPs"
    assert "(backtest +1.8 %)" in headline(Study("7", "p", [], "2 completed", own))


def test_the_formula_has_its_numbers() -> None:
    assert formula(FIT | {"identified": {}}) == "L = 2.25 + 265/N^0.884 + 15.0/D^0.334"
    assert formula(FIT) == "L = 2.25 + 265/N^0.884 + B/D^0.334", "what is not known stays a letter"


def test_the_description_has_the_law_the_best_run_of_each_budget_and_the_cost() -> None:
    rows = [
        Row("w8", "r1", 4e9, {"final_loss": 2.7, "gpu_hours": 1.5, "flops": 1e9, "params_matmul": 4104.0}),
        Row("w16", "r2", 4e9, {"final_loss": 2.6, "gpu_hours": 0.5, "flops": 1e9}),
        Row("w32", "r3", 8e9, {"final_loss": 2.5}),
        Row("w64", "r4", 8e9, {}),
    ]
    assert totals(rows) == {"gpu_hours": 2.0, "flops": 2e9, "best_loss": 2.5}
    text = note(Study("7", "p", rows, "4 completed", FIT))
    first, second, *_ = text.split("\n\n")
    assert first == (
        "**Law**: L = 2.25 + 265/N^0.884 + B/D^0.334 · backtest 1.8 % too high at 1.6e10 FLOPs"
        " · train next: 20.4K parameters on 1.64M tokens for 3.2e11 FLOPs"
    )
    assert second == "**Cost**: 2.00 GPU-hours, 2e9 FLOPs · **Points**: 4 completed"
    assert "| E | 2.25 | 2.10 to 2.45 |" in text
    assert "| 4e9 | [w16](#/experiments/7/runs/r2?workflowType=machine_learning) | 2.6 |" in text
    assert "| 8e9 | [w32](" in text
    assert "w8" not in text
    heads = ("**Best runs**", "| E |", "**What the fit warns of**")
    assert [text.index(head) for head in heads] == sorted(text.index(head) for head in heads)
    assert "Went wrong" not in text
    assert "- Few sizes. Add some." in text
    assert "fine" not in text
    many = [{"level": "warning", "message": f"w{i}", "advice": "x"} for i in range(25)]
    many.append({"level": "error", "message": "no answer", "advice": "add runs"})
    many.append({"level": "error", "message": "copies", "advice": "where= leaves them out"})
    text = note(Study("7", "p", rows, "4 completed", {**FIT, "checks": many}))
    assert text.index("- No answer. Add runs.") < text.index("- W0. X."), "errors first, however many warnings"
    assert "- Copies. where= leaves them out.\n" in text, "an option stays as it is typed"
    assert "- … and 7 more, in the report" in text


def test_the_description_says_which_data_and_which_code() -> None:
    configs = [{"data": {"name": name, "fingerprint": f"{name}12"}} for name in ("code", "code", "text", "none")]
    configs[-1]["data"].pop("fingerprint")
    data = corpora(configs, str)
    assert [one.digest for one in data] == ["code12", "text12"], "each once, and what has no digest not at all"
    made = Study("7", "p", [], "4 completed", FIT, data=data, code="1f32ef5b7050-clean")
    said = f"**Data**: {data[0].name} (code12), {data[1].name} (text12) · **Code**: 1f32ef5b7050"
    assert note(made).split("\n\n")[2] == said, "among the lines that MLflow shows without Show more"
    assert "(code12), 2 more · " in note(replace(made, data=[data[0]] * 5)).replace(f"{data[0].name} (code12), ", "", 2)
    changed = note(replace(made, data=(), code="1f32ef5b7050-8a7b6c"))
    assert "\n\n**Code**: 1f32ef5b7050 with uncommitted changes (patch 8a7b6c)\n\n" in changed
    assert "**Code**" not in note(replace(made, code=""))


def test_the_line_above_the_table_has_the_result_and_the_ways_to_all_pages() -> None:
    rows = [Row("w8", "r1", 4e9, {"final_loss": 2.7, "core_hours": 1.5})]
    line = headline(Study("7", "p", rows, "1 completed", FIT, report=True)).splitlines()[0]
    assert line.startswith("L = 2.25 + 265/N^0.884 + B/D^0.334 (backtest +1.8 %) — [Runs](#/experiments/7/runs?view")
    assert "[Report](#/experiments/7/runs/p/artifacts/report/report.html?workflowType=machine_learning) — Best" in line
    assert line.endswith(" — Best loss 2.7, 1 completed — 1.50 core-hours")
    unfit = headline(Study("7", "p", rows, "1 completed")).splitlines()[0]
    assert unfit.startswith("Best loss 2.7, 1 completed — [Runs](") and unfit.endswith(" — 1.50 core-hours")
    without = headline(Study("7", "p", [], "2 pending")).splitlines()[0]
    assert without.startswith("2 pending — [Runs](") and "Report" not in without and "Law" not in without


def test_what_the_line_begins_with_fits_beside_mlflows_assistant() -> None:
    """MLflow cuts the line off: at 1400 pixels with the assistant open after some 90 letters."""
    rows = [Row("w8", "r1", 4e9, {"final_loss": 2.2507, "core_hours": 1.5})]
    fit = FIT | {"identified": {}}
    for states, whole in (("20 completed", 142), ("19 completed, 1 diverged", 152)):
        line = re.sub(r"\[(\w+)\]\([^)]*\)", r"\1", headline(Study("7", "p", rows, states, fit, report=True)))
        shown = line.splitlines()[0]
        assert len(shown.partition(" — Best loss")[0]) <= 95, "law, backtest and ways"
        assert len(shown) <= whole


def test_what_a_run_takes_over_from_another_counts_once() -> None:
    """A member of a population goes on from another one's checkpoint: that one has what came before in its totals."""
    trunk = {"tokens": 1000.0, "flops": 1e9, "core_hours": 1.0}
    copy = {"tokens": 3000.0, "flops": 3e9, "core_hours": 2.0}
    rows = [Row("trunk", "r1", None, trunk), Row("copy", "r2", None, copy, begun=1000)]
    assert totals(rows) == {"tokens": 3000.0, "flops": 3e9, "core_hours": 3.0}


def test_a_run_says_what_it_reached_and_why_it_went_wrong() -> None:
    found = {"final_loss": 2.5, "best_loss": 2.5, "params_matmul": 4104.0, "tokens": 2e6, "flops": 8e10}
    good = run_note(Facts("completed"), found, {})
    assert good.startswith("**completed** · final loss **2.5** · 4.10K matmul parameters · 2.00M tokens · 8e10 FLOPs\n")
    bad = Facts("failed", why="exit code 1", error="Traceback\nValueError: boom")
    text = run_note(bad, {"best_loss": 3.1}, {"trial": "4", "rung": "2000"})
    assert text.startswith("**failed** · trial 4, rung 2000 · best loss **3.1**\n\nexit code 1\n\n")
    assert "    Traceback\n    ValueError: boom\n" in text
    gone = {"step": 17, "health": {"skipped_steps": 5, "spikes": 0}}
    text = run_note(Facts("diverged", outcome=gone), {}, {})
    assert "\n\nAt step 17, after 5 steps skipped because loss or gradient norm was not finite\n\n" in text
    assert run_note(bad, {}, {}, {"stderr.txt": "#/x"}).startswith("**failed** · [stderr.txt](#/x)\n\nexit")
    wrong = note(Study("7", "p", [Row("w8", "r9", None, {}, "failed")], "1 failed"))
    assert "**Went wrong**: [w8](#/experiments/7/runs/r9?workflowType=machine_learning) failed" in wrong


def finished(path: Path) -> tuple[Made, Path]:
    made = make_study(path / "runs" / "s", 2)
    for index in (0, 1):
        start_run(made.run(index))
        append(made.run(index), 1, 5)
        complete(made.run(index))
    fit = path / "reports" / "s" / "fit.json"
    fit.parent.mkdir(parents=True)
    return made, fit


def test_the_studys_own_run_follows_the_fit(tmp_path: Path) -> None:
    """A later fit that knows less takes back what it does not know; a description that a person wrote stays."""
    made, fit = finished(tmp_path)
    store = FakeStore()
    one = Syncer(made.folder, store, "http://h", redactor({}))

    def shown() -> dict[str, float]:
        one.sync()
        parent = next(run for run in store.runs.values() if run.tags["role"] == "study")
        latest = sorted(parent.values, key=lambda value: (value.step, value.timestamp))
        return {value.name: value.value for value in latest}

    assert set(shown()) == {"core_hours", "flops", "tokens", "best_loss"}
    assert shown()["flops"] == 2 * 123456789
    fit.write_text(json.dumps(FIT))
    assert law_metrics(FIT).items() <= shown().items()
    parent = next(run for run in store.runs.values() if run.tags["role"] == "study")
    assert parent.tags["law/form"] == FIT["form"]
    assert "**Law**: L = 2.25" in parent.tags["mlflow.note.content"]
    assert store.described["mlflow.note.content"].startswith("L = 2.25")
    assert "viewStateShareKey=study&" in store.described["mlflow.note.content"], "a link is not taken for a secret"
    assert "Report" not in parent.tags["mlflow.note.content"]
    (fit.parent / "report.html").write_text("<p>report")
    one.sync()
    assert "[Report](#/experiments/x-s/runs/" in store.described["mlflow.note.content"]
    assert "[Report](#/experiments/x-s/runs/" in parent.tags["mlflow.note.content"]

    calls = store.calls
    one.sync()
    assert store.calls == calls, "nothing new, nothing said"
    parent.tags["mlflow.note.content"] = "mine"
    fit.write_text(json.dumps({**FIT, "params": {"E": 2.0}, "padding": "so that the file differs in size"}))
    found = shown()
    assert found["law/E"] == 2.0
    assert math.isnan(found["law/alpha"])
    assert parent.tags["mlflow.note.content"] == "mine"
