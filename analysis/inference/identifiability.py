"""Which constants of any law the data identify: by profile, by resamples, and by what their term adds to the law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import multistart
from analysis.estimation.constraints import constraint
from analysis.inference import distributions, resampling
from analysis.inputs.dataset import Array, one_ratio
from analysis.laws.sum_of_powers import SumOfPowers
from analysis.text import numbers
from analysis.values.blocks import Check, Identified, Interval
from analysis.values.findings import finding

if TYPE_CHECKING:
    from analysis.inference.estimate import Estimate

SYMBOLS = {"params": "N", "tokens": "D", "flops": "C"}
"""Columns as laws and the report name them."""

WIDEST = np.log(1e6)
"""A positive constant whose resampled interval is wider than this, in nats, is not identified."""

NOTHING, ANY = 1e-12, 0.3
"""A coefficient and an exponent of a term that is not there."""

FLOOR = 1e-3
"""An irreducible loss below this share of the lowest target is on its bound 0."""


class Verdicts(Mapping[str, Identified]):
    """A verdict on every constant and derived quantity of a fit, found when it is asked for: profiles take long."""

    def __init__(self, fit: Estimate) -> None:
        self._fit = fit
        self._found: dict[str, Identified] = {}

    def __getitem__(self, name: str) -> Identified:
        if name not in self._found:
            fit = self._fit
            if name not in fit.names:
                raise KeyError(name)
            value = fit.params[name] if name in fit.form.names else fit.derived[name]
            self._found[name] = _limited(self._judged(name), float(value))
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fit.names)

    def __len__(self) -> int:
        return len(self._fit.names)

    def _judged(self, name: str) -> Identified:
        fit = self._fit
        if name in self._needless:
            return self._needless[name]
        if name in fit.held:
            return Identified(True, "held at a value")
        if name not in fit.form.names:
            useless = next(iter(self._needless.values()), None)
            return _derived(fit, name) if useless is None else Identified(False, useless.reason)
        fit.follow_profiles()
        verdict = Identified(True)
        with suppress(ValueError):  # it has no profile
            verdict = fit.profile(name).identified
        return _resampled(fit, name, _on_bound(fit, name, verdict))

    @cached_property
    def _needless(self) -> dict[str, Identified]:
        return _needless(self._fit)


def _limited(verdict: Identified, value: float) -> Identified:
    """Return the verdict with a limit that leaves the estimate within, none that is no number."""
    if verdict.limit is None:
        return verdict
    if not np.isfinite(verdict.limit):
        return replace(verdict, side=None, limit=None)
    return replace(verdict, limit=(max if verdict.side == "upper" else min)(verdict.limit, value))


def _needless(fit: Estimate) -> dict[str, Identified]:
    """Return coefficient and exponents of a power as not identified where the law fits the runs as well without it.

    An exponent of a term that is not there fits noise, and its profile may close all the same.
    """
    form, p = fit.form, fit.problem
    if not isinstance(form, SumOfPowers) or len(form.powers) < 2:
        return {}
    tied = {*fit.constraints, *(v for v in fit.constraints.values() if isinstance(v, str))}
    counts = Counter(exponent for _, parts in form.powers for _, exponent in parts)
    cut = drop_cut(p.y.size, fit.df_resid)
    found: dict[str, Identified] = {}
    for coefficient, parts in form.powers:
        own = [exponent for _, exponent in parts if counts[exponent] == 1]
        if not own or tied & {coefficient, *own}:
            continue
        held = {**fit.constraints, coefficient: NOTHING, **dict.fromkeys(own, ANY)}
        fixed = {name: float(v) for name, v in held.items() if not isinstance(v, str)}
        ties = {name: v for name, v in held.items() if isinstance(v, str)}
        without = multistart.fit_point(replace(p, constraint=constraint(form, p.centres, fixed, ties)), 4)
        gained = 2.0 * (p.loss.llf_of(fit.objective, p.y.size) - p.loss.llf_of(without.objective, p.y.size))
        if gained < cut:
            term = f"{coefficient}/" + " ".join(
                f"{SYMBOLS.get(column, column)}^{exponent}" for column, exponent in parts
            )
            reason = f"the law fits the runs as well without {term}"
            found |= {name: Identified(False, reason) for name in (coefficient, *own)}
    return found


def drop_cut(count: int, df: int) -> float:
    """Return the gain in 2 llf that two constants have to bring: the likelihood ratio of the F test at 5 %."""
    df = max(df, 1)
    return count * float(np.log1p(2.0 * distributions.f_quantile(0.95, 2, df) / df))


def _on_bound(fit: Estimate, name: str, verdict: Identified) -> Identified:
    """Return a floor as not identified where the fit, or more than half of alpha of its resamples, has it at 0."""
    floor = getattr(fit.form, "floor", "E" if "E" in fit.form.names and fit.positive("E") else "")
    if name != floor:
        return verdict
    lowest = FLOOR * float(fit.observed.min())
    draws = fit.draws[name].to_numpy() if len(fit.thetas) else np.empty(0)
    share = float((draws < lowest).mean()) if len(draws) else 0.0
    if fit.params[name] >= lowest and share < 0.5 * (1.0 - fit.confidence):
        return verdict
    limit = verdict.limit if verdict.side == "upper" else None
    if len(draws):
        limit = max(limit or 0.0, float(np.quantile(draws, fit.confidence)))
    where = "the fit puts" if fit.params[name] < lowest else f"{numbers.percent(share)} of the resamples put"
    return Identified(False, f"{where} {name} on its bound 0", None if limit is None else "upper", limit)


def _resampled(fit: Estimate, name: str, verdict: Identified) -> Identified:
    """Return a constant as not identified where its resampled interval does not close."""
    if not verdict.identified or not len(fit.thetas):
        return verdict
    draws = fit.draws[name].to_numpy()
    interval = resampling.interval(draws, float(fit.params[name]), fit.confidence, logs=fit.positive(name))
    if interval is None:
        return Identified(False, f"{numbers.percent(fit.undefined[name])} of the resamples have no finite {name}")
    if not fit.positive(name):
        return verdict
    low, high = (float(v) for v in np.log(np.maximum(interval, 1e-300)))
    return verdict if high - low <= WIDEST else _open(fit, name, (low, high), draws)


def _open(fit: Estimate, name: str, interval: tuple[float, float], draws: NDArray[np.float64]) -> Identified:
    """Return the verdict on a positive constant whose resampled interval, in logs, is too wide."""
    low, high = interval
    middle = float(np.log(max(fit.params[name], 1e-300)))
    one = 1.0 - fit.confidence
    if high - middle > WIDEST / 2 and middle - low <= WIDEST / 2:
        limit = float(np.quantile(draws, one))
        return Identified(False, f"resamples leave {name} unbounded above", "lower", limit)
    if middle - low > WIDEST / 2 and high - middle <= WIDEST / 2:
        limit = float(np.quantile(draws, 1.0 - one))
        return Identified(False, f"resamples leave {name} unbounded below", "upper", limit)
    return Identified(False, f"the resampled interval of {name} spans more than a factor of a million")


def _derived(fit: Estimate, name: str) -> Identified:
    """Return a derived quantity's verdict: a and b need an interval within (0, 1) that says something."""
    if not len(fit.thetas):
        return Identified(True)
    draws, value = fit.draws[name].to_numpy(), float(fit.derived[name])
    interval = resampling.interval(draws, value, fit.confidence)
    return ratio(interval, name) if name in ("a", "b") else Identified(True)


