"""Losses that cannot be what they are said to be: outliers, bits beside nats, perplexities, accuracies, copies.

A robust law absorbs a few wrong rows without a word, and what it then says is wrong by a little. So rows are judged
before the fit, against a smooth curve through the others, and named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis.inputs.dataset import Array, Index, Mask, Rows
from analysis.inputs.gaps import beyond_gap
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding

BITS = float(np.log(1.0 / np.log(2.0)))
"""ln of bits over nats: how far a loss in bits lies above the same in nats."""
NEAR = 0.09
"""A ratio of units is seen to this in ln: sizes differ, and the curve is not exact."""
MOST_NATS = 12.6
"""ln of 300,000: a model that guesses among so many tokens has this loss, and one that was trained a lower one."""
REACH = 0.5 * BITS
"""So far beyond the losses of other rows, in ln, a curve through them is believed."""
SCORES = 6.0
"""Robust standard deviations beyond which a loss is an outlier."""
LEAST = 0.01
"""Outliers are off by more than this in ln loss, however well the others agree."""
FLOOR = 2e-3
"""The least scatter in ln loss that runs are taken to have."""
FEWEST = 8
FITTED = 20_000
"""Rows that the smooth curve is fitted to, at most."""
HALF, NEAREST = 0.5, 5
"""What is at most 1 and below this share of what it ought to be, by so many of its neighbours, is no loss."""
WIDEST_GAP = 1000.0
"""Sizes (or tokens) of one study leave no gap as wide as this factor, or wider."""
TWO_UNITS, FAR_LESS = 0.03, 4.0
"""Mean residual from which on two units are looked for, and by how much two curves have to leave less than one."""


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses of rows without sizes or tokens: the rows' names, losses, and FLOPs, empty where they are not known."""

    keys: tuple[str, ...]
    loss: Array
    flops: Array


def of_losses(losses: Losses, unit: str) -> list[Check]:
    """Return what losses alone, or with their compute, say against being such."""
    return (_accuracies(losses) if losses.flops.size else []) or _perplexities(losses, unit)


def findings(rows: Rows, unit: str) -> list[Check]:
    """Return findings about losses that cannot be what they are said to be, with the rows' names."""
    wrong = _shares(rows) or _accuracies(rows) or _perplexities(rows, unit) or _counts(rows)
    if wrong:
        return wrong
    return [*_odd(rows), *_copies(rows)]


def _shares(rows: Rows) -> list[Check]:
    """Return the rows at or below 1 that lie far below the rows above 1 that are nearest in size and tokens.

    No law falls faster than with the root of N D: what falls faster by half, for most of the nearest, is no loss.
    """
    low = rows.loss <= 1.0
    if low.all() or not low.any():
        return []
    places = np.log(np.stack((rows.params, rows.tokens), axis=1))
    near = _nearest(places[~low], places[low])
    further = np.maximum(places[low][:, None] - places[~low][near], 0.0).sum(axis=2)
    bound = np.median(np.log(HALF * rows.loss[~low])[near] - 0.5 * further, axis=1)
    wrong = np.zeros(len(rows), dtype=bool)
    wrong[np.flatnonzero(low)] = np.log(rows.loss[low]) < bound
    if not wrong.any():
        return []
    several = numbers.counted(int(wrong.sum()), "loss") + (" are" if wrong.sum() > 1 else " is")
    text = f"{several} at most 1 and below half of what runs near by in size and tokens have ({_named(rows, wrong)}): "
    text += "they look like accuracies or error rates"
    return [finding("not_a_loss", text, "give the losses of these runs, or leave them out (where=)")]


def _accuracies(rows: Rows | Losses) -> list[Check]:
    """Return that the losses rise with compute and are shares: accuracies, or scores of another kind."""
    if rows.loss.size < FEWEST or np.ptp(rows.loss) == 0 or np.ptp(rows.flops) == 0:
        return []
    rises = float(np.corrcoef(_ranks(np.log(rows.flops)), _ranks(rows.loss))[0, 1])
    if rises < 0.5:
        return []
    shares = float(rows.loss.max()) <= 1.0
    text = f"the loss rises with compute (rank correlation {rises:.2f})"
    named = _named(rows, np.ones(rows.loss.size, dtype=bool))
    text += f", and every one is a share of 1: these look like accuracies ({named})" if shares else ": this is no loss"
    return [finding("not_a_loss", text, "map the column of the loss (columns=loss:COLUMN)")]


