"""From a law and a budget to the options: what to train under each assumption, with intervals and model shapes.

training-only: min over N of E + A/N^alpha + B/D^beta at cost(N) D = C; inference: min 6 N D + 2 N D_inf at that loss
(Sardana et al. 2024, arXiv 2401.00448); limited data: D replaced by D' = U + U R (1 - exp(-r/R)), r = D/U - 1
(Muennighoff et al. 2023, arXiv 2305.16264).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.text import numbers
from analysis.text.commandline import UnansweredError
from analysis.text.preformatted import Preformatted

if TYPE_CHECKING:
    import pandas as pd

    from analysis.approaches.optimum import Answers
    from analysis.planning.advice import Advice
    from analysis.planning.basis import Basis
    from analysis.planning.shapes import Shape
    from analysis.values.blocks import Interval


MUCH = 10.0
"""Laws whose AICc is behind by more than this fit the runs worse."""


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for: budget [FLOPs], tokens per parameter over the optimal ratio, tokens served, and so on.

    `repeats` holds the half-lives R_D of repeated tokens and R_N of parameters beyond those that the data fill. Raises
    ValueError where a number is not positive, or `repeats` holds another constant.
    """

    budget: float
    overtrain: float = 4.0
    inference_tokens: float | None = None
    unique_tokens: float | None = None
    repeats: Mapping[str, float] = field(default_factory=dict)
    vocabulary: int = 50_000

    def __post_init__(self) -> None:
        given = {
            f"{name}=": getattr(self, name) for name in ("budget", "overtrain", "inference_tokens", "unique_tokens")
        }
        for key, value in given.items():
            if value is not None and value <= 0:
                raise ValueError(f"{key}{value:g}: a positive number is needed")
        if self.repeats:
            from analysis.approaches.optimum import Repeats

            Repeats.given(self.repeats)


