"""What plans rest on: a law fitted to runs, or quoted constants, and what a token costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.text import numbers
from analysis.text.commandline import UnansweredError
from analysis.values.findings import FINDINGS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from analysis.approaches.cost import Cost
    from analysis.approaches.loss_laws import Law
    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows
    from analysis.values.blocks import Interval

NAMES = ("E", "A", "B", "alpha", "beta")
BESIDE = ("chinchilla", "chinchilla_tied", "chinchilla_interaction", "kaplan_floor", "farseer")
"""Laws of N and D alone that are fitted to the same runs, to see how much the plan rests on the law."""


@dataclass(frozen=True)
class Basis:
    """A law, first row the point and then the draws, its constants, price of a token, sizes swept, notes.

    `tested` is the farthest factor beyond a fit over which these runs test the law. `speed` is FLOPs per second of one
    device, as the runs measured them. `fits` are other laws through the same runs,
    by name, with AICc behind the best.
    """

    law: Law
    form: str
    constants: dict[str, float]
    text: str
    price: Cost
    sizes: Interval
    largest: float | None
    kinds: dict[str, str]
    source: str
    speed: float | None
    notes: tuple[str, ...]
    beside: tuple[Beside, ...] = ()
    tested: float | None = None


@dataclass(frozen=True)
class Beside:
    """Another law through the same runs, its criterion behind the best's, and why no plan rests on it (empty: may)."""

    form: str
    law: Law
    behind: float
    lacking: str


def from_constants(
    constants: Mapping[str, float], form: str = "chinchilla", at: Mapping[str, float] | None = None
) -> Basis:
    """Return the basis of quoted constants, with C = 6 N D; constants of few digits are said."""
    import numpy as np

    from analysis.approaches.cost import Cost
    from analysis.approaches.loss_laws import Closed, Fitted
    from analysis.laws.registry import FORMS

    law = FORMS[form]
    lacking = [name for name in law.names if name not in constants]
    if lacking:
        written = ",".join(f"{name}:.." for name in law.names)
        raise ValueError(f"constants= lacks {', '.join(lacking)}: write constants={written} for {law.text}")
    extra = sorted(set(constants) - set(law.names))
    if extra:
        raise ValueError(f"constants={extra[0]}:..: {law.text} has no such constant; it has {', '.join(law.names)}")
    for name, positive in zip(law.names, law.logs, strict=True):
        if constants[name] <= 0 and ((positive and name != "E") or name in ("alpha", "beta")):
            raise ValueError(f"constants={name}:{constants[name]:g}: a positive number is needed")
    short = [n for n in ("alpha", "beta") if n in constants
             and len(f"{constants[n]:.10g}".lstrip("0.").replace(".", "")) < 4]  # fmt: skip
    notes = ["constants as quoted have no interval"]
    if short:
        notes.append(
            f"{' and '.join(short)} have fewer than four digits: rounding an exponent in its third digit moves tokens "
            "per parameter at 6e23 FLOPs by half; take unrounded constants where there are any"
        )
    row = np.array([[constants[name] for name in law.names]])
    zeros = np.zeros(len(law.inputs))
    on: Law = Closed(row) if form == "chinchilla" else Fitted(
        law, law.internal(row, zeros), zeros, Cost.six(), _further(form, at or {})
    )  # fmt: skip
    kinds = {"params": "given", "flops": "6ND", "loss": "nats per token"}
    point = {name: float(constants[name]) for name in law.names}
    return Basis(
        on, form, point, _text(form, point), Cost.six(), (1e6, 1e12), None, kinds, "constants", None, tuple(notes)
    )


def from_frame(
    frame: pd.DataFrame,
    *,
    form: str = "chinchilla",
    at: Mapping[str, float] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    label: str = "",
    beside: Sequence[str] = BESIDE,
    strict: bool = True,
) -> Basis:
    """Return the basis of runs: the law and its draws, what a token costs, the speed that the runs measured.

    A law that no plan may rest on (see :mod:`analysis.diagnostics.qualify`) gives way to the best of those `beside` it
    that one may, and a note says so; with `strict` false it stays, and a note says what it lacks. Raises ValueError
    where the form gives no loss of N and D, an input of it is not told, or the rows are too few; UnansweredError where
    no law qualifies.
    """
    from analysis.inputs.frame import used

    runs = _Runs(frame, used(frame), resamples, seed, label, beside)
    return _rested(runs, form, _further(form, at or {}), strict)


def measured_speed(frame: pd.DataFrame) -> float | None:
    """Return FLOPs per second of one device, as the runs that are fitted measured it; None where none did."""
    speed = frame.loc[frame["used"], "flops_per_second"].median() if "flops_per_second" in frame else float("nan")
    return float(speed) if math.isfinite(speed) else None


