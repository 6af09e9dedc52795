"""Fixed and tied constants: linear equations in a form's internal constants, solved for as many of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.laws.base import Array, Form

LOWEST = -690.0
"""ln of the smallest value that a positive constant is fixed at: fixing at 0 is meant."""


@dataclass(frozen=True)
class Constraint:
    """theta = matrix z + offset; `matrix` (p, q) and `offset` (p,), or both with a leading row axis; None: theta = z.

    `free` are the numbers of the constants that z holds, `own` (R, q) those of each row where they differ.
    """

    matrix: Array | None = None
    offset: Array | None = None
    free: tuple[int, ...] = ()
    text: str = ""
    own: NDArray[np.int64] | None = None

    def expand(self, z: Array) -> Array:
        """Return theta (R, p) of z (R, q)."""
        if self.matrix is None or self.offset is None:
            return z
        if self.matrix.ndim == 3:
            return np.asarray(np.einsum("rpq,rq->rp", self.matrix, z) + self.offset)
        return np.asarray(z @ self.matrix.T + self.offset)

    def pull(self, gradient: Array) -> Array:
        """Return the gradient by z (R, q) of that by theta (R, p)."""
        if self.matrix is None:
            return gradient
        if self.matrix.ndim == 3:
            return np.asarray(np.einsum("rpq,rp->rq", self.matrix, gradient))
        return np.asarray(gradient @ self.matrix)

    def pull_rows(self, slopes: Array) -> Array:
        """Return the gradients by z (R, n, q) of those by theta (R, n, p)."""
        return slopes if self.matrix is None else np.asarray(slopes @ self.matrix)

    def pull_both(self, bend: Array) -> Array:
        """Return the second derivatives by z (R, q, q) of those by theta (R, p, p)."""
        if self.matrix is None:
            return bend
        return np.asarray(np.swapaxes(self.matrix, -1, -2) @ bend @ self.matrix)

    def reduce(self, theta: Array) -> Array:
        """Return the z (R, q) of theta (R, p), whose other constants are forgotten."""
        if self.own is not None:
            return np.take_along_axis(theta, self.own, axis=1)
        return theta if self.matrix is None else theta[:, list(self.free)]

    def take(self, index: NDArray[np.int64]) -> Constraint:
        """Return the constraint of these rows."""
        if self.matrix is None or self.offset is None or self.matrix.ndim == 2:
            return self
        own = None if self.own is None else self.own[index]
        return Constraint(self.matrix[index], self.offset[index], self.free, self.text, own)


FREE = Constraint()


def joined(parts: Sequence[Constraint]) -> Constraint:
    """Return the constraint of the rows of `parts`, one after another; each has rows of its own, of one width q."""
    matrix, offset = (np.concatenate([getattr(part, name) for part in parts]) for name in ("matrix", "offset"))
    own = [
        np.tile(np.array(part.free, dtype=np.int64), (len(part.offset), 1)) for part in parts if part.offset is not None
    ]
    return Constraint(matrix, offset, own=np.concatenate(own))


def constraint(
    form: Form, centres: Array, fix: Mapping[str, float] | None = None, tie: Mapping[str, str] | None = None,
    *, derived: Mapping[str, float] | None = None,
) -> Constraint:  # fmt: skip
    """Return the constraint of constants fixed at values, tied to others, and of derived quantities at values.

    Raises ValueError where a name is unknown, a positive constant is fixed below 0, kinds of constants are mixed, or
    the equations contradict each other.
    """
    fix, tie, derived = dict(fix or {}), dict(tie or {}), dict(derived or {})
    if not fix and not tie and not derived:
        return FREE
    rows, rights = [], []
    matrix, offset = form.link(centres)
    for name, value in fix.items():
        i = _number(form, "fix", name)
        if not np.isfinite(matrix[i]).all():
            raise ValueError(f"fix={name!r}: {form.name} does not hold this constant as it is; it cannot be fixed")
        rows.append(matrix[i])
        rights.append(_internal(form, name, value) - offset[i])
    for name, other in tie.items():
        i, j = _number(form, "tie", name), _number(form, "tie", other)
        if form.logs[i] != form.logs[j]:
            raise ValueError(f"tie={{{name!r}: {other!r}}}: an exponent cannot be tied to a coefficient")
        rows.append(matrix[i] - matrix[j])
        rights.append(offset[j] - offset[i])
    for name, value in derived.items():
        found = form.equation(name, value)
        if found is None:
            raise ValueError(f"{name} of {form.name} cannot be held at a value")
        coefficients, right = found
        rows.append(np.sum([c * matrix[form.names.index(n)] for n, c in coefficients.items()], axis=0))
        rights.append(right - sum(c * offset[form.names.index(n)] for n, c in coefficients.items()))
    prefer = [form.names.index(n) for n in (*fix, *tie)]
    given = {**fix, **tie, **derived}
    return solved(np.array(rows), np.array(rights), prefer, ", ".join(f"{n} = {v}" for n, v in given.items()))


def solved(rows: Array, rights: Array, prefer: list[int], text: str) -> Constraint:
    """Return the constraint by elimination; the constants that were named go first."""
    table = np.concatenate((rows, rights[:, None]), axis=1)
    width, pivots = rows.shape[1], []
    order = [*prefer, *(i for i in range(width) if i not in prefer)]
    for r in range(len(table)):
        # Constants that earlier rows were solved for are exactly 0 here.
        scale = np.abs(table[r, :-1]).max()
        if scale < 1e-12:
            raise ValueError(f"{text}: these constraints contradict or repeat each other; leave one out")
        choice = next(i for i in order if abs(table[r, i]) > 1e-9 * scale)
        table[r] /= table[r, choice]
        for other in range(len(table)):
            if other != r:
                table[other] -= table[other, choice] * table[r]
        pivots.append(choice)
    free = tuple(i for i in range(width) if i not in pivots)
    matrix, offset = np.zeros((width, len(free))), np.zeros(width)
    for k, i in enumerate(free):
        matrix[i, k] = 1.0
    for r, i in enumerate(pivots):
        matrix[i], offset[i] = -table[r, list(free)], table[r, -1]
    return Constraint(matrix, offset, free, text)


def _number(form: Form, key: str, name: str) -> int:
    if name not in form.names:
        raise ValueError(f"{key}={name!r}: {form.name} has no such constant; it has {', '.join(form.names)}")
    return form.names.index(name)


def _internal(form: Form, name: str, value: float) -> float:
    """Return the constant as `theta` holds it."""
    if not np.isfinite(value):
        raise ValueError(f"fix={{{name!r}: {value}}}: a finite number is needed")
    if not form.logs[form.names.index(name)]:
        return float(value)
    if value < 0:
        raise ValueError(f"fix={{{name!r}: {value}}}: {name} of {form.name} is positive, or 0 to leave its term out")
    return float(max(np.log(value), LOWEST)) if value > 0 else LOWEST
