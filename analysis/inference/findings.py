"""What must not pass in silence of one law and its rows: findings, each with a code and advice.

A new one is a function here, in OF_A_LAW or in OF_COLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import observations, ties
from analysis.inference import distributions, identifiability, resample_findings
from analysis.inference.refusals import FEWEST_MODELS
from analysis.inputs.dataset import SAME_SIZE, Array, Index, clusters
from analysis.text import numbers
from analysis.values.blocks import Check, agreement
from analysis.values.findings import finding

if TYPE_CHECKING:
    from analysis.inference.flat import Flat
    from analysis.inference.inferred_law import InferredLaw
MANY_EPOCHS, VERY_MANY_EPOCHS = 4.0, 16.0
WARMUP_SHARE = 0.1
PAST_LOWEST = 5e-3
"""A last loss further above the lowest than this share is a finding: validations differ by less on their own."""
EDGE = 1.01
FEWEST_COUNTED = 2e4
"""A largest model, or a longest run, below this is hardly a count; in millions, public sweeps stay below it."""
COPIED = 1e-9
"""Repeats whose losses differ by less than this share are copies of each other but for rounding."""


def findings(fit: InferredLaw, runs: Any = None) -> tuple[Check, ...]:
    """Return findings about a fit: convergence, freedom, clusters, identification, misfit, and what its rows hold."""
    data = fit.data if runs is None else observations.read(observations.table(runs), fit.form)
    return (*(check for find in OF_A_LAW for check in find(fit)), *columns(data.columns))


def columns(extra: Mapping[str, Array]) -> list[Check]:
    """Return findings about columns (n,) by name: FLOPs, epochs, warm-up, learning rates."""
    return [check for find in OF_COLUMNS for check in find(extra)]


def _optimizer(fit: InferredLaw) -> list[Check]:
    evidence, out = fit.optimizer, []
    if not evidence.converged:
        text = f"the optimizer stopped at a relative gradient of {evidence.gradient_norm:.1g}"
        out.append(finding("not_converged", text, "do not quote the constants; fix or tie some, or report the data"))
    if evidence.agree_share < 0.5:
        text = agreement(evidence)
        out.append(
            finding("basins", text, "compare the basins' predictions before trusting one; fit_law(starts=) tries more")
        )
    if fit.flat is not None and fit.flat.exchanged:
        out.append(_exchanged(fit.flat))
    elif fit.flat is not None:
        text = f"laws {fit.flat.text}, fit the rows equally well; of these {fit.flat.given} is given"
        advice = "quote the range, or choose by loss=squared, by fix= or by rows that tell these laws apart"
        out.append(finding("flat_optimum", text, advice))
    return out


def _exchanged(found: Flat) -> Check:
    """Return that two terms may have each other's constants, and which of the two laws is given."""
    one, other = (identifiability.SYMBOLS.get(name, name) for name in found.exchanged)
    ends = [
        f"{name} {numbers.number(low, 4)} or {numbers.number(found.high[name], 4)}"
        for name, low in found.low.items()
        if low != found.high[name]
    ]
    text = (
        f"{one} and {other} have one ratio in all rows: the law fits them equally well where the terms of the two have "
        f"exchanged their constants ({', '.join(ends)}); the one with the larger term of {one} is given"
    )
    advice = f"the constants of {one} and {other} cannot be told apart: add rows at other ratios, or fix some"
    return finding("flat_optimum", text, advice)


def _freedom(fit: InferredLaw) -> list[Check]:
    out, n = [], fit.nobs
    if fit.df_resid < 5:
        text = f"{numbers.counted(fit.df_resid, 'residual degree')} of freedom: {n} rows for {fit.free} constants"
        out.append(finding("low_df", text, "add runs; treat every interval as a lower bound"))
    return out


def _few_models(fit: InferredLaw) -> list[Check]:
    """Return that a law of task errors from fewer than five models is not extrapolated."""
    if fit.form.target != "error" or fit.nobs >= FEWEST_MODELS:
        return []
    text = (
        f"the law of the error rests on {numbers.counted(fit.nobs, 'model')}: it predicts nothing outside their losses"
    )
    return [finding("few_models", text, f"add models: with fewer than {FEWEST_MODELS} it is not extrapolated")]


def _unidentified(fit: InferredLaw) -> list[Check]:
    cure = "add larger budgets or a wider range"
    if {"params", "tokens"} <= set(fit.form.inputs):
        cure = identifiability.cure(fit.data.columns["params"], fit.data.columns["tokens"], cure)
    return identifiability.findings(fit.identified, cure)


