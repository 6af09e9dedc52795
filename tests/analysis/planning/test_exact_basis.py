"""What a plan of runs rests on: the law that was asked for or one that qualifies, and what is said of either."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.diagnostics import qualify
from analysis.fit import fit
from analysis.inference import inferred_law
from analysis.inputs.rows import from_csv
from analysis.laws.registry import FORMS
from analysis.plan import KEYS, Basis, from_frame, main, plan
from analysis.planning import advice, shapes
from analysis.results import as_fitted, load
from analysis.text import commandline
from analysis.text.commandline import UnansweredError
from analysis.values.blocks import Identified
from tests.analysis import studies


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Return the frame of a study whose smallest run failed."""
    table = studies.isoflop(3, noise=0.001).assign(flops_per_second=np.arange(20.0) * 1e12, study="ours")
    table.loc[0, "loss"] = np.nan
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    table.to_csv(path, index=False)
    return from_csv(path, params_kind="total")


@pytest.fixture
def lacks(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what laws lack by name, of least squares as `name, squared`; nothing is looked at besides."""
    said: dict[str, str] = {}

    def lacking(fit: Any, rows: Any, cuts: Any = None) -> str:
        del rows, cuts
        squared = fit.loss_function.lower().startswith("squared")
        return said.get(f"{fit.form.name}, squared" if squared else fit.form.name, "")

    monkeypatch.setattr(qualify, "lacking", lacking)
    monkeypatch.setattr(qualify, "reach", lambda cuts: 3.5)
    monkeypatch.setattr(advice, "elsewhere", lambda candidate, valleys: "")
    monkeypatch.setattr(advice, "valleys_lack", lambda found: said.get("valleys", ""))
    monkeypatch.setattr(inferred_law, "Verdicts", lambda fit: dict.fromkeys(fit.names, Identified(True)))
    return said


def basis(frame: pd.DataFrame, **asked: Any) -> Basis:
    return from_frame(frame, **{"resamples": 0, "beside": (), **asked})


def test_a_basis_of_runs(runs: pd.DataFrame, lacks: dict[str, str]) -> None:
    found = basis(runs)
    good = runs[runs["used"]]
    assert len(good) == 19
    assert found.form == "chinchilla"
    assert found.notes == ()
    assert found.law is not None and len(found.law) == 1
    at = np.log(1e6), np.log(1e8)
    want = studies.loss(tuple(found.constants[name] for name in FORMS["chinchilla"].names), 1e6, 1e8)
    assert found.law.loss(np.array([at[0]]), np.array([at[1]]))[0] == pytest.approx(want)
    assert found.sizes == (good["params"].min(), good["params"].max())
    assert found.largest == good["flops"].max()
    assert found.kinds == {"params": "total", "flops": "given", "loss": "nats per token"}
    assert (found.speed, found.tested, found.beside) == (10e12, 3.5, ())
    assert (found.source, basis(runs, label="runs/ours").source) == ("ours", "runs/ours")
    best = plan(runs, 1e15, resamples=0, beside=()).options[0]
    assert best.loss < good["loss"].min()
    assert best.shapes == shapes.propose(best.params, "total", 50_000)
    assert basis(runs.drop(columns="flops_per_second")).speed is None
    assert basis(runs.assign(flops_per_second=np.nan)).speed is None


def test_resamples_have_a_seed(runs: pd.DataFrame, lacks: dict[str, str]) -> None:
    drawn = [basis(runs, resamples=20, seed=seed, form=form) for form, seed in
             (("chinchilla", 0), ("chinchilla", 0), ("chinchilla", 1), ("chinchilla_tied", 0))]  # fmt: skip
    laws = [one.law for one in drawn if one.law is not None]
    assert [len(law) for law in laws] == [21, 21, 21, 21]
    losses = [law.loss(np.full(21, 14.0), np.full(21, 18.0)) for law in laws]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert (losses[0][1:] != losses[2][1:]).all()
    assert drawn[3].form == "chinchilla_tied"


def test_a_law_that_lacks_something_gives_way_to_the_valleys(runs: pd.DataFrame, lacks: dict[str, str]) -> None:
    """And to no other law: of few constants each is identified, because the law assumes the rest."""
    lacks["chinchilla"] = "flat"
    found = basis(runs, beside=("chinchilla", "chinchilla_tied"))
    assert found.rests_on_valleys and found.valleys is not None
    made = plan(runs, 1e15, resamples=0, beside=("chinchilla_tied",))
    best = found.valleys.propose(1e15)
    assert best is not None
    assert (made.form, made.options[0].params, made.options[0].tokens) == ("valleys", best.params, best.tokens)
    assert [option.name for option in made.options] == ["training-only"], "the others need a law of the loss"
    assert np.isnan(made.options[0].loss) or found.valleys.notes == ()
    assert made.notes[0].startswith("form=chinchilla does not qualify (flat): N* and D* are the valleys'")
    assert {one.form: one.lacking for one in made.other_laws} == {"chinchilla": "flat", "chinchilla_tied": ""}
    assert found.valleys.budget_of(best.params) == pytest.approx(1e15)
    assert "isoFLOP valleys" in made.law and "nats" not in str(made).splitlines()[0]
    asked = basis(runs, beside=("chinchilla_tied",), strict=False)
    assert asked.form == "chinchilla" and not asked.rests_on_valleys
    assert asked.notes[0] == "no advice: form=chinchilla does not qualify (flat)"
    assert [one.form for one in asked.beside] == ["chinchilla", "chinchilla_tied"]
    assert min(one.behind for one in asked.beside) == 0.0


def test_a_size_asked_for_sets_the_budget_of_the_valleys_too(
    runs: pd.DataFrame, lacks: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks["chinchilla"] = "flat"
    studies.isoflop(3, noise=0.001).to_csv(tmp_path / "a.csv", index=False)
    assert main([f"runs={tmp_path / 'a.csv'}", "resamples=0", "params_opt=2e6", "beside=none"]) == 0
    assert "parameters            2M" in capsys.readouterr().out.replace("2.00M", "2M")


def test_where_neither_may_be_advised_each_says_why(runs: pd.DataFrame, lacks: dict[str, str]) -> None:
    lacks |= {"chinchilla": "flat", "valleys": "two fix any"}
    with pytest.raises(UnansweredError) as raised:
        basis(runs, beside=("chinchilla_tied",))
    assert str(raised.value) == (
        "no recommendation: form=chinchilla does not qualify (flat); the valleys do not qualify (two fix any). Finish "
        "or add runs, larger budgets first; strict=no plans with form=chinchilla anyway: an extrapolation, not a "
        "recommendation"
    )


def test_too_few_runs_for_the_law_are_no_wrong_argument(runs: pd.DataFrame) -> None:
    """The fit of the same runs ended with 3 and its reason, the plan with 2."""
    with pytest.raises(UnansweredError) as raised:
        basis(runs[runs["used"]].iloc[:4])
    assert "form=chinchilla does not qualify (it was not fitted: 4 runs of 4 sizes; 5 constants need" in str(
        raised.value
    )
    assert "strict=no" not in str(raised.value), "there is no law to plan with"


@pytest.mark.parametrize(("losses", "why"), [("accuracies", "these look like accuracies"), ("perplexities", "perplex")])
def test_where_the_losses_are_none_that_is_why_no_law_qualifies(
    runs: pd.DataFrame, lacks: dict[str, str], losses: str, why: str
) -> None:
    lacks["chinchilla"] = "flat"
    wrong = 1 - runs["loss"] / 10 if losses == "accuracies" else np.exp(runs["loss"])
    with pytest.raises(UnansweredError) as raised:
        basis(runs.assign(loss=wrong))
    said = str(raised.value)
    assert said.startswith("no recommendation: ") and why in said
    assert "flat" not in said and "Add runs" not in said
    assert ("See not_a_loss: map the column" if losses == "accuracies" else "See perplexity: give their") in said


@pytest.fixture
def ladder(tmp_path: Path) -> tuple[pd.DataFrame, str]:
    """Return the frame of one run a size at 20 tokens per parameter, and what is typed for its law of compute."""
    params = np.geomspace(1e7, 1e9, 8)
    table = pd.DataFrame({"N": params, "D": 20 * params, "loss": 1.8 + 500 / params**0.35})
    table.to_csv(tmp_path / "a b.csv", index=False)
    words = [f"runs={tmp_path / 'a b.csv'}", "columns=params:N,tokens:D", "flop_rule=6ND"]
    loaded = load.load(commandline.parse(words, load.KEYS))
    return loaded, f"alone (python -m analysis.fit {shlex.join(words)} form=compute)"


def test_a_plan_of_a_ladder_is_told_of_the_law_of_compute(
    ladder: tuple[pd.DataFrame, str], lacks: dict[str, str]
) -> None:
    lacks |= {"chinchilla": "flat", "valleys": "none"}
    with pytest.raises(UnansweredError) as raised:
        basis(ladder[0])
    assert "All runs have about 20 tokens per parameter" in str(raised.value)
    assert ladder[1] in str(raised.value)
    with pytest.raises(UnansweredError, match=r"alone \(form=compute\)"):
        basis(load.tidy(ladder[0].drop(columns=["used", "drop_code", "drop_reason"])))


def test_a_fit_of_a_ladder_is_told_of_the_law_of_compute(ladder: tuple[pd.DataFrame, str]) -> None:
    checks = fit(ladder[0], resamples=0, sensitivity=False).checks
    (found,) = [check for check in checks if check.code == "not_identified"]
    assert ladder[1] in found.advice


def test_what_is_not_identified_is_said(
    runs: pd.DataFrame, lacks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = {name: Identified(name not in {"A", "alpha"}) for name in (*FORMS["chinchilla"].names, "a", "b")}
    monkeypatch.setattr(inferred_law, "Verdicts", lambda fit: verdicts)
    assert basis(runs).notes == ("the runs do not identify A, alpha: intervals are lower bounds",)


def test_laws_of_many_constants_need_three_runs_more(runs: pd.DataFrame, lacks: dict[str, str]) -> None:
    """Of farseer's nine constants."""
    few = runs[runs["used"]]
    names = ("farseer",)
    assert len(FORMS["farseer"].names) == 9
    assert [one.form for one in basis(few.iloc[:12], beside=names).beside] == ["chinchilla", "farseer"]
    assert [one.form for one in basis(few.iloc[:11], beside=names).beside] == ["chinchilla"]
    assert [one.form for one in basis(few, beside=("precision",)).beside] == ["chinchilla"], "runs without bits"


def test_findings_that_a_reader_has_to_know_are_notes(runs: pd.DataFrame, lacks: dict[str, str]) -> None:
    """Of nine runs there are four degrees of freedom; that they are of few sizes concerns intervals alone."""
    assert basis(runs[runs["used"]].iloc[:9]).notes == (
        "4 residual degrees of freedom: 9 rows for 5 constants (add runs; treat every interval as a lower bound)",
    )


def test_the_command_and_the_function_have_the_same_defaults() -> None:
    keys = {key.name: key.default for key in KEYS}
    asked = {name: p.default for name, p in inspect.signature(plan).parameters.items()}
    assert (keys["form"], asked["form"]) == (as_fitted.USUAL["form"], None), (
        "that of a fit that is given, else the same"
    )
    for name in ("overtrain", "inference_tokens", "unique_tokens", "resamples", "seed", "strict"):
        assert keys[name] == asked[name], name
    of_frame = inspect.signature(from_frame).parameters
    assert {name: of_frame[name].default for name in ("resamples", "seed", "strict")} == {
        "resamples": 1000, "seed": 0, "strict": True,
    }  # fmt: skip
    assert (keys["resamples"], keys["seed"], keys["overtrain"], keys["strict"]) == (1000, 0, 4.0, True)
    assert keys["vocabulary"] == 50_000
    assert keys["beside"] == ",".join(asked["beside"])


def test_the_command_compares_with_the_laws_that_are_named(
    runs: pd.DataFrame, lacks: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    studies.isoflop(3, noise=0.001).to_csv(tmp_path / "a.csv", index=False)
    given = [f"runs={tmp_path / 'a.csv'}", "resamples=0"]
    assert main([*given, "beside=none"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[1] == "budget    1.3e14 FLOPs, 10x the largest run"
    assert "other laws" not in said
    assert main([*given, "beside=chinchilla_tied", "budget=1e14"]) == 0
    assert "\n  chinchilla_tied " in capsys.readouterr().out
