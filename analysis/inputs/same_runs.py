"""Which runs of one table are runs of another, where their numbers were written to other decimals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.inputs.dataset import Array, Index, Mask

SAME = 1e-9
"""Numbers that agree to this share are one number."""
SINGLE = 1e-6
"""The same of losses one of which was kept in single precision."""
SIZES = 5e-4
"""The same of sizes and tokens one of which was written to four digits."""
UNROUNDED = 9
"""Numbers of so many decimals or more are not rounded."""
TELLING = 3
"""Losses of one setting that agree to fewer decimals may be those of two runs."""


@dataclass(frozen=True, eq=False)
class Same:
    """Which rows (n,) are others `exactly`, which are so once losses are `rounded`, and which are so `perhaps`."""

    exactly: Mask
    rounded: Mask
    perhaps: Mask


def same(rows: Array, others: Array) -> Same:
    """Return which rows (n, 3) of params, tokens and loss are among the others (m, 3).

    They are where size, tokens and loss agree: exactly, or the loss to the decimals that either has it with. Where
    these are fewer than three they may be two runs of one setting.
    """
    exactly = rounded = perhaps = np.zeros(len(rows), dtype=bool)
    if not len(rows) or not len(others):
        return Same(exactly, rounded, perhaps)
    exactly = _near(np.log(rows) / SAME, np.log(others) / SAME)
    ours, theirs = (_decimals(table[:, 2]) for table in (rows, others))
    for decimals in np.unique(np.r_[ours, theirs]).tolist():
        found = np.zeros(len(rows), dtype=bool)
        mine, of_them = ours == decimals, theirs == decimals
        if mine.any():
            found[mine] = _near(_scaled(rows[mine], decimals), _scaled(others, decimals))
        if of_them.any():
            found |= _near(_scaled(rows, decimals), _scaled(others[of_them], decimals))
        if decimals < TELLING:
            perhaps = perhaps | found
        else:
            rounded = rounded | found
    rounded = rounded & ~exactly
    return Same(exactly, rounded, perhaps & ~exactly & ~rounded)


def _scaled(rows: Array, decimals: int) -> Array:
    """Return the rows (n, 3) in units of what they may differ by where one loss has so many decimals."""
    loss = rows[:, 2]
    by = np.log(loss) / SINGLE if decimals >= UNROUNDED else loss / (0.501 * 10.0**-decimals)
    return np.stack((np.log(rows[:, 0]) / SIZES, np.log(rows[:, 1]) / SIZES, by), axis=1)


def _near(rows: Array, others: Array) -> Mask:
    """Return which rows (n, 3) differ from some other row (m, 3) by at most 1 in every column."""
    from scipy.spatial import cKDTree

    return np.asarray(np.isfinite(cKDTree(others).query(rows, distance_upper_bound=1.0 + 1e-9, p=np.inf)[0]))


def _decimals(values: Array) -> Index:
    """Return to how many decimals each value (n,) is rounded: those of all, unless some are not rounded."""
    out = np.full(len(values), UNROUNDED)
    for decimals in reversed(range(UNROUNDED)):
        shifted = values * 10.0**decimals
        out[np.abs(shifted - np.round(shifted)) < 1e-12 * np.maximum(np.abs(shifted), 1.0)] = decimals
    most = int(out.max())
    return out if most >= UNROUNDED else np.full(len(values), most)
