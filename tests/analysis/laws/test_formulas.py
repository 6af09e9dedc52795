"""Each law is its paper's equation, written out here in natural units, at the constants that people quote."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from analysis.estimation import objectives
from analysis.inference.resampling import choose, cluster_weights, percentile
from analysis.laws.registry import FORMS
from tests.analysis.formulas import FORMULAS, LAWS, RANGES


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_a_law_is_its_papers_equation(name: str) -> None:
    form, constants = FORMS[name], {**LAWS[name], **({"f": 0.7} if name == "broken" else {})}
    random = np.random.default_rng(5)
    inputs = {n: np.exp(random.uniform(log(RANGES[n][0]), log(RANGES[n][1]), 12)) for n in form.inputs}
    if "unique_tokens" in inputs:
        inputs["unique_tokens"] = np.minimum(inputs["unique_tokens"], inputs["tokens"] / 3)
        inputs["params"][:6] = 1e10  # more than their unique tokens are worth
    logs = np.log(np.stack([inputs[n] for n in form.inputs]))
    centres = form.centre(logs)
    theta = form.internal(np.array([[constants[n] for n in form.names]]), centres)
    found = np.exp(form.log_value(theta, logs - centres[:, None])[0])
    expected = [FORMULAS[name](constants, {n: float(v[i]) for n, v in inputs.items()}) for i in range(12)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


KUMAR: dict[str, float] = {
    "E": 2.7648, "A": 4299.0, "B": 18060.0, "alpha": 0.4965, "beta": 0.4965,
    "gamma_w": 2.6745, "gamma_a": 2.2102, "gamma_kv": 0.9578,
    "G": 0.0598 * exp(1.1277), "g_D": 0.5068, "g_N": 0.3439, "gamma_post": 0.5907,
    "C_w": 1.0, "C_a": 1.0, "C_kv": 1.0,
}  # fmt: skip
"""Kumar et al. 2024, table 2, alpha = beta as they are tied; the C_i are not published: of many bits they drop out."""
OFFSETS = np.array([0.3037, 1.4072, 2.4185]) * np.array([2.6745, 2.2102, 0.9578])
"""Bits by which the table's offsets n_i shift weights, activations and cache: 1 - e^(n - P/gamma)."""


