"""What layouts took when they were run, beside what was predicted of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from study.planning.memory.words import Table, gb
from study.planning.parallel.answer import Answer
from study.planning.parallel.words import seconds as in_words
from train.spec.accounting.step import of_rank
from train.spec.interrupts import INTERRUPTED

MEASURED = "measured"
"""The state of one that was."""
ALIKE = 0.02
"""Layouts whose measured times differ by less than this share count as equally fast."""


@dataclass(frozen=True)
class Measured:
    """A layout that was to be run. place: in the list, from 1. run: the folder of its files.

    state: measured, or why not, in words; error: the last word of a run that failed. seconds: of a step;
    tokens_per_second: of all ranks; peak: the most that tensors took of the first rank's GPU [bytes], None on a CPU;
    all None where it was not measured.
    """

    place: int
    key: str
    run: str
    state: str
    error: str = ""
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak: int | None = None


@dataclass(frozen=True)
class Measurement:
    """All that were to be run. steps: of each. study: how commands name it. earlier: how many had been run before."""

    study: str
    steps: int
    rows: Sequence[Measured]
    earlier: int = 0
    interrupted: bool = False

    @property
    def code(self) -> int:
        """The exit code: 130 where Ctrl-C ended it, 1 where a layout was not measured."""
        return INTERRUPTED if self.interrupted else int(any(one.state != MEASURED for one in self.rows))


def peak_of_first(answer: Answer, number: int) -> int:
    """Return the predicted peak of tensors of the first rank [bytes], which is the one that records its own."""
    candidate = answer.best[number - 1].candidate
    config = candidate.config
    return of_rank(config, candidate.axes, config.runtime.device, candidate.sequences, 0).peak.total


def table(answer: Answer, found: Measurement) -> Table:
    """Return the table of what was measured beside what was predicted."""
    rows = []
    for one in found.rows:
        time = answer.best[one.place - 1].time
        off = "-" if one.seconds is None else f"{100 * (time.seconds / one.seconds - 1):+.1f} %"
        rows.append(
            (
                str(one.place),
                in_words(time.seconds),
                "-" if one.seconds is None else in_words(one.seconds),
                off,
                f"{time.tokens_per_second:,.0f}",
                "-" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
                gb(peak_of_first(answer, one.place)),
                "-" if one.peak is None else gb(one.peak),
                one.state,
            )
        )
    timed = found.steps // 2
    title = f"Predicted and measured: a step (mean of {timed}), tokens/s, GB of tensors on the first rank at their peak"
    head = ("", "step", "measured", "off", "tokens/s", "measured", "peak", "measured", "state")
    return Table(title, head, tuple(rows))


def verdict(answer: Answer, found: Measurement) -> str:
    """Return which layout was measured to be fastest, and what the predicted one loses to it."""
    timed = sorted((one.seconds, one.place) for one in found.rows if one.seconds is not None)
    said = [_fastest(timed)] if timed else ["Nothing was measured."]
    if found.interrupted:
        said.append("Interrupted: the same command goes on.")
    elif found.earlier:
        said.append(f"Of these {found.earlier} had been run before; another study.name= runs them anew.")
    bad = [one for one in found.rows if one.error]
    said += [f"No. {one.place} {one.state}: {one.error} ({one.run})." for one in bad]
    return " ".join(said)


def _fastest(timed: Sequence[tuple[float, int]]) -> str:
    """Return a sentence on layouts that were measured, as seconds and place, the fastest first."""
    (best, place), (first, taken) = timed[0], min((place, taken) for taken, place in timed)
    said = f"Measured fastest: No. {place}, {in_words(best)} a step."
    if place == first:
        return said
    slower = taken / best - 1
    much = f"No. {first}, predicted to be faster, took {100 * slower:.1f} % longer"
    return f"{said} {much}{', which is as good as equal' if slower < ALIKE else ''}."


def fields(answer: Answer, found: Measurement) -> dict[str, Any]:
    """Return what was measured as plain values for JSON; sizes in bytes, times in seconds."""
    rows = [{**asdict(one), "predicted_peak": peak_of_first(answer, one.place)} for one in found.rows]
    return {"study": found.study, "steps": found.steps, "interrupted": found.interrupted, "layouts": rows}


def columns(found: Measurement | None) -> Mapping[int, Mapping[str, Any]]:
    """Return the further columns of the listed layouts that were to be run, by place; sizes in bytes."""
    names = ("state", "seconds", "tokens_per_second", "peak")
    rows = () if found is None else found.rows
    return {
        one.place: {f"measured_{name}": "" if (value := getattr(one, name)) is None else value for name in names}
        for one in rows
    }
