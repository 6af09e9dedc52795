"""The optimizers by name: what config, learning-rate rules, the memory estimate and the step itself know of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """An optimizer: the module of train.optim with its `settings` and `update`.

    moments: numbers that it keeps for each one of a hidden matrix. others: the optimizer of all other weights; "" for
    itself. mup: how muP scales its learning rate (see :func:`train.spec.mup.lr_scale`); "" where the config says it.
    has_peak_lr_rule: the rules for `optim.lr=null` hold for it.
    """

    module: str
    moments: int
    others: str = ""
    mup: str = "adamw"
    has_peak_lr_rule: bool = False


OPTIMIZERS: Mapping[str, Entry] = {
    "adamw": Entry("adamw", moments=2, has_peak_lr_rule=True),
    "muon": Entry("muon", moments=1, others="adamw", mup="", has_peak_lr_rule=True),
    "sgd": Entry("sgd", moments=1, mup="sgd"),
}


def algorithm_of(optimizer: str, kind: str) -> str:
    """Return which optimizer takes weights of a kind (embedding, head, norm, matrix)."""
    return optimizer if kind == "matrix" else OPTIMIZERS[optimizer].others or optimizer


def moments(optimizer: str, hidden: int, total: int) -> int:
    """Return the numbers of state that an optimizer keeps for `total` weights, `hidden` of them in hidden matrices."""
    others = OPTIMIZERS[algorithm_of(optimizer, "others")].moments
    return OPTIMIZERS[optimizer].moments * hidden + others * (total - hidden)
