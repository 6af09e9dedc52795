"""`python -m sweeps.replay curves=FILE.npz scheduler=asha_promotion,random workers=8 r=1 eta=3 seeds=50 budgets=5,10`.

Which scheduler would have been right? Each is run against the recorded curves with a virtual clock; the table says how
far the best loss seen within a budget was above the best in the table, averaged over orders of the configurations.
`python -m study export-curves STUDY FILE.npz` makes the curves of a study of your own.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("sweeps.replay.__main__")

import json
import math
import os
import random
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sweeps.replay.curves import Table, read_table
from sweeps.replay.policies import NOT_REPLAYED, POLICIES, make_policy, missing
from sweeps.replay.simulate import Cluster, Run, replay
from sweeps.schedulers.base import SchedulerOptions

ALL = ("all",)
_NAMES = textwrap.fill(", ".join(POLICIES), 79, initial_indent=" " * 23, subsequent_indent=" " * 23).strip()
HELP = f"""python -m sweeps.replay KEY=VALUE …: run schedulers on recorded learning curves.

  curves=FILE.npz      val_loss (configurations x resource), lower is better;
                       optional config, epoch_cost
  scheduler=NAME,…     {_NAMES};
                       all: all that the curves allow
  workers=8            trials trained in parallel
  r=1 eta=3            first rung [columns of val_loss]; one in eta is promoted
  seeds=50             random orders of the configurations; seed s shuffles with
                       random.Random(s)
  budgets=5,10,20,40   times the full resource of one trial, over all workers
  startup=0            cost of starting or resuming a trial on another worker
                       [columns]
  failures=0           probability that a unit is lost with its worker and
                       restarts from its checkpoint
  cost=unit            unit: every column costs 1; table: each configuration's
                       epoch_cost
  out=FILE.json        {{scheduler: {{budget: [regret of each seed]}}}}
"""


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    curves: Path
    scheduler: tuple[str, ...] = ("asha_promotion", "asha_stopping", "hyperband", "random")
    workers: int = 8
    r: int = 1
    eta: int = 3
    seeds: int = 50
    budgets: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0)
    startup: float = 0.0
    failures: float = 0.0
    cost: str = "unit"
    out: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The schedulers asked for, each once."""
        return tuple(POLICIES) if self.scheduler == ALL else tuple(dict.fromkeys(self.scheduler))


@dataclass
class Outcome:
    """One scheduler's regrets by budget, and how many trials it started and finished within the largest."""

    regrets: dict[float, list[float]] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or {"-h", "--help", "help"} & set(words):
        print(HELP)
        return 0 if words else 2
    try:
        options = parse(words)
        table = read_table(options.curves)
        if options.out is not None:
            _check_out(options.out)
        if table.left_out:
            print(
                f"{table.left_out} rows without a value in the first columns are left out: they go on from other runs"
            )
        outcomes: dict[str, Outcome] = {}
        for name in options.names:
            if options.scheduler == ALL and (lacks := missing(name, table)):
                print(f"{name:18}skipped: {lacks}")
                continue
            outcomes[name] = replayed(name, table, options)
            print(_line(name, outcomes[name]) if len(outcomes) > 1 else _head(options) + _line(name, outcomes[name]))
            if options.out is not None:  # after each: what comes to grief later costs nothing that is known
                _write(options.out, outcomes)
    except ValueError as error:
        print(f"sweeps.replay: {error}", file=sys.stderr)
        return 2
    return 0


