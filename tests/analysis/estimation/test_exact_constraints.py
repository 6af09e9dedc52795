"""Constraints hold what they say, at whatever the free constants are; contradictions are refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimation.constraints import FREE, Constraint, constraint, joined, solved
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE

CENTRES = np.array([16.0, 21.0])
NAMES = ("E", "A", "B", "alpha", "beta")
FORM: Any = SURFACE


def constants(held: Constraint, seed: int = 0) -> dict[str, float]:
    """Return the surface's constants at free ones drawn at random."""
    count = len(held.free) if held.matrix is not None else 5
    z = np.random.default_rng(seed).normal(size=(1, count))
    return dict(zip(NAMES, SURFACE.natural(held.expand(z), CENTRES)[0].tolist(), strict=True))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 3.0), st.floats(0.1, 0.9))
def test_what_is_held_is_held_wherever_the_rest_is(seed: int, floor: float, share: float) -> None:
    held = constraint(FORM, CENTRES, fix={"E": floor, "alpha": 0.34})
    found = constants(held, seed)
    assert (found["E"], found["alpha"]) == pytest.approx((floor, 0.34))
    assert held.free == (1, 2, 4)
    coefficient = constants(constraint(FORM, CENTRES, fix={"A": 406.4}), seed)
    assert coefficient["A"] == pytest.approx(406.4)
    tied = constraint(FORM, CENTRES, tie={"beta": "alpha"})
    found = constants(tied, seed)
    assert found["beta"] == pytest.approx(found["alpha"])
    assert tied.free == (0, 1, 2, 3), "the one that is named is solved for"
    found = constants(constraint(FORM, CENTRES, tie={"B": "A"}), seed)
    assert found["B"] == pytest.approx(found["A"])
    found = constants(constraint(FORM, CENTRES, derived={"a": share}), seed)
    assert found["beta"] / (found["alpha"] + found["beta"]) == pytest.approx(share)
    found = constants(constraint(FORM, CENTRES, fix={"B": 300.0}, tie={"beta": "alpha"}, derived=None), seed)
    assert found["B"] == pytest.approx(300.0)
    found = constants(constraint(FORM, CENTRES, fix={"alpha": 0.3}, derived={"a": share}), seed)
    assert found["beta"] == pytest.approx(0.3 * share / (1 - share))


def test_a_derived_quantity_of_a_form_whose_constants_have_an_offset() -> None:
    """With a link K theta + k, k is taken off both kinds of right sides."""

    class Shifted:
        name, text, names, logs = "shifted", "x", ("p", "q", "r"), (False, False, True)

        def link(self, centres: Any) -> Any:
            return np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.array([10.0, 20.0, 0.5])

        def equation(self, name: str, value: float) -> Any:
            return ({"p": 3.0, "q": 1.0}, value) if name == "s" else None

    form: Any = Shifted()

    def held(z: Constraint) -> Any:
        theta = z.expand(np.random.default_rng(0).normal(size=(1, len(z.free))))[0]
        matrix, offset = form.link(None)
        return matrix @ theta + offset

    p, q, _ = held(constraint(form, CENTRES, derived={"s": 7.0}))
    assert 3 * p + q == pytest.approx(7.0)
    p, q, _ = held(constraint(form, CENTRES, tie={"p": "q"}))
    assert p == pytest.approx(q)
    p, _, r = held(constraint(form, CENTRES, fix={"p": -4.0, "r": 2.0}))
    assert (p, r) == pytest.approx((-4.0, np.log(2.0)))
    with pytest.raises(ValueError, match="t of shifted cannot be held at a value"):
        constraint(form, CENTRES, derived={"t": 1.0})


def test_nothing_held_is_no_constraint() -> None:
    assert constraint(FORM, CENTRES) is FREE
    assert constraint(FORM, CENTRES, fix={}, tie={}, derived={}) is FREE
    z = np.arange(10.0).reshape(2, 5)
    for same in (FREE.expand(z), FREE.pull(z), FREE.reduce(z)):
        assert same is z
    assert FREE.take(np.array([1])) is FREE
    for one in ({"fix": {"E": 1.0}}, {"tie": {"beta": "alpha"}}, {"derived": {"a": 0.5}}):
        assert constraint(FORM, CENTRES, **one).matrix is not None


def test_expand_pull_reduce_and_take_by_hand() -> None:
    matrix, offset = np.array([[1.0, 0.0], [2.0, 3.0], [0.0, 1.0]]), np.array([0.0, 5.0, 0.0])
    one = Constraint(matrix, offset, (0, 2), "text")
    z = np.array([[1.0, 2.0], [0.0, 1.0]])
    assert one.expand(z).tolist() == [[1, 13, 2], [0, 8, 1]]
    assert one.pull(np.array([[1.0, 10.0, 100.0]])).tolist() == [[21.0, 130.0]]
    assert one.reduce(one.expand(z)).tolist() == z.tolist()
    assert one.take(np.array([0])) is one
    many = Constraint(np.stack((matrix, 2 * matrix)), np.stack((offset, -offset)), (0, 2), "text")
    assert many.expand(z).tolist() == [[1, 13, 2], [0, 1, 2]]
    assert many.pull(np.array([[1.0, 10.0, 100.0]] * 2)).tolist() == [[21.0, 130.0], [42.0, 260.0]]
    second = many.take(np.array([1]))
    assert second.expand(z[1:]).tolist() == [[0, 1, 2]]
    assert (second.free, second.text) == ((0, 2), "text")


