"""What to train with a budget, under what assumption: plans on a loss L(N, D), by default E + A/N^alpha + B/D^beta.

Every plan takes a law (see :mod:`analysis.approaches.loss_laws`), or constants (R, 5) in the order E, A, B, alpha,
beta, one row a draw of the posterior, and returns one answer a row, so that an interval of anything is the quantiles
of its column. Sizes are found by bisection or by grids around the lowest point, for all rows at once. Units:
parameters, tokens, FLOPs; losses as the runs have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.approaches.cost import Cost
from analysis.approaches.loss_laws import Closed, Law, law, lowest
from analysis.inputs.dataset import Array

SEARCH = 1e4
"""Sizes are searched for within this factor of the sizes swept."""

MATCHED = 9
"""Numbers of distinct tokens for which the compute-optimal size is solved for."""


@dataclass(frozen=True)
class Repeats:
    """How repeated tokens wear out: D' = U + U R (1 - exp(-r/R)) with r = D/U - 1 repeats; sizes likewise by R_N.

    Muennighoff et al. 2023 (arXiv 2305.16264, eq. 5-6); their constants are the default. `tokens` and `params` are the
    half-lives R_D* and R_N* (no unit, or one a draw).
    """

    tokens: float | Array = 15.387756
    params: float | Array = 5.309743

    @classmethod
    def given(cls, constants: Mapping[str, float]) -> Repeats:
        """Return R_D and R_N as given, else as published; ValueError for other names and what is not positive."""
        unknown = set(constants) - {"R_D", "R_N"}
        if unknown:
            raise ValueError(f"repeats={','.join(sorted(unknown))}: the constants are R_D and R_N")
        for name, value in constants.items():
            if not value > 0:
                raise ValueError(f"repeats={name}:{value:g}: a positive number is needed, R_D and R_N are above 0")
        return cls(constants.get("R_D", cls.tokens), constants.get("R_N", cls.params))


@dataclass(frozen=True)
class Answers:
    """One row a draw: ln N, ln D, loss, training FLOPs, inference FLOPs; NaN where a draw has no answer."""

    log_params: Array
    log_tokens: Array
    loss: Array
    training_flops: Array
    inference_flops: Array

    def row(self, index: int) -> Answers:
        """Return one draw as arrays of one."""
        pick = slice(index, index + 1)
        return Answers(*(getattr(self, name)[pick] for name in self.__dataclass_fields__))


def surface(constants: Array, log_params: Array, log_tokens: Array) -> Array:
    """Return the loss at ln N and ln D, for constants (R, 5) and places (R,) or (R, m)."""
    return Closed(np.asarray(constants, dtype=np.float64)).loss(log_params, log_tokens)


def training_only(given: Law | Array, price: Cost, budget: float, sizes: tuple[float, float]) -> Answers:
    """Return the lowest loss that a training budget [FLOPs] buys, along C = cost(N) D.

    >>> hoffmann = np.array([[1.69, 406.4, 410.7, 0.34, 0.28]])
    >>> found = training_only(hoffmann, Cost.six(), 5.76e23, (1e8, 1e10))
    >>> f"{float(np.exp(found.log_params[0])):.3g} parameters"
    '3.22e+10 parameters'
    """
    on = law(given)
    at = on.best(price, budget, _ends(sizes))
    return _answers(on, price, at, np.log(budget) - price.log_per_token(at)[0])


def over_trained(given: Law | Array, price: Cost, budget: float, sizes: tuple[float, float], factor: float) -> Answers:
    """Return the run at `factor` times the compute-optimal tokens per parameter, for the same budget [FLOPs].

    A factor above 1 is a smaller model on more tokens, which costs less to serve (Gadre et al. 2024, arXiv 2403.08540).

    >>> hoffmann = np.array([[1.69, 406.4, 410.7, 0.34, 0.28]])
    >>> best, more = (over_trained(hoffmann, Cost.six(), 1e21, (1e8, 1e10), factor) for factor in (1.0, 4.0))
    >>> f"{np.exp(more.log_tokens - more.log_params - best.log_tokens + best.log_params)[0]:.3f}"
    '4.000'
    """
    on = law(given)
    best = training_only(on, price, budget, sizes)
    ratio = best.log_tokens - best.log_params + np.log(factor)
    low, high = best.log_params - abs(np.log(factor)) - 1.0, best.log_params + abs(np.log(factor)) + 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        cheap = price.log_per_token(middle)[0] + middle + ratio < np.log(budget)
        low, high = np.where(cheap, middle, low), np.where(cheap, high, middle)
    at = 0.5 * (low + high)
    return _answers(on, price, at, at + ratio)


def inference(given: Law | Array, price: Cost, loss: Array, served: float, sizes: tuple[float, float]) -> Answers:
    """Return the run of a given loss (R,) whose training and inference together cost least.

    min 6 N D + 2 N D_inf with L(N, D) = loss: Sardana et al. 2024 (arXiv 2401.00448, eq. 3); `served` is D_inf, the
    tokens served over the model's life. A forward pass is taken as a third of training's FLOPs per token.

    >>> sardana = np.array([[1.69, 406.4, 410.7, 0.336, 0.283]])
    >>> budget = budget_of(sardana, Cost.six(), float(np.log(30e9)))
    >>> best = training_only(sardana, Cost.six(), float(budget[0]), (1e8, 1e11))
    >>> cheap = inference(sardana, Cost.six(), best.loss, 1e13, (1e8, 1e11))
    >>> total = lambda plan: plan.training_flops + 2 * np.exp(plan.log_params) * 1e13
    >>> f"{np.exp(cheap.log_params[0]):.3g} parameters, {100 * (1 - total(cheap) / total(best))[0]:.0f} % saved"
    '1.36e+10 parameters, 28 % saved'
    """
    on = law(given)

    def total(at: Array) -> Array:
        log_tokens = on.tokens_for(at, loss)
        per_token = np.exp(price.log_per_token(at)[0])
        with np.errstate(over="ignore", invalid="ignore"):
            cost = np.log(per_token * np.exp(log_tokens) + per_token / 3.0 * served)
        return np.where(np.isfinite(cost), cost, np.inf)

    at = lowest(total, _ends(sizes), len(on))
    found = _answers(on, price, at, on.tokens_for(at[:, None], loss)[:, 0])
    return Answers(
        found.log_params, found.log_tokens, found.loss, found.training_flops,
        np.exp(price.log_per_token(at)[0]) / 3.0 * served,
    )  # fmt: skip


def limited_data(
    given: Law | Array, price: Cost, budget: float, sizes: tuple[float, float], *, unique: float, repeats: Repeats
) -> Answers:
    """Return the lowest loss that a budget [FLOPs] buys with only `unique` tokens, repeated as often as it helps.

    The law is read at the effective tokens D' and, for parameters beyond the optimum for `unique` tokens, the
    effective parameters N' (Muennighoff et al. 2023, arXiv 2305.16264, section 3 and eq. 5-6); a law of repeats that
    was fitted says itself what they are worth.

    >>> hoffmann = np.array([[1.69, 406.4, 410.7, 0.34, 0.28]])
    >>> few = limited_data(hoffmann, Cost.six(), 1e22, (1e8, 1e10), unique=1e10, repeats=Repeats())
    >>> bool(few.loss[0] > training_only(hoffmann, Cost.six(), 1e22, (1e8, 1e10)).loss[0])
    True
    """
    on = law(given)

    def loss(at: Array) -> Array:
        log_tokens = np.log(budget) - price.log_per_token(at)[0]
        value = on.repeated(at, log_tokens, float(np.log(unique)))
        if value is None:
            seen = np.full(np.shape(at), np.log(unique))
            value = repeated(on, at, log_tokens, log_unique=seen, repeats=repeats)
        return np.where(np.isfinite(value), value, np.inf)

    at = lowest(loss, _ends(sizes), len(on))
    log_tokens = np.log(budget) - price.log_per_token(at)[0]
    found = _answers(on, price, at, log_tokens)
    return Answers(found.log_params, log_tokens, loss(at[:, None])[:, 0], found.training_flops, found.inference_flops)


def repeated(given: Law | Array, log_params: Array, log_tokens: Array, *, log_unique: Array, repeats: Repeats) -> Array:
    """Return the loss (R, m) at ln N and ln D (R, m) with `log_unique` distinct tokens.

    As in the law of repeats, the distinct tokens that count are those that were read, U_D = min(U, D), and U_N is the
    smaller of N and the size that is compute-optimal for U_D.
    """
    log_u, shape = np.minimum(log_unique, log_tokens), (-1, 1)
    most = np.minimum(_matched(law(given), log_u), log_params)
    tokens = log_u + _worn(log_tokens - log_u, np.reshape(repeats.tokens, shape))
    params = most + _worn(log_params - most, np.reshape(repeats.params, shape))
    return law(given).loss(params, tokens)


def _matched(on: Law, log_tokens: Array) -> Array:
    """Return ln of the sizes (R, m) for which ln tokens (R, m) are compute-optimal, between a few that are solved for.

    Straight lines in ln tokens for powers of N and D, for which this is exact.
    """
    wide = np.broadcast_to(log_tokens, (len(on), np.shape(log_tokens)[-1]))
    low, high = float(wide.min()), float(wide.max())
    if high - low < 1e-9:
        return np.broadcast_to(on.matched(high)[:, None], wide.shape)
    at = np.linspace(low, high, MATCHED)
    solved = np.stack([on.matched(float(value)) for value in at], axis=1)
    return np.stack([np.interp(row, at, values) for row, values in zip(wide, solved, strict=True)])


def budget_of(given: Law | Array, price: Cost, log_params: float) -> Array:
    """Return the budgets (R,) [FLOPs] for which a model of this size is compute-optimal."""
    return law(given).budget_of(price, log_params)


def _ends(sizes: tuple[float, float]) -> tuple[float, float]:
    return float(np.log(sizes[0] / SEARCH)), float(np.log(sizes[1] * SEARCH))


def _worn(log_ratio: Array, half: Array) -> Array:
    """Return ln(1 + R (1 - exp(-r/R))) for r = exp(log_ratio) - 1."""
    extra = np.expm1(np.maximum(log_ratio, 0.0))
    return np.asarray(np.log1p(half * -np.expm1(-extra / half)))


def _answers(on: Law, price: Cost, log_params: Array, log_tokens: Array) -> Answers:
    cost = np.exp(price.log_per_token(log_params)[0] + log_tokens)
    return Answers(log_params, log_tokens, on.loss(log_params, log_tokens), cost, np.zeros(len(on)))
