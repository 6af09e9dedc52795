"""`python -m analysis.backtest`: the largest budgets predicted from the smaller ones."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.backtest")

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.diagnostics import at_rows
from analysis.diagnostics.backtest import FEWEST_RUNS, judged
from analysis.diagnostics.exponent import DRIFT
from analysis.estimation.losses import LOSSES
from analysis.laws.registry import FORMS
from analysis.results import as_fitted, load
from analysis.text import commandline, numbers, terminal
from analysis.text.commandline import Key
from analysis.values.json_values import to_json
from analysis.values.study_result import Cut
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    from analysis.results.load import Runs

__all__ = ["KEYS", "backtest", "main", "text"]


def _delta(name: str, value: object) -> None:
    """Check Huber's delta."""
    if value != "squared":
        try:
            calls.positive(name, value)
        except ValueError as error:
            raise ValueError(f'{error} of log residual, such as 0.001, or "squared"') from None


def text(cuts: Sequence[Cut], reasons: Sequence[str] = ()) -> str:
    """Return the rolling backtest as lines for a terminal; `reasons` are why cuts have no exponent."""
    head = f"{'fitted up to':>14} {'runs':>5} {'exponent a':>11} {'factor':>8} {'runs above':>11}"
    lines = [f"{head} {'mean |error|':>13} {'largest run':>12}"]
    for cut in cuts:
        last, miss = cut.runs[-1]
        lines.append(
            f"{numbers.flops(cut.flops):>14} {cut.rows:>5} {numbers.number(cut.a):>11} "
            f"{numbers.factor(last / cut.flops):>8} {len(cut.runs):>11} "
            f"{numbers.percent(cut.mean_abs_relative_error):>13} {100 * miss:>+10.2f} %"
        )
    said = [_unidentified(cuts, reasons, why) for why in dict.fromkeys(reasons) if why]
    known = [cut.a for cut in cuts if cut.a is not None]
    if len(known) > 1:
        moved = f"a lies between {min(known):.3f} and {max(known):.3f} over the cuts"
        said.append(moved + (": it drifts, so extrapolate with care" if max(known) - min(known) > DRIFT else ""))
    return "\n".join([*lines, *([""] if said else []), *said]).translate(numbers.ASCII)


def _unidentified(cuts: Sequence[Cut], reasons: Sequence[str], why: str) -> str:
    """Return the line that says which cuts have no exponent for this reason."""
    ends = [numbers.flops(cut.flops) for cut, one in zip(cuts, reasons, strict=True) if one == why]
    where = "" if len(ends) == len(cuts) else f" up to {', '.join(ends)}"
    return f"a is not identified{where}: {why}"


