"""Pipeline schedules side by side: step time, idle share and what waits in memory, for each number of micro-batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from study.text import aligned, percent
from train.spec.config import ParallelConfig
from train.spec.largest import shown
from train.spec.pipeline_layout import SCHEDULES, micro_batches, stages_per_rank
from train.spec.pipeline_schedule.closed_forms import plain_idle_share
from train.spec.pipeline_schedule.simulation import Timeline, even_times, simulate, waiting
from train.spec.pipeline_schedule.trace import Measured

NEAR = 0.03
"""How near a simulated idle share has to come to a measured one."""
DRAWS = 200
"""Steps that are simulated, each of drawn ones."""
MOST_RANKS, MOST_STAGES, MOST_MICRO_BATCHES, MOST_MS = 1024, 64, 1 << 16, 1e9
MOST_PASSES = 2_000_000
"""All that are simulated are simulated in a minute."""
LITTLE = 0.10
"""An idle share up to which a pipeline is taken to be full."""


@dataclass(frozen=True)
class Asked:
    """What to compare. Times are of one micro-batch through all stages of a rank [ms]."""

    pp: int
    micro_batches: tuple[int, ...]
    schedules: tuple[str, ...]
    stages: int
    forward_ms: float
    backward_ms: float
    weight_ms: float | None = None
    message_ms: float = 0.0

    def layout(self, schedule: str) -> ParallelConfig:
        """Return the layout with one of the schedules."""
        return ParallelConfig(pp=self.pp, pp_schedule=schedule, pp_stages=self.stages)


@dataclass(frozen=True)
class Row:
    """One schedule with one number of micro-batches.

    micro_batches: asked for. run: as many as the schedule takes, the others empty. idle_share: of all ranks' time, no
    pass runs. formula_share: (p - 1) / (m + p - 1) of those that run. waiting: most micro-batches whose activations one
    rank keeps. exposed_ms: what messages add to the step.
    """

    schedule: str
    stages: int
    micro_batches: int
    run: int
    step_ms: float
    idle_share: float
    formula_share: float
    waiting: float
    exposed_ms: float


@dataclass(frozen=True)
class Found:
    """A pipeline as measured, in its median step, beside simulations with the times of other steps.

    simulated_share, simulated_ms: in the median of steps that are each put together of one of those of every rank;
    even_share: where every pass and message takes its median.
    """

    schedule: str
    micro_batches: int
    idle_share: float
    simulated_share: float
    even_share: float
    formula_share: float
    step_ms: float
    simulated_ms: float


def found_of(layout: ParallelConfig, count: int, measured: Measured) -> Found:
    """Return what was measured beside what simulations make of it."""
    draw = random.Random(0)
    drawn = [simulate(layout, count, measured.observed.drawn(draw)) for _ in range(DRAWS)]
    return Found(
        schedule=layout.pp_schedule,
        micro_batches=count,
        idle_share=measured.idle_share,
        simulated_share=median(step.idle_share for step in drawn),
        even_share=simulate(layout, count, measured.observed.usual(layout)).idle_share,
        formula_share=plain_idle_share(layout.pp, count),
        step_ms=measured.step_ms,
        simulated_ms=median(step.step for step in drawn),
    )


def measured_table(found: Sequence[Found]) -> list[str]:
    """Return measured rows as lines of text."""
    head = ["micro-batches", "schedule", "idle", "simulated", "all times even", "(p-1)/(m+p-1)"]
    lines = [[*head, "step [ms]", "simulated [ms]"]]
    for one in found:
        shares = (one.idle_share, one.simulated_share, one.even_share, one.formula_share)
        row = [*(percent(share, 1) for share in shares), *(f"{time:.4g}" for time in (one.step_ms, one.simulated_ms))]
        lines.append([str(one.micro_batches), one.schedule, *row])
    misses = sorted(abs(one.simulated_share - one.idle_share) for one in found)
    near = sum(miss <= NEAR for miss in misses)
    said = (
        f"idle share simulated within {100 * NEAR:.0f} points of the measured: {near} of {len(found)}; median "
        f"{100 * median(misses):.1f} points off, at most {100 * misses[-1]:.1f}"
    )
    return [*aligned(lines, right=range(2, len(lines[0]))), "", said]


def check(asked: Asked) -> None:
    """Raise ValueError, naming key and value, for what cannot be compared."""
    if not 2 <= asked.pp <= MOST_RANKS:
        few = "at least 2 ranks make a pipeline" if asked.pp < 2 else f"at most {MOST_RANKS:,} ranks"
        raise ValueError(f"pp={shown(asked.pp)} is not allowed: {few}")
    if not 1 <= asked.stages <= MOST_STAGES:
        raise ValueError(
            f"stages={shown(asked.stages)} is not allowed: at least 1 for each rank, at most {MOST_STAGES}"
        )
    for count in asked.micro_batches:
        if not 1 <= count <= MOST_MICRO_BATCHES:
            raise ValueError(f"micro_batches={shown(count)} is not allowed: 1 to {MOST_MICRO_BATCHES:,}")
    for name in ("forward_ms", "backward_ms", "message_ms"):
        if getattr(asked, name) > MOST_MS:
            raise ValueError(f"{name}={getattr(asked, name):g} is not allowed: at most {MOST_MS:g} ms")
    passes = asked.pp * asked.stages * sum(asked.micro_batches) * len(asked.schedules)
    if passes > MOST_PASSES:
        raise ValueError(
            f"pp={asked.pp} with stages={asked.stages} and micro_batches={','.join(map(str, asked.micro_batches))} "
            f"makes about {passes:,} passes to simulate, and {MOST_PASSES:,} are allowed: fewer of them, or fewer "
            f"schedules than {len(asked.schedules)}"
        )
    if asked.weight_ms is not None and asked.weight_ms > asked.backward_ms:
        raise ValueError(
            f"weight_ms={asked.weight_ms:g} is not allowed: at most backward_ms={asked.backward_ms:g}, of which it is "
            "a part"
        )


def timeline(asked: Asked, schedule: str, count: int) -> Timeline:
    """Return the simulated step of at least `count` micro-batches."""
    return _simulated(asked, schedule, count, asked.message_ms)


def rows(asked: Asked) -> list[Row]:
    """Return a row for each number of micro-batches and schedule, in the order in which they are asked for."""
    check(asked)
    return [_row(asked, schedule, count) for count in asked.micro_batches for schedule in asked.schedules]


def best(found: Sequence[Row]) -> list[Row]:
    """Return, for each number of micro-batches, the shortest step; of equal ones that with least waiting."""
    counts = dict.fromkeys(row.micro_batches for row in found)
    return [
        min((row for row in found if row.micro_batches == count), key=lambda row: (round(row.step_ms, 9), row.waiting))
        for count in counts
    ]


def full_from(found: Sequence[Row]) -> dict[str, int | None]:
    """Return, for each schedule, the fewest micro-batches asked for with which it idles at most `LITTLE`."""
    return {
        schedule: min(
            (row.micro_batches for row in found if row.schedule == schedule and row.idle_share <= LITTLE), default=None
        )
        for schedule in dict.fromkeys(row.schedule for row in found)
    }


def table(found: Sequence[Row]) -> list[str]:
    """Return the rows as lines of text."""
    exposed = any(row.exposed_ms for row in found)
    head = ["micro-batches", "schedule", "step [ms]", "idle", "(p-1)/(m+p-1)", "kept"]
    lines = [head + ["messages [ms]"] * exposed]
    for row in found:
        count = str(row.micro_batches) if row.run == row.micro_batches else f"{row.micro_batches}, runs {row.run}"
        shares = [percent(row.idle_share, 1), percent(row.formula_share, 1)]
        name = row.schedule if SCHEDULES[row.schedule].stages == 1 else f"{row.schedule} x{row.stages}"
        lines.append(
            [count, name, f"{row.step_ms:.4g}", *shares, f"{row.waiting:.4g}", *[f"{row.exposed_ms:.4g}"] * exposed]
        )
    said = ["", "kept: most micro-batches whose activations one rank keeps at once"]
    if any(row.run != row.micro_batches for row in found):
        said.append("runs: the fewest that the schedule takes; the others are empty sequences")
    return [*aligned(lines, right=range(2, len(lines[0]))), *said]


def sentences(asked: Asked, found: Sequence[Row]) -> list[str]:
    """Return what to choose, and how many micro-batches fill each schedule."""
    lines = []
    for row in best(found):
        plain = next((r for r in found if r.micro_batches == row.micro_batches and r.schedule == "1f1b"), row)
        beside = "" if plain is row else f"; 1f1b takes {plain.step_ms:.4g} ms"
        lines.append(
            f"m={row.micro_batches}: {row.schedule} is shortest, {row.step_ms:.4g} ms with "
            f"{percent(row.idle_share, 1)} idle and {row.waiting:.4g} kept{beside}"
        )
    full = full_from(found)
    said = ", ".join(f"{name} from m={count}" for name, count in full.items() if count is not None)
    never = [name for name, count in full.items() if count is None]
    lines.append(f"idle at most {percent(LITTLE)} of the time: " + (said or "none of these numbers is enough"))
    if said and never:
        lines[-1] += f"; {', '.join(never)} only with more than {max(asked.micro_batches)}"
    return lines


def _row(asked: Asked, schedule: str, count: int) -> Row:
    layout = asked.layout(schedule)
    run = micro_batches(layout, count)
    found = timeline(asked, schedule, count)
    free = _simulated(asked, schedule, count, 0.0) if asked.message_ms else found
    return Row(
        schedule=schedule,
        stages=stages_per_rank(layout),
        micro_batches=count,
        run=run,
        step_ms=found.step,
        idle_share=found.idle_share,
        formula_share=plain_idle_share(asked.pp, run),
        waiting=waiting(layout, run),
        exposed_ms=found.step - free.step,
    )


def _simulated(asked: Asked, schedule: str, count: int, message: float) -> Timeline:
    layout = asked.layout(schedule)
    times = even_times(layout, asked.forward_ms, asked.backward_ms, asked.weight_ms, message)
    return simulate(layout, micro_batches(layout, count), times)
