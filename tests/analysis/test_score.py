"""A fit is scored on runs that it has not seen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import score
from analysis.fit import main as fit_command
from analysis.inputs.rows import from_csv
from analysis.results import load, predicted
from analysis.values import study_result
from tests.analysis import studies


def test_unseen_runs_are_foreseen_and_seen_ones_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budgets = (4e11, 1.2e12, 4e12, 1.3e13, 4e13)
    every = studies.isoflop(0, noise=0.001, budgets=budgets)
    every[every["flops"] < 2e13].to_csv(tmp_path / "seen.csv", index=False)
    every.to_csv(tmp_path / "all.csv", index=False)
    asked = [f"runs={tmp_path / 'seen.csv'}", f"out={tmp_path}", "resamples=20", "report=no", "sensitivity=no"]
    assert fit_command(asked) == 0
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


def test_losses_per_token_of_another_corpus_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = studies.isoflop(0, noise=0.001, budgets=(4e11, 1.2e12, 4e12, 1.3e13)).assign(fingerprint="aaa")
    every[every["flops"] < 1e13].to_csv(tmp_path / "seen.csv", index=False)
    largest = every[every["flops"] > 1e13]
    largest.to_csv(tmp_path / "same.csv", index=False)
    largest.assign(fingerprint="bbb").to_csv(tmp_path / "other.csv", index=False)
    asked = [f"runs={tmp_path / 'seen.csv'}", f"out={tmp_path}", "resamples=20", "report=no", "sensitivity=no"]
    assert fit_command(asked) == 0
    capsys.readouterr()
    for name, said in (("same", False), ("other", True)):
        assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / name}.csv"]) == 0
        assert ("fingerprint is aaa in the fit and bbb here" in capsys.readouterr().out) == said


def test_what_cannot_be_scored_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = studies.isoflop(0, noise=0.001)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert (
        fit_command([f"runs={tmp_path / 't.csv'}", f"out={tmp_path}", "resamples=0", "report=no", "sensitivity=no"])
        == 0
    )
    assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 't.csv'}"]) == 2
    assert "the fit has seen all of them" in capsys.readouterr().err
    pd.concat([table, table.assign(loss=3.0)]).to_csv(tmp_path / "b.csv", index=False)
    given = [f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 'b.csv'}", "loss_unit=bits per byte"]
    assert score.main(given) == 2
    assert "give loss_unit=nats per token" in capsys.readouterr().err
    assert score.main(["fit=/nowhere/fit.json", f"runs={tmp_path / 't.csv'}"]) == 2
    table.assign(loss=math.nan).to_csv(tmp_path / "n.csv", index=False)
    capsys.readouterr()
    assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 'n.csv'}"]) == 2
    assert "there is no finished run to score (" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 200_000])
def test_a_file_that_holds_no_fit_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fit.json").write_bytes(content)
    assert score.main([f"fit={tmp_path / 'fit.json'}", "runs=docs/example-runs.csv"]) == 2
    assert f"fit={tmp_path / 'fit.json'} is no fit.json (" in capsys.readouterr().err


COLUMNS = {"params": 1e6, "tokens": 2e7, "params_kind": "total", "loss_unit": "nats per token", "used": True}


def rows(*runs: tuple[str, float, float]) -> pd.DataFrame:
    """Runs by key, FLOPs and loss."""
    return pd.DataFrame([{**COLUMNS, "key": key, "flops": flops, "loss": loss} for key, flops, loss in runs])


def foreseeing(monkeypatch: pytest.MonkeyPatch, largest: float | None = 1e18, kind: str = "total") -> Any:
    """A fit whose law gives 2 for every run, and nothing for runs called "none"."""
    monkeypatch.setattr(
        predicted,
        "with_prediction",
        lambda _, table: table.assign(predicted=np.where(table["key"] == "none", np.nan, 2.0)),
    )
    kinds = SimpleNamespace(params=kind, loss="nats per token")
    return SimpleNamespace(kinds=kinds, runs=SimpleNamespace(largest_flops=largest), record={})


def test_errors_are_those_of_the_unseen_runs_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    law = foreseeing(monkeypatch)
    table = rows(("a", 1e18, 2.5), ("b", 4e18, 1.6), ("none", 9e18, 1.0), ("c", 2e18, 2.0), ("out", 8e18, 1.0))
    table.loc[4, "used"] = False
    found = score.score(law, table)
    assert [(line.key, line.flops, line.observed) for line in found.lines] == [
        ("b", 4e18, 1.6), ("c", 2e18, 2.0), ("a", 1e18, 2.5),
    ]  # fmt: skip
    assert [line.relative_error for line in found.lines] == pytest.approx([0.25, 0.0, -0.2])
    assert found.mean_abs_relative_error == pytest.approx(0.15)
    assert found.mean_relative_error == pytest.approx(0.05 / 3)
    assert (found.worst, found.factor, found.seen) == pytest.approx((0.25, 4.0, 0))
    assert not found.one_sided
    assert score.score(law, rows(("a", 1e18, 1.6), ("b", 1e18, 4.0))).worst == pytest.approx(-0.5)
    assert math.isnan(score.score(foreseeing(monkeypatch, None), table).factor)


@pytest.mark.parametrize(
    ("losses", "one_sided"),
    [([1.9] * 4, False), ([1.9] * 5, True), ([2.1] * 5, True), ([1.9] * 5 + [2.1], False), ([1.9] * 4 + [2.0], False),
     ([2.1] * 4 + [2.0], False)],
)  # fmt: skip
def test_five_errors_of_one_sign_are_one_sided(
    monkeypatch: pytest.MonkeyPatch, losses: list[float], one_sided: bool
) -> None:
    table = rows(*((f"r{i}", 1e18 + i, loss) for i, loss in enumerate(losses)))
    assert score.score(foreseeing(monkeypatch), table).one_sided is one_sided


def test_rows_that_agree_with_a_fitted_one_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    law = foreseeing(monkeypatch)
    table = rows(("a", 1e18, 2.5), ("b", 4e18, 1.6))
    seen = rows(("x", 1e18, 2.5 * (1 + 1e-10)))
    assert [line.key for line in score.score(law, table, seen).lines] == ["b"]
    assert score.score(law, table, seen).seen == 1
    for column in ("params", "tokens", "loss"):
        other = seen.assign(**{column: 1.001 * seen[column]})
        assert score.score(law, table, other).seen == 0, "all three agree, or it is another run"
    assert score.score(law, table, seen.assign(used=False)).seen == 0
    with pytest.raises(ValueError, match="1 row to score and the fit has seen all of them"):
        score.score(law, table[:1], seen)
    with pytest.raises(ValueError, match="1 row to score and its law gives no loss for them"):
        score.score(law, rows(("none", 1e18, 2.5)))
    with pytest.raises(
        ValueError, match=r"no finished run to score \(2 missing\); the first: no loss. Wait for the study"
    ):
        score.score(law, table.assign(used=False, drop_code="missing", drop_reason="no loss"))


def test_other_kinds_are_refused_where_both_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(("a", 1e18, 2.5))
    with pytest.raises(ValueError, match="the fit has params=matmul and these runs total: give params=matmul"):
        score.score(foreseeing(monkeypatch, kind="matmul"), table)
    assert score.score(foreseeing(monkeypatch, kind="given"), table).lines
    assert score.score(foreseeing(monkeypatch, kind="matmul"), table.assign(params_kind="given")).lines


def test_a_score_reads_as_the_largest_runs_and_what_they_say_together(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [("a" * 20, 1e18, 1.6), ("b", 4e18, 1.25), ("c", 5e17, 1.6), ("d", 4e17, 1.6), ("e", 3e17, 1.6)]
    found = score.score(foreseeing(monkeypatch), rows(*runs))
    lines = score.text(found, "nats per token", 2).split("\n")
    assert [line.split() for line in lines[:4]] == [
        ["run", "params", "tokens", "FLOPs", "predicted", "observed", "error"],
        ["b", "1M", "20M", "4e18", "2.000", "1.250", "+60.00", "%"],
        ["a" * 16, "1M", "20M", "1e18", "2.000", "1.600", "+25.00", "%"],
        ["...", "and", "3", "smaller", "ones"],
    ]
    assert lines[4:] == [
        "",
        "unseen     5 runs in nats per token; up to 4x its largest run",
        "error      32 % on average, +60.00 % at worst",
        "bias       +32.00 % on average, all too high",
    ]
    assert "smaller" not in score.text(found, "nats per token", 5)
    low = score.score(foreseeing(monkeypatch, None), rows(*((f"r{i}", 1e18, 2.5) for i in range(5))), rows(*runs[:1]))
    said = score.text(replace(low, seen=3), "bits per byte", 9)
    assert "unseen     5 runs in bits per byte; 3 rows that the fit has seen left out\n" in said
    assert said.endswith("bias       -20.00 % on average, all too low")
    mixed = score.score(foreseeing(monkeypatch), rows(("a", 1e18, 1.6)))
    assert score.text(mixed, "", 9).endswith("bias       +25.00 % on average")


def test_the_command_says_the_score_and_writes_it_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path_factory.mktemp("table") / "runs.csv"
    told = rows(("a", 1e18, 1.6)).assign(params=1e8, tokens=1e10 / 6)
    told.drop(columns=["params_kind", "loss_unit", "used"]).to_csv(table, index=False)
    law = foreseeing(monkeypatch)
    law.form = "chinchilla"
    monkeypatch.setattr(study_result, "load", lambda path: law)
    monkeypatch.setattr(load, "load", lambda options: from_csv(table, params_kind="total"))
    given = {"fit": str(tmp_path / "fit.json"), "show": 20, "unique_tokens": None, "repeats": {}, "out": ""}
    assert score.act(given) == 0
    said = capsys.readouterr().out
    assert said.startswith("law        chinchilla\n\n  run ")
    assert "rows that the fit has seen could not be left out" in said and "wrote" not in said
    assert not list(tmp_path.iterdir())
    rows(("z", 1e18, 1.9)).to_csv(tmp_path / "runs.csv")
    for _ in range(2):
        assert score.act({**given, "out": str(tmp_path / "new" / "folder")}) == 0
    said = capsys.readouterr().out
    assert "could not be left out" not in said
    (written,) = (tmp_path / "new" / "folder").iterdir()
    assert f"wrote {written}" in said and written.name == "score.json"
    kept = json.loads(written.read_text())
    assert [line["key"] for line in kept["lines"]] == ["a"]
    assert written.read_text() == json.dumps(kept, indent=1) + "\n"


def test_repeated_text_wears_out_as_in_the_law_of_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """R_D without bound is text as if new; by hand: U = 1e8 read five times is worth U (1 + R (1 - exp(-4 / R)))."""
    every = studies.isoflop(0, noise=0.001, budgets=(4e11, 1.2e12, 4e12, 1.3e13))
    every[every["flops"] < 1e13].to_csv(tmp_path / "seen.csv", index=False)
    largest = every[every["flops"] > 1e13]
    largest.to_csv(tmp_path / "new.csv", index=False)
    asked = [f"runs={tmp_path / 'seen.csv'}", f"out={tmp_path}", "resamples=20", "report=no", "sensitivity=no"]
    assert fit_command(asked) == 0
    given = [f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 'new.csv'}", f"out={tmp_path}"]

    def losses(*keys: str) -> dict[float, tuple[float, float]]:
        assert score.main([*given, *keys]) == 0
        lines = json.loads((tmp_path / "score.json").read_text())["lines"]
        return {line["tokens"]: (line["params"], line["predicted"]) for line in lines}

    new = losses()
    unique = min(new) / 5.0
    few = losses(f"unique_tokens={unique}")
    assert all(few[tokens][1] > new[tokens][1] for tokens in new)
    endless = losses(f"unique_tokens={unique}", "repeats=R_D:1e9,R_N:1e9")
    assert all(endless[tokens][1] == pytest.approx(new[tokens][1], rel=1e-6) for tokens in new)
    law = study_result.load(tmp_path / "fit.json").params
    size, data, half = new[min(new)][0], min(new), 15.0
    worth = unique * (1.0 + half * -math.expm1(-4.0 / half))
    said = losses(f"unique_tokens={unique}", f"repeats=R_D:{half},R_N:1e9")[data][1]
    assert said == pytest.approx(law["E"] + law["A"] / size ** law["alpha"] + law["B"] / worth ** law["beta"], rel=1e-6)
    capsys.readouterr()
    for keys, cure in (
        (["repeats=R_D:2"], "give unique_tokens="), (["unique_tokens=1e6", "repeats=R_X:2"], "R_D and R_N"),
        (["unique_tokens=1e6", "repeats=R_D:0"], "above 0"),
    ):  # fmt: skip
        assert score.main([*given, *keys]) == 2
        assert cure in capsys.readouterr().err


def test_the_fits_own_rows_are_known_by_rounded_losses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounded to four decimals they were scored as runs that the fit had not seen."""
    every = studies.isoflop(0, noise=0.003)
    every.to_csv(tmp_path / "seen.csv", index=False)
    asked = [f"runs={tmp_path / 'seen.csv'}", f"out={tmp_path}", "resamples=0", "report=no", "sensitivity=no"]
    assert fit_command(asked) == 0
    larger = studies.isoflop(1, noise=0.003, budgets=(4e13,))
    both = pd.concat([every, larger])
    capsys.readouterr()
    for decimals in (3, 4, 6):
        both.assign(loss=both["loss"].round(decimals)).to_csv(tmp_path / "t.csv", index=False)
        assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 't.csv'}", f"out={tmp_path}"]) == 0
        said = capsys.readouterr().out
        assert "5 runs in nats per token; 20 rows that the fit has seen left out (20 with the loss to other" in said
        found = json.loads((tmp_path / "score.json").read_text())
        assert (len(found["lines"]), found["seen"], found["rounded"], found["perhaps_seen"]) == (5, 20, 20, 0)
    both.assign(loss=both["loss"].round(2)).to_csv(tmp_path / "t.csv", index=False)
    assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 't.csv'}"]) == 0
    said = capsys.readouterr().out
    assert "25 runs in nats per token; up to" in said
    assert "note       20 runs may have been fitted" in said
    every.assign(loss=every["loss"].round(4)).to_csv(tmp_path / "t.csv", index=False)
    assert score.main([f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 't.csv'}"]) == 2
    assert "the fit has seen all of them" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 6, 15])
def test_unseen_losses_in_bits_are_said(count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six alone are too few to be judged beside each other: they passed as nats without a word."""
    studies.isoflop(0, noise=0.003).to_csv(tmp_path / "seen.csv", index=False)
    asked = [f"runs={tmp_path / 'seen.csv'}", f"out={tmp_path}", "resamples=0", "report=no", "sensitivity=no"]
    assert fit_command(asked) == 0
    new = studies.isoflop(1, noise=0.003, budgets=(4e13, 1e14, 3e14)).iloc[:count]
    given = [f"fit={tmp_path / 'fit.json'}", f"runs={tmp_path / 't.csv'}"]
    several = f"{count} loss{'es are' if count > 1 else ' is'}"
    for loss, code, text in (
        (new["loss"], 0, "error "),
        (new["loss"] / np.log(2), 3, f"{several} 1.44 times what the law says (row{count} "),
        (np.exp(new["loss"]), 3, f"{several} as far above what the law says (row{count} "),
    ):
        new.assign(loss=loss).to_csv(tmp_path / "t.csv", index=False)
        capsys.readouterr()
        assert score.main(given) == code
        assert text in capsys.readouterr().out
