"""What a law is to the engine, and the base class of laws that are written as one expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from analysis.laws.dual import Dual

Array = NDArray[np.float64]
Pull = Callable[[Array], Array]
TINY = 1e-300


@dataclass(frozen=True)
class Candidates:
    """Starts (G, p), their scores (G,), lower is better, and coordinates (G, d) in which starts have to differ."""

    theta: Array
    scores: Array | None = None
    apart: Array | None = None


class Form(Protocol):
    """A law for a positive target; shapes: R rows of constants, n runs, k inputs, p constants, G candidates.

    It works on logs of the inputs, `x = ln(input) - centre`, and on internal constants `theta`, in which the logs of
    the positive constants and the others as they are (`logs` says which) are affine: `link`. So a constant can be
    fixed or tied by a linear equation in `theta`.
    """

    @property
    def name(self) -> str:
        """Its name in FORMS."""

    @property
    def text(self) -> str:
        """The law as people write it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p constants, in the order of `natural`."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that the law reads, one for each row of x: params, tokens, flops, ..."""

    @property
    def target(self) -> str:
        """The column that the law is for: mostly loss."""

    @property
    def logs(self) -> tuple[bool, ...]:
        """Which constants are positive and held as logs."""

    def centre(self, logs: Array) -> Array:
        """Return the centres (k,) of the logs (k, n) of the inputs; zero where the law needs the input itself."""

    def link(self, centres: Array) -> tuple[Array, Array]:
        """Return K (p, p) and k (p,): K theta + k are the constants, as logs where `logs` says so."""

    def log_value(self, theta: Array, x: Array) -> Array:
        """Return ln target (R, n) for `theta` (R, p) at logs `x` (k, n), or (k, R, n) where rows have their own."""

    def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Pull]:
        """Return ln target (R, n) and the map from weights (R, n) to the weighted sum of its gradients (R, p)."""

    def jacobian(self, theta: Array, x: Array) -> Array:
        """Return the gradients of ln target (R, n, p)."""

    def candidates(self, x: Array, y: Array) -> Candidates:
        """Return starts for ln target `y` (n,); without scores the engine scores them by the objective."""

    def natural(self, theta: Array, centres: Array) -> Array:
        """Return the constants (R, p) as people quote them, from `theta` (R, p) and the centres (k,)."""

    def internal(self, constants: Array, centres: Array) -> Array:
        """Return `theta` (R, p) of constants (R, p) as people quote them."""

    def derived(self, constants: Array) -> dict[str, Array]:
        """Return what follows from constants (..., p), by name: a and b of N* ~ C^a and D* ~ C^b."""

    def equation(self, name: str, value: float) -> tuple[dict[str, float], float] | None:
        """Return coefficients of constants and a right side that hold where the derived `name` is `value`."""


@runtime_checkable
class Bent(Protocol):
    """A form that knows its second derivatives too; those of the others are differences."""

    def bend(self, theta: Array, x: Array, weights: Array, jacobian: Array | None = None) -> Array:
        """Return the sums (R, p, p), weighted by `weights` (R, n), of the second derivatives of ln target.

        `jacobian` (R, n, p) is the form's own at theta, where it is known already.
        """


class Linked:
    """`natural` and `internal` by the affine link, and no derived quantities: what most forms share."""

    def natural(self: Form, theta: Array, centres: Array) -> Array:
        """Return the constants (R, p) as people quote them."""
        matrix, offset = self.link(centres)
        values = theta @ matrix.T + offset
        with np.errstate(over="ignore"):
            return np.where(np.array(self.logs), np.exp(values), values)

    def internal(self: Form, constants: Array, centres: Array) -> Array:
        """Return `theta` (R, p); a positive constant at its bound 0 becomes a very small one."""
        matrix, offset = self.link(centres)
        values = np.where(np.array(self.logs), np.log(np.maximum(constants, TINY)), constants)
        return np.asarray(np.linalg.solve(matrix, (values - offset).T).T)

    def derived(self, constants: Array) -> dict[str, Array]:
        """Return what follows from the constants: nothing."""
        return {}

    def equation(self, name: str, value: float) -> tuple[dict[str, float], float] | None:
        """Return no equation."""
        return None


@dataclass(frozen=True)
class Expression(Linked):
    """A law written once, as an expression of its constants; exact gradients by forward differentiation.

    A subclass says what the class variables are and gives `formula` and `candidates`.
    """

    name: ClassVar[str]
    text: ClassVar[str]
    reference: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    inputs: ClassVar[tuple[str, ...]]
    positive: ClassVar[tuple[str, ...]] = ()
    target: ClassVar[str] = "loss"

    @property
    def logs(self) -> tuple[bool, ...]:
        """Which constants are positive and held as logs."""
        return tuple(name in self.positive for name in self.names)

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln target of constants `c` (logs where positive, by name) and logs `x` of the inputs."""
        raise NotImplementedError

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return candidates for every constant, each (G,), as `formula` takes them."""
        raise NotImplementedError

    def centre(self, logs: Array) -> Array:
        """Return zeros: expressions are written in the inputs themselves."""
        return np.zeros(len(logs))

    def link(self, centres: Array) -> tuple[Array, Array]:
        """Return the identity: the internal constants are those that people quote, or their logs."""
        return np.eye(len(self.names)), np.zeros(len(self.names))

    def candidates(self, x: Array, y: Array) -> Candidates:
        """Return the candidates (G, p) without scores."""
        found = self.start(self._columns(x), y)
        columns = np.broadcast_arrays(*(np.asarray(found[name], dtype=np.float64).ravel() for name in self.names))
        return Candidates(np.stack(columns, axis=1))

    def log_value(self, theta: Array, x: Array) -> Array:
        """Return ln target (R, n)."""
        constants = {name: Dual(theta[:, i, None]) for i, name in enumerate(self.names)}
        found = self._evaluated(constants, x)
        return np.asarray(np.broadcast_to(found.value, (len(theta), x.shape[-1])))

    def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Pull]:
        """Return ln target (R, n) and the weighted sums of its gradients."""
        found = self._differentiated(theta, x)
        slopes = found.slopes

        def pull(weights: Array) -> Array:
            out = np.zeros(theta.shape)
            for i, slope in slopes.items():
                wide = slope if slope.shape == weights.shape else np.broadcast_to(slope, weights.shape)
                out[:, i] = np.einsum("rn,rn->r", weights, wide)
            return out

        return np.array(np.broadcast_to(found.value, (len(theta), x.shape[1]))), pull

    def jacobian(self, theta: Array, x: Array) -> Array:
        """Return the gradients of ln target (R, n, p)."""
        found = self._differentiated(theta, x)
        out = np.zeros((len(theta), x.shape[1], theta.shape[1]))
        for i, slope in found.slopes.items():
            out[:, :, i] = slope
        return out

    def _differentiated(self, theta: Array, x: Array) -> Dual:
        constants = {name: Dual.variable(theta[:, i, None], i) for i, name in enumerate(self.names)}
        return self._evaluated(constants, x)

    def _evaluated(self, constants: dict[str, Dual], x: Array) -> Dual:
        """Return the formula's value. A trial step may go far: what overflows then is not taken."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.formula(constants, self._columns(x))

    def _columns(self, x: Array) -> dict[str, Array]:
        return {name: x[i] for i, name in enumerate(self.inputs)}


def product(*axes: NDArray[Any] | tuple[float, ...] | float) -> list[Array]:
    """Return the columns of all combinations of the axes' values."""
    grids = np.meshgrid(*(np.atleast_1d(np.asarray(a, dtype=np.float64)) for a in axes), indexing="ij")
    return [g.ravel() for g in grids]
