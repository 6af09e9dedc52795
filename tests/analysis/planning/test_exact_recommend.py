"""Recommendations by their parts: which approach is followed, what stands beside it, and why none is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.approaches import compute_optimal, power_laws
from analysis.approaches.cost import Cost, cost
from analysis.approaches.frontier import FrontierFit
from analysis.approaches.loss_laws import Closed, Fitted
from analysis.approaches.surface import Surface
from analysis.approaches.valleys import ValleyFit
from analysis.inference import resampling
from analysis.inference.fit_law import fit_law
from analysis.inputs.dataset import Rows
from analysis.laws import sum_of_powers
from analysis.laws.registry import FORMS
from analysis.planning import recommend
from analysis.planning.advice import Advice, valleys_lack
from analysis.values.blocks import Block, Frontier, Identified, PowerLaw, Valley, Valleys
from analysis.values.study_result import Proposal
from tests.analysis import studies

NONE: Any = None
LAW = (1.7, 400.0, 900.0, 0.34, 0.28)
TABLE = studies.isoflop(0, law=LAW, budgets=(1e17, 1e18, 1e19, 1e20), ratios=(10, 30, 90, 270, 810))
ROWS = studies.as_rows(TABLE)
DRAWS = np.array(LAW) * np.exp(0.01 * np.random.default_rng(0).normal(size=(60, 5)))
FLOPS = np.array([1e17, 1e18, 1e19])


def surface(law: Any = LAW, draws: Any = DRAWS, known: bool = True) -> Surface:
    block = Block(
        form="", approach="surface", loss_function="", identified={"a": Identified(known, "" if known else "why a")},
        derived={"a": 0.45, "b": 0.55}, intervals={"a": (0.4, 0.5), "b": (0.5, 0.6)},
    )  # fmt: skip
    return Surface(block, np.array(law), np.asarray(draws), NONE)


def power(exponent: float, coefficient: float, df: int = 1) -> PowerLaw:
    return PowerLaw(coefficient, exponent, 1e18, None, (exponent - 0.1, exponent + 0.1), 0.01, df + 2, df)


def valley(budget: float, best: float | None, interval: Any = None) -> Valley:
    return Valley(
        budget, 1.01 * budget, "minimum", "", 5, (), (1.0, 2.0), 0.0, params_opt=best, params_interval=interval
    )


def of_valleys(
    *, df: int = 1, known: bool = True, draws: int = 50, exponents: bool = True, minima: Any = ()
) -> ValleyFit:
    laws = {"params": power(0.5, 1e8, df), "tokens": power(0.5, 1e9, df)} if exponents else {}
    block = Valleys(
        form="", approach="valleys", loss_function="", exponents=laws, valleys=tuple(minima), reason="nothing there",
        identified={"a": Identified(known)} if exponents else {},
    )  # fmt: skip
    generator = np.random.default_rng(1)
    x = 0.5 * np.log(FLOPS / 1e18)
    size, tokens, loss = (c + s * x + 0.02 * generator.normal(size=(draws, 3)) for c, s in (
        (np.log(1e8), 1.0), (np.log(1e9), 1.0), (3.0, 0.0),
    ))  # fmt: skip
    at = [each.mean(0) if draws else np.full(3, np.nan) for each in (size, tokens, loss)]
    return ValleyFit(block, FLOPS, at[0], at[1], at[2], size, tokens, loss)


FRONTIER = FrontierFit(
    Frontier(form=sum_of_powers.FRONTIER.text, approach="frontier", loss_function="", reference_flops=1e18),
    np.array([1.7, 0.8, 0.2]),
    np.array([[1.6, 0.8, 0.2], [1.8, 0.8, 0.2], [1.7, 0.7, 0.2]]),
)  # fmt: skip


def hoffmann(budget: float, law: Any = LAW) -> float:
    _, A, B, alpha, beta = law
    return float((alpha * A / (beta * B)) ** (1 / (alpha + beta)) * (budget / 6) ** (beta / (alpha + beta)))


def test_the_surface_proposes_its_optimum() -> None:
    found = recommend.by_surface(surface(), ROWS, 1e21)
    assert found is not None
    size = hoffmann(1e21)
    assert found.params == pytest.approx(size, rel=1e-6)
    assert found.tokens == pytest.approx(1e21 / 6 / size, rel=1e-6)
    assert found.tokens_per_param == pytest.approx(found.tokens / found.params)
    assert found.loss == pytest.approx(studies.loss(LAW, found.params, found.tokens))
    sizes = np.array([hoffmann(1e21, draw) for draw in DRAWS])
    tokens = 1e21 / 6 / sizes
    for name, values, best in (
        ("params", sizes, size),
        ("tokens", tokens, 1e21 / 6 / size),
        ("tokens_per_param", tokens / sizes, 1e21 / 6 / size**2),
    ):
        low, high = resampling.interval(np.log(values), float(np.log(best))) or (np.nan, np.nan)
        assert found.intervals[name] == pytest.approx((np.exp(low), np.exp(high)), rel=1e-5)
    losses = np.array([studies.loss(tuple(d), n, t) for d, n, t in zip(DRAWS, sizes, tokens, strict=True)])
    assert found.intervals["loss"] == pytest.approx(resampling.interval(losses, found.loss or 0.0), rel=1e-6)
    assert recommend.by_surface(surface((1.7, 0.0, 900.0, 0.34, 0.28)), ROWS, 1e21) is None
    dear = ROWS.replaced(flops=1.2 * ROWS.flops)
    moved = recommend.by_surface(surface(), dear, 1e21)
    assert moved is not None
    assert moved.params == pytest.approx(hoffmann(1e21 / 1.2), rel=1e-6)


def test_a_law_proposes_from_its_first_row_and_draws() -> None:
    law = Closed(np.vstack((LAW, DRAWS)))
    sizes = (float(ROWS.params.min()), float(ROWS.params.max()))
    found, same = compute_optimal.by_law(law, cost(ROWS), 1e21, sizes), recommend.by_surface(surface(), ROWS, 1e21)
    assert found == same
    bad = Closed(np.vstack(((1.7, 0.0, 900.0, 0.34, 0.28), DRAWS)))
    assert compute_optimal.by_law(bad, cost(ROWS), 1e21, sizes) is None


def test_laws_are_priced_as_their_form_counts() -> None:
    fit = fit_law(ROWS, resamples=20)
    law, price, ends = compute_optimal.priced(fit, ROWS)
    assert isinstance(law, Closed)
    assert law.constants.shape == (21, 5)
    np.testing.assert_allclose(law.constants[0], fit.params)
    np.testing.assert_allclose(law.constants[1:], fit.draws[list(fit.params.index)])
    assert price == cost(ROWS)
    assert ends == (ROWS.params.min(), ROWS.params.max())
    kaplan = fit_law(ROWS, "kaplan", resamples=0)
    many = replace(kaplan, thetas=np.tile(kaplan.point.theta, (310, 1)))
    law, _, _ = compute_optimal.priced(many, ROWS)
    assert isinstance(law, Fitted)
    assert len(law) == 301
    with pytest.raises(ValueError, match="form=compute gives no loss of N and D"):
        compute_optimal.priced(replace(fit, form=FORMS["compute"]), ROWS)
    with pytest.raises(
        ValueError, match=r"form=moe reads experts too: python -m analysis\.plan form=moe at=experts:NUMBER"
    ):
        compute_optimal.priced(replace(fit, form=FORMS["moe"]), ROWS)


def test_the_envelope_proposes_without_intervals() -> None:
    found = recommend.by_envelope({"params": power(0.5, 1e8), "tokens": power(0.25, 1e9)}, 1e20)
    assert (found.params, found.tokens) == pytest.approx((1e9, 1e9 * 100**0.25))
    assert found.tokens_per_param == pytest.approx(100**0.25)
    assert found.loss is None
    assert found.intervals == dict.fromkeys(("params", "tokens", "tokens_per_param", "loss"))


def test_valleys_propose_by_their_exponents() -> None:
    given = of_valleys()
    found = recommend.by_valleys(given, FRONTIER, None, 1e20)
    assert found is not None
    assert (found.params, found.tokens, found.tokens_per_param) == pytest.approx((1e9, 1e10, 10.0))
    value, losses = FRONTIER.predict(1e20)
    assert found.loss == pytest.approx(value)
    assert found.intervals["loss"] == resampling.interval(losses, value)
    lines = {
        name: power_laws.lines(FLOPS, 1e18, d)
        for name, d in (("params", given.draw_params), ("tokens", given.draw_tokens))
    }
    drawn = {name: c + s * np.log(100) for name, (c, s) in lines.items()}
    for name, values, best in (("params", drawn["params"], 1e9), ("tokens", drawn["tokens"], 1e10),
                               ("tokens_per_param", drawn["tokens"] - drawn["params"], 10.0)):  # fmt: skip
        low, high = resampling.interval(values, float(np.log(best))) or (np.nan, np.nan)
        assert found.intervals[name] == pytest.approx((np.exp(low), np.exp(high)))
    law = Closed(np.vstack((LAW, DRAWS)))
    with_law = recommend.by_valleys(given, FRONTIER, law, 1e20)
    assert with_law is not None
    assert with_law.loss == pytest.approx(studies.loss(LAW, 1e9, 1e10))
    losses = np.array([studies.loss(tuple(d), 1e9, 1e10) for d in DRAWS])
    assert with_law.intervals["loss"] == pytest.approx(resampling.interval(losses, with_law.loss or 0.0))
    bare = recommend.by_valleys(given, given.block, None, 1e20)
    assert bare is not None
    assert (bare.loss, bare.intervals["loss"]) == (None, None)
    assert recommend.by_valleys(of_valleys(exponents=False), FRONTIER, None, 1e20) is None


@pytest.mark.parametrize(
    ("factor", "interval", "clashes"),
    [
        (1.49, (0.9, 1.1), False),
        (1.51, (0.9, 1.1), True),
        (1.51, (0.5, 1.1), False),  # the surface's size lies within the interval
        (1 / 1.49, (0.9, 1.1), False),
        (1 / 1.51, (0.9, 1.1), True),
        (1 / 1.51, (0.9, 1.6), False),
    ],
)
def test_a_clash_is_far_from_the_best_size_and_outside_its_interval(
    factor: float, interval: Any, clashes: bool
) -> None:
    """The valley's best size is `factor` times that of the surface."""
    best = factor * hoffmann(1.01e19)
    ends = (interval[0] * best, interval[1] * best)
    minima = (valley(1e18, 1.0, (0.9, 1.1)), valley(1e19, best, ends), valley(1e20, None), valley(1e21, 5.0, None))
    found = recommend.clash(ROWS, of_valleys(minima=minima), surface())
    assert (found is not None) == clashes
    if found is not None:
        assert (found.budget, found.valley, found.interval) == (1e19, best, ends)
        assert found.surface == pytest.approx(hoffmann(1.01e19), rel=1e-6)


