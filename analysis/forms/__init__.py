"""The laws, as small classes, by name in FORMS. A new one is one file with a class of `base.Expression`."""

from __future__ import annotations

from analysis.forms import batch, powers
from analysis.forms.base import Array, Candidates, Expression, Form, Pull
from analysis.forms.broken import Broken
from analysis.forms.downstream import Downstream
from analysis.forms.experts import Experts
from analysis.forms.farseer import Farseer
from analysis.forms.kaplan import Kaplan, KaplanFloor
from analysis.forms.overtraining import OverTraining
from analysis.forms.powers import FRONTIER, FRONTIER_NO_FLOOR, SURFACE, PowerLaw, SumOfPowers
from analysis.forms.precision import Precision, PrecisionAfter
from analysis.forms.repeats import Repeats

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        powers.SURFACE, powers.TIED, powers.NO_FLOOR, powers.INTERACTION, powers.COMPUTE, powers.FRONTIER,
        powers.FRONTIER_NO_FLOOR, Kaplan(), KaplanFloor(), Farseer(), OverTraining(), Repeats(), Broken(),
        batch.LEARNING_RATE, batch.LEARNING_RATE_COMPUTE, batch.BATCH, batch.BATCH_COMPUTE,
        batch.CRITICAL_BATCH_OF_LOSS, batch.CriticalBatch(), Precision(), PrecisionAfter(),
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
