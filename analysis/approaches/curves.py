"""Multi-Power laws through learning curves: fitted on some schedules, judged on the others, a law a model size.

Luo et al. 2025, arXiv 2503.12811, eq. 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import objectives, observations
from analysis.inference.fit_law import fit_law
from analysis.inputs.dataset import Array
from analysis.text import numbers
from analysis.values.blocks import Block, Check, CurveScore
from analysis.values.findings import finding

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.law_result import LawFit
    from analysis.laws.multi_power import MultiPower

NEEDS = ("step", "lr", "loss")
MOST_POINTS = 60
"""Observations of a curve that a fit reads, evenly spaced: neighbours tell the same."""
FEWEST_CURVES = 4
STARTS = 8


@dataclass(frozen=True, eq=False)
class Curve:
    """A run's curve: observed steps and losses (n,), and the learning rate of every step from 0 to the last."""

    run: str
    size: str
    steps: NDArray[np.int64]
    loss: Array
    rates: Array


@dataclass(frozen=True, eq=False)
class CurveLaws:
    """A law a size by name, the scores of every curve, and findings."""

    fits: Mapping[str, LawFit]
    scores: tuple[CurveScore, ...]
    checks: tuple[Check, ...]
    curves: tuple[Curve, ...]

    def block(self) -> Block:
        """Return the laws as one block; with several sizes the constants are named "L_0 (size)"."""
        first = next(iter(self.fits.values()))
        one = len(self.fits) == 1
        params: dict[str, float] = {}
        intervals: dict[str, tuple[float, float] | None] = {}
        for size, fit in self.fits.items():
            ends = _intervals(fit)
            for name, value in fit.params.items():
                label = str(name) if one else f"{name} ({size})"
                params[label], intervals[label] = float(value), ends[str(name)]
        return Block(
            form=first.form.text,
            approach="curves",
            loss_function=first.loss_function,
            objective=sum(fit.objective for fit in self.fits.values()),
            params=params,
            intervals=intervals,
            checks=self.checks,
            rows_used=sum(fit.nobs for fit in self.fits.values()),
            optimizer=max((fit.optimizer for fit in self.fits.values()), key=lambda found: found.gradient_norm),
        )


def curves(frame: pd.DataFrame) -> tuple[Curve, ...]:
    """Return the curves of a table with step, lr, loss, a run's name where there are several, a size likewise.

    The rate between two observed steps is taken to go straight from one to the other, and from 0 up to the first.
    """
    import pandas as pd

    for name in NEEDS:
        if name not in frame or frame[name].isna().all():
            raise ValueError(f"form=multi_power reads curves: there is no column {name!r} (columns={name}:COLUMN)")
    step, lr, loss = (observations.column(frame, name) for name in NEEDS)
    sizes, runs = labels(frame)
    made = []
    for (size, run), index in pd.Series(range(len(step))).groupby([sizes, runs], sort=False):
        rows = index.to_numpy()[np.argsort(step[index], kind="stable")]
        at = np.rint(step[rows]).astype(np.int64)
        if len(np.unique(at)) < len(at):
            what = "give columns=run:COLUMN, and columns=size_group:COLUMN where sizes differ"
            raise ValueError(f"curve {run!r} has two losses at step {at[np.argmin(np.diff(at))]}: {what}")
        every = np.arange(at[-1] + 1)
        rates = np.interp(every, at, lr[rows])
        rates = np.where(every < at[0], lr[rows][0] * every / max(int(at[0]), 1), rates)
        made.append(Curve(str(run), str(size), at, loss[rows], rates))
    return tuple(made)


