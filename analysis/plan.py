"""`python -m analysis.plan`: from runs (or quoted constants) and a budget to what to train, under each assumption."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import arguments, human, source
from analysis.arguments import Key
from analysis.plain import to_json

if TYPE_CHECKING:
    import pandas as pd

    from analysis.plans import Answers
    from analysis.results import Interval
    from analysis.shapes import Shape

PURPOSE = "What to train with a budget: sizes, tokens and loss with intervals, under each assumption that is given."
EXAMPLES = (
    "python -m analysis.plan runs=runs/isoflop budget=1e15 overtrain=4 inference_tokens=1e12",
    "python -m analysis.plan runs=runs.csv flop_rule=6ND gpu_hours=5000 peak=989e12 mfu=0.4 unique_tokens=3e10",
    "python -m analysis.plan constants=E:1.69,A:406.4,B:410.7,alpha:0.336,beta:0.283 params_opt=30e9 "
    "inference_tokens=1e13",
)
NAMES = ("E", "A", "B", "alpha", "beta")
KEYS = (
    Key("runs", source.RUNS.help.replace(" (required)", "")),
    *source.FURTHER,
    Key("constants", "E:..,A:..,B:..,alpha:..,beta:.. of a published law, instead of runs", {}, arguments.constants),
    Key("budget", "training compute [FLOPs]", None, arguments.number),
    Key("gpu_hours", "training compute as GPU-hours: with mfu and peak, or the speed that the runs measured", None,
        arguments.number),
    Key("mfu", "model FLOPs utilisation measured on your GPUs: 0.4", None, arguments.share),
    Key("peak", "peak of one GPU in the precision used [FLOP/s]: 989e12 for H100 bf16", None, arguments.number),
    Key("params_opt", "instead of a budget: the size whose compute-optimal training sets it [parameters]", None,
        arguments.number),
    Key("overtrain", "tokens per parameter as a multiple of the optimal ratio", 4.0, arguments.number),
    Key("inference_tokens", "tokens served over the model's life: trades training against serving", None,
        arguments.number),
    Key("unique_tokens", "distinct training tokens there are", None, arguments.number),
    Key("repeats", "R_D:..,R_N:.. half-lives of repeated data (default 15.4 and 5.31, Muennighoff et al. 2023)", {},
        arguments.constants),
    Key("vocabulary", "tokens of the vocabulary, for the shapes", 50_000, arguments.whole),
    Key("resamples", "bootstrap resamples", 1000, arguments.whole),
    Key("seed", "seed of the resamples", 0, arguments.whole),
    Key("out", "folder for plan.json (default: none is written)"),
)  # fmt: skip


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
class Plan:
    """All options for a budget, the law that they rest on and how far it is from the runs."""

    source: str
    law: str
    constants: dict[str, float]
    kinds: dict[str, str]
    budget_flops: float
    speed: float | None
    extrapolation_factor: float | None
    options: tuple[Option, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Basis:
    """What plans rest on: constants, first row the point and then the draws (1 + R, 5), price, sizes swept, notes."""

    constants: Any
    price: Any
    sizes: Interval
    largest: float | None
    kinds: dict[str, str]
    source: str
    speed: float | None
    notes: tuple[str, ...]


def plan(
    runs: pd.DataFrame | Mapping[str, float],
    budget: float,
    *,
    overtrain: float = 4.0,
    inference_tokens: float | None = None,
    unique_tokens: float | None = None,
    repeats: Mapping[str, float] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Plan:
    """Return what to train with a budget under each assumption.

    Parameters
    ----------
    runs : DataFrame or mapping
        A tidy frame (see :mod:`analysis.frame`), or the constants E, A, B, alpha, beta of a law.
    budget : float
        Training compute [FLOPs].
    overtrain : float
        Tokens per parameter as a multiple of the compute-optimal ratio.
    inference_tokens : float, optional
        Tokens served over the model's life.
    unique_tokens : float, optional
        Distinct training tokens there are; beyond these they are repeated.
    repeats : mapping, optional
        Half-lives R_D and R_N of repeated tokens and of parameters beyond those that the data fill.

    Returns
    -------
    Plan
        `options` by name: training-only, over-trained, inference, limited data.

    Notes
    -----
    training-only: min over N of E + A/N^alpha + B/D^beta at cost(N) D = C; inference: min 6 N D + 2 N D_inf at that
    loss (Sardana et al. 2024, arXiv 2401.00448); limited data: D replaced by D' = U + U R (1 - exp(-r/R)), r = D/U - 1
    (Muennighoff et al. 2023, arXiv 2305.16264).

    Examples
    --------
    >>> law = {"E": 1.8172, "A": 477.83, "B": 2143.4, "alpha": 0.34731, "beta": 0.367172}
    >>> best = plan(law, 5.76e23).options[0]
    >>> f"{best.params:.2g} parameters, {best.tokens_per_param:.3g} tokens per parameter"
    '7.3e+10 parameters, 17.9 tokens per parameter'
    """
    basis = from_constants(runs) if isinstance(runs, Mapping) else from_frame(runs, resamples=resamples, seed=seed)
    asked = {
        "budget": budget,
        "overtrain": overtrain,
        "inference_tokens": inference_tokens,
        "unique_tokens": unique_tokens,
        "repeats": dict(repeats or {}),
        "vocabulary": 50_000,
    }
    return _plan(basis, asked)


def from_constants(constants: Mapping[str, float]) -> Basis:
    """Return the basis of quoted constants, with C = 6 N D; constants of few digits are said."""
    import numpy as np

    from analysis.cost import Cost

    lacking = [name for name in NAMES if name not in constants]
    if lacking:
        raise ValueError(f"constants= lacks {', '.join(lacking)}: write constants=E:..,A:..,B:..,alpha:..,beta:..")
    for name in ("A", "B", "alpha", "beta"):
        if constants[name] <= 0:
            raise ValueError(f"constants={name}:{constants[name]:g}: a positive number is needed")
    short = [n for n in ("alpha", "beta") if len(f"{constants[n]:.10g}".lstrip("0.").replace(".", "")) < 4]
    notes = ["constants as quoted have no interval"]
    if short:
        notes.append(
            f"{' and '.join(short)} have fewer than four digits: rounding an exponent in its third digit moves tokens "
            "per parameter at 6e23 FLOPs by half; take unrounded constants where there are any"
        )
    row = np.array([[constants[name] for name in NAMES]])
    kinds = {"params": "given", "flops": "6ND", "loss": "nats per token"}
    return Basis(row, Cost.six(), (1e6, 1e12), None, kinds, "constants", None, tuple(notes))


def from_frame(frame: pd.DataFrame, *, resamples: int = 1000, seed: int = 0, label: str = "") -> Basis:
    """Return the basis of runs: the surface, its draws, what a token costs, the speed that the runs measured."""
    import numpy as np

    from analysis import evidence
    from analysis.cost import cost
    from analysis.frame import used
    from analysis.surface import Surface

    rows = used(frame)
    found, _ = evidence.surface(rows, {**evidence.PLAIN, "resamples": resamples, "seed": seed})
    if not isinstance(found, Surface):
        raise ValueError(f"no plan without a surface: {found.reason}; add runs, or give constants= of a published law")
    unknown = [n for n, verdict in found.block.identified.items() if not verdict.identified]
    notes = [f"the runs do not identify {', '.join(unknown)}: intervals are lower bounds"] if unknown else []
    first = frame[frame["used"]].iloc[0]
    kinds = {"params": first["params_kind"], "flops": first["flop_rule"], "loss": first["loss_unit"]}
    speed = frame.loc[frame["used"], "flops_per_second"].median() if "flops_per_second" in frame else float("nan")
    sizes = (float(rows.params.min()), float(rows.params.max()))
    return Basis(
        np.vstack((found.constants[None], found.draws)), cost(rows), sizes, float(rows.flops.max()), kinds,
        label or str(first["study"]), float(speed) if math.isfinite(speed) else None, tuple(notes),
    )  # fmt: skip


def _plan(basis: Basis, options: Mapping[str, Any], speed: float | None = None) -> Plan:
    import numpy as np

    from analysis import plans

    budget = float(options["budget"])
    c, price, sizes = basis.constants, basis.price, basis.sizes
    best = plans.training_only(c, price, budget, sizes)
    shared: dict[str, Any] = {"basis": basis, "vocabulary": int(options["vocabulary"]), "speed": speed}
    if not np.isfinite(best.log_params[0]):
        raise ValueError(
            f"budget={budget:g}: the law has no best size within {plans.SEARCH:g} times the sizes swept: take another "
            "budget, or more runs if the law is not identified"
        )
    made = [_option("training-only", "all of the budget is training", best, **shared)]
    factor = float(options["overtrain"])
    if factor != 1.0:
        text = f"{human.factor(factor)} the optimal tokens per parameter, the same budget"
        found = plans.over_trained(c, price, budget, sizes, factor)
        made.append(_option("over-trained", text, found, **shared))
    if options["inference_tokens"]:
        served = float(options["inference_tokens"])
        text = f"the loss of training-only, and {human.count(served)} tokens served"
        found = plans.inference(c, price, best.loss, served, sizes)
        saved = _saved(best, found, price, served)
        made.append(_option("inference", text, found, **shared, notes=(saved,)))
    if options["unique_tokens"]:
        made.append(_limited(options, budget, shared))
    notes = list(basis.notes)
    far = budget / basis.largest if basis.largest else None
    if far is not None and far > 30:
        notes.append(f"the budget is {far:.3g} times the largest run: intervals hold no error of the form out there")
    law = f"L = {c[0][0]:.6g} + {c[0][1]:.6g}/N^{c[0][3]:.6g} + {c[0][2]:.6g}/D^{c[0][4]:.6g}"
    point = {name: float(value) for name, value in zip(NAMES, c[0], strict=True)}
    return Plan(basis.source, law, point, basis.kinds, budget, speed, far, tuple(made), tuple(notes))


def _limited(options: Mapping[str, Any], budget: float, shared: dict[str, Any]) -> Option:
    from analysis import plans

    basis = shared["basis"]
    unique, given = float(options["unique_tokens"]), options["repeats"]
    unknown = set(given) - {"R_D", "R_N"}
    if unknown:
        raise ValueError(f"repeats={','.join(sorted(unknown))}: the constants are R_D and R_N")
    half = plans.Repeats(given.get("R_D", plans.Repeats.tokens), given.get("R_N", plans.Repeats.params))
    found = plans.limited_data(basis.constants, basis.price, budget, basis.sizes, unique=unique, repeats=half)
    notes = [] if given else ["repeats wear out as in Muennighoff et al. 2023 (R_D 15.4, R_N 5.31), whose R_D later "
                              "fits leave unbounded above: treat the loss as a guess beyond 4 epochs"]  # fmt: skip
    epochs = math.exp(float(found.log_tokens[0])) / unique
    if epochs > 16:
        notes.append(f"{epochs:.0f} epochs: repeated tokens are worth next to nothing beyond 16, get more data")
    elif epochs > 4:
        notes.append(f"{epochs:.1f} epochs: beyond 4, repeated tokens are worth clearly less than new ones")
    text = f"{human.count(unique)} distinct tokens, repeated as often as that pays"
    return _option("limited data", text, found, **shared, notes=tuple(notes), unique=unique)


def _saved(best: Answers, found: Answers, price: Any, served: float) -> str:
    import numpy as np

    serving = np.exp(price.log_per_token(best.log_params)[0]) / 3.0 * served
    share = 1.0 - (found.training_flops + found.inference_flops) / (best.training_flops + serving)
    return f"saves {human.percent(float(share[0]))} of training and serving together against training-only"


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

    from analysis import bootstrap, shapes

    def interval(values: Any) -> Interval | None:
        return bootstrap.percentile(values[1:]) if len(values) > 1 else None

    ratio = found.log_tokens - found.log_params
    columns = {"params": np.exp(found.log_params), "tokens": np.exp(found.log_tokens),
               "tokens_per_param": np.exp(ratio), "loss": found.loss}  # fmt: skip
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
        intervals={key: interval(values) for key, values in columns.items()},
        shapes=shapes.propose(float(columns["params"][0]), basis.kinds["params"], vocabulary),
        notes=notes,
    )


def act(options: Mapping[str, Any]) -> int:
    """Print the plan, and write plan.json where a folder is given."""
    if bool(options["runs"]) == bool(options["constants"]):
        raise ValueError(f"give runs= ({KEYS[0].help}) or constants= of a published law, one of the two")
    if options["runs"]:
        frame = source.load(options)
        basis = from_frame(frame, resamples=options["resamples"], seed=options["seed"], label=options["runs"])
    else:
        basis = from_constants(options["constants"])
    speed = _speed(options, basis)
    found = _plan(basis, {**options, "budget": _budget(options, basis, speed)}, speed)
    print(text(found))
    if options["out"]:
        path = Path(options["out"]) / "plan.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_suffix(".json.tmp")
        staged.write_text(json.dumps(to_json(found), indent=1, allow_nan=False) + "\n")
        staged.replace(path)
        print(f"wrote {path}")
    return 0


def _speed(options: Mapping[str, Any], basis: Basis) -> float | None:
    """Return FLOPs per second of one GPU: as given by mfu and peak, else as the runs measured."""
    if (options["mfu"] is None) != (options["peak"] is None):
        there, lacking = ("mfu", "peak") if options["peak"] is None else ("peak", "mfu")
        raise ValueError(f"{there}={options[there]} needs {lacking}= beside it (mfu=0.4 peak=989e12)")
    return options["mfu"] * options["peak"] if options["mfu"] is not None else basis.speed


def _budget(options: Mapping[str, Any], basis: Basis, speed: float | None) -> float:
    from analysis import plans

    ways = [name for name in ("budget", "gpu_hours", "params_opt") if options[name] is not None]
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(f'{w}={options[w]:g}' for w in ways)} both set the budget: give one of them")
    if not ways:
        if basis.largest is None:
            raise ValueError("budget= is missing: training compute [FLOPs], or gpu_hours= with mfu= and peak=")
        return 10.0 * basis.largest
    if ways == ["budget"]:
        return float(options["budget"])
    if ways == ["params_opt"]:
        return float(plans.budget_of(basis.constants[:1], basis.price, math.log(options["params_opt"]))[0])
    if speed is None:
        raise ValueError(
            f"gpu_hours={options['gpu_hours']:g} needs the speed of a GPU: mfu= and peak=, or runs=runs/STUDY, whose "
            "outcomes measured it"
        )
    return float(options["gpu_hours"]) * 3600.0 * speed


def text(found: Plan) -> str:
    """Return the plan as lines for a terminal."""
    unit = found.kinds["loss"]
    lines = [f"law       {found.law} {unit}", f"budget    {human.flops(found.budget_flops, 3)}" + _hours(found)]
    for option in found.options:
        lines += ["", f"{option.name}: {option.assumption}"]
        for label, name, show in (
            ("parameters", "params", human.count), ("tokens", "tokens", human.count),
            ("tokens per parameter", "tokens_per_param", human.number), (f"loss [{unit}]", "loss", _four),
        ):  # fmt: skip
            bounds = human.interval(option.intervals[name], show)
            known = "" if bounds == human.MISSING else f"  ({bounds})"
            lines.append(f"  {label:<22}{show(getattr(option, name))}{known}")
        if option.epochs is not None:
            lines.append(f"  {'epochs':<22}{human.number(option.epochs)}")
        if option.inference_flops:
            cost = f"{human.flops(option.training_flops)} and {human.flops(option.inference_flops)}"
            lines.append(f"  {'training and serving':<22}{cost}")
        if option.gpu_hours is not None:
            lines.append(f"  {'GPU-hours':<22}{human.count(option.gpu_hours)}")
        for shape in option.shapes:
            size = f"{shape.layers} layers x {shape.width} channels, {shape.heads} heads"
            lines.append(f"  {'shape, ' + shape.name:<22}{size}: {human.count(shape.params)}")
        lines += [f"  note: {note}" for note in option.notes]
    lines += ["", *(f"note: {note}" for note in found.notes)] if found.notes else []
    return "\n".join(lines).translate(human.ASCII)


def _hours(found: Plan) -> str:
    far = "" if found.extrapolation_factor is None else f", {human.factor(found.extrapolation_factor)} the largest run"
    if found.speed is None:
        return far
    return far + f"; {human.count(found.budget_flops / found.speed / 3600)} GPU-hours at {found.speed:.3g} FLOP/s a GPU"


def _four(value: object) -> str:
    return human.number(value, 4)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return arguments.run("analysis.plan", PURPOSE, KEYS, act, given, examples=EXAMPLES)


if __name__ == "__main__":
    sys.exit(main())
