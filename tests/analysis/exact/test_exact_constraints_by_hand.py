"""Fixed and tied constants as linear equations: literal matrices, and what contradicts."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.constraints import FREE, LOWEST, Constraint, constraint, solved
from analysis.forms import FORMS, SURFACE

CENTRES = np.array([10.0, 20.0])
Z = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def test_nothing_held_is_free() -> None:
    assert constraint(SURFACE, CENTRES) is FREE
    assert constraint(SURFACE, CENTRES, {}, {}) is FREE
    theta = np.ones((2, 5))
    for found in (FREE.expand(theta), FREE.pull(theta), FREE.reduce(theta)):
        assert found is theta
    assert FREE.take(np.array([0])) is FREE
    assert LOWEST == -690.0


def test_one_matrix_for_all_rows() -> None:
    matrix = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [2.0, 0.0, -1.0]])
    held = Constraint(matrix, np.array([0.0, 0.0, 0.0, 7.0]), (0, 1, 2), "text")
    np.testing.assert_array_equal(held.expand(Z), [[1, 2, 3, 6], [4, 5, 6, 9]])
    gradient = np.array([[1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(held.pull(gradient), [[9.0, 2.0, -1.0]])
    np.testing.assert_array_equal(held.reduce(held.expand(Z)), Z)
    assert held.take(np.array([1])) is held


def test_a_matrix_for_each_row() -> None:
    matrix = np.array([[[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]]])
    held = Constraint(matrix, np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]), (0, 1), "text")
    np.testing.assert_array_equal(held.expand(Z[:, :2]), [[1, 2, 3], [4, 5, 14]])
    np.testing.assert_array_equal(held.pull(np.ones((2, 3))), [[3, 1], [1, 4]])
    second = held.take(np.array([1]))
    np.testing.assert_array_equal(second.expand(Z[1:, :2]), [[4, 5, 14]])
    assert (second.free, second.text) == ((0, 1), "text")


def natural(held: Constraint, z: list[float]) -> dict[str, float]:
    values = SURFACE.natural(held.expand(np.array([z])), CENTRES)[0]
    return dict(zip(SURFACE.names, (float(v) for v in values), strict=True))


def test_constants_are_held_at_values() -> None:
    held = constraint(SURFACE, CENTRES, {"E": 1.7, "alpha": 0.3})
    assert held.free == (1, 2, 4)
    assert held.text == "E = 1.7, alpha = 0.3"
    found = natural(held, [0.4, -0.2, 0.5])
    assert (found["E"], found["alpha"], found["beta"]) == pytest.approx((1.7, 0.3, 0.5))
    assert found["A"] == pytest.approx(np.exp(0.4 + 0.3 * 10.0))
    coefficient = constraint(SURFACE, CENTRES, {"A": 400.0})
    assert coefficient.free == (0, 2, 3, 4)
    for alpha in (0.1, 0.9):
        assert natural(coefficient, [0.0, 1.0, alpha, 0.5])["A"] == pytest.approx(400.0)
    nothing = constraint(SURFACE, CENTRES, {"E": 0.0})
    assert nothing.offset is not None
    assert nothing.offset[0] == -690.0
    for value, log in ((1e-320, -690.0), (0.5, np.log(0.5)), (1e-299, np.log(1e-299))):
        low = constraint(SURFACE, CENTRES, {"E": value})
        assert low.offset is not None
        assert low.offset[0] == pytest.approx(log)
    exponent = constraint(SURFACE, CENTRES, {"alpha": -0.25})
    assert natural(exponent, [0.0, 0.0, 0.0, 0.5])["alpha"] == -0.25


def test_constants_are_tied() -> None:
    held = constraint(SURFACE, CENTRES, None, {"beta": "alpha"})
    assert held.free == (0, 1, 2, 3)
    found = natural(held, [0.0, 1.0, 2.0, 0.4])
    assert found["beta"] == found["alpha"] == 0.4
    both = constraint(SURFACE, CENTRES, {"alpha": 0.3}, {"beta": "alpha", "B": "A"})
    assert both.free == (0, 1)
    found = natural(both, [0.0, 1.0])
    assert found["alpha"] == found["beta"] == pytest.approx(0.3)
    assert found["A"] == pytest.approx(found["B"])
    assert both.text == "alpha = 0.3, beta = alpha, B = A"


def test_links_with_offsets_count() -> None:
    """A form whose constants are its theta plus 1, 2, ...: none of the laws here has an offset."""

    class Shifted:
        name, names, logs = "shifted", ("a", "b", "c"), (False, False, False)

        def link(self, _: object) -> tuple[object, object]:
            return np.eye(3), np.array([1.0, 2.0, 4.0])

        def equation(self, name: str, value: float) -> tuple[dict[str, float], float] | None:
            return ({"a": 2.0, "c": -1.0}, value) if name == "d" else None

    form = Shifted()
    fixed = constraint(form, CENTRES, {"a": 5.0}).expand(np.array([[7.0, 8.0]]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(fixed, [[4.0, 7.0, 8.0]])
    tied = constraint(form, CENTRES, None, {"a": "c"}).expand(np.array([[7.0, 8.0]]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(tied, [[11.0, 7.0, 8.0]])  # a = 12 = c
    for value in (3.0, 5.0):
        derived = constraint(form, CENTRES, derived={"d": value})  # type: ignore[arg-type]
        theta = derived.expand(np.array([[7.0, 8.0]]))[0] + [1.0, 2.0, 4.0]
        assert 2.0 * theta[0] - theta[2] == pytest.approx(value)
    with pytest.raises(ValueError, match="e of shifted cannot be held"):
        constraint(form, CENTRES, derived={"e": 1.0})  # type: ignore[arg-type]


def test_derived_quantities_are_held() -> None:
    held = constraint(SURFACE, CENTRES, derived={"a": 0.6})
    found = natural(held, [0.0, 1.0, 2.0, 0.45])
    assert found["beta"] / (found["alpha"] + found["beta"]) == pytest.approx(0.6)
    assert held.text == "a = 0.6"
    with_fix = constraint(SURFACE, CENTRES, {"beta": 0.3}, derived={"a": 0.6})
    assert natural(with_fix, [0.0, 1.0, 2.0])["alpha"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("fix", "tie", "message"),
    [
        ({"gamma": 1.0}, None, "fix='gamma': chinchilla has no such constant; it has E, A, B, alpha, beta"),
        (None, {"alpha": "gamma"}, "tie='gamma': chinchilla has no such constant"),
        (None, {"gamma": "alpha"}, "tie='gamma': chinchilla has no such constant"),
        ({"E": -1.0}, None, "E of chinchilla is positive, or 0"),
        ({"E": np.inf}, None, "a finite number is needed"),
        ({"alpha": np.nan}, None, "a finite number is needed"),
        (None, {"alpha": "A"}, "an exponent cannot be tied to a coefficient"),
        ({"alpha": 0.3, "beta": 0.4}, {"alpha": "beta"}, "contradict or repeat each other"),
        (None, {"alpha": "beta", "beta": "alpha"}, "contradict or repeat each other"),
        ({"alpha": 0.3, "beta": 0.3}, {"alpha": "beta"}, "contradict or repeat each other"),
    ],
)
def test_what_cannot_be_held_is_refused(fix: dict[str, float], tie: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        constraint(SURFACE, CENTRES, fix, tie)


def test_constants_that_a_law_does_not_hold_as_they_are_cannot_be_fixed() -> None:
    with pytest.raises(ValueError, match="farseer does not hold this constant as it is"):
        constraint(FORMS["farseer"], CENTRES, {"s": 1.0})
    assert constraint(FORMS["farseer"], CENTRES, {"q": 0.2}).free == (0, 2, 3, 4, 5, 6, 7, 8)


def test_elimination_takes_the_named_constants_first() -> None:
    """x + 2 y = 5 and y - z = 1 of x, y, z, w."""
    rows = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0]])
    for prefer, free in (([], (2, 3)), ([1, 2], (0, 3)), ([2, 1], (0, 3)), ([3], (2, 3))):
        held = solved(rows.copy(), np.array([5.0, 1.0]), prefer, "x")
        assert held.free == free
        for z in (np.array([[0.3, 0.7]]), np.array([[-2.0, 4.0]])):
            theta = held.expand(z)[0]
            assert theta[0] + 2 * theta[1] == pytest.approx(5.0)
            assert theta[1] - theta[2] == pytest.approx(1.0)
            np.testing.assert_allclose(theta[list(free)], z[0])


def test_coefficients_that_are_rounding_are_not_solved_for() -> None:
    """1e-10 x + y = 3 is solved for y, also where x was asked for; of 1e-8 x + y = 3 x is."""
    for small, free in ((1e-10, (0,)), (1e-8, (1,))):
        held = solved(np.array([[small, 1.0]]), np.array([3.0]), [0], "x")
        assert held.free == free
        theta = held.expand(np.array([[2.0]]))[0]
        assert small * theta[0] + theta[1] == pytest.approx(3.0)
    for tiny in (1e-13, 0.0):
        with pytest.raises(ValueError, match="x: these constraints contradict or repeat"):
            solved(np.array([[0.0, tiny]]), np.array([3.0]), [], "x")
    assert solved(np.array([[0.0, 1e-11]]), np.array([3e-11]), [], "x").expand(np.ones((1, 1)))[0, 1] == pytest.approx(
        3
    )
    with pytest.raises(ValueError, match="contradict"):
        solved(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-13]]), np.array([3.0, 4.0]), [], "x")
