"""Every finding of a fit: its condition on both sides of its limit, its words and its level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.diagnostics import findings
from analysis.inputs.dataset import Rows, rows
from analysis.text import numbers
from analysis.values.blocks import NOT_DECAYED, Basin, Block, Clash, Dropped, Identified, Optimizer
from analysis.values.study_result import Backtest, BacktestRun, Choice, Proposal, Recommendation
from tests.analysis import studies
from tests.analysis.verdicts import UNIDENTIFIED


def runs(ratio: Any, budgets: Any = None) -> Rows:
    """Return runs of 6 N D times `ratio`, in these nominal budgets (one, if none)."""
    ratio = np.asarray(ratio, dtype=float)
    count = len(ratio)
    params, tokens = np.full(count, 1e6), np.full(count, 1e8)
    nominal = np.ones(count) if budgets is None else np.asarray(budgets, dtype=float)
    keys = tuple(f"r{i}" for i in range(count))
    return rows(keys, params=params, tokens=tokens, flops=6e14 * ratio, loss=np.full(count, 3.0), nominal=nominal)


def codes(found: Any) -> list[str]:
    return [check.code for check in found]


SIX = runs([1.0, 1.0, 1.0])


def test_rows_that_fit_have_no_finding() -> None:
    assert findings.data(SIX, []) == []


def test_points_that_never_started() -> None:
    (found,) = findings.data(SIX, [], waiting=2)
    assert (found.code, found.message) == ("not_started", "2 points of the study have not started")
    assert "fit again when they are done" in found.advice


def test_cells_that_cannot_be_used_are_named() -> None:
    codes_ = ("missing", "not_positive", "not_a_number", *("missing",) * 6)
    lost = [Dropped(f"k{i}", code, f"why {i}") for i, code in enumerate(codes_)]
    (found,) = [c for c in findings.data(SIX, [*lost[:8], Dropped("x", "failed", "")]) if c.code == "unusable_rows"]
    named = "; ".join(f"k{i}: why {i}" for i in range(8))
    assert found.message == f"8 rows cannot be used ({named})"
    (found,) = [c for c in findings.data(SIX, lost) if c.code == "unusable_rows"]
    assert found.message == f"9 rows cannot be used ({named}; ...)"
    (found,) = [c for c in findings.data(SIX, lost[:1]) if c.code == "unusable_rows"]
    assert found.message == "1 row cannot be used (k0: why 0)"


def test_rows_that_were_dropped_are_counted() -> None:
    lost = [Dropped("a", "failed", ""), Dropped("b", "mid_schedule", ""), Dropped("c", "failed", "")]
    first, second = findings.data(SIX, lost)
    assert (first.code, first.level) == ("rows_dropped", "note")
    assert first.message == "3 of 6 runs were not used (2 failed, 1 mid_schedule)"
    assert (second.code, second.level) == ("mid_schedule", "warning")
    assert second.message == "1 run had not finished its learning-rate schedule"
    assert codes(findings.data(SIX, [Dropped("a", "failed", "")])) == ["rows_dropped"]


def test_trunks_are_told_from_runs_that_did_not_finish() -> None:
    trunks = [Dropped(f"t{i}", "mid_schedule", NOT_DECAYED) for i in range(2)]
    _, found = findings.data(SIX, trunks)
    assert (found.code, found.level) == ("constant_rate", "note")
    assert found.message == "2 runs ended at a constant learning rate and are not used"
    assert found.advice.startswith("branches are used in place of their trunks")
    cut = [Dropped(f"c{i}", "mid_schedule", "the schedule was cut off") for i in range(3)]
    _, first, second = findings.data(SIX, [*cut, trunks[0]])
    assert (first.code, first.level) == ("mid_schedule", "warning")
    assert first.message == "3 runs had not finished their learning-rate schedule"
    assert second.message == "1 run ended at a constant learning rate and is not used"


@pytest.mark.parametrize(
    ("ratio", "rule", "words", "level"),
    [
        ([1.0, 1.049, 0.951], "given", "", ""),
        ([1.0, 1.051, 1.0], "given", "FLOPs differ from 6 N D by +0.0 to +5.1 %", "warning"),
        ([1.0, 0.949, 1.0], "6ND", "FLOPs differ from 6 N D by -5.1 to +0.0 %", "warning"),
        ([1.0, 1.2, 1.0], "", "FLOPs differ from 6 N D by +0.0 to +20.0 %", "warning"),
        ([1.3, 1.2, 1.1], "6*matmul", "FLOPs by 6*matmul differ from 6 N D by +10.0 to +30.0 %, as expected", "note"),
        ([30.0, 1.0, 1.0], "6*matmul", "FLOPs by 6*matmul differ", "note"),
        ([9.9, 1.0, 1.0], "given", "FLOPs differ from 6 N D", "warning"),
        ([10.1, 1.0, 1.0], "given", "FLOPs are 1 to 10.1 times 6 N D", "warning"),
        ([0.102, 1.0, 1.0], "given", "FLOPs differ from 6 N D", "warning"),
        ([0.099, 1.0, 1.0], "given", "FLOPs are 0.099 to 1 times 6 N D", "warning"),
    ],
)
def test_flops_beside_six_n_d(ratio: Any, rule: str, words: str, level: str) -> None:
    found = findings.data(runs(ratio), [], flop_rule=rule)
    assert codes(found) == ["flops_not_6nd"] * bool(words)
    for check in found:
        assert check.message.startswith(words)
        assert check.level == level
        units = "counts of parameters do not differ by that much" in check.advice
        assert units == ("times 6 N D" in words)
        assert ("cannot be compared" in check.advice) == (level == "note")


def test_runs_without_budgets() -> None:
    assert codes(findings.data(runs([1.0] * 4, [1e14, 1e14, 2e14, 2e14]), [])) == ["not_isoflop"]
    assert codes(findings.data(runs([1.0] * 5, [1e14, 1e14, 1e14, 2e14, 2e14]), [])) == []


LAW = dict(zip(("E", "A", "B", "alpha", "beta"), (1.7, 400.0, 900.0, 0.34, 0.30), strict=True))
STUDY = studies.as_rows(
    studies.isoflop(0, law=(1.7, 400.0, 900.0, 0.34, 0.30), noise=0.003, budgets=(1e17, 1e18, 1e19, 1e20))
)


def block(**changes: Any) -> Block:
    evidence = Optimizer("m", 8, 1.0, 1e-9, True, (Basin(0.0, 1.0, {}),))
    base = Block(
        form="", approach="surface", loss_function="", params=dict(LAW), optimizer=evidence,
        identified={name: Identified(True) for name in (*LAW, "a", "b")},
    )  # fmt: skip
    return replace(base, **changes)


def evidence(**changes: Any) -> Block:
    given = block().optimizer
    assert given is not None
    return block(optimizer=replace(given, **changes))


def test_a_sound_surface_has_no_finding() -> None:
    assert findings.surface(block(), STUDY) == []


def test_no_surface_says_why() -> None:
    for one in (block(status="not possible", reason="5 runs"), block(optimizer=None, reason="5 runs")):
        (found,) = findings.surface(one, STUDY)
        assert (found.code, found.message) == ("no_surface", "no surface was fitted: 5 runs")


def test_degrees_of_freedom_and_convergence() -> None:
    few = STUDY.take(np.arange(20) < 9)
    (found,) = [c for c in findings.surface(block(), few) if c.code == "low_df"]
    assert found.message == "only 4 residual degrees of freedom: 9 runs for 5 constants"
    assert "low_df" not in codes(findings.surface(block(), STUDY.take(np.arange(20) < 10)))
    (found,) = findings.surface(evidence(converged=False, gradient_norm=0.034), STUDY)
    assert (found.code, found.message) == ("not_converged", "the optimizer stopped at a relative gradient of 0.03")
    (found,) = findings.surface(evidence(agree_share=0.49), STUDY)
    assert (found.code, found.message) == ("basins", "only 49 % of 8 starts agree; 1 basins")
    (found,) = findings.surface(evidence(agree_share=0.0), STUDY)
    assert found.message == "none of 8 starts ended at the lowest minimum that was found; 1 basins"
    assert findings.surface(evidence(agree_share=0.5), STUDY) == []


@pytest.mark.parametrize(("verdict", "words"), UNIDENTIFIED)
def test_what_is_not_identified(verdict: Identified, words: str) -> None:
    named = dict(block().identified) | {"E": verdict}
    (found,) = findings.surface(block(identified=named), STUDY)
    assert (found.code, found.message) == ("not_identified", words)


def test_several_constants_that_are_not_identified_are_one_finding() -> None:
    lost = {"E": Identified(False, "why", "lower", 3.0), "alpha": Identified(False, "how")}
    found = findings.surface(block(identified=dict(block().identified) | lost), STUDY)
    (one,) = [c for c in found if c.code == "not_identified"]
    assert one.message == "2 constants are not identified: E, at least 3 (why); alpha (how)"
    assert one.advice == "do not quote them; add larger budgets or a wider range of sizes"


@pytest.mark.parametrize(("alpha", "said"), [(0.239, True), (0.241, False), (0.374, False), (0.376, True)])
def test_an_asymmetric_surface_biases_parabolas(alpha: float, said: bool) -> None:
    one = block(params=LAW | {"alpha": alpha, "beta": 0.30})
    found = [c for c in findings.surface(one, runs([1.0] * 12)) if c.code == "asymmetry"]
    assert bool(found) == said
    for check in found:
        assert check.message.startswith(f"alpha/beta is {alpha / 0.3:.2f}: parabolas")
    assert not [
        c
        for c in findings.surface(replace(one, params=one.params | {"beta": 0.0}), runs([1.0] * 12))
        if c.code == "asymmetry"
    ]


def test_asymmetry_needs_exponents_that_are_known() -> None:
    one = block(params=LAW | {"alpha": 0.6})
    assert "asymmetry" in codes(findings.surface(one, runs([1.0] * 12)))
    for name in ("alpha", "beta"):
        unknown = replace(one, identified=one.identified | {name: Identified(False, "why")})
        assert "asymmetry" not in codes(findings.surface(unknown, runs([1.0] * 12)))
    clash = Clash(1e17, 1e8, (8e7, 1.2e8), 3e8)
    assert "asymmetry" not in codes(findings.surface(one, runs([1.0] * 12), clash))
    (found,) = findings.surface(block(), STUDY, clash)
    assert found.code == "surface_off"
    assert found.message == (
        "at 1e17 FLOPs the surface puts the best size at 300M parameters, the runs put it at 100M (80.0M to 120M)"
    )


def bent(shifts: Any, noise: float, counts: Any = (5, 5, 5, 5)) -> Rows:
    """Return runs of rising budgets whose losses lie `shifts` in ln above the law, with such noise within each."""
    parts = []
    for k, (shift, count) in enumerate(zip(shifts, counts, strict=True)):
        part = studies.isoflop(
            0, law=tuple(LAW.values()), budgets=(10.0 ** (17 + k),), ratios=tuple(np.geomspace(5, 80, count))
        )
        wiggle = noise * stats.norm.ppf((np.arange(count) + 0.5) / count) if count > 1 else np.zeros(1)
        parts.append(part.assign(loss=part["loss"] * np.exp(shift + wiggle - np.mean(wiggle))))
    import pandas as pd

    return studies.as_rows(pd.concat(parts, ignore_index=True))


def test_a_surface_that_misses_whole_budgets_by_the_f_test() -> None:
    shifts = np.array([0.01, -0.01, -0.01, 0.01])
    probe = bent(shifts, 1e-3)
    (found,) = findings._misfit(block(), probe, None)
    assert found.code == "lack_of_fit"
    assert found.message == (
        "the surface misses whole budgets: its mean errors are -1.0, +1.0, +1.0, -1.0 % by rising budget"
    )
    wiggle = stats.norm.ppf((np.arange(5) + 0.5) / 5)
    unit = float((wiggle**2).sum()) * 4 / 16
    cut = float(stats.f.ppf(0.99, 3, 16))
    between = 5 * 4e-4 / 3
    for factor, said in ((0.95, True), (1.05, False)):
        noise = float(np.sqrt(between / cut / unit)) * factor
        assert (findings._budget_errors(block(), bent(shifts, noise)) is not None) == said


def test_what_counts_is_how_budgets_differ_from_each_other() -> None:
    wiggle = stats.norm.ppf((np.arange(5) + 0.5) / 5)
    unit = float((wiggle**2).sum()) * 4 / 16
    cut = float(stats.f.ppf(0.99, 3, 16))
    shifts = np.array([0.03, 0.01, 0.01, 0.03])
    for factor, said in ((0.95, True), (1.05, False)):
        noise = float(np.sqrt(5 * 4e-4 / 3 / cut / unit)) * factor
        assert (findings._budget_errors(block(), bent(shifts, noise)) is not None) == said


def test_errors_of_budgets_below_what_seeds_do_are_none() -> None:
    for size, said in ((4.9e-4, False), (5.1e-4, True)):
        assert (findings._budget_errors(block(), bent([size, -size, size, -size], 1e-7)) is not None) == said


def test_budgets_of_single_runs_are_left_out_or_grouped_by_compute() -> None:
    errors = findings._budget_errors(block(), bent([0.02, 0.0, -0.02, 0.5], 1e-4, (4, 4, 4, 1)))
    assert errors == pytest.approx([-0.02, 0.0, 0.02], abs=1e-9)
    single = bent(np.repeat([0.02, 0.0, -0.02], 4), 0.0, (1,) * 12)
    assert findings._budget_errors(block(), single) == pytest.approx([-0.02, 0.0, 0.02], abs=1e-9)
    two = bent([0.02, 0.02, *([0.0] * 4), *([-0.02] * 4)], 0.0, (2, 2, *([1] * 8)))
    assert findings._budget_errors(block(), two) == pytest.approx([-0.02, 0.0, 0.02], abs=1e-9), "two are too few"
    assert findings._budget_errors(block(), bent([0.1, 0.0, -0.1], 1e-6, (2, 3, 2))) is None, "four degrees of freedom"
    assert findings._budget_errors(block(), bent([0.1, 0.0, -0.1], 1e-6, (3, 3, 2))) is not None
    assert findings._budget_errors(block(), bent([0.1, -0.1], 1e-6, (5, 5))) is None, "two groups by compute"


@pytest.mark.parametrize(
    ("count", "want"),
    [(3, [0, 0, 0]), (8, [0] * 4 + [1] * 4), (12, [0] * 4 + [1] * 4 + [2] * 4), (25, sorted(list(range(5)) * 5))],
)
def test_groups_of_about_four_by_compute(count: int, want: Any) -> None:
    held = runs(np.arange(1, count + 1)[::-1])
    assert findings._by_compute(held).tolist() == want[::-1]


def plan(**changes: Any) -> Recommendation:
    proposal = Proposal(1e8, 2e9, 20.0, 2.5, {})
    base = Recommendation(
        approach="surface", budget_flops=1e20, params=1e8, tokens=2e9, tokens_per_param=20.0, loss=2.5,
        intervals={"loss": (2.4, 2.6)}, extrapolation_factor=10.0, by_approach={"surface": proposal}, disagreement=None,
    )  # fmt: skip
    return replace(base, **changes)


def backtest(**changes: Any) -> Backtest:
    base = Backtest(
        held_out_budget=1e19, train_budgets=(1e17,), extrapolation_factor=10.0, approach="surface", predicted=2.5,
        observed=2.5, relative_error=0.0, by_approach={}, runs=(), mean_abs_relative_error=0.0,
        mean_relative_error=0.0, one_sided=False,
    )  # fmt: skip
    return replace(base, **changes)


def test_a_recommendation_without_findings() -> None:
    assert findings.outlook(plan(), backtest()) == []


def test_no_recommendation_is_an_error_or_a_note() -> None:
    (found,) = findings.outlook(None, backtest())
    assert (found.code, found.level, found.message) == (
        "no_recommendation",
        "error",
        "no approach can recommend a size",
    )
    assert found.advice == "finish or add runs"
    (found,) = findings.outlook(None, backtest(), "because", "note")
    assert (found.message, found.level) == ("because", "note")
    assert found.advice == "form=chinchilla, or approach=2, recommends one"
    (found,) = findings.outlook(None, backtest(), cure="see not_a_loss: map the column of the loss")
    assert found.advice == "see not_a_loss: map the column of the loss", "more runs would not help"


def test_why_the_law_is_not_followed_is_said_beside_the_valleys() -> None:
    why = "form=chinchilla does not qualify (flat)"
    (found,) = findings.outlook(plan(approach="valleys"), backtest(), why, cure="x")
    assert (found.code, found.level) == ("not_advised", "warning")
    assert found.message.startswith(f"{why}: the valleys' N* and D*")
    assert found.advice == "x; until then the law forecasts no loss"


def test_approaches_that_disagree() -> None:
    sizes = {"2 akima": 1.5e8, "3 surface": 2e8, "1 hull": 1e8}
    (found,) = findings.outlook(plan(disagreement=2.0), backtest(), sizes=sizes)
    assert found.code == "disagreement"
    assert (
        found.message
        == "the approaches disagree on N* by a factor of 2 (approach 1 by hull 100M, approach 3 by surface 200M)"
    )
    (found,) = findings.outlook(plan(disagreement=1.51), backtest())
    assert found.message == "the approaches disagree on N* by a factor of 1.5"
    assert findings.outlook(plan(disagreement=1.5), backtest()) == []


def test_far_budgets() -> None:
    assert findings.outlook(plan(extrapolation_factor=30.0), backtest()) == []
    (found,) = findings.outlook(plan(extrapolation_factor=30.1), backtest())
    assert (found.code, found.message) == ("far_extrapolation", "the budget is 30.1 times the largest run")


def test_no_backtest() -> None:
    (found,) = findings.outlook(plan(), None)
    assert (found.code, found.level) == ("no_backtest", "note")


@pytest.mark.parametrize(("loss", "level"), [(2.0, "warning"), (None, "note")])
def test_a_loss_without_a_test_of_its_own(loss: float | None, level: str) -> None:
    none = backtest(approach="", predicted=None, relative_error=None, reason="because", covers=False, one_sided=True)
    (found,) = findings.outlook(plan(loss=loss), none)
    assert (found.code, found.level, found.message) == ("no_backtest", level, "no backtest: because")
    assert "valleys with a minimum at more budgets" in found.advice


def test_a_backtest_that_is_too_near() -> None:
    (found,) = findings.outlook(plan(extrapolation_factor=20.0), backtest(covers=False, extrapolation_factor=3.0))
    assert found.code == "near_backtest"
    assert found.message == (
        "the backtest is over a factor of 3.0, the recommendation over 20: nothing here tests that far"
    )
    assert findings._tested(None, backtest(covers=False)) == []


@pytest.mark.parametrize(("error", "said"), [(0.029, False), (-0.029, False), (0.031, True), (-0.031, True)])
def test_a_backtest_that_is_off(error: float, said: bool) -> None:
    found = findings.outlook(plan(intervals={}), backtest(relative_error=error))
    assert codes(found) == ["backtest_error"] * said
    for check in found:
        off = f"{numbers.percent(abs(error))} too {'low' if error < 0 else 'high'}"
        assert check.message == f"the held-out largest budget is predicted {off}"


RUN = BacktestRun("r", 1.0, 1.0, 1.0, 2.0, 2.0, 0.0)


@pytest.mark.parametrize(
    ("mean", "level", "words"),
    [
        (0.009, "note", "all 2 held-out losses predicted too high, by 0.90 % on average"),
        (0.011, "warning", "all 2 held-out losses predicted too high, by 1.1 % on average"),
        (-0.011, "warning", "all 2 held-out losses predicted too low, by 1.1 % on average"),
    ],
)
def test_a_backtest_that_misses_on_one_side(mean: float, level: str, words: str) -> None:
    test = backtest(one_sided=True, mean_relative_error=mean, runs=(RUN, RUN))
    (found,) = findings.outlook(plan(), test)
    assert (found.code, found.level) == ("backtest_bias", level)
    assert found.message == f"the backtest errs in one direction: {words}"
    assert findings.one_sided(test) == words
    assert findings.outlook(plan(), replace(test, one_sided=False)) == []
    assert findings.outlook(plan(), replace(test, mean_relative_error=None)) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (0.0, False),
        (1 / 0.9601 - 1, False),  # observed 0.9601 of what was foreseen, within 2.4 / 2.5
        (1 / 0.9599 - 1, True),
        (1 / 1.0399 - 1, False),
        (1 / 1.0401 - 1, True),
    ],
)
def test_an_interval_that_the_backtest_leaves(error: float, said: bool) -> None:
    found = findings.outlook(plan(), backtest(relative_error=error))
    assert ("interval_short" in codes(found)) == said
    for check in found:
        if check.code == "interval_short":
            beyond = 100 * (1 / (1 + error) - 1)
            assert check.message == (
                f"the held-out loss is {abs(beyond):.2f} % {'above' if beyond > 0 else 'below'} its prediction, "
                "outside the forecast's interval of -4.00 to +4.00 %"
            )
    for lacking in (plan(loss=None), plan(intervals={"loss": None}), plan(intervals={})):
        assert "interval_short" not in codes(findings.outlook(lacking, backtest(relative_error=0.2)))
    assert findings._tested(None, backtest(relative_error=0.001)) == []


def line(value: float | None, option: str = "x", choice: str = "c") -> Choice:
    return Choice(choice, option, "a", value, None, None, 20)


def test_choices_that_move_the_exponent() -> None:
    three = [line(0.45, "as fitted"), line(0.40, "", "loss"), line(None), line(0.56, "squared")]
    (found,) = findings.choices(three, (0.42, 0.48))
    assert found.code == "choices_disagree"
    assert found.message == (
        "the surface's exponent a lies between 0.40 and 0.56 over 3 choices of the analysis (0.40: loss; 0.56: squared)"
    )
    assert findings.choices(three, (0.40, 0.56)) == [], "all within the interval"
    assert codes(findings.choices(three, (0.41, 0.60))) == ["choices_disagree"]
    assert codes(findings.choices(three, (0.30, 0.55))) == ["choices_disagree"]
    assert codes(findings.choices(three, None)) == ["choices_disagree"]
    assert findings.choices([line(0.25), line(0.3), line(0.35)], None) == [], "by a tenth"
    assert codes(findings.choices([line(0.25), line(0.3), line(0.3501)], None)) == ["choices_disagree"]
    assert findings.choices([line(0.1), line(0.9), line(None)], None) == []
    assert findings.choices([], None) == []


@pytest.mark.parametrize(("reach", "said"), [(0.0499, True), (0.0501, False)])
@pytest.mark.parametrize("beyond", [0.05, 1 / 1.05 - 1])
def test_what_the_fewer_runs_of_a_backtest_explain_says_nothing_of_the_interval(
    reach: float, said: bool, beyond: float
) -> None:
    found = findings.outlook(plan(), backtest(relative_error=1 / (1 + beyond) - 1, reach=reach))
    assert ("interval_short" in codes(found)) == said
    for check in found:
        if check.code == "interval_short":
            assert check.message.endswith(" and further off than the 5.0 % that its fewer runs explain")
