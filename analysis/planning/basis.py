"""What plans rest on: a law fitted to runs, the valleys where it may not be advised, or quoted constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.planning.advice import VALLEYS
from analysis.text import numbers
from analysis.text.commandline import UnansweredError
from analysis.values.findings import FINDINGS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from analysis.approaches.cost import Cost
    from analysis.approaches.loss_laws import Law
    from analysis.approaches.valleys import ValleyFit
    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows
    from analysis.planning.advice import Advice, Candidate, Judged
    from analysis.values.blocks import Check, Interval, PowerLaw
    from analysis.values.study_result import Proposal

NAMES = ("E", "A", "B", "alpha", "beta")
BESIDE = ("chinchilla", "chinchilla_tied", "chinchilla_interaction", "kaplan_floor", "farseer")
"""Laws of N and D alone that are fitted to the same runs, to see how much the plan rests on the law."""


@dataclass(frozen=True)
class Basis:
    """A law, first row the point and then the draws, its constants, price of a token, sizes swept, notes.

    `tested` is the farthest factor beyond a fit over which these runs test the law. `speed` is FLOPs per second of one
    device, as the runs measured them. `beside` are other laws through the same runs, with AICc behind the best.
    `judged` is what the runs let be advised, None of constants that were given, and `valleys` take the law's place
    where it may not be. `top` is the largest budget that was run, as it was planned [FLOPs]; `checks` are the
    findings about the rows.
    """

    law: Law | None
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
    judged: Judged | None = None
    valleys: OfValleys | None = None
    top: float | None = None
    checks: tuple[Check, ...] = ()

    def advised(self, budget: float) -> Advice | None:
        """Return what is advised for a budget [FLOPs]; None where the law is followed whatever the runs say of it."""
        return None if self.judged is None else self.judged.at(budget)

    @property
    def rests_on_valleys(self) -> bool:
        """Whether the law is not followed at any budget."""
        return self.judged is not None and self.judged.at_all.follows == VALLEYS


@dataclass(frozen=True, eq=False)
class OfValleys:
    """What the valleys propose for a budget [FLOPs], the power laws that they follow, and what is said of the rows."""

    propose: Callable[[float], Proposal | None]
    laws: Mapping[str, PowerLaw]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The power laws as a line."""
        each = (
            f"{symbol} = {numbers.amount(law.coefficient)} (C / {numbers.scientific(law.reference_flops)})^"
            f"{numbers.number(law.exponent)}"
            for symbol, law in (("N*", self.laws["params"]), ("D*", self.laws["tokens"]))
        )
        return f"{', '.join(each)} by {self.laws['params'].points} isoFLOP valleys"

    def budget_of(self, params: float) -> float:
        """Return the budget [FLOPs] whose best size this is."""
        law = self.laws["params"]
        return float(law.reference_flops * (params / law.coefficient) ** (1.0 / law.exponent))


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
    asked: Mapping[str, Any] | None = None,
) -> Basis:
    """Return the basis of runs: the law and its draws, what a token costs, the speed that the runs measured.

    `asked` are options of a fit that say how its law and valleys are found: loss, delta, fix, tie, cluster,
    valley_window, flat_valleys; without it they are the usual ones.

    A law that may not be advised (see :mod:`analysis.planning.advice`) gives way to the valleys' best sizes; with
    `strict` false it stays, and a note says what it lacks. Raises ValueError where the form gives no loss of N and D,
    an input of it is not told, or the rows are too few; UnansweredError where neither may be advised.
    """
    from analysis.inputs.frame import used

    runs = _Runs(frame, used(frame), {**(asked or {}), "resamples": resamples, "seed": seed}, label, beside)
    return _rested(runs, form, _further(form, at or {}), strict)


def measured_speed(frame: pd.DataFrame) -> float | None:
    """Return FLOPs per second of one device, as the runs that are fitted measured it; None where none did."""
    speed = frame.loc[frame["used"], "flops_per_second"].median() if "flops_per_second" in frame else float("nan")
    return float(speed) if math.isfinite(speed) else None


