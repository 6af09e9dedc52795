"""Samplers propose the settings of new trials: one per file, each a function of the history and a seed.

`SAMPLERS` is the only list of them: the config's choices, a search's settings and the docs read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A sampler that can be named: its module in this package, whose `make(options)` returns it.

    summary: where the settings of a new trial come from. two_objectives: it can lower loss and device time at once.
    """

    module: str
    summary: str
    two_objectives: bool = False


SAMPLERS: Mapping[str, Entry] = {
    "random": Entry("random", "drawn at random from their domains"),
    "sobol": Entry("sobol", "scrambled Sobol points, which cover the space more evenly than random draws"),
    "grid": Entry("grid", "every combination of lists and integer ranges, once each"),
    "tpe": Entry(
        "optuna_models",
        "Optuna's TPE; a paused trial counts with the loss at its highest rung, a running one as bad (constant liar)",
        two_objectives=True,
    ),
    "gp": Entry(
        "optuna_models",
        "Optuna's Gaussian process, at the highest rung that ten trials have reached; losses far above the rest are "
        "clipped",
        two_objectives=True,
    ),
    "density": Entry(
        "rung_density",
        "kernel densities of good and of bad trials, as in BOHB, at the highest rung with enough trials; of 64 draws, "
        "the one with the highest ratio",
    ),
}
MODELS = tuple(name for name, entry in SAMPLERS.items() if entry.two_objectives)
