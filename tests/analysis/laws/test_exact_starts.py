"""Where searches begin: grids that hold the law itself wherever the law's own exponents lie on them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from analysis.laws.base import Array, Expression, Form, product
from analysis.laws.kaplan import scales
from analysis.laws.multi_power import MultiPower, Schedules
from analysis.laws.quantization import starts as precision_starts
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis.formulas import LAWS
from tests.analysis.laws.test_forms import design

AXIS = np.exp(np.linspace(np.log(0.02), np.log(2.5), 32))
"""The exponents of the projected grid for laws of one or two."""


def geometric(first: float, last: float, count: int) -> Array:
    return np.exp(np.linspace(np.log(first), np.log(last), count))


def made(form: Form, law: Mapping[str, float], logs: Array) -> tuple[Array, Array]:
    """Return the centred logs and ln target of a law at inputs' logs."""
    centres = form.centre(logs)
    theta = form.internal(np.array([[law[name] for name in form.names]]), centres)
    return logs - centres[:, None], form.log_value(theta, logs - centres[:, None])[0]


def starts(form: Form, law: Mapping[str, float], logs: Array) -> tuple[dict[str, Array], Array, Array]:
    """Return the candidates' constants by name (as people quote them), and how far each misses the law (G,)."""
    x, y = made(form, law, logs)
    found = form.candidates(x, y)
    values = form.natural(found.theta, form.centre(logs))
    with np.errstate(over="ignore"):
        misses = np.abs(form.log_value(found.theta, x) - y).max(axis=1)
    return dict(zip(form.names, values.T, strict=True)), misses, y


def inputs(form: Form, count: int = 40, seed: int = 3) -> Array:
    return np.log(np.stack(design(form, count, seed)))


def places(values: Array) -> Array:
    """Return the distinct values of a column of the grid, to ten digits, rising."""
    return np.unique([float(f"{v:.10g}") for v in values])