def test_no_clash_without_either() -> None:
    far = (valley(1e19, 1.0, (0.9, 1.1)),)
    assert recommend.clash(ROWS, of_valleys(minima=far), None) is None
    assert recommend.clash(ROWS, of_valleys(), surface()) is None
    assert recommend.clash(ROWS, of_valleys(minima=far), surface((1.7, 0.0, 900.0, 0.34, 0.28))) is None
    assert recommend.clash(ROWS, of_valleys(minima=far), surface()) is not None


def advice(law: str = "", valleys: str = "", only: str = "", wrong: str = "") -> Advice:
    return Advice("chinchilla", law, valleys, "add runs", wrong, only)


@pytest.mark.parametrize(
    ("on", "said", "approach", "beside", "source"),
    [
        (surface(), advice(), "surface", {"surface", "valleys"}, "surface"),
        (surface(), advice(valleys="two"), "surface", {"surface"}, "surface"),
        (surface(), advice(law="E on its bound"), "valleys", {"valleys"}, "frontier"),
        (surface(), advice(law="E on its bound", valleys="two"), "", set(), ""),
        (None, advice(law="no surface"), "valleys", {"valleys"}, "frontier"),
        (surface(), advice(only="valleys"), "valleys", {"surface", "valleys"}, "surface"),
        (surface(), advice(valleys="two", only="valleys"), "", set(), ""),
        (surface(), advice(law="flat", only="valleys"), "valleys", {"valleys"}, "frontier"),
        (surface(), advice(wrong="these look like accuracies"), "", set(), ""),
    ],
)
def test_what_is_advised_is_followed_and_nothing_else_stands_beside_it(
    on: Any, said: Advice, approach: str, beside: set[str], source: str
) -> None:
    found = recommend.recommend(ROWS, of_valleys(), FRONTIER, surface=on, budget=1e20, said=said)
    assert (found.approach if found else "") == approach
    if found is None:
        return
    assert set(found.by_approach) == beside
    assert found.params == found.by_approach[approach].params
    assert found.loss_from == source
    assert found.extrapolation_factor == pytest.approx(1.0)
    assert found.budget_flops == 1e20
    sizes = [p.params for p in found.by_approach.values()]
    assert found.disagreement == (max(sizes) / min(sizes) if len(sizes) > 1 else None)
    assert found.path[0].flops == pytest.approx(1e17)
    assert found.path[-1].params == found.params
    exponents = (0.45, 0.55) if approach == "surface" else (0.5, 0.5)
    assert (found.growth["params"].exponent, found.growth["tokens"].exponent) == exponents


