"""The laws that plans rest on: E + A/N^alpha + B/D^beta in closed form, and any other form of N and D by search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from analysis.approaches.cost import Cost
from analysis.laws.base import Array, Form
from analysis.laws.registry import FORMS

GRID = 400
SIZES = ("params", "params_active")
KNOWN = ("tokens", "unique_tokens", "flops")
E, A, B, ALPHA, BETA = range(5)
STEP = 1e-3
MOST_TOKENS = 70.0
"""ln of more tokens (2.5e30) than are ever searched for."""


class Law(Protocol):
    """R draws of a loss L(N, D), one row each; places are ln N and ln D, (R,) or (R, m)."""

    def __len__(self) -> int:
        """Return the number of draws."""

    def row(self, index: int) -> Law:
        """Return one draw."""

    def loss(self, log_params: Array, log_tokens: Array) -> Array:
        """Return the loss where all tokens are new."""

    def tokens_for(self, log_params: Array, loss: Array) -> Array:
        """Return ln D (R, m) at which models of ln N (R, m) reach the loss (R,); infinite where none does."""

    def best(self, price: Cost, budget: float, ends: tuple[float, float]) -> Array:
        """Return ln N* (R,) of a training budget [FLOPs] between `ends`; NaN where there is none."""

    def matched(self, log_tokens: float) -> Array:
        """Return ln of the size (R,) for which these tokens are compute-optimal at C = 6 N D."""

    def budget_of(self, price: Cost, log_params: float) -> Array:
        """Return the budgets (R,) [FLOPs] for which a model of this size is compute-optimal."""

    def repeated(self, log_params: Array, log_tokens: Array, log_unique: float) -> Array | None:
        """Return the loss with so many distinct tokens; None where the law does not know of repeats."""


def law(given: Law | Array) -> Law:
    """Return the law of constants (R, 5) in the order E, A, B, alpha, beta, or the law itself."""
    return Closed(np.asarray(given, dtype=np.float64)) if isinstance(given, np.ndarray) else given


@dataclass(frozen=True, eq=False)
class Closed:
    """E + A/N^alpha + B/D^beta of constants (R, 5): sizes and tokens in closed form or by bisection."""

    constants: Array

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self.constants)

    def row(self, index: int) -> Closed:
        """Return one draw."""
        return Closed(self.constants[index : index + 1])

    def loss(self, log_params: Array, log_tokens: Array) -> Array:
        """Return the loss at ln N and ln D, (R,) or (R, m)."""
        c = self.constants.reshape(len(self), 5, *([1] * (np.ndim(log_params) - 1)))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            size = np.exp(np.log(c[:, A]) - c[:, ALPHA] * log_params)
            return np.asarray(c[:, E] + size + np.exp(np.log(c[:, B]) - c[:, BETA] * log_tokens))

    def tokens_for(self, log_params: Array, loss: Array) -> Array:
        """Return ln D (R, m) at which models of ln N (R, m) reach the loss (R,); infinite where none does."""
        c = self.constants
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            room = loss[:, None] - c[:, E, None] - np.exp(np.log(c[:, A, None]) - c[:, ALPHA, None] * log_params)
            value = (np.log(c[:, B, None]) - np.log(np.where(room > 0, room, np.nan))) / c[:, BETA, None]
        return np.where(np.isfinite(value), value, np.inf)

    def best(self, price: Cost, budget: float, ends: tuple[float, float]) -> Array:
        """Return ln N* where alpha A N^-alpha = beta B D^-beta d ln(cost)/d ln N; NaN where that is at an end."""
        c = self.constants
        low, high = np.full(len(c), ends[0]), np.full(len(c), ends[1])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            size_side, token_side = np.log(c[:, ALPHA] * c[:, A]), np.log(c[:, BETA] * c[:, B])

            def rise(log_params: Array) -> Array:
                """Return ln of what a larger model gains over what its fewer tokens lose, at equal compute."""
                per_token, slope = price.log_per_token(log_params)
                gain = size_side - c[:, ALPHA] * log_params
                lost = token_side - c[:, BETA] * (np.log(budget) - per_token) + np.log(np.maximum(slope, 1e-9))
                return np.asarray(gain - lost)

            if price.extra == 0.0:  # linear in ln N, of slope -(alpha + beta)
                at = rise(np.zeros(len(c))) / (c[:, ALPHA] + c[:, BETA])
            else:
                for _ in range(60):
                    middle = 0.5 * (low + high)
                    larger = rise(middle) > 0.0
                    low, high = np.where(larger, middle, low), np.where(larger, high, middle)
                at = 0.5 * (low + high)
            inside = (at > ends[0] + 1e-6) & (at < ends[1] - 1e-6) & np.isfinite(size_side) & np.isfinite(token_side)
        return np.where(inside, at, np.nan)

    def matched(self, log_tokens: float) -> Array:
        """Return ln of the size for which these tokens are compute-optimal at C = 6 N D."""
        c = self.constants
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(c[:, ALPHA] * c[:, A]) - np.log(c[:, BETA] * c[:, B])
            return np.asarray((ratio + c[:, BETA] * log_tokens) / c[:, ALPHA])

    def budget_of(self, price: Cost, log_params: float) -> Array:
        """Return the budgets (R,) [FLOPs] for which a model of this size is compute-optimal."""
        c = self.constants
        per_token, slope = price.log_per_token(np.full(len(c), log_params))
        with np.errstate(divide="ignore", invalid="ignore"):
            token_side = np.log(c[:, BETA] * c[:, B]) + np.log(np.maximum(slope, 1e-9))
            log_tokens = (token_side - np.log(c[:, ALPHA] * c[:, A]) + c[:, ALPHA] * log_params) / c[:, BETA]
        return np.asarray(np.exp(log_tokens + per_token))

    def repeated(self, log_params: Array, log_tokens: Array, log_unique: float) -> Array | None:
        """Return None: the surface takes all tokens as new."""
        return None


@dataclass(frozen=True, eq=False)
class Fitted:
    """Any form that reads N and D: theta (R, p) at the centres (k,) of its fit; `further` inputs have one value."""

    form: Form
    theta: Array
    centres: Array
    price: Cost
    further: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self.theta)

    def row(self, index: int) -> Fitted:
        """Return one draw."""
        return Fitted(self.form, self.theta[index : index + 1], self.centres, self.price, self.further)

    def loss(self, log_params: Array, log_tokens: Array) -> Array:
        """Return the loss at ln N and ln D, (R,) or (R, m), where all tokens are new."""
        return self._loss(log_params, log_tokens, log_tokens)

    def _loss(self, log_params: Array, log_tokens: Array, log_unique: Array) -> Array:
        shape = np.broadcast_shapes(np.shape(log_params), np.shape(log_tokens))
        n, d, u = (np.broadcast_to(v, shape).reshape(len(self), -1) for v in (log_params, log_tokens, log_unique))
        columns = {"tokens": d, "unique_tokens": np.minimum(u, d), **dict.fromkeys(SIZES, n)}
        if "flops" in self.form.inputs:
            columns["flops"] = self.price.log_per_token(n)[0] + d
        columns |= {name: np.full(n.shape, np.log(value)) for name, value in self.further.items()}
        x = np.stack([columns[name] for name in self.form.inputs]) - self.centres[:, None, None]
        with np.errstate(all="ignore"):
            found = np.exp(self.form.log_value(self.theta, x)).reshape(shape)
        return np.where(np.isfinite(found), found, np.inf)

    def tokens_for(self, log_params: Array, loss: Array) -> Array:
        """Return ln D (R, m) at which models of ln N (R, m) reach the loss (R,); infinite where none does."""
        low, high = np.zeros(log_params.shape), np.full(log_params.shape, MOST_TOKENS)
        reached = self.loss(log_params, high) <= loss[:, None]
        for _ in range(45):
            middle = 0.5 * (low + high)
            short = self.loss(log_params, middle) > loss[:, None]
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return np.where(reached, 0.5 * (low + high), np.inf)

    def best(self, price: Cost, budget: float, ends: tuple[float, float]) -> Array:
        """Return ln N* (R,): the lowest loss along cost(N) D = C; NaN where that is at an end."""
        log_budget = float(np.log(budget))
        return lowest(lambda at: self.loss(at, log_budget - price.log_per_token(at)[0]), ends, len(self))

    def matched(self, log_tokens: float) -> Array:
        """Return ln of the size for which these tokens are compute-optimal at C = 6 N D."""
        tokens = np.full(len(self), log_tokens)
        return self._balanced(lambda at: (at, tokens, np.ones(len(self))), False, (0.0, MOST_TOKENS))

    def budget_of(self, price: Cost, log_params: float) -> Array:
        """Return the budgets (R,) [FLOPs] for which a model of this size is compute-optimal."""
        size = np.full(len(self), log_params)
        per_token, slope = price.log_per_token(size)
        log_tokens = self._balanced(lambda at: (size, at, slope), True, (0.0, MOST_TOKENS))
        return np.asarray(np.exp(log_tokens + per_token))

    def _balanced(
        self, place: Callable[[Array], tuple[Array, Array, Array]], rising: bool, ends: tuple[float, float]
    ) -> Array:
        """Return where (R,) more parameters for fewer tokens at equal cost no longer change the loss; bisection.

        `place` gives ln N, ln D and d ln(cost per token)/d ln N; `rising` says that larger models pay above the answer.
        """
        low, high = np.full(len(self), ends[0]), np.full(len(self), ends[1])
        for _ in range(50):
            middle = 0.5 * (low + high)
            n, d, slope = place(middle)
            pays = self.loss(n + STEP, d - slope * STEP) < self.loss(n - STEP, d + slope * STEP)
            above = pays if rising else ~pays
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        at = 0.5 * (low + high)
        return np.where((at > ends[0] + 1e-6) & (at < ends[1] - 1e-6), at, np.nan)

    def repeated(self, log_params: Array, log_tokens: Array, log_unique: float) -> Array | None:
        """Return the loss with so many distinct tokens; None where the form does not read them."""
        if "unique_tokens" not in self.form.inputs:
            return None
        return self._loss(log_params, log_tokens, np.full(np.shape(log_params), log_unique))


def plannable(form: Form) -> bool:
    """Return whether a form gives a loss of parameters and tokens, so that plans can rest on it."""
    return form.target == "loss" and "tokens" in form.inputs and any(name in form.inputs for name in SIZES)


def choices() -> tuple[str, ...]:
    """Return the names of the forms that plans can rest on."""
    return tuple(name for name, form in FORMS.items() if plannable(form))


def size_column(form: Form) -> str:
    """Return the column that is N in a form."""
    return next(name for name in SIZES if name in form.inputs)


def further(form: Form) -> tuple[str, ...]:
    """Return the inputs of a form that a plan has to be told: neither N, D, C nor unique tokens."""
    return tuple(name for name in form.inputs if name not in (*SIZES, *KNOWN))


def lowest(value: Callable[[Array], Array], ends: tuple[float, float], rows: int) -> Array:
    """Return where (R,) a function of places (R, m) is lowest: four grids, each around the last one's best."""
    low, high = np.full(rows, ends[0]), np.full(rows, ends[1])
    limits = low.copy(), high.copy()
    at, known = low, np.zeros(rows, dtype=bool)
    for _ in range(4):
        places = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, GRID)
        costs = value(places)
        best = np.argmin(costs, axis=1)
        at = np.take_along_axis(places, best[:, None], axis=1)[:, 0]
        known = np.isfinite(np.take_along_axis(costs, best[:, None], axis=1)[:, 0])
        step = (high - low) / (GRID - 1)
        low, high = np.maximum(at - step, limits[0]), np.minimum(at + step, limits[1])
    inside = known & (at > limits[0] + 1e-6) & (at < limits[1] - 1e-6)
    return np.where(inside, at, np.nan)
