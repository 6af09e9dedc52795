"""`python -m analysis.next`: which runs to do next, as a config that `python -m study.sweep` runs as it is."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.planning.next_runs import TELLS, Next, Share, far_off, next_runs
from analysis.planning.study_config import inherited, write
from analysis.results import load
from analysis.text import commandline, numbers
from analysis.text.commandline import Key

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
    Key("form", "law of the forecast", "chinchilla", choices=("chinchilla", "chinchilla_tied", "farseer")),
    Key("simulate", "simulated studies to compare with a grid's budget; 0: none", 100, commandline.whole),
    Key("seed", "seed of the simulation", 0, commandline.whole),
    Key("name", "study that the next runs belong to (default: the runs' own)"),
    Key("out", "folder of the configs (default reports/STUDY/next)"),
)  # fmt: skip


def act(options: Mapping[str, Any]) -> int:
    """Print the proposal and write its configs."""
    frame = load.load(options)
    asked = {
        name: options[name] for name in ("target", "budget", "largest", "count", "power", "form", "seed", "ratios")
    }
    found = next_runs(frame, simulate=options["simulate"], **asked)
    label = str(frame["study"].iloc[0])
    print(text(found, str(frame.loc[frame["used"], "loss_unit"].iloc[0])))
    if not found.runs:
        raise ValueError("no candidate fits into the budget: give a larger budget= or a smaller largest=")
    folder = Path(options["out"] or Path("reports") / label / "next")
    if any(run.width is None for run in found.runs):
        print("note: no model shape comes near some of these sizes: no config is written for python -m study.sweep")
        return 0
    write(found, folder, options["name"] or label, inherited(options["runs"]))
    print(f"\nwrote {folder}/next.yaml; look at the points first; without dry_run=true the command submits them:")
    print(f"  python -m study.sweep --config-dir {folder} --config-name next dry_run=true")
    return 0


def text(found: Next, unit: str) -> str:
    """Return the proposal as lines for a terminal."""
    low, high = (found.loss * math.exp(s * 1.96 * found.sd_now) for s in (-1, 1))
    low_after, high_after = (found.loss * math.exp(s * 1.96 * found.sd_after) for s in (-1, 1))
    lines = [
        f"target    {numbers.flops(found.target)}, {numbers.count(found.target_params)} parameters: loss "
        f"{numbers.number(found.loss, 4)} {unit}",
        f"now       {numbers.number(low, 4)} to {numbers.number(high, 4)} (95 %, "
        f"{numbers.counted(found.basins, 'basin')})",
        f"then      {numbers.number(low_after, 4)} to {numbers.number(high_after, 4)} after the runs below",
        *([f"prior     {found.prior} (published laws; the runs add to it)"] if found.prior else []),
        "",
        f"  {'':>3} {'params':>9} {'tokens':>9} {'FLOPs':>9} {'shape':>10} {'sd after':>9} {'drop per FLOP':>14}",
    ]
    for i, run in enumerate(found.runs, 1):
        shape = f"{run.width} x {run.layers}" if run.width else "-"
        lines.append(
            f"  {i:>3} {numbers.count(run.params):>9} {numbers.count(run.tokens):>9} "
            f"{numbers.scientific(run.flops):>9} {shape:>10} {numbers.percent(run.after):>9} "
            f"{numbers.scientific(run.drop_per_flop):>14}"
        )
    lines.append(f"  sum {'':>19} {numbers.scientific(sum(r.flops for r in found.runs)):>9}")
    if why := far_off(found):
        lines += ["", *textwrap.wrap(f"why: {'; '.join(why)}", 110, subsequent_indent="     ")]
    if found.simulation is not None:
        lines += ["", _simulation(found.simulation)]
    return "\n".join(lines).translate(numbers.ASCII)


def _simulation(share: Share) -> str:
    grid = f"the isoFLOP grid of {share.grid_runs} runs ({numbers.flops(share.grid_flops)})"
    spread = f"{numbers.percent(share.sd_now)} now, {numbers.percent(share.sd_grid)} by the grid"
    if share.sd_grid >= TELLS * share.sd_now:
        return (
            f"simulated: {grid} would hardly narrow the forecast ({spread}): the uncertainty there is in the "
            "form of the law so far out, which runs of this size cannot reduce"
        )
    if share.share is None:
        end = numbers.percent(share.sd_chosen)
        return f"simulated: {share.runs} chosen runs end at {end} ({spread}), not below {grid}"
    return (
        f"simulated: {numbers.counted(share.runs, 'chosen run')} with {numbers.percent(share.share)} of the FLOPs of "
        f"{grid} forecast as narrowly (sd of the loss at the target {spread}; {share.studies} studies)"
    )


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return commandline.run("analysis.next", PURPOSE, KEYS, act, given, examples=EXAMPLES)


if __name__ == "__main__":
    from analysis.text.start import start

    sys.exit(start(main, "analysis.next"))