def _lack_of_fit(fit: InferredLaw) -> list[Check]:
    """Return the seed noise where settings repeat, and whether the law misses their means beyond it (F test).

    Repeats that are all the same to the last digits are copies, and say nothing of what seeds do.
    """
    counts = np.bincount(fit.cells)
    repeats = int((counts[counts > 0] - 1).sum())
    if repeats < 1:
        return []
    noise = seed_noise(fit.observed, fit.cells)
    if noise < COPIED:
        return []
    text = f"repeats differ by a standard deviation of {100 * noise:.2g} % ({repeats} degrees of freedom)"
    out = [finding("seed_noise", text, "no law can predict a single run better than this")]
    df = int((counts > 0).sum()) - fit.free
    if df < 1 or fit.problem.plain:
        return out
    total = float((fit.resid**2).sum())
    pure = noise**2 * repeats
    ratio = max(total - pure, 0.0) / df / (pure / repeats)
    if ratio > distributions.f_quantile(0.99, df, repeats):
        p = distributions.f_tail(ratio, df, repeats)
        text = f"the law misses the settings' means by more than repeats differ (F = {ratio:.3g}, p = {p:.1g})"
        advice = "the form does not hold at this precision: intervals that assume it does are too short"
        out.append(finding("lack_of_fit", text, advice))
    return out


def seed_noise(target: Array, cells: Index) -> float:
    """Return the pooled standard deviation of ln target (n,) among rows of one cell (n,); NaN without repeats."""
    y = np.log(target)
    counts = np.bincount(cells)
    means = np.bincount(cells, y) / np.maximum(counts, 1)
    df = int((counts[counts > 0] - 1).sum())
    return float(np.sqrt(((y - means[cells]) ** 2).sum() / df)) if df else float("nan")


def _units(extra: Mapping[str, Array]) -> list[Check]:
    """Return that sizes or tokens are too few to be counts, or that the two look exchanged."""
    if not {"params", "tokens"} <= set(extra):
        return []
    most = {name: float(extra[name].max()) for name in ("params", "tokens")}
    small = [name for name, value in most.items() if value < FEWEST_COUNTED]
    if small:
        text = f"the largest {small[0]} is {numbers.brief(float(most[small[0]]), 4)}, too few for a count of them"
        advice = f"where the column is in millions: columns={small[0]}:COLUMN*1e6; else nothing here is in counts"
        return [finding("units", text, advice)]
    if (extra["tokens"] < extra["params"]).all():
        text = "every run has fewer tokens than parameters"
        return [
            finding("few_tokens", text, "check that params and tokens are not swapped: columns=params:..,tokens:..")
        ]
    return []


def _flops(extra: Mapping[str, Array]) -> list[Check]:
    if not {"params", "tokens", "flops"} <= set(extra):
        return []
    ratio = extra["flops"] / (6.0 * extra["params"] * extra["tokens"]) - 1.0
    if np.abs(ratio).max() <= 0.05:
        return []
    text = f"FLOPs differ from 6 N D by {100 * ratio.min():+.1f} to {100 * ratio.max():+.1f} %"
    return [
        finding("flops_not_6nd", text, "another count of N, or attention: do not mix with results that assume 6 N D")
    ]


def _epochs(extra: Mapping[str, Array]) -> list[Check]:
    epochs = epochs_of(extra)
    if epochs is None:
        return []
    worst = float(np.nanmax(epochs))
    if worst <= MANY_EPOCHS * 1.001:
        return []
    many = int((epochs > MANY_EPOCHS * 1.001).sum())
    strongly = worst > VERY_MANY_EPOCHS * 1.001
    text = (
        f"{numbers.counted(many, 'run')} repeat their tokens more than {MANY_EPOCHS:g} times, up to {worst:.3g} epochs"
    )
    advice = "beyond 4 epochs repeats are worth less, beyond 16 almost nothing: check the fit without these runs"
    return [finding("very_many_epochs" if strongly else "many_epochs", text, advice)]


def epochs_of(extra: Mapping[str, Array]) -> Array | None:
    """Return how often each run (n,) read its text, NaN where unknown; None where it is of none."""
    epochs = extra.get("epochs")
    if {"unique_tokens", "tokens"} <= set(extra):
        counted = extra["tokens"] / extra["unique_tokens"]
        epochs = counted if epochs is None else np.where(np.isfinite(counted), counted, epochs)
    return None if epochs is None or not np.isfinite(epochs).any() else epochs


