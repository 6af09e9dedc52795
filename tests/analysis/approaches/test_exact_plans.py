"""Plans and their laws: closed forms, first-order conditions and brute force beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.approaches import loss_laws, optimum
from analysis.approaches.cost import Cost
from analysis.approaches.loss_laws import Closed, Fitted
from analysis.laws.registry import FORMS
from tests.analysis import studies

LAW = (1.7, 400.0, 900.0, 0.34, 0.28)
TWO = np.array([LAW, (1.9, 300.0, 700.0, 0.3, 0.32)])
SIZES = (1e8, 1e11)
ENDS = (float(np.log(1e4)), float(np.log(1e15)))
DEAR = Cost(1e9, 1.1, 0.4, 0.3)


def searched(constants: Any = TWO, price: Cost | None = None) -> Fitted:
    form = FORMS["chinchilla"]
    zeros = np.zeros(2)
    return Fitted(form, form.internal(np.atleast_2d(constants), zeros), zeros, price or Cost.six())


def best_size(constants: Any, budget: float) -> float:
    _, A, B, alpha, beta = constants
    return float((alpha * A / (beta * B)) ** (1 / (alpha + beta)) * (budget / 6) ** (beta / (alpha + beta)))


@pytest.mark.parametrize("law", [Closed(TWO), searched()])
def test_losses_and_their_inverse(law: Any) -> None:
    assert len(law) == 2
    one = np.log(np.array([1e9, 1e8])), np.log(np.array([2e10, 1e11]))
    want = [studies.loss(tuple(TWO[i]), np.exp(one[0][i]), np.exp(one[1][i])) for i in range(2)]
    np.testing.assert_allclose(law.loss(*one), want, rtol=1e-12)
    wide = tuple(np.log(np.array([[1e9, 1e8, 3e8], [1e7, 1e8, 1e9]])) + k for k in (0.0, 3.0))
    want = [studies.loss(tuple(TWO[i]), np.exp(wide[0][i]), np.exp(wide[1][i])) for i in range(2)]
    np.testing.assert_allclose(law.loss(*wide), want, rtol=1e-12)
    np.testing.assert_allclose(law.row(1).loss(one[0][1:], one[1][1:]), law.loss(*one)[1:])
    assert len(law.row(0)) == 1
    reached = law.loss(wide[0], wide[1])[:, 1]
    back = law.tokens_for(wide[0][:, 1:2], reached)
    np.testing.assert_allclose(back, wide[1][:, 1:2], rtol=1e-9)
    small = law.tokens_for(np.log([[1e3], [1e3]]), np.array([2.0, 2.0]))
    assert np.isposinf(small).all(), "no number of tokens brings so small a model there"


@pytest.mark.parametrize("law", [Closed(TWO), searched()])
@pytest.mark.parametrize("budget", [1e19, 1e23])
def test_the_best_size_is_hoffmanns(law: Any, budget: float) -> None:
    want = [best_size(constants, budget) for constants in TWO]
    np.testing.assert_allclose(np.exp(law.best(Cost.six(), budget, ENDS)), want, rtol=1e-5)
    np.testing.assert_allclose(law.budget_of(Cost.six(), float(np.log(want[0])))[0], budget, rtol=1e-5)
    tokens = budget / 6 / want[1]
    np.testing.assert_allclose(np.exp(law.matched(float(np.log(tokens))))[1], want[1], rtol=1e-5)
    assert np.isnan(law.best(Cost.six(), budget, (ENDS[0], float(np.log(want[0] / 2))))).any()
    assert np.isnan(law.best(Cost.six(), budget, (float(np.log(max(want) * 2)), ENDS[1]))).all()


@pytest.mark.parametrize("law", [Closed(TWO), searched(price=DEAR)])
def test_a_dear_token_moves_the_best_size_as_brute_force_says(law: Any) -> None:
    found = law.best(DEAR, 1e21, ENDS)
    grid = np.linspace(15, 26, 110_001)
    for i in range(2):
        losses = studies.loss(tuple(TWO[i]), np.exp(grid), 1e21 / np.exp(DEAR.log_per_token(grid)[0]))
        assert found[i] == pytest.approx(grid[np.argmin(losses)], abs=2e-4)
        assert law.budget_of(DEAR, float(found[i]))[i] == pytest.approx(1e21, rel=1e-3)


def test_laws_without_a_term_have_no_best_size() -> None:
    none = Closed(np.array([(1.7, 0.0, 900.0, 0.34, 0.28), (1.7, 400.0, 0.0, 0.34, 0.28), LAW]))
    found = none.best(Cost.six(), 1e21, ENDS)
    assert np.isnan(found).tolist() == [True, True, False]
    assert none.loss(np.full(3, 20.0), np.full(3, 24.0))[0] == pytest.approx(1.7 + 900 * np.exp(-0.28 * 24))
    assert none.repeated(np.ones(3), np.ones(3), 1.0) is None
    free = Cost(1.0, 1.0, 0.0, 0.0)
    assert free == Cost.six()


def test_any_law_is_one() -> None:
    law = Closed(TWO)
    assert loss_laws.law(law) is law
    made = loss_laws.law(TWO)
    assert isinstance(made, Closed)
    np.testing.assert_array_equal(made.constants, TWO)


def test_forms_that_plans_can_rest_on() -> None:
    assert loss_laws.choices() == (
        "chinchilla", "chinchilla_tied", "chinchilla_no_floor", "chinchilla_interaction", "kaplan", "kaplan_floor",
        "farseer", "overtraining", "repeats", "precision", "precision_after", "moe",
    )  # fmt: skip
    assert loss_laws.size_column(FORMS["moe"]) == "params_active"
    assert loss_laws.size_column(FORMS["kaplan"]) == "params"
    assert loss_laws.further(FORMS["moe"]) == ("experts",)
    assert loss_laws.further(FORMS["repeats"]) == ()
    assert loss_laws.further(FORMS["overtraining"]) == ()
    assert loss_laws.further(FORMS["precision"]) == ("bits_weights", "bits_activations", "bits_cache")
    for name in ("learning_rate", "batch", "compute", "downstream"):
        assert not loss_laws.plannable(FORMS[name])


def test_further_inputs_and_compute_have_their_values() -> None:
    form: Any = FORMS["moe"]
    theta = np.array([[0.5, 3.0, 4.0, 0.3, 0.3, 0.1, 0.1, 1.0, 0.5]])
    law = Fitted(form, theta, np.array([0.1, 0.2, 0.3]), Cost.six(), {"experts": 8.0})
    n, d = np.array([20.0]), np.array([23.0])
    x = np.array([[20.0 - 0.1], [23.0 - 0.2], [np.log(8.0) - 0.3]])
    np.testing.assert_allclose(law.loss(n, d), np.exp(form.log_value(theta, x))[:, 0])
    over: Any = FORMS["overtraining"]
    theta = np.array([[0.5, 3.0, 4.0, 0.15]])
    law = Fitted(over, theta, np.zeros(3), DEAR)
    per_token = DEAR.log_per_token(n)[0]
    x = np.stack([n, d, per_token + d])
    np.testing.assert_allclose(law.loss(n, d), np.exp(over.log_value(theta, x))[:, 0])
    assert law.repeated(n, d, 20.0) is None


def test_distinct_tokens_reach_a_law_of_repeats() -> None:
    form: Any = FORMS["repeats"]
    theta = form.internal(np.array([[*LAW, 15.0, 5.0]]), np.zeros(3))
    law = Fitted(form, theta, np.zeros(3), Cost.six())
    n, d = np.array([[21.0, 21.0]]), np.array([[22.0, 26.0]])
    found = law.repeated(n, d, 24.0)
    assert found is not None
    x = np.stack([n[0], d[0], np.minimum(24.0, d[0])])
    np.testing.assert_allclose(found[0], np.exp(form.log_value(theta, x))[0])
    x = np.stack([n[0], d[0], d[0]])
    np.testing.assert_allclose(law.loss(n, d)[0], np.exp(form.log_value(theta, x))[0])
    broken = Fitted(form, theta * np.nan, np.zeros(3), Cost.six())
    assert np.isposinf(broken.loss(n, d)).all()


@pytest.mark.parametrize(("at", "inside"), [(0.3, True), (-0.9999, True), (0.99999, True), (-1.2, False), (1.0, False)])
def test_the_lowest_place_by_grids(at: float, inside: bool) -> None:
    found = loss_laws.lowest(lambda x: (x - np.array([[at], [0.1]])) ** 2, (-1.0, 1.0), 2)
    assert np.isfinite(found[0]) == inside
    if inside:
        assert found[0] == pytest.approx(at, abs=1e-7)
    assert found[1] == pytest.approx(0.1, abs=1e-7)
    nowhere = loss_laws.lowest(lambda x: np.full(x.shape, np.inf), (-1.0, 1.0), 1)
    assert np.isnan(nowhere).all()
    part = loss_laws.lowest(lambda x: np.where(np.abs(x - 0.5) < 0.2, (x - 0.45) ** 2, np.inf), (-1.0, 1.0), 1)
    assert part[0] == pytest.approx(0.45, abs=1e-7)


def test_answers_hang_together() -> None:
    found = optimum.training_only(TWO, DEAR, 1e21, SIZES)
    np.testing.assert_allclose(found.training_flops, 1e21, rtol=1e-9)
    np.testing.assert_allclose(np.exp(found.log_tokens + DEAR.log_per_token(found.log_params)[0]), 1e21, rtol=1e-9)
    assert found.inference_flops.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(found.loss, optimum.surface(TWO, found.log_params, found.log_tokens))
    second = found.row(1)
    assert (len(second.loss), second.loss[0]) == (1, found.loss[1])
    assert second.log_params[0] == found.log_params[1]
    np.testing.assert_allclose(optimum.budget_of(TWO, DEAR, 22.0), Closed(TWO).budget_of(DEAR, 22.0))


def test_sizes_are_searched_within_ten_thousand_times_those_swept() -> None:
    size = best_size(LAW, 1e21)
    assert optimum._ends((1e8, 1e11)) == pytest.approx((np.log(1e4), np.log(1e15)))
    near, far = 0.9e4, 1.1e4
    for swept, known in (
        ((size / 2e4, size / far), False), ((size / 2e4, size / near), True),
        ((size * near, size * 1e5), True), ((size * far, size * 1e5), False),
    ):  # fmt: skip
        found = optimum.training_only(np.array([LAW]), Cost.six(), 1e21, swept)
        assert np.isfinite(found.log_params[0]) == known


@settings(max_examples=8, deadline=None)
@given(st.floats(0.05, 30.0))
@example(0.9)
@example(1.1)
@example(1e-3)
def test_over_training_by_any_factor(factor: float) -> None:
    best = optimum.training_only(TWO, DEAR, 1e21, SIZES)
    found = optimum.over_trained(TWO, DEAR, 1e21, SIZES, factor)
    ratio = found.log_tokens - found.log_params - best.log_tokens + best.log_params
    np.testing.assert_allclose(np.exp(ratio), factor, rtol=1e-9)
    np.testing.assert_allclose(found.training_flops, 1e21, rtol=1e-9)
    np.testing.assert_allclose(found.loss, optimum.surface(TWO, found.log_params, found.log_tokens))


def test_inference_costs_least_at_its_loss() -> None:
    loss, served = np.array([2.2, 2.3]), 1e12
    found = optimum.inference(TWO, DEAR, loss, served, SIZES)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-9)
    per_token = np.exp(DEAR.log_per_token(found.log_params)[0])
    np.testing.assert_allclose(found.inference_flops, per_token / 3 * served)
    np.testing.assert_allclose(found.training_flops, per_token * np.exp(found.log_tokens))
    total = found.training_flops + found.inference_flops
    for step in (-0.02, 0.02):
        at = found.log_params + step
        tokens = Closed(TWO).tokens_for(at[:, None], loss)[:, 0]
        cost = np.exp(DEAR.log_per_token(at)[0])
        assert (cost * np.exp(tokens) + cost / 3 * served > total).all()


def test_worn_tokens_by_the_paper() -> None:
    """D' = U + U R (1 - exp(-r/R)), r = D/U - 1."""
    for epochs, half in ((1.0, 15.0), (0.5, 15.0), (4.0, 15.0), (40.0, 5.0)):
        repeats = max(epochs - 1, 0.0)
        want = 1 + half * (1 - np.exp(-repeats / half))
        found = optimum._worn(np.array([np.log(epochs)]), np.array([half]))
        assert np.exp(found[0]) == pytest.approx(want)


