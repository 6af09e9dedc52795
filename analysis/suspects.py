"""Losses that cannot be what they are said to be: outliers, bits beside nats, perplexities, accuracies, copies.

A robust law absorbs a few wrong rows without a word, and what it then says is wrong by a little. So rows are judged
before the fit, against a smooth curve through the others, and named.
"""

from __future__ import annotations

import numpy as np

from analysis import human
from analysis.results import Check
from analysis.rows import Array, Index, Mask, Rows

BITS = float(np.log(1.0 / np.log(2.0)))
"""ln of bits over nats: how far a loss in bits lies above the same in nats."""
NEAR = 0.09
"""A ratio of units is seen to this in ln: sizes differ, and the curve is not exact."""
MOST_NATS = 12.6
"""ln of 300,000: a model that guesses among so many tokens has this loss, and one that was trained a lower one."""
SCORES = 6.0
"""Robust standard deviations beyond which a loss is an outlier."""
LEAST = 0.01
"""Outliers are off by more than this in ln loss, however well the others agree."""
FLOOR = 2e-3
"""The least scatter in ln loss that runs are taken to have."""
FEWEST = 8
SHOWN = 8


def findings(rows: Rows, unit: str) -> list[Check]:
    """Return findings about losses that cannot be what they are said to be, with the rows' names."""
    wrong = _accuracies(rows) or _perplexities(rows, unit)
    if wrong:
        return wrong
    return [*_odd(rows), *_copies(rows)]


def _accuracies(rows: Rows) -> list[Check]:
    """Return that the losses rise with compute and are shares: accuracies, or scores of another kind."""
    if len(rows) < FEWEST or np.ptp(rows.loss) == 0 or np.ptp(rows.flops) == 0:
        return []
    rises = float(np.corrcoef(_ranks(np.log(rows.flops)), _ranks(rows.loss))[0, 1])
    if rises < 0.5:
        return []
    shares = float(rows.loss.max()) <= 1.0
    text = f"the loss rises with compute (rank correlation {rises:.2f})"
    text += ", and every one is a share of 1: these look like accuracies" if shares else ": this is no loss"
    return [Check("not_a_loss", text, "map the column of the loss (columns=loss:COLUMN)", "error")]


def _perplexities(rows: Rows, unit: str) -> list[Check]:
    """Return the rows whose loss is above what guessing among 300,000 tokens has."""
    high = rows.loss > MOST_NATS
    if unit != "nats per token" or not high.any():
        return []
    text = f"{human.counted(int(high.sum()), 'loss')} above {MOST_NATS:g} nats per token ({_named(rows, high)}): no "
    text += "trained model has that; they look like perplexities"
    return [Check("perplexity", text, "give their natural logarithm, in nats per token", "error")]


def _odd(rows: Rows) -> list[Check]:
    """Return the rows in another unit and the outliers, by what is left of ln loss around a smooth curve."""
    if len(rows) < FEWEST:
        return []
    left = _residuals(rows)
    middle = float(np.median(left))
    spread = max(1.4826 * float(np.median(np.abs(left - middle))), FLOOR)
    score = (left - middle) / spread
    out = []
    bits = _in_bits(left - middle, score)
    if bits is not None:
        mask, ratio = bits
        several = human.counted(int(mask.sum()), "loss") + (" are" if mask.sum() > 1 else " is")
        text = f"{several} {ratio} ({_named(rows, mask)}): bits beside nats, by their size"
        out.append(Check("mixed_units", text, "bring all losses to one unit: 1 bit is 0.6931 nats", "error"))
        score = np.where(mask, 0.0, score)
    odd = (np.abs(score) > SCORES) & (np.abs(left - middle) > LEAST)
    if odd.any():
        far = 100.0 * np.expm1(left - middle)
        ordered = np.flatnonzero(odd)[np.argsort(-np.abs(far[odd]), kind="stable")]
        named = ", ".join(f"{rows.keys[i]} {far[i]:+.1f} %" for i in ordered[:SHOWN])
        more = ", ..." if len(ordered) > SHOWN else ""
        text = f"{human.counted(len(ordered), 'loss')} far from the others of like size and tokens ({named}{more})"
        out.append(Check("outliers", text, "look at these runs; leave out those that went wrong (where=)"))
    return out


def _in_bits(left: Array, score: Array) -> tuple[Mask, str] | None:
    """Return the rows that lie apart from the rest by the ratio of bits to nats, and which way; None without any."""
    for sign, text in ((1.0, "1.44 times the others"), (-1.0, "0.69 times the others")):
        mask = (np.abs(left - sign * BITS) < NEAR) & (np.abs(score) > SCORES)
        if mask.any() and mask.sum() < 0.5 * len(left):
            return mask, text
    return None


def _residuals(rows: Rows) -> Array:
    """Return what is left of ln loss around a robust plane or, with enough runs, quadratic in ln N and ln D."""
    n, d = (np.log(v) - np.log(v).mean() for v in (rows.params, rows.tokens))
    columns = [np.ones_like(n), n, d]
    if len(rows) >= 3 * FEWEST:
        columns += [n * n, d * d, n * d]
    design, y = np.stack(columns, axis=1), np.log(rows.loss)
    weights = np.ones(len(y))
    left = y - y.mean()
    for _ in range(40):  # least absolute values by reweighting: a few wrong rows do not bend the curve
        root = np.sqrt(weights)
        found = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        left = y - design @ found
        weights = 1.0 / np.maximum(np.abs(left), 1e-4)
    return np.asarray(left)


def _copies(rows: Rows) -> list[Check]:
    """Return rows of equal N, D, FLOPs and loss to the last digit under names of their own."""
    columns = np.stack((rows.params, rows.tokens, rows.flops, rows.loss))
    _, number, counts = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    twice = counts[np.asarray(number).ravel()] > 1
    if not twice.any():
        return []
    text = f"{int(twice.sum())} rows agree with another in N, D, FLOPs and loss to the last digit"
    text += f" ({_named(rows, twice)})"
    advice = "where they are copies of one run leave all but one out: as runs of their own they shorten every interval"
    return [Check("copies", text, advice)]


def _named(rows: Rows, mask: Mask) -> str:
    names = [f"{rows.keys[i]} {rows.loss[i]:.4g}" for i in np.flatnonzero(mask)]
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _ranks(values: Array) -> Index:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.int64)
