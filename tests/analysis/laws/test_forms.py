"""One conformance test for all laws: value, gradients, constants as people quote them, starts that find the law."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.estimation import fit_problem, multistart, objectives
from analysis.laws import registry
from analysis.laws.base import Array, Form
from analysis.laws.registry import FORMS
from tests.analysis.formulas import LAWS, RANGES


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

    for ask in (registry.named, registry.resolve):
        with pytest.raises(ValueError, match="unigram's, which is negative"):
            ask("vocabulary")