SUMS = {
    "chinchilla": ({"E": 1.7, "A": 400.0, "B": 900.0, "alpha": AXIS[17], "beta": AXIS[19]}, 32**2),
    "chinchilla_no_floor": ({"A": 8.0, "B": 2600.0, "alpha": AXIS[5], "beta": AXIS[18]}, 32**2),
    "chinchilla_tied": ({"E": 1.7, "A": 400.0, "B": 900.0, "alpha": AXIS[17]}, 32),
    "compute": ({"L_inf": 1.7, "a": 30.0, "alpha": AXIS[9]}, 32),
    "frontier_no_floor": ({"a": 30.0, "alpha": AXIS[6]}, 32),
    "chinchilla_interaction": (
        {"E": 1.7, "A": 400.0, "B": 900.0, "G": 1e4,
         **dict(zip(("alpha", "beta", "gamma", "delta"), geometric(0.02, 2.5, 7)[[3, 4, 2, 3]], strict=True))}, 7**4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_the_projected_grid_holds_its_laws_and_scores_them_best(name: str) -> None:
    form, (law, count) = FORMS[name], SUMS[name]
    logs = inputs(form)
    x, y = made(form, law, logs)
    found = form.candidates(x, y)
    assert len(found.theta) == count
    assert found.scores is not None
    assert found.apart is not None
    best = int(np.argmin(found.scores))
    tolerance = 1e-3 if name == "chinchilla_interaction" else 1e-6  # four collinear columns
    np.testing.assert_allclose(form.log_value(found.theta[best : best + 1], x)[0], y, atol=tolerance)
    exponents = found.theta[:, [i for i, log in enumerate(form.logs) if not log]]
    np.testing.assert_allclose(found.apart, np.log(exponents))
    # The scores are the sums of squared relative errors, less the number of rows.
    relative = np.exp(form.log_value(found.theta, x) - y) - 1
    near = np.flatnonzero((relative**2).sum(axis=1) < 10)
    assert len(near) > 10
    np.testing.assert_allclose(found.scores[near] + y.size, (relative[near] ** 2).sum(axis=1), rtol=1e-5, atol=1e-8)
    side = {1: 32, 2: 32, 4: 7}[exponents.shape[1]]
    for column in exponents.T:
        np.testing.assert_allclose(places(column), geometric(0.02, 2.5, side), rtol=1e-9)


def test_three_exponents_have_twelve_values_each() -> None:
    from analysis.laws.sum_of_powers import SumOfPowers

    form = SumOfPowers("", "", "E", tuple((f"A{i}", ((f"x{i}", f"e{i}"),)) for i in range(3)))
    x = np.log(np.random.default_rng(0).uniform(1, 50, size=(3, 30)))
    assert len(form.candidates(x, np.ones(30)).theta) == 12**3


def test_a_negative_coefficient_begins_with_a_small_share_of_the_target() -> None:
    """A loss that rises with compute: the coefficient of least squares is negative."""
    form = FORMS["frontier_no_floor"], FORMS["compute"]
    x = np.linspace(-2, 2, 9)[None]
    y = np.log(2.0 + 0.1 * x[0])
    found = form[1].candidates(x, y)
    basis = np.exp(-found.theta[:, 2, None] * x) * np.exp(-y)
    np.testing.assert_allclose(np.exp(found.theta[:, 1]), 1e-3 * 3.0 / np.linalg.norm(basis, axis=1), rtol=1e-9)


def test_power_laws_begin_at_least_squares() -> None:
    form = FORMS["learning_rate"]
    x, y = made(form, LAWS["learning_rate"], inputs(form))
    found = form.candidates(x, y)
    assert found.theta.shape == (1, 3)
    np.testing.assert_allclose(form.log_value(found.theta, x)[0], y, atol=1e-12)
    shifted = form.candidates(x, y + np.where(np.arange(len(y)) % 2, 0.1, -0.1))
    design_matrix = np.column_stack((np.ones(len(y)), *x))
    target = y + np.where(np.arange(len(y)) % 2, 0.1, -0.1)
    exact = np.linalg.solve(design_matrix.T @ design_matrix, design_matrix.T @ target)
    np.testing.assert_allclose(shifted.theta[0], exact, rtol=1e-9)


def test_critical_batches_from_twenty_times_below_to_twenty_times_above() -> None:
    form = FORMS["critical_batch"]
    logs = np.log(np.array([[1e4, 3e4, 1e5, 1e6, 1e7]]))
    grid = np.exp(np.log(1e4) - 3 + (np.log(1e7) - np.log(1e4) + 6) * np.arange(40) / 39)
    for k in (0, 13, 39):
        found, misses, _ = starts(form, {"S_min": 5e3, "B_crit": float(grid[k])}, logs)
        np.testing.assert_allclose(found["B_crit"], grid, rtol=1e-9)
        assert misses[k] < 1e-9
        assert np.argmin(misses) == k


def test_kaplans_grid_of_exponents() -> None:
    form = FORMS["kaplan"]
    logs = inputs(form)
    n, d = geometric(0.02, 1.0, 12), geometric(0.03, 1.0, 12)
    for i, j in ((3, 4), (4, 5)):
        law = {"N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": n[i], "alpha_D": d[j]}
        found, misses, _ = starts(form, law, logs)
        assert len(misses) == 144
        np.testing.assert_allclose(places(found["alpha_N"]), n, rtol=1e-9)
        np.testing.assert_allclose(places(found["alpha_D"]), d, rtol=1e-9)
        best = int(np.argmin(misses))
        assert misses[best] < 1e-7
        assert {name: float(found[name][best]) for name in law} == pytest.approx(law, rel=1e-5)


def test_kaplans_grid_of_floors() -> None:
    form = FORMS["kaplan_floor"]
    logs = inputs(form, 60)
    axis = geometric(0.05, 1.0, 9)
    for share in (0.05, 0.3, 0.6, 0.8, 0.9):
        rest = {"N_c": 8.8e12, "D_c": 5.4e12, "alpha_N": axis[3], "alpha_D": axis[4]}
        top = np.exp(made(FORMS["kaplan"], rest, logs)[1]).min()
        law = {"E": float(top * share / (1 - share)), **rest}
        found, misses, y = starts(form, law, logs)
        assert len(misses) == 5 * 81
        np.testing.assert_allclose(
            places(found["E"]), np.sort(np.exp(y.min()) * np.array([0.05, 0.3, 0.6, 0.8, 0.9])), rtol=1e-9
        )
        np.testing.assert_allclose(places(found["alpha_N"]), axis, rtol=1e-9)
        np.testing.assert_allclose(places(found["alpha_D"]), axis, rtol=1e-9)
        assert misses.min() < 1e-7


def test_kaplans_scales_are_positive_where_least_squares_are_not() -> None:
    """Loss that rises with N, or with D, has a negative scale; a hundredth of what it alone would take stands."""
    n, d = np.array([-1.0, 0.0, 1.0, -1.0, 1.0]), np.array([-1.0, 0.5, 1.0, 1.0, -1.0])
    x = {"params": n + 20, "tokens": d + 25}
    one = np.ones(1)
    size, data = np.exp(-n), np.exp(-(d - d.mean()))
    for grows, name in ((size, "N_c"), (data, "D_c")):
        target = (size + data - grows) - 0.1 * grows
        found = scales(x, np.log(target)[None], one, one)
        other = grows / target
        expected = 1e-2 * other.sum() / (other**2).sum()
        middle = (x["params"] if name == "N_c" else x["tokens"]).mean()
        assert float(found[name][0]) == pytest.approx(np.log(expected) + middle, rel=1e-12)
    # N and D in step: the two scales cannot be told apart, and both are finite all the same.
    tied = scales({"params": n, "tokens": n}, np.log(3.0 * np.exp(-n))[None], one, one)
    assert all(np.isfinite(values).all() for values in tied.values())


def test_over_trainings_grid_of_eta() -> None:
    form = FORMS["overtraining"]
    for k in (8, 13):
        found, misses, _ = starts(form, {"E": 1.8, "a": 212.0, "b": 367.0, "eta": AXIS[k]}, inputs(form))
        np.testing.assert_allclose(found["eta"], AXIS, rtol=1e-9)
        assert misses[k] < 1e-7
        assert float(found["a"][k]) == pytest.approx(212.0, rel=1e-4)
        assert float(found["b"][k]) == pytest.approx(367.0, rel=1e-4)


def test_downstream_grid_of_gamma() -> None:
    form = FORMS["downstream"]
    grid = geometric(0.05, 5.0, 60)
    logs = np.log(np.linspace(1.8, 4.5, 14))[None]
    for k in (20, 34, 45):
        law = {"eps": 0.85, "k": 0.4 * float(np.exp(grid[k] * 1.8)), "gamma": float(grid[k])}
        found, misses, _ = starts(form, law, logs)
        np.testing.assert_allclose(found["gamma"], grid, rtol=1e-9)
        assert misses[k] < 1e-9
        assert {name: float(found[name][k]) for name in law} == pytest.approx(law, rel=1e-9)


def test_downstream_starts_with_a_small_fall_where_the_error_grows() -> None:
    """An error that falls with the loss has no k: a thousandth of the mean error at the mean loss stands for it."""
    form = FORMS["downstream"]
    loss = np.array([2.0, 2.5, 3.0, 4.0])
    error = np.array([0.9, 0.8, 0.7, 0.5])
    found = form.candidates(np.log(loss)[None], np.log(error)).theta
    gamma = geometric(0.05, 5.0, 60)
    slope = 1e-3 * error.mean()
    np.testing.assert_allclose(found[:, 1], np.log(slope) + gamma * loss.mean(), rtol=1e-9)
    level = error.mean() + slope * np.exp(-gamma[:, None] * (loss - loss.mean())).mean(axis=1)
    np.testing.assert_allclose(found[:, 0], np.log(level), rtol=1e-9)
    same = form.candidates(np.log(np.full(4, 2.0))[None], np.log(error)).theta
    assert np.isfinite(same).all()


def test_expert_tilts_turn_about_the_mean_number_of_experts() -> None:
    form = FORMS["moe"]
    assert isinstance(form, Expression)
    logs = inputs(form)
    _, y = made(form, LAWS["moe"], logs)
    found = dict(zip(form.names, form.candidates(logs, y).theta.T, strict=True))
    assert set(places(found["delta"])) == {-0.3, -0.1, 0.0, 0.1}
    assert set(places(found["omega"])) == {-0.1, 0.0, 0.1}
    assert not found["gamma"].any()
    assert not found["zeta"].any()
    middle = logs[2].mean()
    centres = logs[:2].mean(axis=1)
    plain = SURFACE.candidates(logs[:2] - centres[:, None], y)
    assert plain.scores is not None
    best = np.argsort(plain.scores)[[0, 10, 20, 30, 40, 50]]
    expected = np.log(SURFACE.natural(plain.theta[best], centres))
    assert len(found["E"]) == 6 * 4 * 3
    rows = np.repeat(np.arange(6), 12)
    np.testing.assert_allclose(found["E"], expected[rows, 0])
    np.testing.assert_allclose(found["A"] + found["delta"] * middle, expected[rows, 1])
    np.testing.assert_allclose(found["B"] + found["omega"] * middle, expected[rows, 2])
    np.testing.assert_allclose(np.log(found["alpha"]), expected[rows, 3])
    np.testing.assert_allclose(np.log(found["beta"]), expected[rows, 4])


def test_breaks_are_tried_at_four_places_three_widths_and_four_turns() -> None:
    form = FORMS["broken"]
    logs = inputs(form)
    _, y = made(form, LAWS["broken"], logs)
    found = dict(zip(form.names, form.candidates(logs, y).theta.T, strict=True))
    np.testing.assert_allclose(places(found["d"]), np.quantile(logs[0], [0.2, 0.4, 0.6, 0.8]), rtol=1e-9)
    np.testing.assert_allclose(places(np.exp(found["f"])), [0.3, 1.0, 3.0])
    np.testing.assert_allclose(places(found["c1"]), [-0.1, -0.03, 0.03, 0.1])
    centres = logs.mean(axis=1)
    compute = FORMS["compute"]
    plain = compute.candidates(logs - centres[:, None], y)
    assert plain.scores is not None
    base = compute.natural(plain.theta[np.argsort(plain.scores)[[0, 4, 8]]], centres)
    rows = np.repeat(np.arange(3), 48)
    np.testing.assert_allclose(found["a"], np.log(base[rows, 0]))
    np.testing.assert_allclose(found["b"] + 0.5 * found["c1"] * found["d"], np.log(base[rows, 1]))
    np.testing.assert_allclose(found["c0"] + 0.5 * found["c1"], base[rows, 2])


def test_farseers_starts_surround_the_best_surface() -> None:
    form = FORMS["farseer"]
    logs = inputs(form)
    law = {"E": 1.7, "A": 400.0, "B": 900.0, "alpha": AXIS[17], "beta": AXIS[19]}
    _, y = made(SURFACE, law, logs)
    n = logs[0] - logs[0].mean()
    found = dict(zip(form.names, form.candidates(np.stack((n, logs[1])), y).theta.T, strict=True))
    assert len(found["q"]) == 5 * 2 * 4 * 2 * 3
    spread = n.max() - n.min()
    for name, values in (("q", (-0.4, -0.2, -0.05, 0.1, 0.2)), ("b", (-0.1, 0.1)), ("a", (-0.1, 0.1))):
        np.testing.assert_allclose(places(found[name]), values)
    np.testing.assert_allclose(places(found["B"]) * spread, (-0.5, 0.0, 0.5, 2.0), atol=1e-9)
    np.testing.assert_allclose(places(found["A"]) * spread, (-0.3, 0.0, 0.3), atol=1e-9)
    np.testing.assert_allclose(found["Q"], np.log(900.0), rtol=1e-7)
    np.testing.assert_allclose(found["F"], np.log(AXIS[19]), rtol=1e-7)
    level = np.log(1.7 + 400.0 * np.exp(-AXIS[17] * logs[0]))
    for q in (-0.4, 0.1):
        rows = found["q"] == q
        basis = (np.exp(q * n) - 1) / q
        slope = ((basis - basis.mean()) * (level - level.mean())).sum() / ((basis - basis.mean()) ** 2).sum()
        np.testing.assert_allclose(found["s"][rows], slope, rtol=1e-6)
        np.testing.assert_allclose(found["S"][rows], level.mean() - slope * basis.mean(), rtol=1e-6)


def test_repeats_start_from_the_surface_of_fresh_tokens() -> None:
    form = FORMS["repeats"]
    logs = inputs(form)
    law = {"E": 1.7, "A": 400.0, "B": 900.0, "alpha": AXIS[17], "beta": AXIS[19], "R_D": 1e9, "R_N": 1e9}
    fresh = np.arange(40) % 2 == 0
    logs[2] = np.where(fresh, logs[1] - 0.04, logs[1] - 0.06)  # up to 5 % of repeats are none
    _, y = made(form, law, logs)
    y = np.where(fresh, y, y + np.linspace(0.2, 0.6, 40))
    found = dict(zip(form.names, form.candidates(logs, y).theta.T, strict=True))
    np.testing.assert_allclose(places(np.exp(found["R_D"])), geometric(1.0, 1e3, 10), rtol=1e-6)
    np.testing.assert_allclose(places(np.exp(found["R_N"])), geometric(0.5, 1e2, 8), rtol=1e-6)
    assert len(found["E"]) == 3 * 10 * 8
    centres = logs[:2, fresh].mean(axis=1)
    plain = SURFACE.candidates(logs[:2, fresh] - centres[:, None], y[fresh])
    assert plain.scores is not None
    base = SURFACE.natural(plain.theta[np.argsort(plain.scores)[[0, 20, 40]]], centres)
    rows = np.repeat(np.arange(3), 80)
    for i, name in enumerate(SURFACE.names):
        np.testing.assert_allclose(found[name], np.log(base[rows, i]) if i < 3 else base[rows, i])


@pytest.mark.parametrize(("count", "used"), [(5, "all"), (6, "fresh")])
def test_repeats_need_six_fresh_rows_of_their_own(count: int, used: str) -> None:
    form = FORMS["repeats"]
    logs = inputs(form, 20)
    fresh = np.arange(20) < count
    logs[2] = np.where(fresh, logs[1], logs[1] - 1.0)
    y = made(SURFACE, {"E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.3, "beta": 0.3}, logs[:2])[1]
    y = np.where(fresh, y, y + 0.3)
    rows = fresh if used == "fresh" else np.ones(20, dtype=bool)
    centres = logs[:2, rows].mean(axis=1)
    plain = SURFACE.candidates(logs[:2, rows] - centres[:, None], y[rows])
    assert plain.scores is not None
    best = SURFACE.natural(plain.theta[[np.argmin(plain.scores)]], centres)[0]
    theta = form.candidates(logs, y).theta[0]
    np.testing.assert_allclose(theta[:5], [*np.log(best[:3]), *best[3:]])


def test_precisions_grid_of_gammas() -> None:
    form = FORMS["precision"]
    logs = inputs(form)
    values = geometric(0.5, 4.0, 4)
    for at in ((0, 1, 2), (3, 2, 0)):
        gammas = dict(zip(("gamma_w", "gamma_a", "gamma_kv"), values[list(at)], strict=True))
        law = {"E": 1.7, "A": 400.0, "B": 900.0, "alpha": AXIS[17], "beta": AXIS[19], **gammas}
        found, misses, y = starts(form, law, logs)
        assert len(misses) == 64
        for name in gammas:
            np.testing.assert_allclose(places(found[name]), values, rtol=1e-9)
        assert misses.min() < 1e-6
        best = int(np.argmin(misses))
        assert {name: float(found[name][best]) for name in gammas} == pytest.approx(gammas)
        few = precision_starts(dict(zip(form.inputs, logs, strict=True)), y, 2)
        np.testing.assert_allclose(places(np.exp(few["gamma_a"])), [0.5, 4.0])


def test_losses_after_training_are_tried_at_a_tenth_of_the_lowest() -> None:
    form = FORMS["precision_after"]
    logs = inputs(form)
    _, y = made(form, LAWS["precision_after"], logs)
    found = dict(zip(form.names, form.candidates(logs, y).theta.T, strict=True))
    few = precision_starts(dict(zip(form.inputs, logs, strict=True)), y, 2)
    rows = np.repeat(np.arange(8), 12)
    for name, values in few.items():
        np.testing.assert_allclose(found[name], values[rows])
    np.testing.assert_allclose(places(np.exp(found["gamma_post"])), (0.5, 1.0, 2.0))
    np.testing.assert_allclose(places(found["g_D"]), (0.2, 0.5))
    np.testing.assert_array_equal(found["g_D"], found["g_N"])
    for name in ("C_w", "C_a", "C_kv"):
        np.testing.assert_allclose(places(np.exp(found[name])), (0.3, 1.0))
    assert len(found["G"]) == 8 * 3 * 2 * 2
    bits = np.exp(logs[form.inputs.index("bits_after")]).min()
    size, data = logs[0].mean(), logs[1].mean()
    added = found["G"] + found["g_D"] * data - found["g_N"] * size - bits / np.exp(found["gamma_post"])
    np.testing.assert_allclose(added, np.log(0.1) + y.min(), rtol=1e-9)


def test_combinations_of_axes() -> None:
    first, second, third = product((1.0, 2.0), 5.0, np.array([3.0, 4.0]))
    np.testing.assert_array_equal(first, [1.0, 1.0, 2.0, 2.0])
    np.testing.assert_array_equal(second, [5.0] * 4)
    np.testing.assert_array_equal(third, [3.0, 4.0, 3.0, 4.0])


def test_multi_power_starts_at_least_squares_of_what_is_linear() -> None:
    rates = np.concatenate((np.linspace(0, 3e-4, 51), 3e-5 + 1.35e-4 * (1 + np.cos(np.pi * np.arange(400) / 400))))
    steps = np.arange(60, 451, 15)
    law = MultiPower(Schedules.of([(rates, steps)], 8))
    x = np.log(np.arange(len(steps)) + 1.0)[None]
    for c, count in ((2.0, 0), (0.5, 1), (8.0, 2)):
        for alpha, beta, gamma in ((0.5, 0.4, 0.7), (0.3, 0.7, 0.4), (0.8, 0.7, 0.7)):
            exact = np.array([[3.0, 0.5, alpha, 350.0, c, beta, gamma]])
            y = law.log_value(law.internal(exact, np.zeros(1)), x)[0]
            found = law.natural(law.candidates(x, y).theta, np.zeros(1))
            assert found.shape == (36, 7)
            assert np.abs(found / exact - 1).max(axis=1).min() < 1e-6, (count, alpha, beta, gamma)
    for i, values in ((2, (0.3, 0.5, 0.8)), (4, (0.5, 2.0, 8.0)), (5, (0.4, 0.7)), (6, (0.4, 0.7))):
        np.testing.assert_allclose(places(found[:, i]), values)
    rising = law.natural(law.candidates(x, -y).theta, np.zeros(1))
    assert rising[:, [0, 1, 3]].min() == pytest.approx(1e-3)
