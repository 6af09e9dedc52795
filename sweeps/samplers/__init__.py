"""Which configuration a new trial tries: one sampler a file, each a function of the history and a seed.

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
    "random": Entry("random", "drawn from their domains"),
    "sobol": Entry("sobol", "scrambled Sobol points: fewer gaps than draws"),
    "grid": Entry("grid", "every combination of lists and integer ranges, each once"),
    "tpe": Entry(
        "optuna_models",
        "Optuna's TPE; paused trials count by their highest rung, running ones as bad (constant liar), so that "
        "workers spread out",
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
        "BOHB's: 64 draws from where good trials of the highest known rung are dense, the one taken where bad ones are "
        "rare",
    ),
}
MODELS = tuple(name for name, entry in SAMPLERS.items() if entry.two_objectives)
