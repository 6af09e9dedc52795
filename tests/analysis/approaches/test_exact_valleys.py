"""Valleys by polyfit, their verdicts on both sides of each limit, and every finding's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.approaches import power_laws, valley_findings, valley_options, valleys
from analysis.approaches.parabola import Parabola, noise_of, parabola, status_of, swept, vertex
from analysis.inference import resampling, scatter
from analysis.inputs.dataset import Rows, rows
from analysis.values.blocks import PowerLaw, Valley

X = np.array([-2.0, -1.2, 0.0, 0.9, 2.0])


def table(*budgets: tuple[float, Any, Any]) -> Rows:
    """Return runs of budgets (flops, ln(N / 1e6), loss), C = 6 N D."""
    params = np.concatenate([1e6 * np.exp(np.asarray(x, dtype=float)) for _, x, _ in budgets])
    flops = np.concatenate([np.full(len(x), c) for c, x, _ in budgets])
    loss = np.concatenate([np.asarray(y, dtype=float) for _, _, y in budgets])
    keys = tuple(f"r{i}" for i in range(len(params)))
    return rows(keys, params=params, tokens=flops / 6 / params, flops=flops, loss=loss, nominal=flops)


def one(x: Any, loss: Any, flops: float = 6e14) -> Parabola:
    held = table((flops, x, loss))
    return parabola(held, np.ones(len(held), dtype=bool))


def bowl(bottom: float, x: Any = X, curve: float = 0.1, floor: float = 3.0) -> np.ndarray:
    return np.asarray(floor + curve * (np.asarray(x) - bottom) ** 2)


def test_a_parabola_is_polyfits() -> None:
    loss = bowl(0.4) + np.array([0.003, -0.002, 0.001, 0.002, -0.004])
    found = one(X, loss)
    center = float(X.mean()) + np.log(1e6)
    assert found.center == pytest.approx(center)
    np.testing.assert_allclose(found.x, X - X.mean(), atol=1e-12)
    coefficients = np.polyfit(X - X.mean(), loss, 2)
    np.testing.assert_allclose(found.inverse @ found.loss, coefficients[::-1])
    np.testing.assert_allclose(found.residual, loss - np.polyval(coefficients, X - X.mean()), atol=1e-12)
    assert found.reach == pytest.approx((-2.0 - X.mean(), 2.0 - X.mean()))
    np.testing.assert_allclose(found.log_tokens, np.log(1e8) - X)
    assert found.flops_budget == 6e14
    assert found.flops == pytest.approx(6e14)
    assert found.keys == ("r0", "r1", "r2", "r3", "r4")
    exact = replace(
        table((6e14, X, loss)).replaced(flops=6e14 * np.array([1.0, 1.1, 1.0, 1.0, 1.0])), labels=np.array([7.0])
    )
    again = parabola(exact, np.ones(5, dtype=bool))
    assert again.flops_budget == 7.0
    assert again.flops == pytest.approx(6e14 * 1.1**0.2)


def test_sizes_beyond_the_window_are_left_out_where_four_are_left() -> None:
    near = np.log(valley_options.WINDOW)
    for x, kept in (
        ([-1.0, 0.0, 0.7, near, near + 0.01], 4),
        ([-near, -1.0, 0.0, 0.5, near + 0.01], 4),
        ([-near - 0.01, -1.0, 0.0, 0.7, near], 4),
        ([-near - 0.01, -1.0, 0.0, 0.7, near + 0.01], 5),  # three would be left
        ([-1.0, 0.0, 0.0, near, near + 0.01], 5),  # four runs of three sizes would be left
    ):
        loss = bowl(0.0, x)
        found = one(x, loss)
        assert len(found.keys) == kept
        assert found.center == pytest.approx(np.log(1e6) + np.mean(found.x + found.center - np.log(1e6)))
        if kept == 4:
            assert "r4" not in found.keys or "r0" not in found.keys


@pytest.mark.parametrize(
    ("loss", "noise", "status", "words"),
    [
        (bowl(0.4), 0.0, "minimum", ""),
        (bowl(-1.99), 0.0, "minimum", ""),
        (bowl(1.99), 0.0, "minimum", ""),
        (bowl(-2.01), 0.0, "edge", "beyond the smallest size swept, 135K parameters"),
        (bowl(2.01), 0.0, "edge", "beyond the largest size swept, 7.39M parameters"),
        (6 - bowl(0.4), 0.0, "inverted", "opens downwards"),
        (bowl(0.0, curve=0.0), 0.0, "flat", "the loss does not depend on the size here"),
        (bowl(0.4, curve=1e-12), 0.0, "flat", "the loss does not depend on the size here"),
        (bowl(0.4, curve=1e-8), 0.0, "minimum", ""),
        (bowl(0.4), 0.199, "minimum", ""),  # 0.1 * 2^2 deep
        (bowl(0.4), 0.201, "flat", "the valley is 0.4 deep, within twice the noise of 0.2"),
        (bowl(2.01), 0.201, "flat", "the valley is 0.4 deep"),
        (6 - bowl(0.4), 0.3, "inverted", "opens downwards"),
        (bowl(0.4, curve=1.0) - bowl(0.4, curve=0.0) + 0.01, 0.0, "minimum", ""),
        (bowl(0.4, curve=1.0) - bowl(0.4, curve=0.0) - 0.01, 0.0, "negative", "falls to a loss of -0.01"),
    ],
)
def test_verdicts_at_their_limits(loss: Any, noise: float, status: str, words: str) -> None:
    p = one(X, loss)
    found, reason = status_of(p, noise / float(p.loss.mean()))
    assert found == status
    assert words in reason
    assert bool(reason) == (status != "minimum")


def test_a_vertex_by_hand() -> None:
    p = one(X, bowl(0.4) + 0.01 * X**3)
    tokens = np.polyfit(p.x, p.log_tokens, 2)
    low, high = p.reach
    cases = {
        (3.0, -0.4, 0.5): 0.4, (3.0, 2.0, 0.5): -2.0,
        (3.0, -1.0 * (high + 3.9), 0.5): high + 3.9, (3.0, -1.0 * (high + 4.1), 0.5): np.nan,
        (3.0, -1.0 * (low - 3.9), 0.5): low - 3.9, (3.0, -1.0 * (low - 4.1), 0.5): np.nan,
        (3.0, -0.4, -0.5): np.nan, (3.0, 0.2, 0.0): np.nan,
    }  # fmt: skip
    found = vertex(p, np.array(list(cases)))
    for (coefficients, at), line in zip(cases.items(), found, strict=True):
        if np.isnan(at):
            assert np.isnan(line).all()
            continue
        c0, c1, c2 = coefficients
        assert line == pytest.approx([at + p.center, np.polyval(tokens, at), c0 + c1 * at + c2 * at**2])
    assert vertex(p, np.array([[3.0, -0.4, 0.5]])).shape == (3,)


def test_draws_beyond_the_sizes_swept_are_left_out() -> None:
    near, far = one(X, bowl(0.4)), one(X + 1.0, bowl(1.2, X + 1.0))
    low, high = np.log(1e6) - 2.0, np.log(1e6) + 2.0
    sizes = np.array([[low, high], [low + 1e-6, high - 1e-6], [np.nan, high + 0.5], [0.0, high + 1.0]])
    drawn = np.stack((sizes, 30.0 - sizes, np.ones_like(sizes)), axis=-1)
    found = swept([near, far], drawn)
    kept = np.array([[False, True], [True, True], [False, True], [False, False]])
    assert (np.isfinite(found[..., 0]) == kept).all()
    np.testing.assert_array_equal(found[kept], drawn[kept])
    assert np.isnan(found[~kept]).all()


def test_noise_is_pooled_over_budgets() -> None:
    generator = np.random.default_rng(0)
    first, second = (
        one(X, bowl(0.4) + 0.01 * generator.normal(size=5)),
        one(X[:3], bowl(0.1, X[:3]) + np.array([0.1, -0.1, 0.3])),
    )
    third = one(np.linspace(-1, 1, 8), 3.0 + 0.02 * generator.normal(size=8))
    total = (first.relative**2).sum() + (second.relative**2).sum() + (third.relative**2).sum()
    np.testing.assert_allclose(first.relative, first.residual / first.loss.mean())
    assert noise_of([first, second, third]) == pytest.approx(np.sqrt(total / (2 + 0 + 5)))
    assert noise_of([second]) == 0.0
    assert noise_of([]) == 0.0
    thin = replace(first, keys=("a", "b"))
    assert noise_of([third, thin]) == pytest.approx(
        np.sqrt(((third.relative**2).sum() + (first.relative**2).sum()) / 5)
    )


def three() -> tuple[Any, Any, Any]:
    wiggle = np.array([0.001, -0.002, 0.0015, 0.0005, -0.001])
    return (
        (6e14, X, bowl(-0.5) + wiggle), (6e15, X + 1, bowl(0.8, X + 1) - wiggle),
        (6e16, X + 2, bowl(1.7, X + 2) + wiggle),
    )  # fmt: skip


def test_every_number_of_a_fit() -> None:
    budgets = three()
    found = valleys.fit(table(*budgets), resamples=0, seed=0)
    best = []
    for (flops, x, loss), valley in zip(budgets, found.block.valleys, strict=True):
        c2, c1, c0 = np.polyfit(x, loss, 2)
        at = -c1 / (2 * c2)
        best.append((np.log(1e6) + at, np.log(flops / 6e6) - at, c0 + c1 * at + c2 * at**2))
        assert valley.params_opt == pytest.approx(np.exp(best[-1][0]))
        assert valley.tokens_opt == pytest.approx(np.exp(best[-1][1]))
        assert valley.loss_opt == pytest.approx(best[-1][2])
        assert valley.params_range == pytest.approx((1e6 * np.exp(x[0]), 1e6 * np.exp(x[-1])))
        assert np.polyval(valley.coefficients[::-1], x - x.mean()) == pytest.approx(np.polyval((c2, c1, c0), x))
        assert (valley.status, valley.reason, valley.points, valley.flops_budget) == ("minimum", "", 5, flops)
        assert (valley.params_interval, valley.tokens_interval, valley.loss_interval) == (None, None, None)
    size, tokens, loss = (np.array(v) for v in zip(*best, strict=True))
    np.testing.assert_allclose(found.params, size)
    np.testing.assert_allclose(found.tokens, tokens)
    np.testing.assert_allclose(found.loss, loss)
    np.testing.assert_allclose(found.flops, [6e14, 6e15, 6e16])
    logs = np.log([6e14, 6e15, 6e16])
    for name, values in (("params", size), ("tokens", tokens)):
        law, line = found.block.exponents[name], stats.linregress(logs, values)
        assert law.exponent == pytest.approx(line.slope)
        assert law.bse == pytest.approx(line.stderr)
        assert law.reference_flops == pytest.approx(6e15)
        assert law.coefficient == pytest.approx(np.exp(values.mean()))
        assert (law.points, law.df_resid) == (3, 1)
        assert (law.exponent_interval, law.coefficient_interval) == (None, None)
    block = found.block
    assert (block.status, block.reason, block.rows_used) == ("ok", "", 15)
    assert block.params == {n: block.exponents[q].exponent for n, q in (("a", "params"), ("b", "tokens"))}
    assert block.objective == pytest.approx(
        sum(((y - np.polyval(np.polyfit(x, y, 2), x)) ** 2).sum() for _, x, y in budgets)
    )
    assert block.intervals == {"a": None, "b": None}
    assert not block.identified["a"].identified
    assert "no degrees of freedom" in block.identified["a"].reason
    assert (block.form, block.loss_function, block.approach) == (valleys.FORM, "squared(loss)", "valleys")


def test_budgets_are_sorted_into_parabolas_and_those_with_too_few_sizes() -> None:
    held = table(
        (6e13, [0.0], [3.0]), (6e14, [0.0, 1.0], [3.0, 2.9]), (6e15, [0.0, 1.0, 1.0], [3.0, 2.8, 2.9]),
        (6e16, [0.0, 1.0, 2.0], [3.0, 2.8, 2.9]), (6e17, [0.0, 1.0], [3.0, 2.9]),
    )  # fmt: skip
    block = valleys.fit(held, resamples=0, seed=0).block
    assert [(v.flops_budget, v.status, v.points) for v in block.valleys] == [
        (6e14, "too_few", 2), (6e15, "too_few", 3), (6e16, "minimum", 3), (6e17, "too_few", 2),
    ]  # fmt: skip
    few = block.valleys[1]
    assert few.reason == "2 sizes: a parabola needs at least three"
    assert few.keys == ("r3", "r4", "r5")
    assert few.params_range == pytest.approx((1e6, 1e6 * np.e))
    assert few.center == pytest.approx(np.log(1e6) + 2 / 3)
    assert few.flops == pytest.approx(6e15)
    assert few.coefficients == ()
    assert block.status == "not possible"
    assert (
        block.reason
        == "1 budget with a minimum inside the sizes: a power law needs two, and three to show that it holds"
    )
    assert (block.params, block.intervals, block.identified, block.exponents) == ({}, {}, {}, {})
    single = valleys.fit(table((6e14, [0.0, 0.0], [3.0, 2.9])), resamples=0, seed=0).block
    assert single.valleys[0].reason == "1 size: a parabola needs at least three"
    assert single.objective is None
    assert (block.rows_used, single.rows_used) == (3, 0)


def found_minima(found: valleys.ValleyFit) -> np.ndarray:
    return np.stack((found.params, found.tokens, found.loss), axis=1)


def test_draws_of_repeated_sizes_do_not_depend_on_the_order_of_the_rows() -> None:
    generator = np.random.default_rng(3)
    x = np.repeat(X, 2)
    budgets = [(c, x, 3.0 - 0.2 * i + 0.1 * (x - 0.1 * i) ** 2 + 0.01 * generator.normal(size=10))
               for i, c in enumerate((6e14, 6e15, 6e16, 6e17))]  # fmt: skip
    turned = [(c, x, loss[np.arange(10) ^ 1]) for c, x, loss in budgets]
    first, second = (valleys.fit(table(*each), resamples=80, seed=1) for each in (budgets, turned))
    assert len(first.flops) == 4
    for name in ("params", "draw_params", "draw_tokens", "draw_loss"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-12)
    order = [9, 3, 0, 6, 8, 1, 2, 5, 4, 7]  # sizes stay where a file has them, only repeats of one are put in order
    (index,) = valleys._shared(table((6e14, x[order], budgets[0][2][order])))
    assert [x[order][i] for i in index] == list(x[order])
    losses = budgets[0][2][order][index]
    assert all(np.diff(losses[x[order] == size]) > 0 for size in X)


def test_draws_are_parabolas_through_drawn_losses() -> None:
    held = table(*three(), (6e17, X, 6 - bowl(0.0)))
    found = valleys.fit(held, resamples=60, seed=4)
    assert found.draw_loss.shape == found.draw_params.shape == (60, 3)
    parabolas = [parabola(held, held.budget == g) for g in range(4)]
    residuals = np.concatenate([p.relative for p in parabolas])
    once = resampling.redrawn(residuals, 20 - 12, 60, 4)
    both = (once, once * resampling.student_scales(20 - 12, 60, 4)[:, None])
    found_draws = valleys._draws(parabolas, [parabolas[0], parabolas[2]], 60, 4)
    for noise, own in zip(both, found_draws, strict=True):
        assert own.shape == (60, 2, 3)
        for number, p, begin in ((0, parabolas[0], 0), (1, parabolas[2], 10)):
            for r in (0, 17, 59):
                drawn = p.loss - p.residual + noise[r, begin : begin + 5] * p.loss.mean()
                c2, c1, c0 = np.polyfit(p.x, drawn, 2)
                at = -c1 / (2 * c2)
                assert own[r, number, 0] == pytest.approx(at + p.center)
                assert own[r, number, 2] == pytest.approx(c0 + c1 * at + c2 * at * at)
    np.testing.assert_allclose(found.draw_loss[:, 0], found_draws[1][:, 0, 2])
    noisy, best = swept(parabolas[:3], valleys._draws(parabolas, parabolas[:3], 60, 4)[0]), found_minima(found)
    generator = np.random.default_rng(np.random.SeedSequence([4, 8]))
    wider = scatter.allowed(scatter.scatters(np.log(found.flops), best, noisy), best, noisy, generator)
    np.testing.assert_allclose(found.draw_params, wider[..., 0])
    np.testing.assert_allclose(found.draw_tokens, wider[..., 1])
    for i, valley in enumerate(v for v in found.block.valleys if v.status == "minimum"):
        drawn = valleys._draws(parabolas, parabolas[:3], 60, 4)[1][:, i]
        ends = [
            resampling.interval(drawn[:, k], v) or ()
            for k, v in enumerate((found.params[i], found.tokens[i], found.loss[i]))
        ]
        assert valley.params_interval == pytest.approx(tuple(np.exp(ends[0])))
        assert valley.tokens_interval == pytest.approx(tuple(np.exp(ends[1])))
        assert valley.loss_interval == pytest.approx(ends[2])
    for name, draws in (("params", found.draw_params), ("tokens", found.draw_tokens)):
        law = found.block.exponents[name]
        slopes = np.array([np.polyfit(np.log(found.flops), line, 1)[0] for line in draws])
        assert law.exponent_interval == pytest.approx(resampling.interval(slopes, law.exponent))
        low, high = resampling.interval(draws.mean(axis=1), float(np.log(law.coefficient))) or (np.nan, np.nan)
        assert law.coefficient_interval == pytest.approx((np.exp(low), np.exp(high)))
    assert (valleys.fit(held, resamples=60, seed=5).draw_loss != found.draw_loss).any()


def test_no_freedom_no_draws() -> None:
    exact = table(*((c, x[:3], y[:3]) for c, x, y in three()))
    found = valleys.fit(exact, resamples=7, seed=0)
    assert found.draw_loss.shape == (7, 3)
    assert np.isnan(found.draw_loss).all()
    p, thin = one(X, bowl(0.0)), one(X[:3], bowl(0.0, X[:3]))
    four = one(X[:4], bowl(0.0, X[:4]) + np.array([0.01, -0.01, 0.02, 0.0]))
    for which in (0, 1):
        assert valleys._draws([p], [], 0, 0)[which].shape == (0, 0, 3)
        assert valleys._draws([p], [], 4, 0)[which].shape == (4, 0, 3)
        assert valleys._draws([p], [p], 0, 0)[which].shape == (0, 1, 3)
        assert np.isnan(valleys._draws([thin], [thin], 4, 0)[which]).all()
    assert np.isfinite(valleys._draws([four], [four], 4, 0)[0]).all(), "one degree of freedom is enough"


def test_lines_leave_out_what_is_missing() -> None:
    flops = np.array([1e15, 1e16, 1e18, 1e19])
    x = np.log(flops / 1e17)
    draws = np.array([2.0 + 0.5 * x, 1.0 - 0.3 * x + 0.1 * x**2, 5.0 + 0.0 * x, x, x])
    draws[1, 2] = np.nan
    draws[3, 1:] = np.nan
    draws[4] = np.nan
    intercepts, slopes = power_laws.lines(flops, 1e17, draws)
    want = np.polyfit(x[[0, 1, 3]], draws[1, [0, 1, 3]], 1)
    assert slopes[:3] == pytest.approx([0.5, want[0], 0.0])
    assert intercepts[:3] == pytest.approx([2.0, want[1], 5.0])
    assert np.isnan(slopes[3:]).all()
    assert np.isnan(intercepts[3:]).all()
    two = power_laws.lines(flops, 1e17, np.array([[1.0, np.nan, np.nan, 4.0]]))
    assert two[1][0] == pytest.approx(3.0 / np.log(1e4))


def test_a_power_law_of_two_points_has_no_standard_error() -> None:
    law = power_laws.power_law(1e17, np.log([1e16, 1e18]), np.array([1.0, 2.0]), np.empty((0, 2)))
    assert (law.bse, law.df_resid, law.points) == (None, 0, 2)
    assert law.exponent == pytest.approx(1 / np.log(100))
    assert law.coefficient == pytest.approx(np.exp(1.5))
    assert valleys._exponents(np.array([1e17]), np.zeros((1, 3)), np.empty((0, 1, 3))) == {}
    assert set(valleys._exponents(np.array([1e17, 1e18]), np.zeros((2, 3)), np.empty((0, 2, 3)))) == {
        "params",
        "tokens",
    }


LINE = np.log([1e15, 1e16, 1e17, 1e18])


def valley(status: str = "minimum", budget: float = 1e15, at: float = 0.0, points: int = 5) -> Valley:
    """Return a valley whose minimum lies at this place of its sizes: -1 is the smallest, 1 the largest."""
    best = float(1e6 * 10.0**at) if status == "minimum" else None
    return Valley(budget, budget, status, f"why {status}", points, (), (1e5, 1e7), 0.0, params_opt=best)


def test_places_among_the_sizes() -> None:
    for at in (-1.0, -0.3, 0.0, 0.7, 1.0):
        assert valley_findings._place(valley(at=at)) == pytest.approx(at)


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        ("edge", "edge_minimum", "add sizes beyond the edge at this budget"),
        ("inverted", "inverted_parabola", "widen the range of sizes at this budget, or repeat with more seeds"),
        ("flat", "flat_parabola", "widen the range of sizes at this budget, or repeat with more seeds"),
        ("negative", "negative_parabola", "add sizes at this budget around its lowest losses"),
        ("too_few", "few_points", "add sizes at this budget; five over a factor of 16 are a good valley"),
    ],
)
def test_budgets_without_a_minimum_are_findings(status: str, code: str, advice: str) -> None:
    three_ = [valley(status, b) for b in (1e15, 2e15, 3e15)]
    (one,) = valley_findings.of_budgets(three_[:1])
    assert (one.code, one.advice, one.level) == (code, advice, "warning")
    assert one.message == f"budget 1e15 FLOPs is left out: why {status}"
    (three,) = valley_findings.of_budgets(three_)
    each = "; ".join(f"{b} FLOPs (why {status})" for b in ("1e15", "2e15", "3e15"))
    assert three.message == f"3 budgets are left out: {each}"
    (four,) = valley_findings.of_budgets([*three_, valley(status, 4e15)])
    assert four.message == f"4 budgets are left out (1e15, 2e15, 3e15, ... FLOPs); the first: why {status}"
    assert three.advice == four.advice == advice.replace("this budget", "these budgets")
    assert three.code == four.code == code


def test_few_minima_and_minima_near_an_edge_are_findings() -> None:
    assert valley_findings.of_budgets([]) == []
    (one,) = valley_findings.of_budgets([valley()])
    assert one.message == "only 1 budget with a minimum"
    assert one.advice == "run more budgets; an exponent needs two, and a third to check it"
    (two,) = valley_findings.of_budgets([valley(), valley()])
    assert (two.code, two.message) == ("few_valleys", "only 2 budgets with a minimum")
    assert two.advice == "run more budgets; exponents of two points have no check"
    assert [c.code for c in valley_findings.of_budgets([valley()] * 3)] == ["few_valleys"]
    assert valley_findings.of_budgets([valley()] * 5) == []
    off_center = [valley(at=0.71), valley(budget=2e15, at=-0.71), valley(budget=3e15, at=0.69)]
    (off,) = valley_findings.of_budgets([*off_center, valley(), valley()])
    assert off.code == "off_center"
    assert off.message == "the minimum lies near the edge of the sizes at 1e15, 2e15 FLOPs"
    assert off.advice == "centre the sizes on the minimum: off-centre parabolas are biased"


@pytest.mark.parametrize(
    ("places", "side"),
    [
        ((-0.3, 0.0, 0.3), "largest"),
        ((0.3, 0.0, -0.3), "smallest"),
        ((-0.24, 0.0, 0.24), ""),  # not far enough
        ((-0.26, 0.0, 0.26), "largest"),
        ((-0.3, 0.3), ""),  # two say nothing
        ((-0.3, 0.4, 0.3), ""),  # there and back
        ((0.3, -0.4, -0.3), ""),
        ((-0.3, 0.0, 0.0, 0.3), ""),  # stands still once
        ((0.3, 0.0, 0.0, -0.3), ""),
    ],
)
def test_a_drifting_grid(places: tuple[float, ...], side: str) -> None:
    found = valley_findings._drift([valley(at=at) for at in places])
    assert len(found) == bool(side)
    for check in found:
        assert check.code == "drifting_grid"
        assert f"the minimum moves towards the {side} sizes swept: the grids drift" in check.message
        assert "tilts the exponents" in check.advice
        assert valley_findings.of_budgets([valley(at=at) for at in places])[1:] == found, "but for how few they are"


def test_runs_outside_the_window_are_counted() -> None:
    held = table((6e13, [0.0], [3.0]), (6e14, X, bowl(0.0)), (6e15, [0.0, 1.0], [3.0, 2.9]))
    assert valley_findings.outside_window(held, [valley(points=5), valley(points=2)]) == []
    (found,) = valley_findings.outside_window(held, [valley(points=4), valley(points=1)])
    assert (
        found.message == "parabolas leave out 2 runs more than 8 times larger or smaller than the best of their budget"
    )
    assert (found.code, found.level, found.advice) == ("outside_window", "note", "the surface rests on these runs too")
    (single,) = valley_findings.outside_window(held, [valley(points=4), valley(points=2)])
    assert "leave out 1 run more than 8 times" in single.message


def test_draws_without_a_minimum_are_a_finding() -> None:
    best = np.stack((5 + 0.5 * LINE, LINE, LINE), axis=1)
    drawn = best + np.random.default_rng(0).normal(size=(1000, 4, 3))
    flops = np.exp(LINE)
    assert valley_findings.of_draws(flops, drawn, ()) == []
    assert valley_findings.of_draws(flops, drawn[:0], ()) == []
    drawn[:10, 1] = np.nan
    assert valley_findings.of_draws(flops, drawn, ()) == [], "one in a hundred is none too many"
    drawn[:11, 1], drawn[:30, 3] = np.nan, np.nan
    (found,) = valley_findings.of_draws(flops, drawn, ())
    assert found.code == "undefined_draws"
    assert found.message == "resampled valleys without a minimum: 1.1 % at 1e16 FLOPs, 3.0 % at 1e18 FLOPs"
    assert "from 5 % on there is no interval" in found.advice


def test_an_exponent_without_an_interval_is_not_identified() -> None:
    bare = PowerLaw(1.0, 0.5, 1.0, None, None, None, 3, 1)
    assert not valleys._identified(bare, "a").identified
    assert valleys._identified(replace(bare, exponent_interval=(0.4, 0.6)), "a").identified
    two = valleys._identified(replace(bare, exponent_interval=(0.47, 0.48), points=2, df_resid=0), "a")
    assert (two.identified, two.reason) == (False, "two minima fix any power law")
    assert power_laws.exp_interval(None) is None
    assert power_laws.exp_interval((0.0, 1.0)) == pytest.approx((1.0, np.e))


def test_findings_of_a_fit_stand_together() -> None:
    edge = table(*three(), (6e17, X, bowl(-4.0)), (6e18, [*X, 4.0], [*bowl(0.0), 9.0]))
    codes = [c.code for c in valleys.fit(edge, resamples=0, seed=0).block.checks]
    assert codes == ["edge_minimum", "few_valleys", "outside_window"]
