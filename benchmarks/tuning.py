"""The measured examples of docs/tuning.md: small models on Python sources, each setting with several seeds, on a CPU.

`python -m benchmarks.tuning [SECTION …]` trains what is not trained yet, in runs/, and prints a table for each section.
Differences are from a section's reference setting, seed by seed, so that what a seed does to every setting cancels.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from study.text import aligned
from train.spec.command_line import Parser

SMALL = ("study=lr", "data=bytes", "model.head_dim=4", "budget.tokens=200000", "eval.count=1")
"""What all have in common: one token per byte, as in the main study, and one evaluation, at the end."""
QUIET = ("tracking.enabled=false", "wait=true", "cluster.slots=4")
SEEDS = "seed=0,1,2"
CONFIDENCE = 0.95
SHORT = 64
"""Positions at the start of a validation sequence by which models of all lengths are compared: the first range of those
of eval.by_position, or all of the shortest sequence [tokens]."""
VALIDATION = 1 << 20
"""Validation text of the models of all lengths [tokens]: most of the corpus has to be read, for sequences of different
lengths are spread over it differently, and a small part would not be the same text for all."""


@dataclass(frozen=True)
class Section:
    """A section of the page. commands: the words of each sweep. columns: keys whose values a row is of.

    reference: values with which others are compared, of columns in which a row may differ from it; in the others it is
    as the row.
    """

    name: str
    commands: tuple[str, ...]
    columns: tuple[str, ...]
    reference: Mapping[str, str]


SECTIONS = (
    Section(
        "rates",
        ("-m model.width=16,48 optim.lr_scale=0.25,0.5,1,2,4 seed=0,1,2,3",),
        ("model.width", "optim.lr_scale"),
        {"optim.lr_scale": "1"},
    ),
    Section(
        "batches",
        (f"model.width=32 -m batch.tokens=1024,8192 optim.lr_scale=0.5,1,2 {SEEDS}",),
        ("batch.tokens", "optim.lr_scale"),
        {"batch.tokens": "1024", "optim.lr_scale": "1"},
    ),
    Section(
        "warmups",
        (f"model.width=32 -m optim.lr_scale=1,4 schedule.warmup_fraction=0,0.05,0.2 {SEEDS}",),
        ("optim.lr_scale", "schedule.warmup_fraction"),
        {"schedule.warmup_fraction": "0.05"},
    ),
    Section(
        "decays",
        (f"model.width=32 schedule.final_lr_fraction=0 -m schedule=constant,cosine,linear,wsd {SEEDS}",),
        ("schedule",),
        {"schedule": "cosine"},
    ),
    Section(
        "clips",
        (f"model.width=32 optim.lr_scale=4 -m optim.grad_clip=0,0.1,1 {SEEDS}",),
        ("optim.grad_clip",),
        {"optim.grad_clip": "1"},
    ),
    Section(
        "lengths",
        tuple(
            f"model.width=32 batch.tokens=768 data.sequence_length={length} eval.sequences={VALIDATION // length} "
            f"eval.by_position={parts} -m {SEEDS}"
            for length, parts in ((SHORT, 1), (2 * SHORT, 2), (4 * SHORT, 3))
        ),
        ("data.sequence_length",),
        {"data.sequence_length": "128"},
    ),
)


def sweep(section: Section, command: str) -> list[str]:
    """Return the words of a section's sweep."""
    before, _, after = command.partition("-m ")
    return [*SMALL, f"study.name={section.name}", *shlex.split(before), *QUIET, "-m", *shlex.split(after)]


@dataclass(frozen=True)
class Trained:
    """A run that came to its end. setting: by column. lr: its peak. loss: of validation [nats per token].

    clipped: share of logged steps whose gradient norm was above the clip. first: the loss of the first SHORT positions,
    where validation was by position.
    """

    setting: tuple[str, ...]
    seed: int
    lr: float
    batch: int
    steps: int
    loss: float
    clipped: float
    first: float | None


def trained(section: Section, folder: Path) -> list[Trained]:
    """Return the runs of a section's study that came to their end."""
    found = []
    for line in (folder / "points.jsonl").read_text(encoding="utf-8").splitlines():
        point = json.loads(line)
        run = folder / point["key"]
        if (run / "outcome.json").is_file():
            found.append(_trained(section, point, run))
    return found


