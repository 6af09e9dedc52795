"""The Multi-Power Law: a loss curve under any learning-rate schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from analysis.laws.base import Array, Expression, product
from analysis.laws.dual import Dual, exp, expm1, log, log1p

Index = NDArray[np.int64]
NO_CHANGE = np.array([[0.0], [1.0], [0.0]])
"""A change of nothing, which is every observation's first: `np.add.reduceat` knows of no empty sums."""


@dataclass(frozen=True, eq=False)
class Schedules:
    """What the law needs of n observed losses under schedules, made by `Schedules.of`.

    `log_sum` (n,) is the log of the learning rates' sum up to each observation. Pairs of an observation and an
    earlier change of the rate follow each other by observation: the `change` (rate before less after), `log_rate`
    after it, `since`, the sum of rates from it to the observation; `first` (n,) is each observation's first pair.
    """

    log_sum: Array
    change: Array
    log_rate: Array
    since: Array
    first: Index

    @staticmethod
    def of(curves: Sequence[tuple[Array, NDArray[Any]]], stride: int = 64) -> Schedules:
        """Return the schedules of curves: each the learning rates of steps 0, 1, ... and the observed steps.

        Warm-up is part of a schedule: give its rates too. Changes within `stride` steps count as one at their middle;
        a rate that jumps is one change either way.
        """
        sums, pairs, first, done = [], [], [], 0
        for rates, steps in curves:
            total = np.cumsum(np.asarray(rates, dtype=np.float64))
            change, rate, start = _changes(np.asarray(rates, dtype=np.float64), total, stride)
            for step in np.asarray(steps, dtype=np.int64):
                if not 0 <= step < len(total):
                    raise ValueError(f"step {step} lies outside its schedule of {len(total)} steps")
                seen = start <= total[step]
                sums.append(total[step])
                first.append(done)
                own = np.stack((change[seen], rate[seen], total[step] - start[seen]))
                pairs.append(np.concatenate((NO_CHANGE, own), axis=1))
                done += pairs[-1].shape[1]
        change, rate, since = np.concatenate(pairs, axis=1)
        return Schedules(np.log(sums), change, np.log(rate), since, np.array(first, dtype=np.int64))


def _changes(rates: Array, total: Array, stride: int) -> tuple[Array, Array, Array]:
    """Return changes, the rate after each and the sum of rates before it, jumps on their own and the rest in bins."""
    drops = -np.diff(rates)
    where = np.flatnonzero(np.abs(drops) > 1e-15) + 1
    jump = np.abs(drops[where - 1]) > 0.05 * rates.max()
    bins = np.where(jump, -where, where // stride)
    out: list[tuple[float, float, float]] = []
    for number in dict.fromkeys(bins.tolist()):
        steps = where[bins == number]
        middle = steps[len(steps) // 2]
        if rates[middle] > 0:
            out.append((float(drops[steps - 1].sum()), float(rates[middle]), float(total[middle] - rates[middle])))
    found = np.array(out).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]


@dataclass(frozen=True, eq=False)
class MultiPower(Expression):
    """L_0 + A S^-alpha - B sum_k (eta_(k-1) - eta_k) (1 - (1 + C eta_k^-gamma S_k)^-beta), on given schedules.

    S is the sum of learning rates so far, S_k that since step k. The input `observation` numbers the schedules'
    observations from 1; a law fitted on some schedules is used on others by `on`.
    """

    schedules: Schedules

    name: ClassVar[str] = "multi_power"
    text: ClassVar[str] = "L_0 + A S^-alpha - B sum_k (eta_(k-1) - eta_k) (1 - (1 + C eta_k^-gamma S_k)^-beta)"
    reference: ClassVar[str] = "Luo et al. 2025, arXiv 2503.12811, eq. 1"
    names: ClassVar[tuple[str, ...]] = ("L_0", "A", "alpha", "B", "C", "beta", "gamma")
    inputs: ClassVar[tuple[str, ...]] = ("observation",)
    positive: ClassVar[tuple[str, ...]] = ("L_0", "A", "alpha", "B", "C", "beta")

    def on(self, schedules: Schedules) -> MultiPower:
        """Return the law on other schedules."""
        return MultiPower(schedules)

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        s = self.schedules
        rows = np.rint(np.exp(x["observation"])).astype(np.int64) - 1
        smooth = exp(c["A"] - exp(c["alpha"]) * s.log_sum)
        inner = log1p(exp(c["C"] - c["gamma"] * s.log_rate + np.log(np.maximum(s.since, 1e-300))))
        gain = -expm1(-(exp(c["beta"]) * inner)) * s.change
        loss = exp(c["L_0"]) + smooth - exp(c["B"]) * _summed(gain, s.first, len(s.change))
        return log(_taken(loss, rows))

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over alpha, C, beta, gamma; L_0, A and B of least squares at each."""
        alpha, scale, beta, gamma = product((0.3, 0.5, 0.8), (0.5, 2.0, 8.0), (0.4, 0.7), (0.4, 0.7))
        s = self.schedules
        rows = np.rint(np.exp(x["observation"])).astype(np.int64) - 1
        out = []
        for a, k, b, g in zip(alpha, scale, beta, gamma, strict=True):
            gain = s.change * (1.0 - (1.0 + k * np.exp(-g * s.log_rate) * s.since) ** -b)
            fall = np.add.reduceat(gain, s.first)
            design = np.stack((np.ones(len(rows)), np.exp(-a * s.log_sum)[rows], -fall[rows]), axis=1)
            level, size, drop = np.maximum(np.linalg.lstsq(design, np.exp(y), rcond=None)[0], 1e-3)
            out.append((level, size, a, drop, k, b, g))
        found = dict(zip(self.names, np.array(out).T, strict=True))
        return {name: np.log(v) if name in self.positive else v for name, v in found.items()}


def _summed(pairs: Dual, first: Index, count: int) -> Dual:
    """Return the sums (R, n) of pairs (R, P) that belong to one observation."""

    def add(values: Array) -> Array:
        wide = np.broadcast_to(values, (values.shape[0], count))
        return np.asarray(np.add.reduceat(wide, first, axis=1))

    return Dual(add(pairs.value), {i: add(s) for i, s in pairs.slopes.items()})


def _taken(values: Dual, rows: Index) -> Dual:
    """Return the observations (R, m) of these numbers."""

    def take(a: Array) -> Array:
        return a[:, rows] if a.shape[1] > 1 else np.broadcast_to(a, (len(a), len(rows)))

    return Dual(take(values.value), {i: take(s) for i, s in values.slopes.items()})