def _kumar(name: str, *columns: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the law's loss at the published constants, of columns in the order of its inputs."""
    form = FORMS[name]
    x = np.log(np.stack(np.broadcast_arrays(*(np.asarray(c, dtype=np.float64) for c in columns))))
    theta = form.internal(np.array([[KUMAR[n] for n in form.names]]), np.zeros(len(x)))
    return np.asarray(np.exp(form.log_value(theta, x.reshape(len(x), -1)))[0].reshape(x.shape[1:]))


@pytest.mark.parametrize("flops", [1e19, 1e22])
def test_published_constants_have_the_papers_optimal_precision(flops: float) -> None:
    """Section 4.3.2: of N, D and P at 6/16 N D P = C the best P is 7 to 8 bits, whatever C is (7.00 by eq. 7)."""
    bits, size = np.arange(5.0, 12.0, 0.02)[:, None], np.geomspace(1e7, 1e12, 1500)[None]
    tokens = flops / (6 / 16 * size * bits)
    loss = _kumar("precision", size, tokens, *(bits - shift for shift in OFFSETS))
    assert bits[np.argmin(loss.min(axis=1)), 0] == pytest.approx(7.0, abs=0.05)


@pytest.mark.parametrize("after", [3.0, 4.0, 5.0])
def test_published_constants_have_the_papers_critical_tokens(after: float) -> None:
    """Eq. 13: from these tokens on more of them make 30M parameters worse once they are quantised."""
    tokens, many = np.geomspace(1e8, 1e13, 20_001), (99.0, 99.0, 99.0)
    loss = _kumar("precision_after", 30e6, tokens, *many, after)
    c = KUMAR
    ratio = c["beta"] * c["B"] * 30e6 ** c["g_N"] * exp(after / c["gamma_post"]) / (c["g_D"] * c["G"])
    critical = ratio ** (1 / (c["g_D"] + c["beta"]))
    assert tokens[np.argmin(loss)] == pytest.approx(critical, rel=2e-3)
    assert after > 3.0 or critical < 26e9, "figure 2, top left: it rises within the 26e9 tokens"
    added = _kumar("precision_after", 30e6, 26e9, *many, after) - _kumar("precision", 30e6, 26e9, *many)
    equation_2 = c["G"] * 26e9 ** c["g_D"] / 30e6 ** c["g_N"] * exp(-after / c["gamma_post"])
    assert float(added) == pytest.approx(equation_2, rel=1e-9)


RESIDUALS = np.array([[-0.7, -0.2, -0.05, 0.02, 0.11, 0.4]])
LOSSES: dict[str, objectives.Loss] = {
    "huber": objectives.Huber(0.1), "squared": objectives.Squared(), "l1": objectives.Absolute(0.05),
    "student_t": objectives.StudentT(3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("weighted", [False, True])
def test_second_derivatives_of_a_loss_are_the_slopes_of_its_first(name: str, weighted: bool) -> None:
    loss = LOSSES[name]
    weights = np.array([[1.0, 2.0, 0.5, 1.0, 3.0, 1.0]]) if weighted else None
    size, step = RESIDUALS.shape[1], 1e-5
    moved = [RESIDUALS + side * step * np.eye(size)[i] for i in range(size) for side in (1.0, -1.0)]
    values, pulls = (np.concatenate(part) for part in zip(*(loss.summed(r, weights) for r in moved), strict=True))
    gradient = (values[::2] - values[1::2]) / (2 * step)
    np.testing.assert_allclose(loss.summed(RESIDUALS, weights)[1][0], gradient, rtol=1e-5, atol=1e-7)
    own, shared = loss.bend(RESIDUALS, weights)
    hessian = np.diag(own[0]) - (0.0 if shared is None else np.outer(shared[0], shared[0]))
    np.testing.assert_allclose(hessian, (pulls[::2] - pulls[1::2]) / (2 * step), rtol=1e-4, atol=1e-4)


def test_likelihoods_are_those_of_their_distributions() -> None:
    from scipy.stats import laplace, norm, t

    r = RESIDUALS[0]
    n, squared = len(r), float(0.5 * (r**2).sum())
    assert objectives.Squared().llf_of(squared, n) == pytest.approx(norm.logpdf(r, scale=np.sqrt((r**2).mean())).sum())
    total = float(np.abs(r).sum())
    assert objectives.Absolute().llf_of(total, n) == pytest.approx(laplace.logpdf(r, scale=total / n).sum())
    loss = objectives.StudentT(3.0)
    scale = t.fit(r, fdf=3.0, floc=0.0)[2]
    objective = float(loss.summed(RESIDUALS, None)[0][0])
    assert loss.llf_of(objective, n) == pytest.approx(t.logpdf(r, 3.0, scale=scale).sum(), rel=1e-6)
    wide = objectives.Huber(100.0)
    assert wide.llf_of(float(wide.summed(RESIDUALS, None)[0][0]), n) == pytest.approx(
        objectives.Squared().llf_of(squared, n), rel=1e-6
    ), "a Huber loss that is quadratic everywhere is the normal one"


@pytest.mark.parametrize(
    ("name", "middle"), [("squared", float(RESIDUALS.mean())), ("l1", -0.015), ("huber", None), ("student_t", None)]
)
def test_the_location_of_a_loss_is_where_its_pulls_balance(name: str, middle: float | None) -> None:
    loss = objectives.named(name) if name == "l1" else LOSSES[name]
    found = objectives.location(loss, RESIDUALS[0])
    assert abs(float(loss.summed(RESIDUALS - found, None)[1].sum())) < 1e-6
    assert middle is None or found == pytest.approx(middle, abs=1e-3)


def test_a_percentile_interval_counts_what_is_not_finite_at_both_ends() -> None:
    draws = np.arange(1.0, 100.0)
    assert percentile(draws, 0.9) == pytest.approx((5.0, 95.0))
    assert percentile(np.append(draws, np.full(2, np.nan)), 0.9) == pytest.approx(
        tuple(np.quantile(draws, [(0.05 - 1 / 101) * 101 / 99, 1 - (0.05 - 1 / 101) * 101 / 99], method="weibull"))
    )
    assert percentile(np.append(draws, np.full(12, np.nan)), 0.9) is None
    assert percentile(np.array([1.0]), 0.9) is None
    assert percentile(np.array([1.0, 2.0]), 0.9) == (1.0, 2.0)
    assert percentile(np.array([]), 0.9) is None


def test_whole_groups_are_drawn_as_many_as_there_are() -> None:
    groups = np.array([0, 0, 1, 2, 2, 2])
    weights = cluster_weights(groups, 400, 0)
    assert weights.shape == (400, 6)
    assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 2, 3]].sum(axis=1) == 3).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(6), abs=0.15)


@pytest.mark.parametrize(
    ("rows", "runs", "sizes", "by", "shared"),
    [
        (30, 30, 30, "residuals", ""), (99, 99, 99, "residuals", ""), (100, 100, 100, "runs", ""),
        (30, 30, 6, "residuals", "sizes"), (120, 120, 40, "sizes", ""), (90, 90, 30, "sizes", ""),
        (90, 90, 29, "residuals", "sizes"), (30, 10, 10, "residuals", "runs"), (30, 20, 20, "residuals", "runs"),
        (30, 30, 20, "residuals", "sizes"), (30, 30, 21, "residuals", ""), (400, 40, 40, "runs", ""),
        (30, 21, 21, "residuals", ""),
    ],
)  # fmt: skip
def test_which_scheme_rows_ask_for(rows: int, runs: int, sizes: int, by: str, shared: str) -> None:
    every = np.arange(rows)
    plan = choose(every % sizes, every % runs)
    assert (plan.by, plan.shared) == (by, shared)
    assert plan.text.startswith("residual bootstrap" if by == "residuals" else "percentile bootstrap")


@pytest.mark.parametrize("by", ["sizes", "runs", "rows"])
def test_whole_groups_are_drawn_from_eight_on(by: str) -> None:
    eight, seven = np.arange(8), np.arange(7)
    assert choose(eight, eight, by).by == by
    with pytest.raises(ValueError, match="at least 8 are needed"):
        choose(seven, seven, by)