@dataclass(frozen=True)
class _Runs:
    """The runs of a basis and how laws are fitted to them: options of a fit."""

    frame: pd.DataFrame
    rows: Rows
    asked: Mapping[str, Any]
    label: str
    beside: Sequence[str]


def _rested(runs: _Runs, form: str, further: Mapping[str, float], strict: bool) -> Basis:
    """Return the basis that rests on one law, and on the valleys where it may not be advised."""
    from analysis.diagnostics import at_rows
    from analysis.planning import advice

    frame, rows = runs.frame, runs.rows
    checks = at_rows.findings(frame, form)
    judged, minima, tested = judged_of(frame, rows, form, further, checks, asked=runs.asked)
    law, said = judged.candidate, judged.at_all
    if (strict and not said.follows) or (law is None and not strict):
        raise UnansweredError(advice.refusal(said, planned=law is not None))
    lost = [] if law is None else [n for n, verdict in law.fit.identified.items() if not verdict.identified]
    notes = [] if strict or not said.why else [f"no advice: {said.why}"]
    notes += [f"the runs do not identify {', '.join(lost)}: intervals are lower bounds"] if lost else []
    own = [] if law is None else [c for c in law.fit.check() if FINDINGS[c.code].in_plan]
    notes += [_note(c) for c in (*checks, *own)]
    of_runs = (*checks, *(c for c in own if FINDINGS[c.code].of_study))
    first = frame[frame["used"]].iloc[0]
    kinds = {"params": first["params_kind"], "flops": first["flop_rule"], "loss": first["loss_unit"]}
    point = {} if law is None else {str(name): float(value) for name, value in law.fit.params.items()}
    price, sizes = _price(rows, form)
    return Basis(
        None if law is None else law.law, form, point, _text(form, point) if point else "", price, sizes,
        float(rows.flops.max()), kinds, runs.label or str(first["study"]), measured_speed(frame), tuple(notes),
        _beside(runs, price, form, minima, said.law), tested,
        judged if strict else None, _of_valleys(rows, minima, said, of_runs), float(rows.labels.max()), checks,
    )  # fmt: skip


def _price(rows: Rows, form: str) -> tuple[Cost, Interval]:
    """Return what a token costs and the sizes swept, as the form counts them."""
    from analysis.approaches.cost import cost
    from analysis.approaches.loss_laws import size_column
    from analysis.laws.registry import FORMS

    sized = rows.replaced(params=rows.column(size_column(FORMS[form])))
    return cost(sized), _range(sized.params)


def judged_of(
    frame: pd.DataFrame, rows: Rows, form: str, further: Mapping[str, float], checks: Iterable[Check], *,
    asked: Mapping[str, Any],
) -> tuple[Judged, ValleyFit, float | None]:  # fmt: skip
    """Return what the runs let be advised of a law, their valleys, and by how much they test the law beyond its fits.

    `checks` are the findings about the rows, `asked` the options of a fit: resamples, seed and others. Where the rows
    are too few for the law, that is why it may not be advised, and nothing tests it (None); ValueError where they are
    not for it.
    """
    from analysis.approaches import valley_options, valleys
    from analysis.diagnostics import qualify
    from analysis.laws.registry import FORMS
    from analysis.planning import advice

    price, sizes = _price(rows, form)
    candidate: Candidate | str
    cuts = None
    try:
        law, fit = drawn(rows, form, price, further, asked)
    except ValueError as error:
        if len(rows) > len(FORMS[form].names) and not isinstance(error, NoLawError):
            raise
        candidate = f"it was not fitted: {error}"
    else:
        candidate, cuts = advice.Candidate(fit, law, price, sizes), qualify.backtests(fit, rows)
    minima = valleys.fit(rows, resamples=asked["resamples"], seed=asked["seed"], choices=valley_options.of(asked))
    only = advice.LAW if further else ""
    judged = advice.judge(frame, rows, form, candidate, minima, checks=checks, only=only, cuts=cuts)
    return judged, minima, None if cuts is None else qualify.reach(cuts)


class NoLawError(ValueError):
    """The runs are too few for the law, or of too few sizes."""