@calls.answered(form=calls.text, cuts=calls.whole(1), loss=calls.one_of(*LOSSES), delta=_delta, fix=calls.numbers)
def backtest(
    runs: Runs,
    form: str | None = None,
    *,
    cuts: int = 8,
    loss: str | None = None,
    delta: float | str | None = None,
    fix: Mapping[str, float] | None = None,
    tie: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Return how well a law that is fitted to the smaller runs predicts the larger ones, one row a cut of compute.

    In a shell: `python -m analysis.backtest`. Of what `fit` returned, the law is tested as it was fitted: what is not
    given is the fit's.

    Parameters
    ----------
    runs : str, Path, DataFrame or StudyFit
        The runs, as `fit` takes them, or what `load` or `fit` returned.
    form : str, optional
        Law to test, by its name, paper or formula; by default chinchilla.
    cuts : int
        Largest number of cuts.
    loss : str, optional
        Loss function on log residuals, as `fit` takes it; by default "huber".
    delta : float or "squared", optional
        Huber's delta on log residuals, by default 0.001; "squared" for least squares.
    fix, tie : mapping, optional
        Constants held at values, and made equal to others; of another form than the fit's none is unless given.

    Returns
    -------
    DataFrame
        fitted_up_to [FLOPs], runs (fitted), a (exponent of N*), factor (largest run over the cut), runs_above,
        mean_abs_error and largest_run_error (relative, of the loss; positive where the prediction is too high), and
        no_a: why there is no exponent, where the runs up to the cut do not identify it.

    Raises
    ------
    ValueError
        There are no such runs, or too few of them for a cut.

    Examples
    --------
    >>> import analysis as sa
    >>> sa.backtest("docs/example-runs.csv")["runs"].tolist()
    [10, 15, 20]
    """
    import pandas as pd

    asked = as_fitted.asked(runs, form=form, loss=loss, delta=delta, fix=fix, tie=tie)
    found = _cuts(load.tidy(runs), "these runs", cuts, asked)
    return pd.DataFrame([_row(cut, why) for cut, why in found])


def _row(cut: Cut, why: str) -> dict[str, Any]:
    """Return a cut as a row of the table; `why` it has no exponent."""
    return {
        "fitted_up_to": cut.flops,
        "runs": cut.rows,
        "a": math.nan if cut.a is None else cut.a,
        "factor": cut.runs[-1][0] / cut.flops,
        "runs_above": len(cut.runs),
        "mean_abs_error": cut.mean_abs_relative_error,
        "largest_run_error": cut.runs[-1][1],
        "no_a": why,
    }


def _cuts(frame: pd.DataFrame, what: str, cuts: int, asked: Mapping[str, Any]) -> Sequence[tuple[Cut, str]]:
    """Return the rolling backtest, each cut with why it has no exponent; ValueError where the runs leave no cut.

    `asked` has the law's name as form, loss, delta, fix and tie.
    """
    from analysis.inputs.frame import used
    from analysis.results.study_fit import criterion, held

    rows, name = used(frame), asked["form"]
    found = judged(rows, criterion(asked), int(cuts), name, **held(asked))
    if not found:
        raise ValueError(
            f"{what}: {numbers.counted(len(rows), 'run')} at {numbers.counted(len(rows.labels), 'budget')} leave no "
            f"cut with {max(FEWEST_RUNS, len(FORMS[name].names) + 2)} runs of 3 sizes below and one above"
        )
    return found


def act(options: Mapping[str, Any]) -> int:
    """Print the rolling backtest, and write backtest.json where a folder is given."""
    from analysis.laws.registry import resolve

    name = resolve(options["form"])
    frame = load.load(options)
    found = _cuts(frame, f"runs={options['runs']}", int(options["cuts"]), {**options, "form": name})
    cuts, reasons = zip(*found, strict=True)
    checks = at_rows.findings(frame, name)
    for check in checks:
        terminal.show(str(check))
    terminal.show(f"{FORMS[name].text}\n\n{text(cuts, reasons)}")
    if options["out"]:
        path = Path(options["out"]) / "backtest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [{**to_json(cut), "no_a": why} for cut, why in found]
        path.write_text(json.dumps({"form": FORMS[name].text, "cuts": kept}, indent=1) + "\n")
        print(f"wrote {path}")
    return commandline.code(checks)


PURPOSE = "Fit up to a cut of compute, predict above it, for rising cuts: the honest size of an extrapolation's error."
KEYS = (
    *load.KEYS,
    Key("form", "law to test, by name or paper", "chinchilla"),
    Key("fix", "constants held fixed: E:1.7,alpha:0.34", {}, commandline.constants),
    Key("tie", "constants made equal: beta:alpha", {}, commandline.names),
    Key("cuts", "largest number of cuts", 8, commandline.whole),
    Key("loss", "loss function on log residuals; linear: squared plain residuals", "huber", choices=tuple(LOSSES)),
    Key("delta", "Huber's delta on log residuals; squared: least squares", "0.001"),
    Key("out", "folder for backtest.json (default: none is written)"),
)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commandline.run("analysis.backtest", PURPOSE, KEYS, act, given)
