"""One conformance test for all laws: value, gradients, constants as people quote them, starts that find the law."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.estimation import fit_problem, multistart, objectives
from analysis.laws.base import Array, Form
from analysis.laws.registry import FORMS

RANGES = {
    "params": (1e7, 1e10), "tokens": (1e9, 1e12), "flops": (1e17, 1e22), "unique_tokens": (1e9, 1e11),
    "batch_tokens": (1e4, 1e7), "bits_weights": (2, 16), "bits_activations": (2, 16), "bits_cache": (2, 16),
    "bits_after": (2, 8),
    "params_active": (1e7, 1e10), "experts": (1, 64), "loss": (1.8, 4.5),
}  # fmt: skip
SURFACE = {"E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.33, "beta": 0.31}
BITS = {"gamma_w": 2.5, "gamma_a": 2.0, "gamma_kv": 1.0}
HARD = {"C_w": 0.5, "C_a": 0.4, "C_kv": 0.6}
LAWS: dict[str, dict[str, float]] = {
    "chinchilla": SURFACE,
    "chinchilla_tied": {"E": 1.7, "A": 400.0, "B": 1200.0, "alpha": 0.33},
    "chinchilla_no_floor": {"A": 8.0, "B": 2600.0, "alpha": 0.06, "beta": 0.37},
    "chinchilla_interaction": {**SURFACE, "G": 1e6, "gamma": 0.2, "delta": 0.5},
    "compute": {"L_inf": 1.7, "a": 30.0, "alpha": 0.08},
    "frontier": {"L_inf": 1.7, "a": 30.0, "alpha": 0.08},
    "frontier_no_floor": {"a": 30.0, "alpha": 0.05},
    "kaplan": {"N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": 0.076, "alpha_D": 0.095},
    "kaplan_floor": {"E": 1.2, "N_c": 8.8e12, "D_c": 5.4e12, "alpha_N": 0.15, "alpha_D": 0.2},
    "farseer": {"s": -0.021, "q": 0.17, "S": 1.1, "B": 88.0, "b": -0.1, "Q": -5.9, "A": -0.09, "a": 0.12, "F": -0.1},
    "overtraining": {"E": 1.8, "a": 212.0, "b": 367.0, "eta": 0.136},
    "repeats": {**SURFACE, "R_D": 15.0, "R_N": 5.0},
    "broken": {"a": 1.5, "b": 300.0, "c0": 0.12, "c1": -0.06, "d": 3e19, "f": 1.0},
    "learning_rate": {"c": 1.79, "p": -0.713, "q": 0.307},
    "learning_rate_compute": {"c": 0.3118, "p": -0.125},
    "batch": {"c": 0.58, "r": 0.571},
    "batch_compute": {"c": 0.292, "r": 0.327},
    "critical_batch_of_loss": {"B_star": 2e8, "r": -4.76},
    "critical_batch": {"S_min": 5e3, "B_crit": 1e6},
    "precision": {**SURFACE, **BITS},
    "precision_after": {**SURFACE, **BITS, "G": 0.05, "g_D": 0.5, "g_N": 0.5, "gamma_post": 0.8, **HARD},
    "moe": {**SURFACE, "delta": -0.3, "gamma": -0.01, "omega": 0.05, "zeta": 0.002},
    "downstream": {"eps": 0.857, "k": 2.21, "gamma": 0.715},
}  # fmt: skip


def design(form: Form, count: int, seed: int = 0) -> list[Array]:
    """Return inputs spread over their ranges; half of the tokens are repeats where a law knows of these."""
    generator = np.random.default_rng(seed)
    columns = [
        np.exp(generator.uniform(np.log(RANGES[name][0]), np.log(RANGES[name][1]), size=count)) for name in form.inputs
    ]
    if "unique_tokens" in form.inputs:
        tokens, unique = columns[form.inputs.index("tokens")], columns[form.inputs.index("unique_tokens")]
        fresh = np.arange(count) % 2 == 0
        columns[form.inputs.index("unique_tokens")] = np.where(fresh, tokens, np.minimum(tokens, unique))
    return columns


def constants(form: Form) -> Array:
    return np.array([[LAWS[form.name][name] for name in form.names]])


def test_every_form_has_a_law_here() -> None:
    assert set(LAWS) == set(FORMS)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_every_form_conforms(name: str) -> None:
    form = FORMS[name]
    logs = np.log(np.stack(design(form, 9)))
    centres = form.centre(logs)
    x = logs - centres[:, None]
    exact = form.internal(constants(form), centres)
    np.testing.assert_allclose(form.natural(exact, centres), constants(form), rtol=1e-9)
    theta = exact * (1 + 0.02 * np.random.default_rng(1).normal(size=(3, exact.shape[1])))
    value, pull = form.log_value_and_pull(theta, x)
    assert value.shape == (3, 9)
    np.testing.assert_allclose(value, form.log_value(theta, x), rtol=1e-12)
    steps = 1e-6 * np.maximum(1.0, np.abs(exact[0]))[:, None] * np.eye(exact.shape[1])
    slopes = np.stack(
        [(form.log_value(theta + s, x) - form.log_value(theta - s, x)) / (2 * s.sum()) for s in steps], axis=2
    )
    jacobian = form.jacobian(theta, x)
    np.testing.assert_allclose(jacobian, slopes, rtol=2e-5, atol=1e-5 * np.abs(slopes).max())
    weights = np.random.default_rng(2).normal(size=(3, 9))
    np.testing.assert_allclose(pull(weights), np.einsum("rn,rnp->rp", weights, jacobian), rtol=1e-9, atol=1e-9)
    assert len(form.logs) == len(form.names) == exact.shape[1]
    assert form.text


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_law_without_noise_is_found_by_its_own_starts(name: str) -> None:
    form = FORMS[name]
    columns = design(form, 80, seed=3)
    logs = np.log(np.stack(columns))
    centres = form.centre(logs)
    exact = form.log_value(form.internal(constants(form), centres), logs - centres[:, None])[0]
    found = multistart.fit_point(fit_problem.problem(form, columns, np.exp(exact), objectives.Squared()))
    worst = np.abs(form.log_value(found.theta[None], logs - centres[:, None])[0] - exact).max()
    assert worst < 1e-4, (worst, dict(zip(form.names, found.constants, strict=True)))


def test_quantisation_after_training_is_the_papers() -> None:
    """Kumar et al. 2024, eq. 9 and 11: each number by hand, at 1e9 parameters and 1e11 tokens."""
    form = FORMS["precision_after"]
    c = LAWS["precision_after"]

    def loss(bits: tuple[float, ...], after: float) -> float:
        x = np.log(np.array([[1e9], [1e11], *([b] for b in bits), [after]]))
        return float(np.exp(form.log_value(form.internal(constants(form), np.zeros(6)), x)[0, 0]))

    def expected(bits: tuple[float, ...], after: float) -> float:
        size = 1e9
        for b, gamma in zip(bits, ("gamma_w", "gamma_a", "gamma_kv"), strict=True):
            size *= 1 - np.exp(-b / c[gamma])
        delta = c["G"] * (1e11 ** c["g_D"] / size ** c["g_N"]) * np.exp(-after / c["gamma_post"])
        for b, rate in zip(bits, ("C_w", "C_a", "C_kv"), strict=True):
            delta *= 1 - np.exp(-c[rate] * max(b - after, 0.0))
        return float(c["E"] + c["A"] / size ** c["alpha"] + c["B"] / 1e11 ** c["beta"] + delta)

    for bits, after in (((8.0, 12.0, 16.0), 4.0), ((16.0, 16.0, 16.0), 3.0), ((4.0, 8.0, 16.0), 6.0)):
        assert loss(bits, after) == pytest.approx(expected(bits, after), rel=1e-9)
    many = (64.0, 64.0, 64.0)
    simple = c["G"] * (1e11 / 1e9) ** 0.5 * np.exp(-3.0 / c["gamma_post"])
    assert loss(many, 3.0) - loss(many, 60.0) == pytest.approx(simple, rel=1e-3)


def test_a_law_that_went_says_why() -> None:
    from analysis.laws import names, registry

    for ask in (registry.named, names.resolve):
        with pytest.raises(ValueError, match="unigram's, which is negative"):
            ask("vocabulary")