def _past_lowest(extra: Mapping[str, Array]) -> list[Check]:
    """Return runs whose last validation loss lies above an earlier one: they learn their training text by heart."""
    if not {"loss", "lowest_loss"} <= set(extra):
        return []
    above = extra["loss"] / extra["lowest_loss"] - 1.0
    late = above > PAST_LOWEST
    if not late.any():
        return []
    text = f"{numbers.counted(int(late.sum()), 'run')} ended above the lowest validation loss, "
    text += f"{numbers.percent(float(above[late].max()))} at most"
    epochs = epochs_of(extra)
    if epochs is not None and np.isfinite(epochs[late]).any():
        least, most = (f"{end(epochs[late]):.3g}" for end in (np.nanmin, np.nanmax))
        text += f", after {most if least == most else f'{least} to {most}'} epochs"
    advice = "they overfit, which no law of N and D describes: leave them out, or train with more text or fewer tokens"
    return [finding("past_lowest", text, advice)]


def _warmup(extra: Mapping[str, Array]) -> list[Check]:
    if not {"warmup_tokens", "tokens"} <= set(extra):
        return []
    share = extra["warmup_tokens"] / extra["tokens"]
    bad = int((share > WARMUP_SHARE).sum())
    if not bad:
        return []
    most, limit = 100 * float(np.nanmax(share)), 100 * WARMUP_SHARE
    text = f"{numbers.counted(bad, 'run')} warm up for more than {limit:g} % of the tokens, up to {most:.0f} %"
    advice = "small runs are handicapped, which tilts the exponents: scale the warmup with size"
    return [finding("long_warmup", text, advice)]


def _learning_rates(extra: Mapping[str, Array]) -> list[Check]:
    """Return findings about how the learning rate and the batch were chosen, where they are columns."""
    out = []
    if not {"lr", "params"} <= set(extra) or not np.isfinite(extra["lr"]).all():
        return []
    sizes = len(np.unique(clusters(extra["params"], SAME_SIZE)))
    rates = np.unique(extra["lr"])
    if sizes >= 3 and len(rates) == 1:
        text = f"all {sizes} sizes train at the same learning rate {rates[0]:.3g}"
        advice = "the best rate falls with size: tune it, or scale it by a law, else the exponent of N* is too large"
        out.append(finding("lr_not_tuned", text, advice))
    out += _swept(extra)
    for name in ("lr", "batch_tokens"):
        out += _on_edge(extra, name)
    return out


def _swept(extra: Mapping[str, Array]) -> list[Check]:
    """Return whether runs of equal N and D differ in learning rate or batch: a law then averages good and bad ones."""
    if "tokens" not in extra:
        return []
    names = [name for name in ("lr", "batch_tokens") if name in extra]
    cell = _settings(extra)
    values = np.round(np.log(np.stack([extra[name] for name in names])), 6)
    each = np.unique(np.vstack((cell, values)), axis=1)[0].astype(np.int64)
    swept = int((np.bincount(each) > 1).sum())
    if not swept:
        return []
    what = " and ".join({"lr": "learning rate", "batch_tokens": "batch size"}[name] for name in names)
    text = (
        f"{swept} of {len(np.unique(cell))} settings of N and D hold a sweep of {what}, and all their runs are fitted"
    )
    return [
        finding(
            "swept_settings", text, "select=best keeps the best run of each setting, where the sweep is wide enough"
        )
    ]


def _settings(extra: Mapping[str, Array]) -> NDArray[np.int64]:
    """Return the number of each row's N and D, and of its other settings where a file says them."""
    names = [name for name in ("params", "tokens", "setting_group") if name in extra]
    keys = np.round(np.log(np.stack([extra[name] for name in names])), 6)
    return np.unique(keys, axis=1, return_inverse=True)[1].ravel().astype(np.int64)


def _on_edge(extra: Mapping[str, Array], name: str) -> list[Check]:
    """Return whether the best value of a swept setting lies on the edge of its sweep, in cells of equal N and D."""
    if not {name, "params", "tokens", "loss"} <= set(extra):
        return []
    cell = _settings(extra)
    swept = edges = 0
    for number in np.unique(cell):
        rows = np.flatnonzero(cell == number)
        values = extra[name][rows]
        if len(np.unique(values)) < 3:
            continue
        swept += 1
        best = values[ties.lowest(extra["loss"][rows], values)]
        edges += bool(best <= values.min() * EDGE or best >= values.max() / EDGE)
    if not edges:
        return []
    what = {"lr": "learning rate", "batch_tokens": "batch size"}[name]
    text = f"the best {what} is on the edge of its sweep in {edges} of {swept} settings"
    return [finding("optimum_on_edge", text, f"widen the sweep of {name}: the optimum may lie beyond it")]


OF_A_LAW: tuple[Callable[[InferredLaw], list[Check]], ...] = (
    _optimizer, _freedom, *resample_findings.OF_RESAMPLES, _few_models, _unidentified, _lack_of_fit,
)  # fmt: skip
OF_COLUMNS: tuple[Callable[[Mapping[str, Array]], list[Check]], ...] = (
    _units, _flops, _epochs, _past_lowest, _warmup, _learning_rates,
)  # fmt: skip
