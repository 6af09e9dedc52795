"""`python -m analysis.next`: which runs to do next, as a config that `python -m study.sweep` runs as it is."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.next")

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.planning.next_text import text
from analysis.planning.study_config import inherited, write, write_numbers
from analysis.results import as_fitted, load
from analysis.text import commandline, terminal
from analysis.text.commandline import Key
from train.spec import calls

if TYPE_CHECKING:
    from analysis.planning.next_runs import Next
    from analysis.results.load import Runs

__all__ = ["KEYS", "main", "next_runs", "text"]

PURPOSE = (
    "The runs that tell most about the loss at a target budget, chosen one after another by the expected drop of the\n"
    "forecast's variance for their FLOPs, and the folder of configs for python -m study.sweep."
)
EXAMPLES = (
    "python -m analysis.next runs=runs/isoflop target=1e15 budget=2e13",
    "python -m study.sweep --config-dir reports/isoflop/next --config-name next dry_run=true",
)


def _ratios(key: Key, text: str) -> tuple[float, float]:
    """Read two positive numbers, the lower one first."""
    low, found, high = text.partition(":")
    if not found:
        raise ValueError(f"{key.name}={text}: two numbers are needed, such as 2:200 ({key.help})")
    both = commandline.number(key, low), commandline.number(key, high)
    if not both[0] < both[1]:
        raise ValueError(f"{key.name}={text}: the lower one comes first ({key.help})")
    return both


def _pair(name: str, value: object) -> None:
    """Check the least and the most tokens per parameter."""
    two = list(value) if isinstance(value, (tuple, list)) else []
    for end in two:
        calls.positive(name, end)
    if len(two) != 2 or not two[0] < two[1]:
        raise ValueError(f"{name}={calls.shown(value)}: two numbers are needed, the lower one first, such as (2, 200)")


FORMS = ("chinchilla", "chinchilla_tied", "farseer")
"""Laws that a forecast can rest on."""
KEYS = (
    *load.KEYS,
    Key("target", "compute at which to forecast the loss [FLOPs], beyond the runs (default 10 times the largest)", None,
        commandline.number),
    Key("budget", "compute for the next runs together [FLOPs] (default twice the largest run)", None,
        commandline.number),
    Key("largest", "compute of the largest next run [FLOPs] (default: the budget, else that of the largest run)", None,
        commandline.number),
    Key("count", "largest number of runs to propose", 8, commandline.whole),
    Key("power", "rank by drop / FLOPs^power (default: the best batch of 1, 0.4 and 0)", None,
        lambda key, text: 0.0 if text in ("0", "0.0") else commandline.number(key, text)),
    Key("ratios", "tokens per parameter of candidates, LOW:HIGH (default 1:3000, and what the runs have)", None,
        _ratios),
    Key("form", "law of the forecast", "chinchilla", choices=FORMS),
    Key("simulate", "simulated studies to compare with a grid's budget; 0: none", 100, commandline.whole),
    Key("seed", "seed of the simulation", 0, commandline.whole),
    Key("name", "study that the next runs belong to (default: the runs' own)"),
    Key("out", "folder of the configs and of next.json, all numbers (default reports/STUDY/next)"),
)  # fmt: skip


def act(options: Mapping[str, Any]) -> int:
    """Print the proposal and write its configs, and next.json beside them or where a folder is given."""
    from analysis.inputs.large import refuse_weighed

    frame = load.load(options)
    refuse_weighed(frame, options["thin"] or 1)
    asked = {
        name: options[name] for name in ("target", "budget", "largest", "count", "power", "form", "seed", "ratios")
    }
    found = next_runs(frame, simulate=options["simulate"], **asked)
    label = str(frame["study"].iloc[0])
    terminal.show(text(found))
    if not found.runs:
        raise ValueError("no candidate fits into the budget: give a larger budget= or a smaller largest=")
    folder = Path(options["out"] or Path("reports") / label / "next")
    if any(run.width is None for run in found.runs):
        if options["out"]:
            write_numbers(found, folder)
        terminal.show(
            "note: no model shape comes near some of these sizes: no config is written for python -m study.sweep"
        )
        return commandline.code(found.checks)
    write(found, folder, options["name"] or label, inherited(options["runs"]))
    write_numbers(found, folder)
    terminal.show(
        f"\nwrote {folder}/next.yaml and next.json; look at the points first; without dry_run=true the command submits "
        "them:"
    )
    terminal.show(f"  python -m study.sweep --config-dir {folder} --config-name next dry_run=true")
    return commandline.code(found.checks)


@calls.answered(
    target=calls.flops, budget=calls.flops, largest=calls.flops, count=calls.whole(1), power=calls.not_negative,
    form=calls.one_of(*FORMS), simulate=calls.whole(), seed=calls.whole(), ratios=_pair,
)  # fmt: skip
def next_runs(
    runs: Runs,
    *,
    target: float | None = None,
    budget: float | None = None,
    largest: float | None = None,
    count: int = 8,
    power: float | None = None,
    form: str | None = None,
    simulate: int = 0,
    seed: int = 0,
    ratios: tuple[float, float] | None = None,
) -> Next:
    """Return the runs to do next: those that tell most about the loss at a target budget, in the order of choice.

    In a shell: `python -m analysis.next`, which also writes their configs.

    Parameters
    ----------
    runs : str, Path, DataFrame or StudyFit
        The runs done, as `fit` takes them, or what `load` or `fit` returned.
    target, budget, largest : float, optional
        Budget to forecast, above every run's compute (default 10 times the largest); compute of all next runs together
        (default twice the largest run's), and of the largest one [FLOPs].
    count : int
        Most runs to propose.
    power : float, optional
        Candidates are ranked by drop / FLOPs^power; without it the best of several powers is taken.
    form : str, optional
        Law of the forecast: chinchilla, chinchilla_tied or farseer; by default that of a fit that is given, else
        chinchilla.
    simulate, seed : int
        Simulated studies for the share of a grid's budget that reaches the same interval (0: none), and their seed.
    ratios : pair of float, optional
        Least and most tokens per parameter of candidates; without them 1 to 3000, and what the runs have.

    Returns
    -------
    Next
        `print` shows the proposal; `frame` has a row a run.

    Raises
    ------
    ValueError
        The target is not beyond the runs, there are too few of them, all have one loss, no candidate fits into the
        budget, or a fit is given whose law makes no forecast.

    Warns
    -----
    UserWarning
        A fit is given that was asked for another loss function or for constants held: no forecast is made with them.

    Examples
    --------
    >>> import analysis as sa
    >>> len(sa.next_runs("docs/example-runs.csv", target=1e22, count=2).frame)
    2
    """
    from analysis.planning.next_runs import next_runs as chosen

    return chosen(
        load.tidy(runs), target=target, budget=budget, largest=largest, count=count, power=power,
        form=_form(runs, form), simulate=simulate, seed=seed, ratios=ratios,
    )  # fmt: skip


def _form(runs: Runs, form: str | None) -> str:
    """Return the law of the forecast: the one given, else that of a fit given for its runs.

    ValueError where no forecast is made with the fit's; a warning says what of the fit a forecast leaves out.
    """
    asked = as_fitted.asked(runs, form=form)
    if asked["form"] not in FORMS:
        raise ValueError(
            f"the fit that is given is of form={asked['form']}, and forecasts are made with {', '.join(FORMS)}: give "
            f"form= one of these"
        )
    if said := as_fitted.told(asked):
        warnings.warn(f"the forecast is without {said} of the fit that is given", stacklevel=4)
    return str(asked["form"])


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commandline.run("analysis.next", PURPOSE, KEYS, act, given, examples=EXAMPLES)