def _counts(rows: Rows) -> list[Check]:
    """Return the rows whose size or tokens are of another order than all others: in millions beside counts."""
    for name in ("params", "tokens"):
        logs = np.log(rows.column(name))
        apart = beyond_gap(logs, np.log(WIDEST_GAP))
        if apart is None:
            continue
        named = numbers.listed(f"{rows.keys[i]} {rows.column(name)[i]:.4g}" for i in np.flatnonzero(apart))
        gap = np.exp(logs[~apart].min() - logs[apart].max())
        text = (
            f"{numbers.counted(int(apart.sum()), 'row')} of {len(rows)} have {name} at least {numbers.number(gap, 2)} "
        )
        text += f"times below all others ({named}): in millions or billions beside counts, by their size"
        return [finding("mixed_units", text, f"write {name} as counts in every row")]
    return []


def _perplexities(rows: Rows | Losses, unit: str) -> list[Check]:
    """Return the rows whose loss is above what guessing among 300,000 tokens has."""
    high = rows.loss > MOST_NATS
    if unit != "nats per token" or not high.any():
        return []
    text = f"{numbers.counted(int(high.sum()), 'loss')} above {MOST_NATS:g} nats per token ({_named(rows, high)}): no "
    text += "trained model has that; they look like perplexities"
    return [finding("perplexity", text, "give their natural logarithm, in nats per token")]


def _odd(rows: Rows) -> list[Check]:
    """Return the rows in another unit and the outliers, by what is left of ln loss around a smooth curve."""
    if len(rows) < FEWEST:
        return []
    design, y = _design(rows), np.log(rows.loss)
    left, score = _scored(y - design @ _robust(design, y))
    out = []
    mask = _mixture(design, y) if float(np.abs(left).mean()) > TWO_UNITS else None
    mask = _in_bits(left, score, design[:, 1:3], y) if mask is None else mask
    if mask is not None:
        as_one = y - np.where(mask, BITS, 0.0)  # a few rows that the first curve leaned towards
        mask = y - design @ _robust(design, as_one) > 0.5 * BITS
        few = mask if mask.sum() <= 0.5 * len(rows) else ~mask
        ratio = "1.44" if few is mask else "0.69"
        several = numbers.counted(int(few.sum()), "loss") + (" are" if few.sum() > 1 else " is")
        text = f"{several} {ratio} times the others ({_named(rows, few)}): bits beside nats, by their size"
        out.append(finding("mixed_units", text, "bring all losses to one unit: 1 bit is 0.6931 nats"))
        as_one = y - np.where(mask, BITS, 0.0)
        left, score = _scored(as_one - design @ _robust(design, as_one))
    odd = (np.abs(score) > SCORES) & (np.abs(left) > LEAST)
    odd[odd] = ~_shared(left, np.flatnonzero(odd), design[:, 1:3])
    if odd.any():
        far = 100.0 * np.expm1(left)
        ordered = np.flatnonzero(odd)[np.argsort(-np.abs(far[odd]), kind="stable")]
        named = numbers.listed(f"{rows.keys[i]} {far[i]:+.1f} %" for i in ordered)
        text = f"{numbers.counted(len(ordered), 'loss')} far from the others of similar size and tokens ({named})"
        out.append(finding("outliers", text, "check these runs; leave out those that went wrong (where=)"))
    return out


def _scored(left: Array) -> tuple[Array, Array]:
    """Return residuals less their median, and the same in robust standard deviations."""
    left = left - float(np.median(left))
    spread = max(1.4826 * float(np.median(np.abs(left))), FLOOR)
    return left, left / spread


def _in_bits(left: Array, score: Array, places: Array, y: Array) -> Mask | None:
    """Return the rows in bits where a few lie apart from the rest by the ratio of bits to nats; None without any.

    They do so from their neighbours too, where the curve does not hold, and few others lie as far from the curve by
    another ratio: those would be a curve that does not hold, or runs that went wrong. And what they ought to be, by
    the curve, is about what others are: a curve that rises far above all losses (y, ln), as at the start of training,
    where they flatten out at that of guessing, or that falls far below them, says nothing of a row there.
    """
    far = (np.abs(score) > SCORES) & (np.abs(left) > 0.5 * BITS)
    for sign in (1.0, -1.0):
        mask = far & (np.abs(left - sign * BITS) < NEAR)
        if not mask.any() or mask.sum() >= 0.5 * len(left):
            continue
        local = left[mask] - np.median(left[~mask][_nearest(places[~mask], places[mask])], axis=1)
        close = np.abs(local - sign * BITS) < NEAR
        mask[np.flatnonzero(mask)[~close]] = False
        ought, others = y[mask] - left[mask], y[~mask]
        inside = (ought < others.max() + REACH) & (ought > others.min() - REACH)
        mask[np.flatnonzero(mask)[~inside]] = False
        if mask.sum() > (far & ~mask).sum():
            return np.asarray(mask if sign > 0 else ~mask)
    return None


