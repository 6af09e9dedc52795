"""The laws by name in FORMS, and by the names that people call them by: ours, the papers', or the law's own text.

A new law is one file with a class of `base.Expression`, and its entry here.
"""

from __future__ import annotations

import difflib

from analysis.laws import settings, sum_of_powers
from analysis.laws.base import Array, Candidates, Expression, Form, Pull
from analysis.laws.broken import Broken
from analysis.laws.data_constrained import Repeats
from analysis.laws.downstream import Downstream
from analysis.laws.farseer import Farseer
from analysis.laws.kaplan import Kaplan, KaplanFloor
from analysis.laws.moe import Experts
from analysis.laws.overtraining import OverTraining
from analysis.laws.quantization import Precision, PrecisionAfter
from analysis.laws.sum_of_powers import FRONTIER, FRONTIER_NO_FLOOR, SURFACE, PowerLaw, SumOfPowers
from train.spec import calls

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        sum_of_powers.SURFACE, sum_of_powers.TIED, sum_of_powers.NO_FLOOR, sum_of_powers.INTERACTION,
        sum_of_powers.COMPUTE, sum_of_powers.FRONTIER, sum_of_powers.FRONTIER_NO_FLOOR,
        Kaplan(), KaplanFloor(), Farseer(), OverTraining(), Repeats(), Broken(),
        settings.LEARNING_RATE, settings.LEARNING_RATE_COMPUTE, settings.BATCH, settings.BATCH_COMPUTE,
        settings.CRITICAL_BATCH_OF_LOSS, settings.CriticalBatch(), Precision(), PrecisionAfter(),
        Experts(), Downstream(),
    )
}  # fmt: skip


GONE = {
    "vocabulary": "the law of Tao et al. 2024 is for a loss less the unigram's, which is negative, and residuals here "
    "are of logs",
}
"""Forms that were here once, and why they are not."""


def named(form: str | Form) -> Form:
    """Return the form that a person wrote (see `resolve`), or the form itself; ValueError for what is neither."""
    if isinstance(form, str):
        return FORMS[resolve(form)]
    if not hasattr(form, "inputs"):
        raise ValueError(f"form={calls.shown(form)}: the name of a law, its formula, or a form of one's own is needed")
    return form


ALIASES = {
    "surface": "chinchilla", "hoffmann": "chinchilla", "besiroglu": "chinchilla", "approach3": "chinchilla",
    "tied": "chinchilla_tied", "interaction": "chinchilla_interaction", "power_law": "compute", "powerlaw": "compute",
    "lc": "compute", "l(c)": "compute", "kaplan_e": "kaplan_floor", "gadre": "overtraining",
    "over_training": "overtraining", "over-training": "overtraining", "muennighoff": "repeats", "repeat": "repeats",
    "data_constrained": "repeats", "data-constrained": "repeats", "repeated": "repeats", "kumar": "precision",
    "bnsl": "broken", "caballero": "broken", "experts": "moe", "lr": "learning_rate",
    "learning-rate": "learning_rate", "batch_size": "batch", "steplaw": "learning_rate", "step_law": "learning_rate",
    "mccandlish": "critical_batch",
}  # fmt: skip


CURVES = "multi_power"
"""The law of learning curves: it is not in FORMS, since it takes the curves' schedules."""


def resolve(text: str, curves: bool = False, key: str = "form") -> str:
    """Return the name in FORMS of what a person wrote; ValueError names the nearest, or says where all are.

    With `curves`, the law of learning curves is a law too. `key` is the argument that errors name.

    >>> resolve("Muennighoff"), resolve("E + A/N^alpha + B/D^beta")
    ('repeats', 'chinchilla')
    """
    plain = text.strip().lower()
    if (known := _known(plain)) is not None:
        return known
    if plain in ("multi_power", "multipower", "mpl", "multi-power"):
        if curves:
            return CURVES
        raise ValueError(f"form={text} is a law of learning curves: python -m analysis.fit form=multi_power fits it")
    if plain in GONE:
        raise ValueError(f"{key}={text} is not known: {GONE[plain]}")
    near = difflib.get_close_matches(plain, [*FORMS, *ALIASES], n=1, cutoff=0.7)
    hint = f"; did you mean {key}={ALIASES.get(near[0], near[0])}?" if near else ""
    raise ValueError(
        f"{key}={text} is not known{hint}; take a name or a formula that python -m analysis.compare forms=list prints"
    )


def _known(plain: str) -> str | None:
    """Return the name of the law whose name, paper or formula this is, in small letters; None if there is none."""
    squeezed = plain.replace(" ", "")
    for name, form in FORMS.items():
        if plain == name or squeezed == form.text.lower().replace(" ", ""):
            return name
    alias = ALIASES.get(plain)
    return alias if alias in FORMS else None


__all__ = [
    "FORMS", "FRONTIER", "FRONTIER_NO_FLOOR", "SURFACE", "Array", "Candidates", "Expression", "Form", "PowerLaw",
    "Pull", "SumOfPowers", "named", "resolve",
]  # fmt: skip
