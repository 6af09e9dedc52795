"""`python -m analysis.plan`: from runs (or quoted constants) and a budget to what to train, under each assumption.

>>> from analysis.plan import plan
>>> law = {"E": 1.8172, "A": 477.83, "B": 2143.4, "alpha": 0.34731, "beta": 0.367172}
>>> best = plan(law, 5.76e23).options[0]
>>> f"{best.params:.2g} parameters, {best.tokens_per_param:.3g} tokens per parameter"
'7.3e+10 parameters, 17.9 tokens per parameter'
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.plan")

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.planning.basis import BESIDE, Basis, from_constants, from_frame, measured_speed
from analysis.planning.plan_text import text
from analysis.planning.scenarios import Asked, Option, OtherLaw, Plan, make
from analysis.results import as_fitted, load
from analysis.text import commandline, files, terminal
from analysis.text.commandline import Key
from analysis.values.json_values import to_json
from train.spec import calls

if TYPE_CHECKING:
    from analysis.results.load import Runs

__all__ = ["Basis", "Option", "OtherLaw", "Plan", "from_constants", "from_frame", "main", "make", "plan", "text"]

PURPOSE = "What to train with a budget: sizes, tokens and loss with intervals, under each assumption given."
EXAMPLES = (
    "python -m analysis.plan runs=runs/isoflop budget=1e15 overtrain=4 inference_tokens=1e12",
    "python -m analysis.plan runs=runs.csv flop_rule=6ND gpu_hours=5000 peak=989e12 mfu=0.4 unique_tokens=3e10",
    "python -m analysis.plan constants=E:1.69,A:406.4,B:410.7,alpha:0.336,beta:0.283 params_opt=30e9 "
    "inference_tokens=1e13",
)
KEYS = (
    Key("runs", load.RUNS.help.replace(" (required)", "")),
    *load.FURTHER,
    Key("constants", "E:..,A:..,B:..,alpha:..,beta:.. of a published law, instead of runs", {}, commandline.constants),
    Key("form", "law, by name or paper: any that reads parameters and tokens", "chinchilla"),
    Key("at", "values of other inputs of the law: experts:8", {}, commandline.constants),
    Key("beside", "other laws of N and D to compare the plan with; none: no comparison", ",".join(BESIDE)),
    Key("strict", "yes: only what may be advised: the law (converged, every constant identified, a backtest), else the "
        "valleys' best sizes; no: the law, whatever it lacks", True, commandline.switch),
    Key("budget", "training compute [FLOPs]", None, commandline.number),
    Key("gpu_hours", "training compute as GPU-hours; needs mfu and peak, or the measured speed of the runs", None,
        commandline.number),
    Key("mfu", "model FLOPs utilisation measured on your GPUs: 0.4", None, commandline.share),
    Key("peak", "peak of one GPU in the precision used [FLOP/s]: 989e12 for H100 bf16", None, commandline.number),
    Key("params_opt", "instead of a budget: the size whose compute-optimal training sets it [parameters]", None,
        commandline.number),
    Key("overtrain", "tokens per parameter as a multiple of the optimal ratio", Asked.overtrain,
        commandline.number),
    Key("inference_tokens", "tokens served over the model's life: trades training against serving", None,
        commandline.number),
    Key("unique_tokens", "number of distinct training tokens", None, commandline.number),
    Key("repeats", "R_D:..,R_N:.. half-lives of repeated data (default 15.4 and 5.31, Muennighoff et al. 2023)", {},
        commandline.constants),
    Key("vocabulary", "vocabulary size, for the shapes", Asked.vocabulary, commandline.whole),
    Key("resamples", "bootstrap resamples; 0: no intervals", 1000, commandline.resamples),
    Key("seed", "seed of the resamples", 0, commandline.whole),
    Key("out", "folder for plan.json (default: none is written)"),
)  # fmt: skip

CHOSEN = ("overtrain", "inference_tokens", "unique_tokens", "repeats", "vocabulary")


@calls.answered(
    budget=calls.flops, form=calls.text, at=calls.numbers, overtrain=calls.positive, inference_tokens=calls.positive,
    unique_tokens=calls.positive, repeats=calls.numbers, resamples=calls.resamples, seed=calls.whole(),
)  # fmt: skip
def plan(
    runs: Runs | Mapping[str, float],
    budget: float,
    *,
    form: str | None = None,
    at: Mapping[str, float] | None = None,
    overtrain: float = 4.0,
    inference_tokens: float | None = None,
    unique_tokens: float | None = None,
    repeats: Mapping[str, float] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    beside: Sequence[str] = BESIDE,
    strict: bool = True,
) -> Plan:
    """Return what to train with a budget: sizes, tokens and loss with intervals, one option an assumption.

    Options: the lowest loss; `overtrain` times the optimal tokens per parameter; the cheapest to train and serve
    `inference_tokens`; only `unique_tokens` distinct tokens. In a shell: `python -m analysis.plan`. With what `fit`
    returned the law is that of the fit: its form, loss function, constants held and valleys.

    Parameters
    ----------
    runs : str, Path, DataFrame, StudyFit or mapping
        The runs, as `fit` takes them, or what `load` or `fit` returned; or the constants of a law by name (E, A, B,
        alpha, beta).
    budget : float
        Training compute [FLOPs].
    form : str, optional
        Law that reads N and D: chinchilla (the default), chinchilla_tied, kaplan_floor, farseer, repeats, ...
    at : mapping, optional
        Values of the law's further inputs, such as bits or experts.
    overtrain : float
        Tokens per parameter, as a multiple of the optimal ratio.
    inference_tokens : float, optional
        Tokens served over the model's life.
    unique_tokens : float, optional
        Distinct training tokens there are, beyond which they are repeated.
    repeats : mapping, optional
        Half-lives R_D and R_N of repeated tokens.
    resamples, seed : int
        Bootstrap resamples of the runs, and their seed.
    beside : sequence of str
        Other laws of N and D through the same runs, whose plans are given beside.
    strict : bool
        Plan only with what may be advised: the law (converged, every constant identified, its extrapolation tested),
        else the valleys' best sizes, as `fit` does. False: with `form`, whatever it lacks; a note says what.

    Returns
    -------
    Plan
        `print` shows all of it; `frame` has a row an option, `options` the same with model shapes.

    Raises
    ------
    ValueError
        There are no such runs, nothing may be advised of them, or a number is not positive.

    Examples
    --------
    >>> import analysis as sa
    >>> sa.plan("docs/example-runs.csv", 1e22, resamples=0)
    Plan(1e22 FLOPs: N* 9.04B, D* 184B, loss 2.101; options training-only, over-trained)
    >>> law = {"E": 1.8172, "A": 477.83, "B": 2143.4, "alpha": 0.34731, "beta": 0.367172}
    >>> sa.plan(law, 5.76e23, overtrain=1).frame.round({"tokens_per_param": 1})["tokens_per_param"].to_dict()
    {'training-only': 17.9}
    """
    from analysis.laws.registry import resolve

    asked = _asked(runs, form)
    name = asked["form"]
    others = tuple(resolve(one, key="beside") for one in ([beside] if isinstance(beside, str) else beside or ()))
    if isinstance(runs, Mapping):
        calls.numbers("runs", runs)
        basis = from_constants(runs, name, at)
    else:
        frame = load.tidy(runs)
        basis = from_frame(
            frame, form=name, at=at, resamples=resamples, seed=seed, beside=others, strict=strict, asked=asked
        )
        basis = _followed(basis, runs, form)
    return make(basis, Asked(float(budget), overtrain, inference_tokens, unique_tokens, repeats or {}))


def _asked(runs: Runs | Mapping[str, float], form: str | None) -> dict[str, Any]:
    """Return how the law and the valleys are found: as the fit that is given for its runs was asked, but for `form`."""
    of_fit = as_fitted.options_of(runs)
    more = ("cluster", "valley_window", "flat_valleys")
    valleys: dict[str, Any] = {name: of_fit[name] for name in more if name in of_fit}
    return {**as_fitted.asked(runs, form=form), **valleys}


def _followed(basis: Basis, runs: object, form: str | None) -> Basis:
    """Return the basis with a note where it follows a law, and the fit that is given was asked for no law."""
    approach = as_fitted.options_of(runs).get("approach", ("3",))
    if form is not None or "3" in approach or basis.rests_on_valleys:
        return basis
    note = (
        f"the fit that is given was asked for approach={','.join(approach)}, and this plan follows a law (approach 3)"
    )
    return dataclasses.replace(basis, notes=(*basis.notes, note))


def act(options: Mapping[str, Any]) -> int:
    """Print the plan, and write plan.json where a folder is given."""
    if bool(options["runs"]) == bool(options["constants"]):
        raise ValueError(f"give runs= ({KEYS[0].help}) or constants= of a published law, one of the two")
    _check(options)
    from analysis.laws.registry import resolve

    form = resolve(options["form"])
    if options["runs"]:
        named = [] if options["beside"] == "none" else options["beside"].split(",")
        names = tuple(resolve(name, key="beside") for name in named)
        frame = load.load(options)
        _check_speed(options, measured_speed(frame))
        basis = from_frame(
            frame, form=form, at=options["at"], resamples=options["resamples"], seed=options["seed"],
            label=options["runs"], beside=names, strict=options["strict"],
        )  # fmt: skip
    else:
        _check_speed(options, None)
        basis = from_constants(options["constants"], form, options["at"])
    speed = _speed(options, basis)
    chosen = {name: options[name] for name in CHOSEN}
    found = make(basis, Asked(_budget(options, basis, speed), **chosen), speed)
    terminal.show(text(found))
    if options["out"]:
        path = Path(options["out"]) / "plan.json"
        files.write(path, json.dumps(to_json(found), indent=1, allow_nan=False) + "\n")
        print(f"wrote {path}")
    return commandline.code(basis.checks)


def _check(options: Mapping[str, Any]) -> None:
    """Raise ValueError for values that contradict each other, before laws are fitted for many seconds."""
    ways = _ways(options)
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(f'{w}={options[w]:g}' for w in ways)} both set the budget: give one of them")
    if (options["mfu"] is None) != (options["peak"] is None):
        there, lacking = ("mfu", "peak") if options["peak"] is None else ("peak", "mfu")
        raise ValueError(f"{there}={options[there]} needs {lacking}= beside it (mfu=0.4 peak=989e12)")
    if options["out"]:
        files.check_folder("out", Path(options["out"]))


def _check_speed(options: Mapping[str, Any], measured: float | None) -> None:
    """Raise ValueError where a budget in GPU-hours has no speed, before laws are fitted for many seconds."""
    if options["gpu_hours"] is not None and options["mfu"] is None and measured is None:
        raise ValueError(
            f"gpu_hours={options['gpu_hours']:g} needs the speed of a GPU: mfu= and peak=, or runs=runs/STUDY, whose "
            "outcomes measured it"
        )


def _ways(options: Mapping[str, Any]) -> list[str]:
    """Return the keys that set the budget."""
    return [name for name in ("budget", "gpu_hours", "params_opt") if options[name] is not None]


def _speed(options: Mapping[str, Any], basis: Basis) -> float | None:
    """Return FLOPs per second of one GPU: as given by mfu and peak, else as the runs measured."""
    return options["mfu"] * options["peak"] if options["mfu"] is not None else basis.speed


def _budget(options: Mapping[str, Any], basis: Basis, speed: float | None) -> float:
    from analysis.approaches import optimum

    ways = _ways(options)
    if not ways:
        if basis.top is None:
            raise ValueError("budget= is missing: training compute [FLOPs], or gpu_hours= with mfu= and peak=")
        return 10.0 * basis.top
    if ways == ["budget"]:
        return float(options["budget"])
    if ways == ["params_opt"] and basis.rests_on_valleys:
        assert basis.valleys is not None, "they are followed"
        return basis.valleys.budget_of(options["params_opt"])
    if ways == ["params_opt"]:
        assert basis.law is not None, "it is followed"
        return float(optimum.budget_of(basis.law.row(0), basis.price, math.log(options["params_opt"]))[0])
    assert speed is not None, "it was checked"
    return float(options["gpu_hours"]) * 3600.0 * speed


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commandline.run("analysis.plan", PURPOSE, KEYS, act, given, examples=EXAMPLES)
