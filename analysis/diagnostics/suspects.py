"""Losses that cannot be what they are said to be: outliers, bits beside nats, perplexities, accuracies, copies.

A robust law absorbs a few wrong rows without a word, and what it then says is wrong by a little. So rows are judged
before the fit, against a smooth curve through the others, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.diagnostics import two_units
from analysis.diagnostics.smooth import FEWEST, Curve, Powers, Quadratic, curves
from analysis.diagnostics.two_units import BITS, LEAST_SURPLUS, NEAR
from analysis.inputs.dataset import Array, Index, Mask, Rows
from analysis.inputs.gaps import beyond_gap
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding

MOST_NATS = 12.6
"""ln of 300,000: a model that guesses among so many tokens has this loss, and one that was trained a lower one."""
REACH = 0.5 * BITS
"""So far beyond the losses of other rows, in ln, a curve through them is believed."""
SCORES = 6.0
"""Robust standard deviations beyond which a loss is an outlier."""
AS_CLOSE = 1.5
"""A curve that leaves at most so many times what the best one leaves counts as much."""
STANDS = 4.0
"""The same from which on a loss is in the tail of the others."""
LEAST = 0.01
"""Outliers are off by more than this in ln loss, however well the others agree."""
FLOOR = 2e-3
"""The least scatter in ln loss that runs are taken to have."""
HALF, NEAREST = 0.5, 5
"""What is at most 1 and below this share of what it ought to be, by so many of its neighbours, is no loss."""
WIDEST_GAP = 1000.0
"""Sizes (or tokens) of one study leave no gap as wide as this factor, or wider."""
EITHER = 1.0 / 3.0
"""Where at least this share of the rows is in either of two units, the rows do not tell which one is meant."""
LEAST_SURPLUS_OF_ALL, FEWEST_PERPLEXITIES = 1.0, 2
"""Losses that hold perplexities spread at least so far, in ln; one alone may be a run that went wrong."""


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
    wrong = _shares(rows) or _counts(rows)
    if wrong:
        return wrong
    if len(rows) < FEWEST:
        return _accuracies(rows) or _perplexities(rows, unit) or _copies(rows)
    families = curves(rows)
    found, y = _units(rows, unit, families)
    wrong = [] if found else _accuracies(rows)
    return wrong or [*found, *_outliers(rows, y, families), *_copies(rows)]


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
    several = numbers.there_are(int(wrong.sum()), "loss")
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


def _perplexities(rows: Rows | Losses, unit: str, others: Mask | None = None) -> list[Check]:
    """Return the rows whose loss is above that of guessing among 300,000 tokens, and the `others` that go with them."""
    high = _high(rows.loss, unit)
    named = high if others is None else high | others
    if not named.any():
        return []
    text = f"{numbers.counted(int(high.sum()), 'loss')} above {MOST_NATS:g} nats per token ({_named(rows, named)}): no "
    text += "trained model has that; they look like perplexities"
    if not high.any():
        text = f"{numbers.counted(int(named.sum()), 'loss')} as far above those of similar size and tokens "
        text += f"({_named(rows, named)}) as perplexities are above losses"
    elif named.sum() > high.sum():
        text += f", as do {int((named & ~high).sum())} more of these, which lie as far above others of similar size"
    return [finding("perplexity", text, "give their natural logarithm, in nats per token")]


def _high(loss: Array, unit: str) -> Mask:
    """Return which losses (n,) are above what any trained model has."""
    return np.asarray((loss > MOST_NATS) & (unit == "nats per token"))


def _units(rows: Rows, unit: str, families: tuple[Quadratic, Powers]) -> tuple[list[Check], Array]:
    """Return findings about rows in another unit than the rest, and ln loss (n,) in one unit."""
    plain = np.log(rows.loss)
    high = _high(rows.loss, unit)
    ways = _in_two_units(rows, plain, families)
    if not ways or (high & ~ways[0]).any():  # a high loss in bits is no perplexity
        y = np.log(np.where(high, np.log(np.maximum(rows.loss, 2.0)), rows.loss))
        others = _few_perplexities(rows, y, families) if unit == "nats per token" else high
        found = _perplexities(rows, unit, others)
        if found:
            return found, np.where(others, np.log(np.maximum(y, 0.1)), y)
    if not ways:
        return [], plain
    found = [_either(rows, ways)] if len(ways) > 1 else [_bits(rows, ways[0])]
    return found, plain - np.where(ways[0], BITS, 0.0)


def _in_two_units(rows: Rows, y: Array, families: tuple[Quadratic, Powers]) -> list[Mask]:
    """Return the rows in bits (n,) beside nats, by ln loss (n,); several answers where the rows do not tell."""
    ways = [split.other for split in two_units.parted(rows, y, np.full(len(y), BITS), families)]
    if ways:
        return ways
    places = np.log(np.stack((rows.params, rows.tokens), axis=1))
    few = (_in_bits(left, score, places, y) for left, score in _fits(y, families))
    found = next((mask for mask in few if mask is not None), None)
    return [] if found is None else [_leaned(found, y, families)]


def _leaned(mask: Mask, y: Array, families: Sequence[Curve]) -> Mask:
    """Return the rows in bits (n,), with those that the first curve leaned towards."""
    shift = np.where(mask, BITS, 0.0)
    left, _ = _fits(y - shift, families)[0]
    return np.asarray(left + shift > 0.5 * BITS)


def _bits(rows: Rows, mask: Mask) -> Check:
    """Return that the rows of `mask` are in bits where the others are in nats, naming the fewer, or both."""
    few = mask if mask.sum() <= 0.5 * len(rows) else ~mask
    ratio = "1.44" if few is mask else "0.69"
    several = numbers.there_are(int(few.sum()), "loss")
    text = f"{several} {ratio} times the others ({_named(rows, few)}): bits beside nats, by their size"
    if few.sum() >= EITHER * len(rows):
        text += f". Which of the two is meant these rows do not tell: the others are {_named(rows, ~few)}"
    return finding("mixed_units", text, "bring all losses to one unit: 1 bit is 0.6931 nats")


def _either(rows: Rows, ways: Sequence[Mask]) -> Check:
    """Return that some rows are in bits beside nats, and which these may be where there are several answers."""
    answers = [mask if mask.sum() <= 0.5 * len(rows) else ~mask for mask in ways[:2]]
    named = ", or ".join(f"{int(few.sum())} ({_named(rows, few)})" for few in answers)
    text = (
        f"losses are in two units, bits beside nats by their size, and these rows do not tell which are which: {named}"
    )
    return finding("mixed_units", text, "bring all losses to one unit: 1 bit is 0.6931 nats")


def _few_perplexities(rows: Rows, y: Array, families: tuple[Quadratic, Powers]) -> Mask:
    """Return the rows (n,) below what guessing has whose logarithm is what runs of their size and tokens have.

    More of them lie there than elsewhere far above the others: these would be runs that went wrong.
    """
    left, score = _fits(y, families)[0]
    inner = np.log(np.maximum(y, 0.1))
    shift = np.where((y > 0.1) & (rows.loss <= MOST_NATS), y - inner, 0.0)
    far = (score > SCORES) & (left > LEAST_SURPLUS)
    spread = float(np.median(np.abs(left))) * 1.4826
    ways = two_units.parted(rows, y, shift, families) if np.ptp(y) > LEAST_SURPLUS_OF_ALL else []
    if len(ways) == 1 and ways[0].other.sum() >= FEWEST_PERPLEXITIES:
        return ways[0].other
    mask = far & (np.abs(inner - y + left) < min(NEAR, max(SCORES * spread, LEAST)))
    several = mask.sum() >= FEWEST_PERPLEXITIES and mask.sum() > (far & ~mask).sum()
    return np.asarray(mask & several)


def _outliers(rows: Rows, y: Array, families: tuple[Quadratic, Powers]) -> list[Check]:
    """Return the rows far from a smooth curve through the others, by ln loss in one unit (n,)."""
    fits = _fits(y, families)
    left, least = fits[0][0], float(np.abs(fits[0][0]).mean())
    odd = np.ones(len(y), dtype=bool)
    for other, score in fits:  # what one curve misses because of its shape another one does not
        odd &= other * np.sign(left) > HALF * np.abs(left)
        if float(np.abs(other).mean()) < AS_CLOSE * least:
            odd &= _far(rows, other, score)
    if not odd.any():
        return []
    far = 100.0 * np.expm1(left)
    ordered = np.flatnonzero(odd)[np.argsort(-np.abs(far[odd]), kind="stable")]
    named = numbers.listed(f"{rows.keys[i]} {far[i]:+.1f} %" for i in ordered)
    text = f"{numbers.counted(len(ordered), 'loss')} far from the others of similar size and tokens ({named})"
    return [finding("outliers", text, "check these runs; leave out those that went wrong (where=)")]


def _far(rows: Rows, left: Array, score: Array) -> Mask:
    """Return the rows (n,) far from a curve whose neighbours are not."""
    odd = (np.abs(score) > SCORES) & (np.abs(left) > LEAST)
    if odd.any():
        places = np.log(np.stack((rows.params, rows.tokens), axis=1))
        odd[odd] = ~_shared(left, np.flatnonzero(odd), places)
    return np.asarray(odd)


def _fits(y: Array, families: Sequence[Curve]) -> list[tuple[Array, Array]]:
    """Return what is left (n,) of ln loss around a curve of each family and its score (n,), that of least first."""
    found = [y - curve.through(y) for curve in families]
    return [_scored(left) for left in sorted(found, key=lambda left: float(np.abs(left).mean()))]


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
        beside = (sign * score > STANDS) & (sign * left > 0.25 * BITS)
        if mask.sum() > max(int((far & ~mask).sum()), int((beside & ~mask).sum())):
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