@dataclass(frozen=True)
class _Runs:
    """The runs of a basis and how laws are fitted to them; `squared` are the least-squares fits so far, by form."""

    frame: pd.DataFrame
    rows: Rows
    resamples: int
    seed: int
    label: str
    beside: Sequence[str]
    squared: dict[str, tuple[LawFit, str] | None] = dataclasses.field(default_factory=dict)


def _rested(runs: _Runs, form: str, further: Mapping[str, float], strict: bool) -> Basis:
    """Return the basis that rests on one law, or on what takes its place."""
    from analysis.approaches.cost import cost
    from analysis.approaches.loss_laws import size_column
    from analysis.diagnostics import at_rows, qualify
    from analysis.laws.registry import FORMS
    from analysis.planning.beyond import quickening

    frame, rows = runs.frame, runs.rows
    sized = rows.replaced(params=rows.column(size_column(FORMS[form])))
    price = cost(sized)
    law, found = drawn(rows, form, price, further, resamples=runs.resamples, seed=runs.seed)
    others = _beside(runs, price, form)
    sizes = _range(sized.params)
    lacks = qualify.lacking(found, rows) or quickening(law, price, sizes, _range(rows.flops))
    if lacks and strict:
        return _instead(runs, form, lacks, others)
    unknown = [n for n, verdict in found.identified.items() if not verdict.identified]
    notes = [f"no advice: {form} does not qualify for a plan: {lacks}"] if lacks else []
    notes += [f"the runs do not identify {', '.join(unknown)}: intervals are lower bounds"] if unknown else []
    checks = (*at_rows.findings(frame, form), *(c for c in found.check() if FINDINGS[c.code].in_plan))
    notes += [f"{check.message} ({check.advice})" for check in checks]
    first = frame[frame["used"]].iloc[0]
    kinds = {"params": first["params_kind"], "flops": first["flop_rule"], "loss": first["loss_unit"]}
    point = {str(name): float(value) for name, value in found.params.items()}
    return Basis(
        law, form, point, _text(form, point), price, sizes, float(rows.flops.max()), kinds,
        runs.label or str(first["study"]), measured_speed(frame), tuple(notes),
        others, qualify.tested(found, rows),
    )  # fmt: skip


def _instead(runs: _Runs, form: str, lacks: str, others: Sequence[Beside]) -> Basis:
    """Return the basis of the best law that qualifies in place of `form`; UnansweredError says why none does.

    Where the losses are none, that is why, and not what laws of them lack.
    """
    from analysis.approaches.loss_laws import plannable
    from analysis.diagnostics import at_rows
    from analysis.inference import identifiability
    from analysis.laws.registry import FORMS

    said = {form: lacks}
    for one in sorted(others, key=lambda one: one.behind):
        if one.form == form:
            continue
        if one.lacking or not plannable(FORMS[one.form]):
            said[one.form] = one.lacking or "it gives no loss of N and D"
            continue
        basis = _rested(runs, one.form, {}, strict=False)
        if not basis.notes or not basis.notes[0].startswith("no advice"):
            note = f"{form} does not qualify for a plan ({lacks}): this one rests on {one.form}"
            return dataclasses.replace(basis, notes=(note, *basis.notes))
        said[one.form] = basis.notes[0].rpartition("plan: ")[2]
    wrong = at_rows.wrong(at_rows.findings(runs.frame, form))
    if wrong:
        why, cure = f": {wrong.message}", wrong.advice
    else:
        why = f" ({'; '.join(f'{name}: {lacking}' for name, lacking in said.items())})"
        usual, alone = "add runs, larger budgets first", at_rows.alone(runs.frame)
        cure = identifiability.cure(runs.rows.params, runs.rows.tokens, usual, alone)
    raise UnansweredError(
        f"no law of these runs qualifies for a plan{why}. {cure[:1].upper()}{cure[1:]}; strict=no plans with "
        f"form={form} anyway: an extrapolation, not a recommendation"
    )


def drawn(
    rows: Rows, form: str, price: Cost, further: Mapping[str, float], *, resamples: int, seed: int
) -> tuple[Law, LawFit]:
    """Return the law of these runs with its draws, and its fit; ValueError where they do not hold it."""
    if form == "chinchilla":
        return _closed(rows, resamples, seed)
    return _fitted(rows, form, price, further, resamples=resamples, seed=seed)


