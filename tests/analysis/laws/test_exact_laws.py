"""Every law beside its formula as the paper writes it, in plain numbers; their links, quantities and constraints."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from analysis.laws.base import Form, Linked
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE, SumOfPowers
from tests.analysis.formulas import FORMULAS, LAWS
from tests.analysis.laws.test_forms import design


def test_every_law_has_its_formula_here() -> None:
    assert set(FORMULAS) == set(FORMS)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_law_is_its_formula(name: str) -> None:
    form, law = FORMS[name], {**LAWS[name], **({"f": 0.7} if name == "broken" else {})}
    logs = np.log(np.stack(design(form, 12, seed=4)))
    centres = form.centre(logs)
    assert centres.shape == (len(form.inputs),)
    columns = [dict(zip(form.inputs, np.exp(row), strict=True)) for row in logs.T]
    expected = [FORMULAS[name](law, column) for column in columns]
    given = np.array([[law[constant] for constant in form.names]])
    theta = form.internal(given, centres)
    np.testing.assert_allclose(np.exp(form.log_value(theta, logs - centres[:, None]))[0], expected, rtol=1e-9)
    np.testing.assert_allclose(form.natural(theta, centres), given, rtol=1e-9)
    if hasattr(form, "formula"):  # rows of constants may have inputs of their own
        two = np.stack((logs, logs[:, ::-1]), axis=1)
        values = np.exp(form.log_value(np.repeat(theta, 2, axis=0), two - centres[:, None, None]))
        np.testing.assert_allclose(values, [expected, expected[::-1]], rtol=1e-9)


def positive(form: Form) -> set[str]:
    return {name for name, log in zip(form.names, form.logs, strict=True) if log}


def test_which_constants_are_positive() -> None:
    known = {name: positive(form) for name, form in FORMS.items()}
    assert known["chinchilla"] == known["moe"] == {"E", "A", "B"}
    assert known["chinchilla_no_floor"] == {"A", "B"}
    assert known["chinchilla_interaction"] == {"E", "A", "B", "G"}
    assert known["kaplan"] == {"N_c", "D_c", "alpha_N", "alpha_D"}
    assert known["farseer"] == set()
    assert known["broken"] == {"a", "b", "d", "f"}
    assert known["learning_rate"] == {"c"}


def test_optimal_exponents_follow_and_can_be_held() -> None:
    found = SURFACE.derived(np.array([[1.7, 400.0, 900.0, 0.3, 0.5], [1.7, 400.0, 900.0, 0.6, 0.2]]))
    np.testing.assert_allclose(found["a"], [0.625, 0.25])
    np.testing.assert_allclose(found["b"], [0.375, 0.75])
    assert SURFACE.equation("a", 0.625) == ({"beta": 0.375, "alpha": -0.625}, 0.0)
    assert SURFACE.equation("b", 0.625) == ({"beta": 0.625, "alpha": -0.375}, 0.0)
    for form, name in (
        (SURFACE, "c"),
        (FORMS["chinchilla_tied"], "a"),
        (FORMS["compute"], "a"),
        (FORMS["kaplan"], "a"),
    ):
        assert form.equation(name, 0.5) is None
    assert FORMS["compute"].derived(np.ones((1, 3))) == {}
    assert FORMS["kaplan"].derived(np.ones((1, 4))) == {}


def test_constants_at_their_bound_are_very_small_ones() -> None:
    theta = SURFACE.internal(np.array([[0.0, 2.0, 3.0, 0.5, 0.4]]), np.zeros(2))
    np.testing.assert_allclose(theta, [[np.log(1e-300), np.log(2.0), np.log(3.0), 0.5, 0.4]])
    assert SURFACE.assemble(np.array([[0.5, 0.4]]), np.array([[0.0, 2.0, 3.0]]))[0, 0] == np.log(1e-300)


def test_an_affine_link_is_undone() -> None:
    """A link with an offset, which no law here has: theta = 2 ln c + 1."""

    class Shifted(Linked):
        logs = (True, False)

        def link(self, centres: Any) -> tuple[Any, Any]:
            return np.array([[0.5, 0.0], [0.0, 4.0]]), np.array([-0.5, 3.0])

    form: Any = Shifted()
    theta = np.array([[1.0, 2.0], [3.0, -1.0]])
    np.testing.assert_allclose(form.natural(theta, np.zeros(1)), [[1.0, 11.0], [np.e, -1.0]])
    np.testing.assert_allclose(form.internal(form.natural(theta, np.zeros(1)), np.zeros(1)), theta)


def test_a_sum_of_nothing_has_a_logarithm() -> None:
    form = SumOfPowers("", "", "", (("a", (("flops", "alpha"),)),))
    for value in (form.log_value(np.array([[-800.0, 0.1]]), np.zeros((1, 2))),
                  form.log_value_and_pull(np.array([[-800.0, 0.1]]), np.zeros((1, 2)))[0]):  # fmt: skip
        np.testing.assert_array_equal(value, np.full((1, 2), np.log(1e-300)))
    assert form.names == ("a", "alpha")
    assert form.exponents == 1
    np.testing.assert_array_equal(form.jacobian(np.array([[-800.0, 0.1]]), np.ones((1, 2))), 0.0)


def test_farseers_constants_are_held_about_the_centre() -> None:
    """At the centre of ln N, s N^q + S is S' and its slope by ln N is s'."""
    form = FORMS["farseer"]
    law = np.array([[LAWS["farseer"][name] for name in form.names]])
    theta = form.internal(law, np.array([20.0, 0.0]))[0]
    for i in (0, 3, 6):
        c, q, level = law[0, i : i + 3]
        assert theta[i + 2] == pytest.approx(c * np.exp(20.0 * q) + level, rel=1e-12)
        assert theta[i] == pytest.approx(c * q * np.exp(20.0 * q), rel=1e-12)
    matrix, offset = form.link(np.array([20.0, 0.0]))
    held = [name for name, row in zip(form.names, matrix, strict=True) if np.isfinite(row).all()]
    assert held == ["q", "b", "a"]
    for name in held:
        i = form.names.index(name)
        np.testing.assert_array_equal(matrix[i], np.eye(9)[i])
    np.testing.assert_array_equal(offset, np.zeros(9))


def test_terms_are_read_as_they_are_written() -> None:
    assert SURFACE.names == ("E", "A", "B", "alpha", "beta")
    assert SURFACE.inputs == ("params", "tokens")
    assert FORMS["chinchilla_interaction"].names == ("E", "A", "B", "G", "alpha", "beta", "gamma", "delta")
    assert FORMS["chinchilla_tied"].names == ("E", "A", "B", "alpha")
    matrix, offset = SURFACE.link(np.array([10.0, 20.0]))
    expected = np.eye(5)
    expected[1, 3], expected[2, 4] = 10.0, 20.0
    np.testing.assert_array_equal(matrix, expected)
    np.testing.assert_array_equal(offset, np.zeros(5))
    matrix, offset = FORMS["learning_rate"].link(np.array([10.0, 20.0]))
    np.testing.assert_array_equal(matrix, [[1.0, -10.0, -20.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(offset, np.zeros(3))


@pytest.mark.parametrize("form", [SURFACE, FORMS["precision_after"], FORMS["farseer"]])
def test_a_trial_step_that_goes_too_far_warns_of_nothing(form: Any) -> None:
    x = np.log(np.stack(design(form, 4, seed=1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = form.log_value(np.full((1, len(form.names)), 800.0), x - form.centre(x)[:, None])
    assert values.shape == (1, 4) and not (form is SURFACE and np.isfinite(values).any())
