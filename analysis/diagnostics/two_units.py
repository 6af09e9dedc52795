"""Which rows have their loss in another unit than the rest: a smooth curve is fitted to both at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis.diagnostics.smooth import Curve, Powers, Quadratic
from analysis.inputs.dataset import Array, Index, Mask, Rows

BITS = float(np.log(1.0 / np.log(2.0)))
"""ln of bits over nats: how far a loss in bits lies above the same in nats."""
NEAR = 0.09
"""A ratio of units is seen to this in ln: sizes differ, and the curve is not exact."""
LEAST_SURPLUS = 0.5
"""Perplexities lie at least so far above what losses of such runs ought to be, in ln."""
GATE = 0.02
"""Mean residual of one curve from which on two units are looked for."""
LESS, FAR_LESS = 1.5, 4.0
"""By what factor two curves have to leave less than one: curves that fall as laws do, and others."""
AS_GOOD = 1.5
"""A way to part rows that leaves at most so many times what the best one leaves is another answer."""
ASTRAY, HALF = 0.1, 0.5
"""At most this share of all rows, and this one of the rows in either unit, is far from both."""
ROUGHLY, ASTRAY_ROUGHLY = 2.0, 0.3
"""A rough fit leaves at most so many times what the best one leaves, and at most this share of all rows far from both.

Of 214 tables in two units it left at most 1.09 times as much, and .16 of the rows.
"""
SPREADS = 5.0
"""A row within so many robust standard deviations of its curve is on it, however far that is."""
ALTERNATIONS, ROUNDS = 30, 5
SHARES = (0.5, 0.35, 0.65, 0.2, 0.8)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows (n,) that are in the other unit, and the mean absolute residual in ln loss with that."""

    other: Mask
    left: float


def parted(rows: Rows, y: Array, shift: Array, families: tuple[Quadratic, Powers]) -> list[Split]:
    """Return the ways to part the rows into two units; none where one unit does.

    `y` (n,) is ln loss, and `shift` (n,) by how much a loss in the other unit lies above itself in that of the rest, 0
    where it cannot be in the other. The first one leaves least; others follow where they are as good. A sum of powers
    tells one from another best, as it falls with size and tokens; where the runs are not on one, a quadratic has to
    show two units beyond doubt.
    """
    quadratic, powers = families
    one = min(float(np.abs(y - curve.through(y)).mean()) for curve in families)
    if one <= GATE:
        return []
    for curve, less in ((powers, LESS), (quadratic, FAR_LESS)):
        found = _splits(curve, rows, y, shift, one / less)
        if found and found[0].left <= one / less:
            return [split for split in found if split.left <= AS_GOOD * found[0].left]
    return []


def _splits(curve: Curve, rows: Rows, y: Array, shift: Array, most: float) -> list[Split]:
    """Return the ways to part the rows into two units that hold, the one that leaves least first.

    A curve, and the same curve in the other unit, are fitted roughly to rows that are assigned to the nearer one, from
    many starts, until no row changes sides. A way holds where nearly every row is near its own curve; what is far from
    that, or from leaving `most`, by the rough fit is not fitted again.
    """
    seen: set[bytes] = set()
    ends: dict[bytes, Split] = {}
    for start in _starts(rows, y - curve.through(y)):
        mask = start
        for _ in range(ALTERNATIONS):
            if mask.tobytes() in seen:
                break
            seen.add(mask.tobytes())
            left = y - curve.through(y - shift * mask, quick=True)
            other = _other(left, shift)
            if (other == mask).all():
                held = _held(curve, mask, y, shift) if _may_hold(left - shift * mask, most) else None
                if held is not None and held.left <= ends.get(held.other.tobytes(), held).left:
                    ends[held.other.tobytes()] = held
                break
            mask = other
    return sorted(ends.values(), key=lambda split: split.left)


def _other(left: Array, shift: Array) -> Mask:
    """Return which residuals (n,) are nearer to what they would be in the other unit."""
    return np.asarray((left > 0.5 * shift) & (shift > 0.0))


def _may_hold(left: Array, most: float) -> bool:
    """Return whether a rough fit's residuals (n,) allow for a way that holds and leaves at most `most`."""
    size = np.abs(left)
    return bool(size.mean() <= ROUGHLY * most and (size >= NEAR).mean() <= ASTRAY_ROUGHLY)


def _held(curve: Curve, mask: Mask, y: Array, shift: Array) -> Split | None:
    """Return the rows in the other unit by the curve of least absolute residuals; None where it does not hold.

    Rows far from either unit are runs that went wrong: few, and far fewer than the rows in one unit.
    """
    for _ in range(ROUNDS):
        left = y - curve.through(y - shift * mask)
        before, mask = mask, _other(left, shift)
        if (mask == before).all():
            break
    left = left - shift * mask
    near = np.abs(left) < NEAR
    fewer = min((near & mask).sum(), (near & ~mask).sum())
    if (~near).sum() > min(ASTRAY * len(y), HALF * fewer) or not fewer:
        return None
    beside = max(NEAR, SPREADS * 1.4826 * float(np.median(np.abs(left))))
    return Split(mask & (np.abs(left) < beside), float(np.abs(left).mean()))


def _starts(rows: Rows, left: Array) -> Iterator[Mask]:
    """Yield rows as parted by what is left of one curve, size, tokens, their ratio, compute and order, both ways.

    And the rows that are first, second, last or last but one by size in their budget or by tokens in their size.
    """
    size, tokens = np.log(rows.params), np.log(rows.tokens)
    for values in (left, size, tokens, tokens - size, tokens + size, np.arange(len(left), dtype=np.float64)):
        for share in SHARES:
            mask = np.asarray(values > np.quantile(values, share))
            yield mask
            yield ~mask
    for groups, values in ((rows.budget, size), (rows.size, tokens)):
        if len(groups):
            for sign in (1.0, -1.0):
                place = _places(groups, sign * values)
                for most in (1, 2):
                    yield np.asarray(place < most)
                    yield np.asarray(place >= most)
                yield np.asarray(place == 1)


def _places(groups: Index, values: Array) -> Index:
    """Return each row's place (n,), from 0, by its value within its group."""
    order = np.lexsort((values, groups))
    ordered = groups[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    out = np.empty(len(order), dtype=np.int64)
    out[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    return out