def _closed(rows: Rows, resamples: int, seed: int) -> tuple[Law, LawFit]:
    import numpy as np

    from analysis.approaches import parametric
    from analysis.approaches.loss_laws import Closed
    from analysis.approaches.surface import Surface

    found, fit = parametric.surface(rows, {**parametric.PLAIN, "resamples": resamples, "seed": seed})
    if not isinstance(found, Surface):
        raise ValueError(f"no plan without a surface: {found.reason}; add runs, or give constants= of a published law")
    assert fit is not None, "a surface comes with its fit"
    return Closed(np.vstack((found.constants[None], found.draws))), fit


def _fitted(
    rows: Rows, form: str, price: Cost, further: Mapping[str, float], *, resamples: int, seed: int
) -> tuple[Law, LawFit]:
    import numpy as np

    from analysis.approaches.compute_optimal import MOST_DRAWS
    from analysis.approaches.loss_laws import Fitted
    from analysis.inference.fit_law import fit_law
    from analysis.laws.registry import FORMS

    fit = fit_law(rows, form, resamples=min(resamples, MOST_DRAWS), seed=seed)
    theta = np.vstack((fit.point.theta[None], fit.thetas))
    return Fitted(FORMS[form], theta, fit.problem.centres, price, further), fit


def _beside(runs: _Runs, price: Cost, form: str) -> tuple[Beside, ...]:
    """Return other laws of N and D alone by least squares of the logs, with their AICc behind the best's."""
    from analysis.approaches.loss_laws import Fitted
    from analysis.inference.akaike import behind
    from analysis.planning.beyond import quickening

    fits = {}
    for name in dict.fromkeys((form, *runs.beside)) if runs.beside else ():
        if name not in runs.squared:
            runs.squared[name] = _squared(runs.rows, name)
        found = runs.squared[name]
        if found is not None:
            fits[name] = found
    gaps = behind([fit.aicc for fit, _ in fits.values()]) if fits else ()
    made = []
    for (name, (fit, lacks)), gap in zip(fits.items(), gaps, strict=True):
        if any(n not in ("params", "tokens", "flops", "unique_tokens") for n in fit.form.inputs):
            continue
        law = Fitted(fit.form, fit.point.theta[None], fit.problem.centres, price, {})
        why = lacks or quickening(law, price, _range(runs.rows.params), _range(runs.rows.flops))
        made.append(Beside(name, law, float(gap), why))
    return tuple(made)


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _squared(rows: Rows, form: str) -> tuple[LawFit, str] | None:
    """Return a law by least squares of the logs and why no plan rests on it; None where the rows are not for it."""
    from analysis.diagnostics import qualify
    from analysis.estimation import observations
    from analysis.inference.fit_law import fit_law
    from analysis.inference.refusals import refuse
    from analysis.laws.registry import FORMS

    try:
        refuse(FORMS[form], observations.read(rows, FORMS[form]))
        if len(rows) < len(FORMS[form].names) + 3:
            return None
        fit = fit_law(rows, form, loss="squared", resamples=0)
    except ValueError:
        return None
    return fit, qualify.lacking(fit, rows)


def _further(form: str, at: Mapping[str, float]) -> dict[str, float]:
    """Return the values of the inputs that a plan has to be told; ValueError names one that is not."""
    from analysis.approaches.loss_laws import choices, further, plannable
    from analysis.laws.registry import FORMS

    if not plannable(FORMS[form]):
        raise ValueError(
            f"form={form} ({FORMS[form].text}) gives no loss of N and D to plan with; use one of {', '.join(choices())}"
        )
    wanted = further(FORMS[form])
    lacking = [name for name in wanted if name not in at]
    if lacking:
        raise ValueError(f"form={form} reads {', '.join(wanted)}: say for which with at={lacking[0]}:NUMBER")
    unknown = sorted(set(at) - set(wanted))
    if unknown:
        raise ValueError(
            f"at={unknown[0]}:..: form={form} does not read it" + (f"; it reads {', '.join(wanted)}" if wanted else "")
        )
    bad = [name for name in wanted if at[name] <= 0]
    if bad:
        raise ValueError(f"at={bad[0]}:{at[bad[0]]:g}: a positive number is needed")
    return {name: float(at[name]) for name in wanted}


def _text(form: str, constants: Mapping[str, float]) -> str:
    """Return the law with its constants as a line."""
    if form == "chinchilla":
        e, a, b, alpha, beta = (f"{constants[name]:.6g}" for name in NAMES)
        return f"L = {e} + {a}/N^{alpha} + {b}/D^{beta}"
    from analysis.laws.registry import FORMS

    return f"L = {FORMS[form].text}; " + ", ".join(f"{name} {numbers.number(v, 6)}" for name, v in constants.items())