@dataclass(frozen=True)
class Option:
    """One plan: what was assumed, N, D, loss, FLOPs with intervals, models of that size, and what to be careful about.

    `intervals` hold params, tokens, tokens_per_param, loss: [low, high], or None where the runs give none.
    """

    name: str
    assumption: str
    params: float
    tokens: float
    tokens_per_param: float
    loss: float
    training_flops: float
    inference_flops: float
    gpu_hours: float | None
    epochs: float | None
    intervals: dict[str, Interval | None]
    shapes: tuple[Shape, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherLaw:
    """What another law through the same runs would train with the budget; `aicc_behind` the best one's AICc.

    `lacking` says why no plan rests on it; empty where one may.
    """

    form: str
    params: float | None
    tokens_per_param: float | None
    loss: float | None
    aicc_behind: float
    lacking: str = ""


@dataclass(frozen=True, repr=False)
class Plan(Preformatted):
    """All options for a budget, the law that they rest on and how far it is from the runs; `print` shows all of it."""

    source: str
    law: str
    constants: dict[str, float]
    kinds: dict[str, str]
    budget_flops: float
    speed: float | None
    extrapolation_factor: float | None
    options: tuple[Option, ...]
    notes: tuple[str, ...]
    form: str = "chinchilla"
    other_laws: tuple[OtherLaw, ...] = ()

    @property
    def frame(self) -> pd.DataFrame:
        """The options as a table by name: params, tokens, tokens_per_param, loss, each with low and high, FLOPs."""
        import pandas as pd

        lines = []
        for option in self.options:
            line: dict[str, Any] = {"option": option.name}
            for name in ("params", "tokens", "tokens_per_param", "loss"):
                low, high = option.intervals[name] or (None, None)
                line |= {name: getattr(option, name), f"{name}_low": low, f"{name}_high": high}
            lines.append(line | {name: getattr(option, name) for name in ("training_flops", "inference_flops")})
        return pd.DataFrame(lines).set_index("option")

    def __repr__(self) -> str:
        """Return budget, best size and the options in one line."""
        from analysis.planning.plan_text import line

        return line(self)

    def __str__(self) -> str:
        """Return every option, as `python -m analysis.plan` prints them."""
        from analysis.planning.plan_text import text

        return text(self)


def make(basis: Basis, asked: Asked, speed: float | None = None) -> Plan:
    """Return the plan of a basis; `speed` is FLOPs per second of one device."""
    import numpy as np

    from analysis.approaches import optimum
    from analysis.planning import advice

    budget = float(asked.budget)  # NumPy takes no logarithm of an int above 2^64
    said = basis.advised(budget)
    if said is not None and said.follows != advice.LAW:
        return _without_law(basis, said, asked, speed)
    on, price, sizes = basis.law, basis.price, basis.sizes
    assert on is not None, "it is followed"
    best = optimum.training_only(on, price, budget, sizes)
    shared: dict[str, Any] = {"basis": basis, "vocabulary": asked.vocabulary, "speed": speed}
    if not np.isfinite(best.log_params[0]):
        raise ValueError(
            f"budget={budget:g}: the law has no best size within {optimum.SEARCH:g} times the sizes swept: take "
            "another budget or form, or more runs if the law is not identified"
        )
    made = [_option("training-only", "all of the budget is training", best, **shared)]
    if asked.overtrain != 1.0:
        text = f"{numbers.factor(asked.overtrain)} the optimal tokens per parameter, the same budget"
        found = optimum.over_trained(on, price, budget, sizes, asked.overtrain)
        made.append(_option("over-trained", text, found, **shared))
    if asked.inference_tokens:
        served = asked.inference_tokens
        text = f"the loss of training-only, and {numbers.count(served)} tokens served"
        found = optimum.inference(on, price, best.loss, served, sizes)
        saved = _saved(best, found, price, served)
        made.append(_option("inference", text, found, **shared, notes=(saved,)))
    if asked.unique_tokens:
        made.append(_limited(basis, budget, asked.unique_tokens, asked.repeats, shared))
    notes = list(basis.notes)
    far = budget / basis.largest if basis.largest else None
    if far is not None and far > 30:
        notes.append(f"the budget is {far:.3g} times the largest run: its intervals do not include model-form error")
    if far is not None and basis.tested is not None and far > basis.tested / 0.8:
        reach = f"reach {numbers.factor(basis.tested)} at most" if basis.tested else "are none"
        notes.append(
            f"backtests of this law {reach} beyond their fits: nothing tests the {numbers.factor(far)} of this plan"
        )
    others = _others(basis, budget)
    notes += _spread(basis.form, others, made[0])
    return Plan(
        basis.source, basis.text, basis.constants, basis.kinds, budget, speed, far, tuple(made), tuple(notes),
        basis.form, others,
    )  # fmt: skip


def _without_law(basis: Basis, said: Advice, asked: Asked, speed: float | None) -> Plan:
    """Return the valleys' plan, where the law may not be followed; UnansweredError where the valleys may not be."""
    from analysis.planning import advice, shapes

    budget, on = float(asked.budget), basis.valleys
    best = on.propose(budget) if on is not None and said.follows else None
    if on is None or best is None:
        raise UnansweredError(advice.refusal(said, planned=basis.law is not None))
    option = Option(
        "training-only", "all of the budget is training", best.params, best.tokens, best.tokens_per_param,
        math.nan if best.loss is None else best.loss, budget, 0.0, None if speed is None else budget / speed / 3600.0,
        None, dict(best.intervals), shapes.propose(best.params, basis.kinds["params"], asked.vocabulary),
    )  # fmt: skip
    far = budget / basis.largest if basis.largest else None
    notes = [
        f"{said.why}: N* and D* are the valleys', which need no law of the loss. Over-training, serving and repeats "
        f"need one; strict=no plans them with form={said.form}",
        *on.notes,
    ]
    if far is not None and far > 30:
        notes.append(f"the budget is {far:.3g} times the largest run: its intervals do not include model-form error")
    exponents = {name: on.laws[quantity].exponent for name, quantity in (("a", "params"), ("b", "tokens"))}
    return Plan(
        basis.source, on.text, exponents, basis.kinds, budget, speed, far, (option,), tuple(notes), "valleys",
        _others(basis, budget),
    )  # fmt: skip


def _others(basis: Basis, budget: float) -> tuple[OtherLaw, ...]:
    """Return what the other laws would train, the best by AICc first."""
    from analysis.approaches import optimum

    made = []
    for other in basis.beside:
        found = optimum.training_only(other.law, basis.price, budget, basis.sizes)
        n, d, loss = (float(v[0]) for v in (found.log_params, found.log_tokens, found.loss))
        known = math.isfinite(n)
        made.append(OtherLaw(
            other.form, math.exp(n) if known else None, math.exp(d - n) if known else None, loss if known else None,
            other.behind, other.lacking or ("" if known else "no best size for this budget"),
        ))  # fmt: skip
    return tuple(sorted(made, key=lambda one: one.aicc_behind))


def _spread(form: str, others: tuple[OtherLaw, ...], best: Option) -> list[str]:
    """Return notes where a law that fits the runs as well, or better, would train another size, or none at all."""
    own = next((one.aicc_behind for one in others if one.form == form), 0.0)
    fits = [one for one in others if not one.lacking and one.form != form]
    notes = []
    better = [one for one in others if own - one.aicc_behind > MUCH]
    for one in better:
        lower = f"{one.form} fits these runs clearly better than {form} (AICc {own - one.aicc_behind:.3g} lower)"
        notes.append(lower + (f", and no plan rests on it: {one.lacking}" if one.lacking else f": see form={one.form}"))
    good = [one for one in fits if one.aicc_behind <= max(own, 0.0) + MUCH]
    sizes = [one.params for one in good if one.params is not None] + [best.params]
    if max(sizes) / min(sizes) > 1.5:
        notes.append(
            f"laws that fit the runs about as well put N* between {numbers.amount(min(sizes))} and "
            f"{numbers.amount(max(sizes))}: the intervals above include only one law's uncertainty"
        )
    return notes


def _limited(
    basis: Basis, budget: float, unique: float, given: Mapping[str, float], shared: Mapping[str, Any]
) -> Option:
    from analysis.approaches import optimum

    assert basis.law is not None, "it is followed"
    half = optimum.Repeats.given(given)
    found = optimum.limited_data(basis.law, basis.price, budget, basis.sizes, unique=unique, repeats=half)
    notes = []
    if not given and basis.form != "repeats":
        notes.append(
            "repeats wear out as in Muennighoff et al. 2023 (R_D 15.4, R_N 5.31), whose R_D later fits leave unbounded "
            "above: treat the loss as a guess beyond 4 epochs"
        )
    epochs = math.exp(float(found.log_tokens[0])) / unique
    if epochs > 16:
        notes.append(f"{epochs:.0f} epochs: repeated tokens are worth next to nothing beyond 16, get more data")
    elif epochs > 4:
        notes.append(f"{epochs:.1f} epochs: beyond 4, repeated tokens are worth clearly less than new ones")
    text = f"{numbers.count(unique)} distinct tokens, repeated as often as it helps"
    return _option("limited data", text, found, **shared, notes=tuple(notes), unique=unique)


def _saved(best: Answers, found: Answers, price: Any, served: float) -> str:
    import numpy as np

    serving = np.exp(price.log_per_token(best.log_params)[0]) / 3.0 * served
    share = 1.0 - (found.training_flops + found.inference_flops) / (best.training_flops + serving)
    return f"saves {numbers.percent(float(share[0]))} of training and serving together against training-only"


def _option(
    name: str,
    assumption: str,
    found: Answers,
    *,
    basis: Basis,
    vocabulary: int,
    speed: float | None,
    notes: tuple[str, ...] = (),
    unique: float | None = None,
) -> Option:
    import numpy as np

    from analysis.approaches.power_laws import exp_interval
    from analysis.inference import resampling
    from analysis.planning import shapes

    def interval(values: Any) -> Interval | None:
        return resampling.interval(values[1:], float(values[0])) if len(values) > 1 else None

    logs = {"params": found.log_params, "tokens": found.log_tokens,
            "tokens_per_param": found.log_tokens - found.log_params}  # fmt: skip
    columns = {**{name: np.exp(values) for name, values in logs.items()}, "loss": found.loss}
    ends = {name: exp_interval(interval(values)) for name, values in logs.items()} | {"loss": interval(found.loss)}
    if not np.isfinite(columns["params"][0]):
        notes = (*notes, "there is no answer within the sizes searched")
    flops = float(found.training_flops[0])
    return Option(
        name,
        assumption,
        **{key: float(values[0]) for key, values in columns.items()},
        training_flops=flops,
        inference_flops=float(found.inference_flops[0]),
        gpu_hours=None if speed is None else flops / speed / 3600.0,
        epochs=None if unique is None else float(columns["tokens"][0]) / unique,
        intervals=ends,
        shapes=shapes.propose(float(columns["params"][0]), basis.kinds["params"], vocabulary),
        notes=notes,
    )
