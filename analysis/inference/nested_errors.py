"""Errors of checkpoints of several runs a size: parts that a size shares, that a run shares, and of each row's own.

Every sum of squares of the residuals (between sizes, between the runs of a size, within runs) is set to what the
variances of the parts add to it after a fit. Each is drawn over its chi squared, as two parts are
(`error_draws.shared`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.inference import error_draws
from analysis.inference.error_draws import LEAST_BETWEEN, Around
from analysis.inputs.dataset import Array, Index


@dataclass(frozen=True, eq=False)
class Levels:
    """Sums of squares (L,) of residuals by level: of the groups, from coarse to fine, and of rows within the finest.

    `expected` (L, L) is what unit variances of the parts, in this order, add to each; `df` (L,) are effective degrees
    of freedom, less what the fit takes (Satterthwaite). `groups` are the group numbers (n,) of every level but the
    last, in the order of the rows that errors are drawn for.
    """

    groups: tuple[Index, ...]
    squares: Array
    expected: Array
    df: Array

    @property
    def seen(self) -> bool:
        """Whether groups of every level have degrees of freedom left beside the constants."""
        return bool((self.expected[:-1, -1] >= LEAST_BETWEEN).all())

    def variances(self, squares: Array) -> Array:
        """Return the variances (L, R), none below 0, that give these sums of squares (L, R)."""
        found = np.zeros_like(squares)
        for part in range(len(squares)):
            left = squares[part:] - self.expected[part:, :part] @ found[:part]
            found[part] = np.maximum(np.linalg.solve(self.expected[part:, part:], left)[0], 0.0)
        return found


def levels(around: Around, size: Index, run: Index) -> Levels:
    """Return what the residuals say of sizes and of the runs within them (n,), both in the order of `around`.

    Where constants leave nothing to see of sizes, or of runs within them, it is what they say of runs alone.
    """
    found = _levels(around, (size, run))
    return found if found.seen else _levels(around, (run,))


def drawn(around: Around, found: Levels, resamples: int) -> Array:
    """Return errors (resamples, n), in the order of `around`, with parts that groups share."""
    generator = around.generator(2)
    half, n = -(-resamples // 2), len(around.order)
    scales = [error_draws.scales(float(df), half, generator) for df in found.df]
    *shared, own = np.sqrt(found.variances(found.squares[:, None] / np.array(scales)))
    rest = error_draws.of_rows(around, found.groups[-1])
    out = rest[generator.integers(n, size=(half, n))] * own[:, None]
    for group, spread in zip(found.groups, shared, strict=True):
        out += generator.normal(size=(half, int(group.max()) + 1))[:, group] * spread[:, None]
    return np.concatenate((out, -out))[:resamples]


def _levels(around: Around, groups: tuple[Index, ...]) -> Levels:
    """Return the sums of squares of these groups (n,) from coarse to fine, numbered from 0 without gaps."""
    residual, basis = around.residual, error_draws.followed(around.slopes)
    for group in groups:
        residual = error_draws.tamed(residual, group)
    counts = [*(np.bincount(group)[group].astype(float) for group in groups), np.ones(len(residual))]
    follows, squares = (_split(values, groups) for values in (basis, residual[:, None]))
    adds = [_means(basis, group) * count[:, None] for group, count in zip(groups, counts, strict=False)] + [basis]
    kept = [basis.T @ each for each in follows]
    expected = np.array(
        [
            [
                whole - 2.0 * float((part * add).sum()) + float((inner * (basis.T @ add)).sum())
                for whole, add in zip(wholes, adds, strict=True)
            ]
            for wholes, part, inner in zip(_traces(counts), follows, kept, strict=True)
        ]
    )
    square = expected[:, -1] - [float(np.trace(each) - (each**2).sum()) for each in kept]
    return Levels(
        groups, np.array([float((part**2).sum()) for part in squares]), expected,
        expected[:, -1] ** 2 / np.maximum(square, 1e-300),
    )  # fmt: skip


def _split(values: Array, groups: Sequence[Index]) -> list[Array]:
    """Return the parts of values (n, q) between the groups of each level, within those of the one before."""
    means = [np.zeros_like(values), *(_means(values, group) for group in groups), values]
    return [fine - coarse for coarse, fine in itertools.pairwise(means)]


def _means(values: Array, group: Index) -> Array:
    """Return the mean (n, q) of each row's group."""
    sums = np.zeros((int(group.max()) + 1, values.shape[1]))
    np.add.at(sums, group, values)
    return np.asarray((sums / np.bincount(group)[:, None])[group])


def _traces(counts: Sequence[Array]) -> Array:
    """Return what unit variances (columns) add to each sum of squares (rows) where no constants are fitted.

    `counts` are how many rows the group of each row (n,) has, by level.
    """
    upto = np.array([[float((finer / own).sum()) for finer in counts] for own in counts])
    return np.triu(np.diff(np.concatenate((np.zeros((1, len(counts))), upto)), axis=0))