def labels(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the size and the run of every row: rows that share both are one curve."""
    named = ("run", "schedule", "key") if _named(frame, "run", "schedule") else ("run",)
    return _labels(frame, ("size_group", "params")), _labels(frame, named)


def _named(frame: pd.DataFrame, *names: str) -> bool:
    return any(name in frame and (frame[name].astype(str) != "").any() for name in names)


def _labels(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the first of these columns that says something, as text."""
    for name in names:
        if name in frame and frame[name].notna().all() and (frame[name].astype(str) != "").all():
            column = frame[name]
            return [numbers.count(v) if name == "params" else str(v) for v in column]
    return ["" for _ in range(len(frame))]


def fit(
    frame: pd.DataFrame,
    train: Sequence[str] = (),
    *,
    loss: objectives.Loss | None = None,
    resamples: int = 0,
    seed: int = 0,
) -> CurveLaws:
    """Fit L_0 + A S^-alpha - LD(t) to the curves of every size, and score it on all of them.

    Parameters
    ----------
    frame : DataFrame
        Columns step (from 0 or later), lr (that of the step), loss (nats per token); run or schedule names a curve,
        size_group or params a size.
    train : sequence of str
        The runs that are fitted; the others are predicted. Default: all.
    loss : Loss, optional
        Loss function on log residuals (default Huber, 0.001).
    resamples, seed : int
        Bootstrap over curves, where there are at least four of a size.

    Returns
    -------
    CurveLaws
        Fits by size, scores by curve, findings.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> step = np.arange(100, 1100, 20)
    >>> cosine = 3e-5 + 1.35e-4 * (1 + np.cos(np.pi * step / 1100))
    >>> flat = np.full(len(step), 3e-4)
    >>> loss = lambda lr: 3.0 + 0.5 * np.cumsum(20 * lr) ** -0.5 - 300 * (3e-4 - lr)
    >>> table = pd.concat([
    ...     pd.DataFrame({"run": name, "step": step, "lr": lr, "loss": loss(lr)})
    ...     for name, lr in (("cosine", cosine), ("flat", flat))])
    >>> found = fit(table.reset_index(drop=True))
    >>> [score.run for score in found.scores], all(score.mean_relative < 0.02 for score in found.scores)
    (['cosine', 'flat'], True)
    """
    every = curves(frame)
    known = {curve.run for curve in every}
    lost = [name for name in train if name not in known]
    if lost:
        raise ValueError(f"train={lost[0]}: there is no such run; there are {', '.join(sorted(known)[:20])}")
    fits: dict[str, LawFit] = {}
    scores: list[CurveScore] = []
    for size in dict.fromkeys(curve.size for curve in every):
        own = [curve for curve in every if curve.size == size]
        shown = [curve for curve in own if not train or curve.run in train]
        if not shown:
            raise ValueError(f"train={'|'.join(train)}: size {size} has none of these runs")
        law, found = _fitted(shown, loss or objectives.Huber(), resamples, seed)
        fits[size] = found
        scores += [_score(curve, law, found, not train or curve.run in train) for curve in own]
    return CurveLaws(fits, tuple(scores), tuple(_findings(fits, every, train)), every)


def _fitted(shown: Sequence[Curve], loss: objectives.Loss, resamples: int, seed: int) -> tuple[MultiPower, LawFit]:
    from analysis.laws.multi_power import MultiPower, Schedules

    shown = sorted(shown, key=lambda curve: curve.run)  # no number depends on which curve a file has first
    picks = [_thin(curve) for curve in shown]
    law = MultiPower(Schedules.of([(c.rates, c.steps[p]) for c, p in zip(shown, picks, strict=True)]))
    seen = np.concatenate([c.loss[p] for c, p in zip(shown, picks, strict=True)])
    run = np.repeat(np.arange(len(shown)), [len(p) for p in picks])
    table = {"observation": np.arange(len(seen)) + 1.0, "loss": seen, "run": run}
    draws = resamples if len(shown) >= FEWEST_CURVES else 0
    with np.errstate(all="ignore"):
        return law, fit_law(table, law, loss=loss, resamples=draws, seed=seed, starts=STARTS)


def _thin(curve: Curve) -> NDArray[np.int64]:
    count = len(curve.steps)
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))


def predicted(curve: Curve, law: MultiPower, fit: LawFit) -> Array:
    """Return the law's loss at the curve's steps (n,)."""
    from analysis.laws.multi_power import Schedules

    other = law.on(Schedules.of([(curve.rates, curve.steps)]))
    x = np.log(np.arange(len(curve.steps)) + 1.0)[None]
    with np.errstate(all="ignore"):
        return np.asarray(np.exp(other.log_value(fit.point.theta[None], x))[0])


def _score(curve: Curve, law: MultiPower, fit: LawFit, seen: bool) -> CurveScore:
    value = predicted(curve, law, fit)
    error, share = value - curve.loss, np.abs(value / curve.loss - 1.0)
    spread = float(((curve.loss - curve.loss.mean()) ** 2).sum())
    return CurveScore(
        curve.run, curve.size, seen, len(value), 1.0 - float((error**2).sum()) / max(spread, 1e-300),
        float(np.abs(error).mean()), float(share.mean()), float(share.max()), float(value[-1] / curve.loss[-1] - 1.0),
    )  # fmt: skip


def _intervals(fit: LawFit) -> dict[str, tuple[float, float] | None]:
    """Return the bootstrap's intervals over curves, null where there were too few of them."""
    from analysis.inference import resampling

    if not len(fit.thetas):
        return dict.fromkeys(fit.form.names)
    return {
        name: resampling.interval(fit.draws[name].to_numpy(), float(fit.params[name]), fit.confidence)
        for name in fit.form.names
    }


def _findings(fits: Mapping[str, LawFit], every: Sequence[Curve], train: Sequence[str]) -> list[Check]:
    out = []
    counts = {size: len(np.unique(fit.data.run_numbers)) for size, fit in fits.items()}
    few = [size for size, count in counts.items() if count < FEWEST_CURVES]
    if few:
        text = f"{min(counts.values())} curves of a size are fitted: intervals of the constants need {FEWEST_CURVES}"
        advice = "points of one curve are not independent: quote the errors on curves that were not fitted instead"
        out.append(finding("few_curves", text, advice))
    if not train or len({curve.run for curve in every} - set(train)) == 0:
        advice = "train=RUN|RUN fits some and predicts the others"
        out.append(finding("no_held_out_curve", "every curve was fitted: none tests the law", advice))
    for size, fit in fits.items():
        if not fit.optimizer.converged:
            where = f" of size {size}" if size else ""
            text = f"the law{where} stopped at a relative gradient of {fit.optimizer.gradient_norm:.1g}"
            out.append(finding("ridge", text, "C and gamma trade against each other: quote predictions, not constants"))
        flat = all(np.ptp(c.rates[c.steps[0] :]) <= 1e-9 * c.rates.max() for c in every if c.size == size)
        if flat:
            text = f"no learning rate changes in the curves{f' of size {size}' if size else ''}"
            out.append(
                finding("constant_schedules", text, "B, C, beta and gamma say nothing: add a schedule that decays")
            )
    return out