def _check_out(out: Path) -> None:
    """Raise ValueError for a file of another kind, or that cannot be written: before minutes of work, not after."""
    if out.suffix != ".json":
        raise ValueError(f"out={out} is not allowed: what is written is JSON: name a file that ends in .json")
    if out.is_dir():
        raise ValueError(f"out={out} is a folder: name a file in it, such as {out / 'regrets.json'}")
    staged = _staged(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staged.touch()
        staged.unlink()
    except OSError as error:
        raise ValueError(f"out={out} cannot be written ({error.strerror}): name another file") from None


def _write(out: Path, outcomes: Mapping[str, Outcome]) -> None:
    staged = _staged(out)
    staged.write_text(json.dumps(as_json(outcomes), indent=1) + "\n", encoding="utf-8")
    staged.replace(out)


def _staged(out: Path) -> Path:
    return out.with_name(f".{out.name}.{os.getpid()}")


def parse(words: Sequence[str]) -> Options:
    """Return the options in key=value words; ValueError names an unknown key or a value that does not fit."""
    readers: Mapping[str, Callable[[str], Any]] = {
        "curves": Path,
        "scheduler": _names,
        "workers": int,
        "r": int,
        "eta": int,
        "seeds": int,
        "budgets": lambda text: tuple(float(part) for part in text.split(",")),
        "startup": float,
        "failures": float,
        "cost": str,
        "out": Path,
    }
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in readers:
            raise ValueError(f"{word!r} is not understood: keys are {', '.join(readers)}, given as key=value")
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise ValueError(f"{name}={text!r} does not fit: {error}") from None
    if "curves" not in values:
        raise ValueError("curves=FILE.npz is missing: the recorded curves to replay")
    options = Options(**values)
    _check(options)
    return options


def replayed(name: str, table: Table, options: Options) -> Outcome:
    """Return what a scheduler came to over all seeds; regrets are above the table's best loss."""
    configurations, R = table.losses.shape
    if options.r > R:
        raise ValueError(f"r={options.r} is above the table's {R} columns")
    if options.cost == "table" and table.cost is None:
        raise ValueError("cost=table needs the array `epoch_cost` in the curves")
    outcome = Outcome({budget: [] for budget in options.budgets})
    end = max(options.budgets) * R / options.workers
    for seed in range(options.seeds):
        order = list(range(configurations))
        random.Random(seed).shuffle(order)
        policy = make_policy(
            name, table, order, SchedulerOptions(options.r, R, options.eta, trials=configurations, seed=seed)
        )
        cost = table.cost if options.cost == "table" else None
        cluster = Cluster(options.workers, options.startup, options.failures, seed)
        run = replay(policy.scheduler, table.losses, policy.choose, end, cluster=cluster, cost=cost)
        for budget, regrets in outcome.regrets.items():
            regrets.append(run.best_seen(table.losses, budget * R / options.workers) - table.best)
        _count(outcome, run, R)
    return outcome


def as_json(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, list[float | None]]]:
    """Return {scheduler: {budget: [regret of each seed]}}; null where nothing had been seen yet."""
    return {
        name: {f"{b:g}": [x if math.isfinite(x) else None for x in xs] for b, xs in outcome.regrets.items()}
        for name, outcome in outcomes.items()
    }


def _count(outcome: Outcome, run: Run, R: int) -> None:
    ended = [part for part in run.segments if part.begin + (part.last - part.first) * part.cost <= run.until]
    outcome.started.append(len({part.trial for part in run.segments}))
    outcome.finished.append(sum(part.last == R for part in ended))


def _names(text: str) -> tuple[str, ...]:
    if text == "all":
        return ALL
    names = tuple(text.replace("|", ",").split(","))
    unknown = [name for name in names if name not in POLICIES and name not in NOT_REPLAYED]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} unknown, allowed are {', '.join(POLICIES)}")
    return names


def _check(options: Options) -> None:
    for name in ("workers", "r", "seeds"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name}={getattr(options, name)} is not allowed: it is at least 1")
    if any(not (math.isfinite(budget) and budget > 0) for budget in options.budgets):
        raise ValueError(f"budgets={','.join(f'{b:g}' for b in options.budgets)}: every one is a positive number")
    if options.startup < 0:
        raise ValueError(f"startup={options.startup:g} is not allowed: it is 0 or more")
    if not 0 <= options.failures < 1:
        raise ValueError(f"failures={options.failures:g} is not allowed: it is a probability below 1")
    if options.cost not in ("unit", "table"):
        raise ValueError(f"cost={options.cost!r} is not allowed: unit or table")


def _head(options: Options) -> str:
    columns = "".join(f"{f'{budget:g}R':>20}" for budget in options.budgets)
    return f"mean regret (standard error), {options.seeds} seeds\n{'scheduler':18}{columns}  started/finished\n"


def _line(name: str, outcome: Outcome) -> str:
    cells = ""
    for regrets in outcome.regrets.values():
        cells += f"{_mean(regrets):>20}"
    return f"{name:18}{cells}  {np.mean(outcome.started):.0f}/{np.mean(outcome.finished):.0f}"


def _mean(regrets: Sequence[float]) -> str:
    """Return the mean and its standard error; of a draw in which nothing had been seen yet, the mean is infinite."""
    if not np.isfinite(regrets).all():
        return f"{sum(map(math.isinf, regrets))} saw nothing"
    return f"{np.mean(regrets):.4f} ({np.std(regrets) / math.sqrt(len(regrets)):.4f})"
