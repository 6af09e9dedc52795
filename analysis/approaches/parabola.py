"""The parabola of one budget's losses over ln N: its regression, whether it has a minimum, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.approaches.valley_options import WINDOW
from analysis.estimation import ties
from analysis.inputs.dataset import Array, Index, Mask, Rows
from analysis.text import numbers
from analysis.values.blocks import Interval


@dataclass(frozen=True)
class Parabola:
    """The runs of a budget as a regression: design (n, 3), its pseudo-inverse, losses, log tokens, centre of ln N."""

    flops_budget: float
    flops: float
    keys: tuple[str, ...]
    x: Array
    center: float
    loss: Array
    log_tokens: Array
    inverse: Array

    @property
    def design(self) -> Array:
        """Columns 1, x, x^2."""
        return np.vander(self.x, 3, increasing=True)

    @property
    def fitted(self) -> Array:
        """The parabola at the runs."""
        return np.asarray(self.design @ (self.inverse @ self.loss))

    @property
    def residual(self) -> Array:
        """Losses minus the parabola."""
        return np.asarray(self.loss - self.fitted)

    @property
    def relative(self) -> Array:
        """Residuals as shares of the budget's mean loss: of budgets of other losses they are of one size."""
        return np.asarray(self.residual / self.loss.mean())

    @property
    def depth(self) -> float:
        """How far the parabola rises from its middle to the end of the sizes."""
        low, high = self.reach
        return float(abs((self.inverse @ self.loss)[2])) * (0.5 * (high - low)) ** 2

    def spread(self, noise: float) -> float:
        """The noise of this budget's losses, where it is a share of them."""
        return noise * float(self.loss.mean())

    def is_flat(self, noise: float) -> bool:
        """Whether the parabola is less deep than twice the noise, which is a share of the loss."""
        return self.depth < 2 * self.spread(noise)

    @property
    def reach(self) -> Interval:
        """The swept range of x."""
        return float(self.x.min()), float(self.x.max())


def parabola(rows: Rows, chosen: Mask | Index, window: float = WINDOW) -> Parabola:
    """Return the regression of one budget's `chosen` rows, on the sizes within a factor of `window` of the best one.

    Where the window holds fewer than four sizes all of them are taken.
    """
    index = np.arange(len(rows))[chosen]
    logs = np.log(rows.params[index])
    near = np.abs(logs - logs[ties.lowest(rows.loss[index], logs)]) <= np.log(window) * (1 + 1e-9)
    if len(np.unique(rows.size[index[near]])) >= 4:
        index, logs = index[near], logs[near]
    center = float(logs.mean())
    x = logs - center
    return Parabola(
        flops_budget=float(rows.labels[rows.budget[index[0]]]),
        flops=float(np.exp(np.log(rows.flops[index]).mean())),
        keys=tuple(rows.keys[i] for i in index),
        x=x,
        center=center,
        loss=rows.loss[index],
        log_tokens=np.log(rows.tokens[index]),
        inverse=np.asarray(np.linalg.pinv(np.vander(x, 3, increasing=True)), dtype=np.float64),
    )


def noise_of(parabolas: Sequence[Parabola]) -> float:
    """Return the residuals' standard deviation, pooled over budgets, as a share of the loss; 0 without any freedom."""
    df = sum(max(0, len(p.keys) - 3) for p in parabolas)
    return float(np.sqrt(sum((p.relative**2).sum() for p in parabolas) / df)) if df else 0.0


def status_of(p: Parabola, noise: float) -> tuple[str, str]:
    """Return whether there is a minimum inside the swept sizes, else why not; `noise` is a share of the loss."""
    level, slope, curve = p.inverse @ p.loss
    low, high = p.reach
    if p.depth <= 1e-10 * float(np.abs(p.loss).max()):
        return "flat", "the loss does not depend on the size here: there is no minimum"
    if curve <= 0:
        return "inverted", "the parabola opens downwards: noise or too narrow a range of sizes"
    if p.is_flat(noise):
        text = f"the valley is {p.depth:.2g} deep, within twice the noise of {p.spread(noise):.2g}"
        return "flat", f"{text}: no minimum to be seen"
    at = -slope / (2 * curve)
    if not low < at < high:
        side, size = ("smallest", low) if at <= low else ("largest", high)
        end = numbers.count(float(np.exp(size + p.center)))
        return "edge", f"the minimum lies beyond the {side} size swept, {end} parameters"
    lowest = level + 0.5 * slope * at
    if lowest <= 0:
        return "negative", f"the parabola falls to a loss of {lowest:.2g} where no size was swept"
    return "minimum", ""


def vertex(p: Parabola, coefficients: Array) -> Array:
    """Return ln N*, ln D* and loss (..., 3) at the minima of `coefficients` (R, 3); NaN far outside or inverted."""
    c0, c1, c2 = coefficients.T
    low, high = p.reach
    with np.errstate(divide="ignore", invalid="ignore"):
        at = -c1 / (2 * c2)
    wide = high - low
    at = np.where((c2 > 0) & (at > low - wide) & (at < high + wide), at, np.nan)
    tokens = np.polynomial.polynomial.polyval(at, p.inverse @ p.log_tokens)
    out = np.stack((at + p.center, tokens, c0 + c1 * at + c2 * at * at), axis=-1)
    return out[0] if len(out) == 1 else out


def swept(minima: Sequence[Parabola], drawn: Array) -> Array:
    """Return draws (R, m, 3) of these minima with NaN where one lies beyond the sizes swept: a fit leaves it out."""
    low, high = (np.array([p.reach[end] + p.center for p in minima]) for end in (0, 1))
    inside = (drawn[..., 0] > low) & (drawn[..., 0] < high)
    return np.where(inside[..., None], drawn, np.nan)