def _shared(left: Array, rows: Index, places: Array) -> Mask:
    """Return which of these rows (m,) have neighbours half as far off on the same side: the curve does not hold there.

    So it is at the ends of long tables, where no row is apart from those beside it.
    """
    near = _nearest(places, places[rows], NEAREST + 1)
    own = near == rows[:, None]
    own[~own.any(axis=1), -1] = True  # rows at one place: the last of the others
    around = np.median(left[near[~own].reshape(len(rows), NEAREST)], axis=1)
    return np.asarray(around * np.sign(left[rows]) > HALF * np.abs(left[rows]))


def _nearest(places: Array, at: Array, most: int = NEAREST) -> Index:
    """Return the numbers (m, `most` or fewer) of the `places` (n, 2) nearest to each of `at` (m, 2)."""
    from scipy.spatial import cKDTree

    count = min(most, len(places))
    return np.asarray(cKDTree(places).query(at, k=[*range(1, count + 1)])[1], dtype=np.int64)


def _mixture(design: Array, y: Array) -> Mask | None:
    """Return the rows in bits where so many are that no curve goes through the others; None where none are.

    A curve and the same curve in bits above it are fitted to rows that are assigned to the nearer one, from starts that
    part the rows by what is left of one curve, by size, by tokens and by their order. Two units are seen where that
    leaves far less than one curve does, and every row is near its own.
    """
    some = _some(len(y))
    basis, _ = np.linalg.qr(design[some])
    seen = y[some]

    def around(mask: Mask) -> Array:
        values = seen - np.where(mask, BITS, 0.0)
        return np.asarray(values - basis @ (basis.T @ values))

    best, least = None, np.inf
    one = around(np.zeros(len(seen), dtype=bool))
    for start in _parted(one, design[some]):
        mask = start
        for _ in range(30):
            above = around(mask) + np.where(mask, BITS, 0.0) > 0.5 * BITS
            if (above == mask).all():
                break
            mask = above
        left = float(np.abs(around(mask)).mean())
        if 0 < mask.sum() < len(mask) and left < least:
            best, least = mask, left
    if best is None or least * FAR_LESS > float(np.abs(one).mean()):
        return None
    as_one = seen - np.where(best, BITS, 0.0)
    rest = y - design @ _robust(design[some], as_one)
    mask = rest > 0.5 * BITS
    near = np.abs(rest - np.where(mask, BITS, 0.0)) < NEAR
    return np.asarray(mask) if near.mean() > 0.9 else None


def _parted(left: Array, design: Array) -> Iterator[Mask]:
    """Yield rows as parted at five places by what is left of one curve, by size and by tokens, both ways."""
    for values in (left, design[:, 1], design[:, 2], np.arange(len(left), dtype=np.float64)):
        for share in (0.5, 0.35, 0.65, 0.2, 0.8):
            mask = values > np.quantile(values, share)
            yield np.asarray(mask)
            yield np.asarray(~mask)


def _design(rows: Rows) -> Array:
    """Return the columns of a plane or, with enough runs, of a quadratic in ln N and ln D."""
    n, d = (np.log(v) - np.log(v).mean() for v in (rows.params, rows.tokens))
    columns = [np.ones_like(n), n, d]
    if len(rows) >= 3 * FEWEST:
        columns += [n * n, d * d, n * d]
    return np.stack(columns, axis=1)


def _some(count: int) -> Index:
    """Return the numbers of `count` rows, of very many of FITTED that are evenly spaced."""
    return np.arange(count) if count <= FITTED else np.linspace(0, count - 1, FITTED).astype(np.int64)


def _robust(design: Array, y: Array) -> Array:
    """Return the coefficients of least absolute residuals; of very many rows, of some that are evenly spaced."""
    some = _some(len(y))
    design, y = design[some], y[some]
    weights = np.ones(len(y))
    found: Array = np.zeros(design.shape[1])
    for _ in range(40):  # least absolute values by reweighting: a few wrong rows do not bend the curve
        root = np.sqrt(weights)
        found = np.asarray(np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0], dtype=np.float64)
        weights = 1.0 / np.maximum(np.abs(y - design @ found), 1e-4)
    return found


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
    return [finding("copies", text, advice)]


def _named(rows: Rows | Losses, mask: Mask) -> str:
    return numbers.listed(f"{rows.keys[i]} {rows.loss[i]:.4g}" for i in np.flatnonzero(mask))


def _ranks(values: Array) -> Index:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.int64)