def test_valleys_say_no_loss_where_neither_law_of_it_may() -> None:
    on = replace(FRONTIER, block=replace(FRONTIER.block, identified={"L_inf": Identified(False, "on its bound")}))
    found = recommend.recommend(
        ROWS, of_valleys(), on, surface=surface(), budget=1e20, said=advice(law="E on its bound")
    )  # fmt: skip
    assert found is not None
    assert (found.approach, found.loss, found.loss_from, found.intervals["loss"]) == ("valleys", None, "", None)
    assert {point.loss for point in found.path} == {None}


def test_disagreement_over_all_approaches() -> None:
    plan = recommend.recommend(ROWS, of_valleys(), FRONTIER, surface=surface(), budget=1e20, said=advice())
    assert plan is not None
    own = [p.params for p in plan.by_approach.values()]
    lines: list[dict[str, Any]] = [
        {"approach": "2", "params": 2.0},
        {"approach": "1", "params": None},
        {"approach": "3"},
    ]
    found = recommend.compared(plan, recommend.sizes(plan, lines))
    assert found is not None
    assert found.disagreement == pytest.approx(max(own) / 2.0)
    noted = {"approach": "1", "params": 1.0, "note": "losses before the schedules ended"}
    assert recommend.sizes(plan, [*lines, noted]) == recommend.sizes(plan, lines), "marked, and not compared"
    assert recommend.sizes(plan, [{"approach": "2", "params": 1.0}]).keys() == {"surface", "valleys", "2"}
    assert recommend.compared(None, {}) is None
    one = replace(plan, by_approach={"surface": plan.by_approach["surface"]}, disagreement=9.0)
    alone = recommend.compared(one, recommend.sizes(one, [{"approach": "1", "params": None}]))
    assert alone is not None
    assert alone.disagreement is None


