"""`python -m analysis.backtest`: the largest budgets predicted from the smaller ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.diagnostics.backtest import DRIFT, FEWEST_RUNS, rolling
from analysis.estimation import objectives
from analysis.laws.registry import FORMS
from analysis.results import load
from analysis.text import commandline, numbers
from analysis.text.commandline import Key
from analysis.values.json_values import to_json
from analysis.values.study_result import Cut


def text(cuts: Sequence[Cut]) -> str:
    """Return the rolling backtest as lines for a terminal."""
    head = f"{'fitted up to':>14} {'runs':>5} {'exponent a':>11} {'factor':>8} {'runs above':>11}"
    lines = [f"{head} {'mean |error|':>13} {'largest run':>12}"]
    for cut in cuts:
        last, miss = cut.runs[-1]
        lines.append(
            f"{numbers.flops(cut.flops):>14} {cut.rows:>5} {numbers.number(cut.a):>11} "
            f"{numbers.factor(last / cut.flops):>8} {len(cut.runs):>11} "
            f"{numbers.percent(cut.mean_abs_relative_error):>13} {100 * miss:>+10.2f} %"
        )
    known = [cut.a for cut in cuts if cut.a is not None]
    if len(known) > 1:
        moved = f"a lies between {min(known):.3f} and {max(known):.3f} over the cuts"
        lines += ["", moved + (": it drifts, so extrapolate with care" if max(known) - min(known) > DRIFT else "")]
    return "\n".join(lines).translate(numbers.ASCII)


def act(options: Mapping[str, Any]) -> int:
    """Print the rolling backtest, and write backtest.json where a folder is given."""
    from analysis.inputs import frame
    from analysis.laws.registry import resolve

    name = resolve(options["form"])
    rows = frame.used(load.load(options))
    loss: objectives.Loss = (
        objectives.Squared() if options["delta"] == "squared" else objectives.Huber(float(options["delta"]))
    )
    cuts = rolling(rows, loss, int(options["cuts"]), name, fix=options["fix"], tie=options["tie"])
    if not cuts:
        raise ValueError(
            f"runs={options['runs']}: {numbers.counted(len(rows), 'run')} at "
            f"{numbers.counted(len(rows.labels), 'budget')} leave no cut with "
            f"{max(FEWEST_RUNS, len(FORMS[name].names) + 2)} runs of 3 sizes below and one above"
        )
    print(f"{FORMS[name].text}\n\n{text(cuts)}")
    if options["out"]:
        path = Path(options["out"]) / "backtest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"form": FORMS[name].text, "cuts": to_json(cuts)}, indent=1) + "\n")
        print(f"wrote {path}")
    return 0


PURPOSE = "Fit up to a cut of compute, predict above it, for rising cuts: the honest size of an extrapolation's error."
KEYS = (
    *load.KEYS,
    Key("form", "law to test, by name or paper", "chinchilla"),
    Key("fix", "constants held fixed: E:1.7,alpha:0.34", {}, commandline.constants),
    Key("tie", "constants made equal: beta:alpha", {}, commandline.names),
    Key("cuts", "largest number of cuts", 8, commandline.whole),
    Key("delta", "Huber's delta on log residuals; squared: least squares", "0.001"),
    Key("out", "folder for backtest.json (default: none is written)"),
)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commandline.run("analysis.backtest", PURPOSE, KEYS, act, given)


if __name__ == "__main__":
    from analysis.text.start import start

    sys.exit(start(main, "analysis.backtest"))