def test_repeated_tokens_and_parameters_beyond_the_data() -> None:
    unique, worn = np.log(1e10), optimum.Repeats(15.0, 5.0)
    size = np.log([[1e8, 1e9, 1e11]] * 2)
    tokens = np.log([[1e9, 4e10, 4e11]] * 2)
    found = optimum.repeated(TWO, size, tokens, log_unique=np.full((2, 3), unique), repeats=worn)
    for i, constants in enumerate(TWO):
        for k in range(3):
            seen = min(1e10, np.exp(tokens[i, k]))
            fits = float(np.exp(Closed(constants[None]).matched(float(np.log(seen)))[0]))
            n, d = np.exp(size[i, k]), np.exp(tokens[i, k])
            base = min(n, fits)
            effective = seen * (1 + 15 * (1 - np.exp(-(d / seen - 1) / 15)))
            larger = base * (1 + 5 * (1 - np.exp(-(n / base - 1) / 5)))
            assert found[i, k] == pytest.approx(studies.loss(tuple(constants), larger, effective), rel=1e-9)
    each = optimum.Repeats(np.array([15.0, 3.0]), np.array([5.0, 2.0]))
    per_draw = optimum.repeated(TWO, size, tokens, log_unique=np.full((2, 3), unique), repeats=each)
    np.testing.assert_allclose(per_draw[0], found[0])
    assert (per_draw[1, 1:] > found[1, 1:]).all()
    assert optimum.Repeats() == optimum.Repeats(15.387756, 5.309743)


