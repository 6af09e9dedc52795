"""The laws, as small classes, by name in FORMS. A new one is one file with a class of `base.Expression`."""

from __future__ import annotations

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
    """Return the form of this name, or the form itself; ValueError lists the names."""
    if not isinstance(form, str):
        return form
    if form not in FORMS:
        why = f" ({GONE[form]})" if form in GONE else ""
        raise ValueError(f"form={form!r} is not known{why}; use one of {', '.join(FORMS)}, or give a Form")
    return FORMS[form]


__all__ = [
    "FORMS", "FRONTIER", "FRONTIER_NO_FLOOR", "SURFACE", "Array", "Candidates", "Expression", "Form", "PowerLaw",
    "Pull", "SumOfPowers", "named",
]  # fmt: skip
