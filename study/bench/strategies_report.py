"""What strategies did, side by side: tables for a terminal and a page, rows for a spreadsheet, a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.text import numbers
from study.bench import strategies_losses as losses
from study.bench.strategies_failures import Failure
from study.bench.strategies_runs import Row
from study.bench.strategies_settings import TRACED, Asked
from study.text import aligned, human, percent
from train.spec.counts import params

MIB, GIB = 1 << 20, 1 << 30
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")


@dataclass(frozen=True)
class Found:
    """All that was found. machine, versions, load, date: what it was measured on, and when."""

    machine: str
    versions: str
    load: str
    date: str
    rows: Sequence[Row]
    failures: Sequence[Failure]


def parity(rows: Sequence[Row]) -> dict[str, float]:
    """Return by strategy how far its last losses are from the first one's, relative to them (strategies_losses)."""
    return _beside_first(rows, losses.apart)


def most_apart(rows: Sequence[Row]) -> dict[str, float]:
    """Return by strategy the most that the loss of a step is from the first one's, relative to it."""
    return _beside_first(rows, losses.most_apart)


def _beside_first(rows: Sequence[Row], how: Callable[[Sequence[float], Sequence[float]], float]) -> dict[str, float]:
    whole = [row for row in rows if row.losses]
    return {row.strategy: how(row.losses, whole[0].losses) for row in whole}


def bound(asked: Asked) -> float:
    """Return how far losses may be apart."""
    return losses.bound(asked.base.precision.name)


def _shown(difference: float) -> str:
    """Return how far losses are apart, which may be infinitely far: of a loss that is none."""
    return numbers.number(difference, 2) if math.isfinite(difference) else str(difference)


def problems(asked: Asked, found: Found) -> list[str]:
    """Return what needs attention: strategies that failed, losses that differ, losses that rise."""
    failed = [f"{row.strategy} failed: {row.error}" for row in found.rows if row.error]
    whole = [row for row in found.rows if row.losses]
    far = [
        f"the last losses of {name} differ by {_shown(apart)} from those of {whole[0].strategy}, "
        f"more than {_shown(bound(asked))}"
        for name, apart in parity(found.rows).items()
        if not apart <= bound(asked)
    ]
    rises = [(row.strategy, rise) for row in whole if (rise := losses.rise(row.losses)) is not None]
    unsteady = [
        f"the loss of {name} rises by {percent(by)} at step {step}: in an unsteady run small differences grow; try a "
        "smaller optim.lr or a larger schedule.warmup_fraction"
        for name, (step, by) in rises
    ]
    return failed + far + unsteady


def about(asked: Asked, found: Found) -> str:
    """Return on what, and what, was measured."""
    model, batch = asked.base.model, asked.base.batch.tokens
    count = params(model, asked.base.data.vocab_size).total
    return (
        f"{found.date}: {asked.ranks} ranks over {asked.backend}; {found.machine}, load {found.load}; "
        f"{found.versions}. A model of width {model.width} with {model.layers} layers ({human(count)} parameters, "
        f"{asked.base.precision.name}), {batch:,} tokens a step in sequences of {asked.base.data.sequence_length}, "
        f"micro-batches of {asked.base.parallel.micro_batch_sequences}, seed {asked.base.seed}. "
        f"{asked.steps} timed steps (median), {TRACED} traced steps after them. Learning rate "
        f"{numbers.number(asked.base.optim.lr or 0.0, 2)}, reached after {_warm(asked)} of {asked.all_steps} steps."
    )


def about_failures(asked: Asked) -> str:
    """Return in what failures were caused."""
    model, patient = asked.patient().base.model, asked.patient()
    return (
        f"Failures are caused in a model of width {model.width} with {model.layers} layers, {patient.batch:,} tokens a "
        f"step. A rank that outlives a failed one by {asked.hang:g} s is ended, each failure has {asked.limit:g} s."
    )


def _warm(asked: Asked) -> int:
    """Return after how many steps the learning rate is no longer warmed up."""
    return math.ceil(asked.base.schedule.warmup_fraction * asked.all_steps)


def cells(asked: Asked, rows: Sequence[Row]) -> list[list[str]]:
    """Return the table of the rows that were measured, with its head: one column a strategy."""
    done = [row for row in rows if row.error is None]
    apart, most = parity(rows), most_apart(rows)
    gpu = any(row.memory_gpu is not None for row in done)
    lines: list[list[str]] = [["", *(row.strategy for row in done)]]

    def line(name: str, *values: str) -> None:
        lines.append([name, *values])

    line("tokens/s", *(f"{row.tokens_per_second:,.0f}" for row in done))
    line("step [ms]", *(_ms(row.seconds_step) for row in done))
    line("its interquartile range", *(percent(row.spread or 0.0) for row in done))
    if gpu:
        line("GPU memory at the peak [GiB]", *(_size(row.memory_gpu, GIB) for row in done))
    line("tensors at the peak, predicted [MiB]", *(_size(row.memory_predicted, MIB) for row in done))
    line("resident peak of a process [MiB]", *(_size(row.resident, MIB) for row in done))
    line("of it as training begins [MiB]", *(_size(row.resident_before, MIB) for row in done))
    line("messages of a step, predicted", *(str(row.messages) for row in done))
    line("counted in the traces", *(f"{row.counted:.4g}" for row in done))
    line("sent by a rank and step [MiB]", *(_size(row.sent, MIB) for row in done))
    line("traced step [ms]", *(_ms(row.traced_step) for row in done))
    line("exposed communication [ms]", *(_ms(row.exposed) for row in done))
    line("overlap", *("-" if row.overlap is None else percent(row.overlap) for row in done))
    line("last loss", *(f"{row.losses[-1]:.6f}" for row in done))
    line("last losses apart", *(_shown(apart[row.strategy]) for row in done))
    line("of one step, at most", *(_shown(most[row.strategy]) for row in done))
    return lines