def test_rows_of_several_constraints_are_joined() -> None:
    """theta = (z0, 2 z0 + 3 z1 + 5, z1) in the first two rows, and (2 - z0 - z1, z0, z1) in the third."""
    first = Constraint(np.array([[[1.0, 0.0], [2.0, 3.0], [0.0, 1.0]]] * 2), np.array([[0.0, 5.0, 0.0]] * 2), (0, 2))
    last = Constraint(np.array([[[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]]]), np.array([[2.0, 0.0, 0.0]]), (1, 2))
    whole, z = joined([first, last]), np.array([[1.0, 2.0], [0.0, 1.0], [4.0, 5.0]])
    theta = whole.expand(z)
    assert theta.tolist() == [[1, 13, 2], [0, 8, 1], [-7, 4, 5]]
    assert whole.reduce(theta).tolist() == z.tolist()
    some = whole.take(np.array([2, 0]))
    assert some.reduce(some.expand(z[[2, 0]])).tolist() == z[[2, 0]].tolist()


def test_a_term_is_left_out_by_a_coefficient_of_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (0.0, 1e-320):
            held = constraint(FORM, CENTRES, fix={"E": value})
            assert held.expand(np.zeros((1, 4)))[0, 0] == -690.0
    small = constraint(FORM, CENTRES, fix={"E": 1e-290})
    assert small.expand(np.zeros((1, 4)))[0, 0] == pytest.approx(np.log(1e-290))
    assert constants(constraint(FORM, CENTRES, fix={"alpha": -0.2}))["alpha"] == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"fix": {"gamma": 1.0}}, "fix='gamma': chinchilla has no such constant; it has E, A, B, alpha, beta"),
        ({"tie": {"gamma": "E"}}, "tie='gamma'"),
        ({"tie": {"E": "gamma"}}, "tie='gamma'"),
        ({"tie": {"alpha": "A"}}, "an exponent cannot be tied to a coefficient"),
        ({"fix": {"E": -0.1}}, "E of chinchilla is positive, or 0 to leave its term out"),
        ({"fix": {"alpha": float("nan")}}, "a finite number is needed"),
        ({"fix": {"E": float("inf")}}, "a finite number is needed"),
        ({"tie": {"alpha": "beta", "beta": "alpha"}}, "alpha = beta, beta = alpha: these constraints contradict"),
        ({"fix": {"alpha": 0.3, "beta": 0.3}, "tie": {"beta": "alpha"}}, "contradict or repeat each other"),
        ({"derived": {"c": 0.3}}, "c of chinchilla cannot be held at a value"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        constraint(FORM, CENTRES, **asked)


def test_a_form_that_does_not_hold_a_constant_as_it_is() -> None:
    class Without:
        name, names, logs = "without", ("p", "q"), (False, False)

        def link(self, centres: Any) -> Any:
            return np.array([[np.nan, 0.0], [0.0, 1.0]]), np.zeros(2)

    with pytest.raises(ValueError, match="fix='p': without does not hold this constant as it is"):
        constraint(Without(), CENTRES, fix={"p": 1.0})  # type: ignore[arg-type]
    assert constraint(Without(), CENTRES, fix={"q": 1.0}).free == (0,)  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_equations_are_solved(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    rows, rights = generator.normal(size=(count, 5)), generator.normal(size=count)
    held = solved(rows, rights, [3], "text")
    theta = held.expand(generator.normal(size=(4, 5 - count)))
    np.testing.assert_allclose(theta @ rows.T, np.broadcast_to(rights, (4, count)), atol=1e-8)
    assert 3 not in held.free
    assert len(held.free) == 5 - count
    assert held.text == "text"


def test_dust_is_neither_a_pivot_nor_an_equation() -> None:
    held = solved(np.array([[1e-14, 1.0, 0.0]]), np.array([2.0]), [0], "x")
    assert held.free == (0, 2)
    large = solved(np.array([[0.5, 1e6, 0.0]]), np.array([2e6]), [0], "x")
    assert large.free == (1, 2), "small beside another is large enough"
    with pytest.raises(ValueError, match="x: these constraints contradict or repeat each other; leave one out"):
        solved(np.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-13, 0.0]]), np.array([1.0, 1.0]), [], "x")
    close = solved(np.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-11, 0.0]]), np.array([1.0, 1.0]), [], "x")
    assert close.free == (2,)
    with pytest.raises(ValueError, match="contradict"):
        solved(np.zeros((1, 3)), np.array([1.0]), [], "x")


def test_other_forms_take_constraints_too() -> None:
    form: Any = FORMS["kaplan"]
    held = constraint(form, np.zeros(2), fix={"alpha_D": 0.1})
    assert form.names.index("alpha_D") not in held.free
