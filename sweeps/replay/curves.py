"""Recorded learning curves: a table of configurations by resource, from an .npz file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from sweeps.rank_correlation import mean_ranks

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Validation losses (configurations, resource), resource rising to the right; NaN where a run diverged.

    points: each configuration's place in the unit cube, (configurations, dimensions), by the ranks of its settings;
    None where the file does not say what was tried. cost: of one unit of resource each, mean 1. left_out: rows of the
    file that have no value at first and one later: they continued from other weights.
    """

    losses: Floats
    points: Floats | None = None
    cost: Floats | None = None
    left_out: int = 0

    @property
    def best(self) -> float:
        """The lowest loss anywhere in the table."""
        return float(np.min(self.losses[np.isfinite(self.losses)]))


def read_table(path: Path) -> Table:
    """Read a table: `val_loss`, and if they are there `config` and `epoch_cost`. ValueError says what is wrong."""
    if not path.exists():
        raise ValueError(f"curves={path} does not exist: give an .npz file with an array val_loss")
    if path.is_dir():
        raise ValueError(f"curves={path} is a folder: give an .npz file with an array val_loss")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {n: file[n] for n in ("val_loss", "config", "epoch_cost") if n in file.files}
    except (OSError, ValueError, AttributeError, BadZipFile) as error:
        why = str(error).partition(" (")[0] if "pickle" not in str(error) else "it is not a NumPy file of numbers"
        raise ValueError(
            f"curves={path} cannot be read as .npz: {why}; python -m study export-curves STUDY FILE.npz writes one"
        ) from None
    if "val_loss" not in arrays:
        raise ValueError(f"curves={path} has no array val_loss (configurations x resource)")
    try:
        losses = np.asarray(arrays["val_loss"], dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"curves={path}: val_loss is no array of numbers: write it as one") from None
    if losses.ndim != 2 or not losses.size:
        raise ValueError(f"curves={path}: val_loss has shape {losses.shape}, wanted is (configurations, resource)")
    if not np.isfinite(losses).any():
        raise ValueError(f"curves={path}: val_loss holds no finite number")
    late = ~np.isfinite(losses[:, 0]) & np.isfinite(losses).any(axis=1)
    if late.all():
        raise ValueError(f"curves={path}: no row has a value from the first column on")
    config, cost = arrays.get("config"), arrays.get("epoch_cost")
    return Table(
        losses[~late],
        None if config is None else _places(config[~late]),
        None if cost is None else cost[~late],
        int(late.sum()),
    )


def _places(config: NDArray[np.generic]) -> Floats:
    """Return each column's ranks between 0 and 1, ties sharing theirs: settings spread evenly whatever their scale."""
    values = np.asarray(config, dtype=float)
    return np.column_stack([mean_ranks(column) for column in values.T]) / max(1, len(values) - 1)