def sentences(asked: Asked, found: Found) -> list[str]:
    """Return what the table does not say: failed strategies, whether losses agree, what a figure is."""
    lines = list(problems(asked, found))
    if len(parity(found.rows)) > 1 and not any("differ" in line for line in lines):
        count = len(losses.last(range(asked.all_steps)))
        lines.append(
            f"the means of the last {count} losses agree within {_shown(bound(asked))} of the first strategy's, which "
            f"is what rounding allows in {asked.base.precision.name}"
        )
    lines.append(
        "exposed: messages are under way, or another rank is waited for, and nothing is calculated; counted: with the "
        "flags that ranks exchange between steps, which the prediction leaves out"
    )
    return lines


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Return what happened where failures were planted, as lines of text."""
    lines: list[str] = []
    for one in failures:
        lines += ["", f"{one.strategy}: {one.failure}"]
        lines += [f"  {name}: {said}" if name else f"  {said}" for name, said in _sentences(one) if said]
    return lines


def _sentences(one: Failure) -> list[tuple[str, str]]:
    if one.planted is None:
        return [("", one.happened)]
    change = one.change
    same = "" if change is None else f"{_shown(change)} apart"
    same = "bit for bit those of the undisturbed run" if change == 0 else same
    others = "" if one.seconds is None else f"{one.seconds:.1f} s after it"
    return [
        ("planted", one.planted),
        ("ranks", ", ".join(f"{number}: {how}" for number, how in enumerate(one.codes))),
        ("the others ended", others),
        ("said", one.happened),
        ("started again", one.afterwards),
        ("steps lost", "" if one.lost is None else str(one.lost)),
        ("losses since", same),
    ]


def as_text(asked: Asked, found: Found) -> list[str]:
    """Return all of it as lines of text."""
    lines = [about(asked, found), ""]
    if any(row.error is None for row in found.rows):
        shown = cells(asked, found.rows)
        lines += [*aligned(shown, right=range(1, len(shown[0]))), ""]
    caused = ["", about_failures(asked)] if found.failures else []
    return lines + sentences(asked, found) + caused + failure_lines(found.failures)


def as_markdown(asked: Asked, found: Found, picture: str, command: str) -> str:
    """Return all of it as a page."""
    lines = ["# Strategies of data parallelism", "", about(asked, found), "", f"    {command}", ""]
    if any(row.error is None for row in found.rows):
        head, *rest = cells(asked, found.rows)
        lines += [_row(head), _row(["---", *["---:"] * (len(head) - 1)]), *map(_row, rest), ""]
        lines += [f"![Throughput, memory and a traced step by strategy]({picture})", ""]
    lines += [f"- {line}" for line in sentences(asked, found)]
    if found.failures:
        lines += ["", "## Failures", "", about_failures(asked), ""]
        lines += [_row(["strategy", "failure", "what was seen"]), _row(["---"] * 3)]
        for one in found.failures:
            said = "; ".join(f"{name}: {said}" if name else said for name, said in _sentences(one) if said)
            lines.append(_row([one.strategy, one.failure, said]))
    return "\n".join(lines) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows for a spreadsheet, without losses of single steps and paths."""
    out = io.StringIO()
    names = [name for name in Row.__dataclass_fields__ if name not in ("losses", "traces")]
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(vars(row) for row in rows)
    return out.getvalue()


def draw(asked: Asked, rows: Sequence[Row], path: Path) -> None:
    """Draw throughput, memory, and the exposed part of a traced step, as PNG."""
    from matplotlib.figure import Figure

    done = [row for row in rows if row.error is None]
    names, colours = [row.strategy for row in done], [COLOURS[i % len(COLOURS)] for i in range(len(done))]
    figure = Figure(figsize=(10, 1.6 + 0.45 * len(done)), layout="constrained")
    speed, memory, step = figure.subplots(1, 3)
    speed.barh(names, [row.tokens_per_second or 0.0 for row in done], color=colours)
    speed.set_title("tokens/s", fontsize=10)
    if asked.device == "cuda":
        memory.barh(names, [(row.memory_gpu or 0.0) / GIB for row in done], color=colours)
        memory.set_title("GPU memory at the peak [GiB]", fontsize=10)
    else:
        memory.barh(names, [(row.memory_predicted or 0) / MIB for row in done], color=colours)
        memory.set_title("tensors at the peak, predicted [MiB]", fontsize=10)
    hidden = [1e3 * ((row.traced_step or 0.0) - (row.exposed or 0.0)) for row in done]
    step.barh(names, hidden, color=colours)
    step.barh(
        names, [1e3 * (row.exposed or 0.0) for row in done], left=hidden, color="#d9d9d9", hatch="///", edgecolor="#666"
    )
    step.set_title("traced step [ms], exposed part hatched", fontsize=10)
    for axes in (speed, memory, step):
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, format="png", dpi=120)


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', '/') for word in words)} |"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.4g}"


def _size(count: float | None, unit: int) -> str:
    return "-" if count is None else f"{count / unit:,.1f}" if count < 1000 * unit else f"{count / unit:,.0f}"