def _trained(section: Section, point: Mapping[str, Any], run: Path) -> Trained:
    config, outcome = point["config"], json.loads((run / "outcome.json").read_text(encoding="utf-8"))
    records = list(map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    norms = [one["metrics"]["grad_norm"] for one in records if one["kind"] == "train"]
    clip = config["optim"]["grad_clip"] or math.inf
    validation = [one["metrics"] for one in records if one["kind"] == "validation"][-1]
    return Trained(
        setting=tuple(_value(point, name) for name in section.columns),
        seed=config["seed"],
        lr=config["optim"]["lr"],
        batch=config["batch"]["tokens"],
        steps=outcome["step"],
        loss=outcome["loss"]["validation_nats_per_token"],
        clipped=sum(norm > clip for norm in norms) / len(norms),
        first=validation.get("loss/position_0", validation["loss"]) if config["eval"]["by_position"] else None,
    )


def _value(point: Mapping[str, Any], name: str) -> str:
    """Return what a point has of a key: as it was swept, for a factor on the learning rate is folded into it."""
    swept = dict(word.split("=", 1) for word in point["overrides"])
    part, _, key = name.partition(".")
    return swept[name] if name in swept else str(point["config"][part][key])


def table(section: Section, runs: Sequence[Trained]) -> list[list[str]]:
    """Return a row for each setting, by seeds: mean and standard deviation, and the difference from the reference."""
    by: dict[tuple[str, ...], dict[int, Trained]] = {}
    for one in runs:
        by.setdefault(one.setting, {})[one.seed] = one
    lines = [[*section.columns, "lr", "batch", "steps", "loss", "sd", "difference", "interval", "clipped"]]
    by_position = any(one.first is not None for one in runs)
    lines[0] += [f"first {SHORT}", "difference", "interval"] if by_position else []
    for setting, seeds in by.items():
        reference = by[tuple(section.reference.get(n, v) for n, v in zip(section.columns, setting, strict=True))]
        some = next(iter(seeds.values()))
        losses = {seed: one.loss for seed, one in seeds.items()}
        line = [*setting, f"{some.lr:.3g}", f"{some.batch}", f"{some.steps}"]
        line += _figures(losses, {seed: one.loss for seed, one in reference.items()})
        line.append(f"{statistics.mean(one.clipped for one in seeds.values()):.0%}")
        if by_position:
            first = {seed: one.first or math.nan for seed, one in seeds.items()}
            mean, _, *rest = _figures(first, {seed: one.first or math.nan for seed, one in reference.items()})
            line += [mean, *rest]
        lines.append(line)
    return lines


def _figures(losses: Mapping[int, float], reference: Mapping[int, float]) -> list[str]:
    """Return mean, standard deviation, and the mean difference by seed with its interval; "-" for the reference."""
    spread = f"{statistics.stdev(losses.values()):.3f}" if len(losses) > 1 else "-"
    found = [f"{statistics.mean(losses.values()):.3f}", spread]
    apart = [losses[seed] - reference[seed] for seed in losses if seed in reference]
    if losses == reference or len(apart) < 2:
        return [*found, "-", "-"]
    middle = statistics.mean(apart)
    reach = float(student.ppf(0.5 + CONFIDENCE / 2, len(apart) - 1)) * statistics.stdev(apart) / math.sqrt(len(apart))
    return [*found, f"{middle:+.3f}", f"{middle - reach:+.3f} to {middle + reach:+.3f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the tables."""
    parser = Parser(prog="python -m benchmarks.tuning", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(one.name for one in SECTIONS)}; default: all")
    options = parser.parse_args(arguments)
    names = [one.name for one in SECTIONS]
    if unknown := [name for name in options.sections if name not in names]:
        parser.error(f"there is no section {unknown[0]}: choose among {', '.join(names)}")
    print(
        f"loss: validation [nats per byte], mean over seeds; sd: over seeds; interval: {CONFIDENCE:.0%}, by Student's t"
    )
    for section in SECTIONS:
        if options.sections and section.name not in options.sections:
            continue
        print()
        for command in section.commands:
            words = sweep(section, command)
            subprocess.run([sys.executable, "-m", "study.sweep", *words], check=True, stdout=sys.stderr)
            print(f"$ python -m study.sweep {shlex.join(words)}")
        runs = trained(section, Path("runs") / section.name)
        seconds = "\n".join(aligned(table(section, runs), right=range(99)))
        print(seconds)


if __name__ == "__main__":
    main()
