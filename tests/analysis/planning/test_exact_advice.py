"""What may be advised, by its parts: the law, the valleys, neither, and the reason; the same for every command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis as sa
from analysis.approaches.cost import Cost
from analysis.approaches.loss_laws import Closed
from analysis.diagnostics import qualify
from analysis.fit import main as fit_command
from analysis.inference.fit_law import fit_law
from analysis.inputs import frame
from analysis.laws.registry import FORMS
from analysis.plan import main as plan_command
from analysis.planning import advice
from analysis.planning.advice import Advice, Candidate, Judged
from analysis.text import commandline
from analysis.values.blocks import Identified
from analysis.values.findings import finding
from tests.analysis import studies
from tests.analysis.planning.test_exact_recommend import LAW, ROWS, of_valleys, power, valley

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("said", "follows", "why"),
    [
        (("", ""), "law", ""),
        (("", "two"), "law", ""),
        (("flat", ""), "valleys", "form=x does not qualify (flat)"),
        (("flat", "two"), "", "form=x does not qualify (flat); the valleys do not qualify (two)"),
        (("", "", "cure", "no loss"), "", "no loss"),
        (("flat", "", "cure", "no loss"), "", "no loss"),
        (("", "", "cure", "", "valleys"), "valleys", ""),
        (("flat", "", "cure", "", "valleys"), "valleys", ""),
        (("flat", "two", "cure", "", "valleys"), "", "the valleys do not qualify (two)"),
        (("", "two", "cure", "", "law"), "law", ""),
        (("flat", "", "cure", "", "law"), "", "form=x does not qualify (flat)"),
    ],
)
def test_the_law_is_followed_else_the_valleys_else_nothing(said: tuple[str, ...], follows: str, why: str) -> None:
    found = Advice("x", *said, *(("cure",) if len(said) == 2 else ()))
    assert (found.follows, found.why) == (follows, why)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, ""),
        ({"exponents": False}, "nothing there"),
        ({"df": 0}, "3 valleys with a minimum, and two fix any power law"),
        ({"known": False}, "a is not identified: "),
        ({"known": False, "draws": 0}, ""),
    ],
)
def test_valleys_need_no_floor_but_exponents_and_a_third_minimum(given: dict[str, Any], why: str) -> None:
    assert advice.valleys_lack(of_valleys(**given)) == why


@pytest.mark.parametrize(("last", "why"), [(2.0, ""), (1.9, "the largest minimum is 1.9\u00d7 beyond the second")])
def test_valleys_that_lie_close_test_no_extrapolation(last: float, why: str) -> None:
    near = replace(of_valleys(), flops=np.array([last * 1e18, 0.9e18, 1e18]))
    assert advice.valleys_lack(near).endswith(why)
    assert bool(advice.valleys_lack(near)) == bool(why)


def test_an_envelope_needs_exponents_of_three_curves() -> None:
    laws = {"params": power(0.5, 1e8), "tokens": power(0.5, 1e9)}
    assert advice.envelope_lacks(laws, True) == ""
    wide = laws | {"tokens": replace(laws["tokens"], exponent_interval=(0.05, 0.99))}
    assert advice.envelope_lacks(wide, True) == "b is not identified: the interval of b covers most of 0 to 1"
    assert advice.envelope_lacks(wide, False) == ""
    assert "two curves" in advice.envelope_lacks(laws | {"params": power(0.5, 1e8, 0)}, True)


def candidate(law: Any = LAW, draws: Any = ()) -> Candidate:
    sizes = (float(ROWS.params.min()), float(ROWS.params.max()))
    constants = np.array([law, *draws])
    return Candidate(fit_law(ROWS, resamples=0), Closed(constants), Cost.six(), sizes)


def test_a_law_lacks_what_its_fit_lacks_or_a_best_size_where_the_runs_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert advice.law_lacks(candidate(), ROWS, of_valleys()) == ""
    far = of_valleys(minima=(valley(1e19, 1.0, (0.9, 1.1)),))
    assert advice.law_lacks(candidate(), ROWS, far).startswith("it puts the best size of 1e19 FLOPs at ")
    kaplan = replace(candidate(), fit=fit_law(ROWS, "kaplan", resamples=0))
    assert FORMS["kaplan"].inputs[0] == "params" and advice.elsewhere(kaplan, far)
    monkeypatch.setattr(qualify, "lacking", lambda fit, rows, cuts: f"flat {cuts}")
    assert advice.law_lacks(candidate(), ROWS, far, ()) == "flat ()"


def test_at_a_budget_without_a_best_size_the_valleys_are_followed() -> None:
    none = (1.7, 0.0, 900.0, 0.34, 0.28)
    judged = Judged(Advice("chinchilla", "", "", "add runs"), candidate(none))
    assert judged.at_all.follows == "law"
    assert judged.at(1e21).follows == "valleys"
    assert judged.at(1e21).law == "it has no best size for 1e21 FLOPs near the sizes swept"
    open_ = Judged(Advice("chinchilla", "", "two", "add runs"), candidate(draws=[none, LAW, LAW]))
    assert (open_.at(1e21).follows, open_.at(1e21).law[:46]) == ("", "more than one in twenty of its resamples have ")
    assert replace(judged, at_all=replace(judged.at_all, only="valleys")).at(1e21).law == "", (
        "what was not asked for is not worked out"
    )


def test_rows_that_are_no_losses_let_nothing_be_advised() -> None:
    wrong = finding("not_a_loss", "these look like accuracies", "map the column of the loss")
    table = pd.DataFrame({"used": [True] * len(ROWS)})
    found = advice.judge(table, ROWS, "chinchilla", candidate(), of_valleys(), checks=(wrong,))
    assert (found.at_all.follows, found.at_all.why) == ("", "these look like accuracies")
    assert found.at_all.cure == "see not_a_loss: map the column of the loss"
    fine = advice.judge(table, ROWS, "chinchilla", "it was not fitted: few", of_valleys(), checks=())
    assert (fine.at(1e21).follows, fine.at_all.cure) == ("valleys", "finish or add runs, larger budgets first")


def test_a_frontier_says_a_loss_where_it_has_a_floor_that_is_known() -> None:
    from tests.analysis.planning.test_exact_recommend import FRONTIER

    assert advice.frontier_known(FRONTIER.block)
    assert not advice.frontier_known(replace(FRONTIER.block, form=FORMS["frontier_no_floor"].text))
    assert not advice.frontier_known(replace(FRONTIER.block, identified={"L_inf": Identified(False, "on its bound")}))


def untested() -> pd.DataFrame:
    """Return a study whose loss has no floor to be seen, at budgets too close for a backtest."""
    return studies.isoflop(5, noise=0.004, law=(0.02, 8.0, 20.0, 0.15, 0.15), budgets=(1e12, 1.15e12, 1.3e12))


def wide() -> pd.DataFrame:
    return studies.isoflop(1, noise=0.003)


STUDIES: dict[str, Callable[[], pd.DataFrame]] = {
    "wide": wide,
    "untested": untested,
    "early": lambda: pd.read_csv(DATA / "early_training.csv"),
}


@pytest.mark.parametrize(("name", "follows"), [("wide", "surface"), ("untested", ""), ("early", "valleys")])
@pytest.mark.parametrize("form", ["chinchilla", "chinchilla_tied"])
def test_fit_plan_next_and_a_notebook_advise_the_same_or_refuse_for_the_same_reason(
    name: str, follows: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fit` recommended a size where E lay on its bound and no backtest could be made; `plan` refused the same law."""
    STUDIES[name]().to_csv(tmp_path / "t.csv", index=False)
    asked = [f"runs={tmp_path / 't.csv'}", f"form={form}", "resamples=60"]
    codes = (
        fit_command([*asked, "report=no", "sensitivity=no", f"out={tmp_path / 'out'}"]),
        plan_command([*asked, "beside=none", f"out={tmp_path / 'out'}"]),
    )
    printed = capsys.readouterr()
    runs = sa.load(tmp_path / "t.csv")
    fit = sa.fit(runs, form=form, resamples=60, sensitivity=False)
    one = fit.recommendation
    proposed = sa.next_runs(runs, form=form, count=1)
    if not follows:
        why = next(check.message for check in fit.checks if check.code == "no_recommendation")
        assert codes == (commandline.UNANSWERED, commandline.UNANSWERED)
        assert one is None and "does not qualify (" in why
        assert f"no recommendation: {why}. Finish or add runs" in printed.err and why in printed.out
        assert proposed.unadvised.startswith(f"form={form} does not qualify (")
        with pytest.raises(ValueError, match="these runs give no best size for 1e13 FLOPs: form="):
            fit.optimum(1e13)
        return
    assert codes == (0, 0) and one is not None
    assert one.approach == (follows if form == "chinchilla" or follows == "valleys" else "law")
    plan = sa.plan(runs, one.budget_flops, form=form, resamples=60, beside=())
    first, optimum = plan.options[0], fit.optimum(one.budget_flops)
    assert plan.form == ("valleys" if follows == "valleys" else form)
    assert first.params == pytest.approx(one.params, rel=1e-9) and optimum.params == pytest.approx(one.params, rel=1e-9)
    assert first.intervals["params"] == pytest.approx(one.intervals["params"], rel=1e-9)
    assert (one.loss is None) == (not np.isfinite(first.loss)) == (follows == "valleys")
    assert bool(proposed.unadvised) == (follows == "valleys")


def test_approach_2_alone_is_judged_too(tmp_path: Path) -> None:
    """Two minima fix a power law whatever they are: asked for alone, they were recommended all the same."""
    two = studies.isoflop(0, noise=0.002, budgets=(1e12, 1e13))
    found = sa.fit(two, approach="2", resamples=40, sensitivity=False)
    (said,) = [check for check in found.checks if check.code == "no_recommendation"]
    assert found.recommendation is None
    assert said.message == "the valleys do not qualify (2 valleys with a minimum, and two fix any power law)"


def test_a_plan_has_the_budget_of_a_fit_where_none_is_given() -> None:
    table = frame.from_csv(Path("docs/example-runs.csv"))
    found = sa.fit(table, resamples=0, sensitivity=False).recommendation
    from analysis.planning.basis import from_frame

    basis = from_frame(table, resamples=0, beside=())
    assert found is not None and basis.top is not None
    assert found.budget_flops == 10.0 * basis.top