def _of_valleys(rows: Rows, minima: ValleyFit, said: Advice, checks: Iterable[Check]) -> OfValleys | None:
    """Return what takes the law's place, with a loss where the law of the lowest ones may say it; None without any."""
    from analysis.approaches import frontier
    from analysis.planning import advice, recommend

    if said.valleys or said.only == advice.LAW:
        return None
    front = frontier.fit(rows, minima)
    known = front if isinstance(front, frontier.FrontierFit) and advice.frontier_known(front.block) else minima.block
    return OfValleys(
        lambda budget: recommend.by_valleys(minima, known, None, budget), minima.block.exponents,
        tuple(map(_note, checks)),
    )  # fmt: skip


def _note(check: Check) -> str:
    return f"{check.message} ({check.advice})"


def drawn(
    rows: Rows, form: str, price: Cost, further: Mapping[str, float], asked: Mapping[str, Any]
) -> tuple[Law, LawFit]:
    """Return the law of these runs with its draws, and its fit; ValueError where they do not hold it."""
    from analysis.approaches.parametric import PLAIN

    as_asked = {**PLAIN, **{name: value for name, value in asked.items() if name in PLAIN}, "form": form}
    return _closed(rows, as_asked) if form == "chinchilla" else _fitted(rows, price, further, as_asked)


def _closed(rows: Rows, asked: Mapping[str, Any]) -> tuple[Law, LawFit]:
    import numpy as np

    from analysis.approaches import parametric
    from analysis.approaches.loss_laws import Closed
    from analysis.approaches.surface import Surface

    found, fit = parametric.surface(rows, asked)
    if not isinstance(found, Surface):
        raise NoLawError(found.reason)
    assert fit is not None, "a surface comes with its fit"
    return Closed(np.vstack((found.constants[None], found.draws))), fit


def _fitted(rows: Rows, price: Cost, further: Mapping[str, float], asked: Mapping[str, Any]) -> tuple[Law, LawFit]:
    import numpy as np

    from analysis.approaches.compute_optimal import MOST_DRAWS
    from analysis.approaches.loss_laws import Fitted
    from analysis.approaches.parametric import fitted

    fit = fitted(rows, asked["form"], asked)
    theta = np.vstack((fit.point.theta[None], fit.thetas[:MOST_DRAWS]))
    return Fitted(fit.form, theta, fit.problem.centres, price, further), fit


def _beside(runs: _Runs, price: Cost, form: str, minima: ValleyFit, lacks: str) -> tuple[Beside, ...]:
    """Return other laws of N and D alone by least squares of the logs, with their AICc behind the best's.

    `lacks` is why the law `form`, which stands among them, may not be advised.
    """
    from analysis.approaches.loss_laws import Fitted
    from analysis.inference.akaike import behind
    from analysis.planning import advice

    fits = {}
    for name in dict.fromkeys((form, *runs.beside)) if runs.beside else ():
        found = _squared(runs.rows, name)
        if found is not None:
            fits[name] = found
    gaps = behind([fit.aicc for fit in fits.values()]) if fits else ()
    made = []
    for (name, fit), gap in zip(fits.items(), gaps, strict=True):
        if any(n not in ("params", "tokens", "flops", "unique_tokens") for n in fit.form.inputs):
            continue
        law = Fitted(fit.form, fit.point.theta[None], fit.problem.centres, price, {})
        candidate = advice.Candidate(fit, law, price, _range(runs.rows.params))
        own = lacks if name == form else ""
        made.append(Beside(name, law, float(gap), own or advice.law_lacks(candidate, runs.rows, minima)))
    return tuple(made)


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _squared(rows: Rows, form: str) -> LawFit | None:
    """Return a law by least squares of the logs; None where the rows are not for it."""
    from analysis.estimation import observations
    from analysis.inference.fit_law import fit_law
    from analysis.inference.refusals import refuse
    from analysis.laws.registry import FORMS

    try:
        refuse(FORMS[form], observations.read(rows, FORMS[form]))
        if len(rows) < len(FORMS[form].names) + 3:
            return None
        return fit_law(rows, form, loss="squared", resamples=0)
    except ValueError:
        return None


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
