"""How much runs scatter around their law: told by the runs themselves, with a weak prior where they are few.

The constants and the form's smooth error are integrated out, so that what they take up of few runs is not scatter: the
restricted likelihood of Patterson & Thompson (1971, Biometrika 58, 545), by its reading as a marginal likelihood
(Harville 1974, Biometrika 61, 383). The prior is what seeds do, within a factor of four: it counts for a quarter of a
run beyond the law's constants.
"""

from __future__ import annotations

import numpy as np

from analysis.estimation.optimizer import Array

SEEDS = 2e-3
"""Scatter of ln loss between seeds where the runs do not show it (Muennighoff et al. 2023: 0.0007; small runs more)."""
FACTOR = 4.0
"""One standard deviation of the prior of the scatter: 0.05 to 0.8 %, and rarely beyond 3 %."""
LEAST, MOST, LEVELS = 5e-4, 0.064, 61
"""The scatters that are weighed, 8 % apart: that much, less than a hundred runs tell."""
ROWS = 500
"""Runs that are looked at, at most: their scatter is known to 3 %."""


def words() -> str:
    """Return the prior of the scatter in words."""
    return f"what seeds do, {100 * SEEDS:g} % within a factor of {FACTOR:g}"


def scatter(besides: Array, gaps: Array) -> float:
    """Return the root mean square scatter of ln loss, over what the runs leave possible of it.

    `gaps` (n,) are the runs' ln loss less the prior's mean of it, `besides` (n, n) their covariance without scatter.
    """
    step = -(-len(gaps) // ROWS)
    values, vectors = np.linalg.eigh(besides[::step, ::step])
    along = vectors.T @ gaps[::step]
    levels = np.geomspace(LEAST, MOST, LEVELS)
    variances = np.maximum(values, 0.0) + levels[:, None] ** 2
    logs = -0.5 * (along**2 / variances + np.log(variances)).sum(axis=1)
    logs -= 0.5 * (np.log(levels / SEEDS) / np.log(FACTOR)) ** 2
    weights = np.exp(logs - logs.max())
    return float(np.sqrt(weights @ levels**2 / weights.sum()))