def ratio(interval: Interval | None, name: str) -> Identified:
    """Return the verdict on the exponents a or b of N* or D*: an interval within (0, 1) that says something."""
    low, high = interval or (-np.inf, np.inf)
    if low <= 0.0 or high >= 1.0 or high - low > 0.8:
        return Identified(False, f"the interval of {name} covers most of 0 to 1")
    return Identified(True)


def cure(params: Array, tokens: Array, usual: str, alone: str = "form=compute") -> str:
    """Return what to do about constants of N and D (n,): `usual`, but where no law of both follows from the runs.

    `alone` is the command or the key that fits the loss over compute alone.
    """
    ratio = one_ratio(params, tokens)
    if ratio is None:
        return usual
    return (
        f"all runs have about {numbers.number(ratio, 2)} tokens per parameter, so that N and D cannot be told apart: "
        f"add runs at other ratios, or fit the loss over compute alone ({alone})"
    )


def findings(verdicts: Mapping[str, Identified], cure: str) -> list[Check]:
    """Return one finding that names every constant, by its name, which the data do not identify; none without any.

    `cure` is what to do, after not to quote them.
    """
    lost = {name: verdict for name, verdict in verdicts.items() if not verdict.identified}
    if not lost:
        return []
    if len(lost) == 1:
        ((name, verdict),) = lost.items()
        return [finding("not_identified", verdict.sentence(name), f"do not quote it; {cure}")]
    each = "; ".join(verdict.phrase(name) for name, verdict in lost.items())
    text = f"{len(lost)} constants are not identified: {each}"
    return [finding("not_identified", text, f"do not quote them; {cure}")]