def test_sizes_matched_to_tokens_are_solved_for_a_few_and_lie_on_lines() -> None:
    law, tokens = Closed(TWO), np.linspace(20.0, 26.0, 23)[None]
    want = np.stack([law.matched(float(t)) for t in tokens[0]], axis=1)
    np.testing.assert_allclose(optimum._matched(law, tokens), want, rtol=1e-12)
    same = optimum._matched(law, np.full((2, 4), 22.0))
    np.testing.assert_allclose(same, np.repeat(law.matched(22.0)[:, None], 4, axis=1))
    near = optimum._matched(law, np.array([[22.0, 22.1]]))
    np.testing.assert_allclose(near, np.stack((law.matched(22.0), law.matched(22.1)), axis=1), rtol=1e-12)


def test_limited_data_is_the_lowest_loss_of_its_budget() -> None:
    worn = optimum.Repeats(15.0, 5.0)
    found = optimum.limited_data(TWO, DEAR, 1e21, SIZES, unique=5e8, repeats=worn)
    grid = np.linspace(14, 26, 40_001)[None].repeat(2, axis=0)
    tokens = np.log(1e21) - DEAR.log_per_token(grid)[0]
    losses = optimum.repeated(TWO, grid, tokens, log_unique=np.full(grid.shape, np.log(5e8)), repeats=worn)
    np.testing.assert_allclose(found.loss, losses.min(axis=1), rtol=1e-7)
    np.testing.assert_allclose(found.log_params, grid[0][losses.argmin(axis=1)], atol=2e-3)
    np.testing.assert_allclose(found.training_flops, 1e21, rtol=1e-9)
    np.testing.assert_allclose(found.log_tokens, np.log(1e21) - DEAR.log_per_token(found.log_params)[0])
    assert found.inference_flops.tolist() == [0.0, 0.0]
    form: Any = FORMS["repeats"]
    theta = form.internal(np.array([[*LAW, 15.0, 5.0]]), np.zeros(3))
    fitted, other = Fitted(form, theta, np.zeros(3), Cost.six()), optimum.Repeats(1.0, 1.0)
    own = optimum.limited_data(fitted, Cost.six(), 1e21, SIZES, unique=5e8, repeats=other)
    closed = optimum.limited_data(np.array([LAW]), Cost.six(), 1e21, SIZES, unique=5e8, repeats=worn)
    np.testing.assert_allclose(own.loss, closed.loss, rtol=1e-6)