def test_another_law_is_followed_beside_the_valleys() -> None:
    law = Closed(np.vstack((LAW, DRAWS)))
    block = surface().block
    asked: Any = {"block": block, "rows": ROWS, "budget": 1e20, "said": advice()}
    found = recommend.by_other_law(law, Cost.six(), (1e7, 1e10), valley_fit=of_valleys(), **asked)
    assert found is not None
    assert (found.approach, found.loss_from, set(found.by_approach)) == ("law", "law", {"law", "valleys"})
    assert found.params == pytest.approx(hoffmann(1e20), rel=1e-6)
    assert found.growth["params"].exponent == 0.45
    unsure = {**asked, "said": advice(valleys=valleys_lack(of_valleys(known=False)))}
    alone = recommend.by_other_law(law, Cost.six(), (1e7, 1e10), valley_fit=of_valleys(known=False), **unsure)
    assert alone is not None
    assert set(alone.by_approach) == {"law"}
    bare = replace(block, derived={})
    slope = recommend.by_other_law(law, Cost.six(), (1e7, 1e10), valley_fit=of_valleys(), **(asked | {"block": bare}))
    assert slope is not None
    assert slope.growth["params"].exponent == pytest.approx(0.28 / 0.62, rel=1e-4)
    assert slope.growth["params"].interval is None
    none = Closed(np.array([(1.7, 0.0, 900.0, 0.34, 0.28)]))
    assert recommend.by_other_law(none, Cost.six(), (1e7, 1e10), valley_fit=of_valleys(), **asked) is None


def test_the_envelope_alone() -> None:
    laws = {"params": power(0.5, 1e8), "tokens": power(0.25, 1e9)}
    found = recommend.by_envelope_only(laws, ROWS, 1e20)
    assert (found.approach, found.loss, found.disagreement) == ("envelope", None, None)
    assert found.params == pytest.approx(1e9)
    assert found.growth["tokens"].exponent == 0.25
    assert found.path[0].flops == pytest.approx(1e17)


def test_extrapolation_is_told_from_the_largest_run() -> None:
    one = Proposal(1e9, 1e10, 10.0, None, {})
    found = recommend.followed("x", {"x": one, "y": replace(one, params=4e9)}, ROWS, 5e21)
    assert found.extrapolation_factor == pytest.approx(50.0)
    assert found.disagreement == 4.0
    assert isinstance(ROWS, Rows)
