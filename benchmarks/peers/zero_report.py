"""Tables and figure of benchmarks.deepspeed_zero3, from what its JSON holds. Pure but for the figure."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from study.bench.strategies_losses import apart, bound

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Compared:
    """A row: what was predicted of it, what was measured, or why nothing was.

    predicted: `states`, `peak`, `estimate` [bytes], `step_seconds`, `sent_bytes`, each None where it is not predicted.
    measured: as the row's process and its traces say. about: machine, versions and date of the measurement.
    """

    name: str
    setup: str
    library: str
    stage: int
    settings: Sequence[str]
    predicted: Mapping[str, float | None]
    measured: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Script:
    """A training script of one library: its lines of code, and the losses that it printed, resumed half-way."""

    name: str
    lines: int
    losses: Sequence[float] = ()
    failure: str = ""


def to_json(rows: Iterable[Compared], scripts: Iterable[Script]) -> dict[str, Any]:
    """Return what is kept."""
    return {"rows": [asdict(row) for row in rows], "scripts": [asdict(script) for script in scripts]}


def from_json(document: Mapping[str, Any]) -> tuple[list[Compared], list[Script]]:
    """Return what was kept."""
    return [Compared(**row) for row in document["rows"]], [Script(**script) for script in document["scripts"]]


def joined(new: Iterable[Compared], old: Iterable[Compared]) -> list[Compared]:
    """Return the new rows; where one was not measured now and was before with the same settings, as it was then."""
    before = {row.name: row for row in old if row.measured}
    found = []
    for row in new:
        known = before.get(row.name)
        keep = known is not None and not row.measured and not row.failure and [*known.settings] == [*row.settings]
        found.append(
            Compared(**{**asdict(row), "measured": known.measured, "about": known.about}) if keep and known else row
        )
    return found


def code_lines(path: Path) -> int:
    """Return how many lines of a Python file have code: no blank ones, comments, docstrings."""
    text = path.read_text(encoding="utf-8")
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines()
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in found
        for number, line in enumerate(lines, 1)
    )


def _cells(*values: object) -> str:
    return "| " + " | ".join(str(value) for value in values) + " |"


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a table of Markdown, numbers to the right."""
    return [_cells(*titles), "|---" + "|---:" * (len(titles) - 1) + "|", *(_cells(*row) for row in rows)]


def _number(value: float | None, form: str = ".2f", unit: float = 1.0) -> str:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else f"{value / unit:{form}}"


def _ratio(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.1%}"


def memory_table(rows: Iterable[Compared]) -> list[str]:
    """Return what a rank holds: between steps, by DeepSpeed's estimator, and at the peak of a GPU."""
    titles = (
        "row", "between steps, predicted MiB", "measured MiB", "estimator of DeepSpeed, MiB", "peak, predicted GiB",
        "measured GiB",
    )  # fmt: skip
    return _table(titles, map(_memory, rows))


def _memory(row: Compared) -> tuple[str, ...]:
    expected, found = row.predicted, row.measured
    return (
        row.name, _number(expected["states"], ",.2f", MIB), _number(found.get("held_bytes"), ",.2f", MIB),
        _number(expected["estimate"], ",.2f", MIB), _number(expected["peak"], ".2f", GIB),
        _number(found.get("gib_allocated"), ".2f") or row.failure or ("" if found else "not measured"),
    )  # fmt: skip


def time_table(rows: Iterable[Compared]) -> list[str]:
    """Return steps: predicted where there is a prediction, measured, and what they consist of by the traces."""
    titles = (
        "row", "step, predicted ms", "measured ms", "tokens/s of both ranks", "load before", "computing",
        "Python between operations",
    )  # fmt: skip
    return _table(titles, map(_times, rows))


def _times(row: Compared) -> tuple[str, ...]:
    found = row.measured
    rate = found.get("tokens_per_second_per_gpu")
    return (
        row.name, _number(row.predicted["step_seconds"], ",.1f", 1e-3),
        _number(found.get("step_seconds"), ",.1f", 1e-3) or "not measured",
        "" if rate is None else f"{2 * rate:,.0f}", _number(found.get("load"), ".0f"),
        _ratio(found.get("compute_share")), _ratio(found.get("host_share")),
    )  # fmt: skip


def message_table(rows: Iterable[Compared]) -> list[str]:
    """Return messages: how many of each kind, bytes sent, whether they were hidden."""
    titles = (
        "row", "all-gathers, reduce-scatters, all-reduces a step", "sent, predicted MiB", "measured MiB", "exposed",
        "waiting for the other rank", "hidden",
    )  # fmt: skip
    return _table(titles, map(_messages, rows))


def _messages(row: Compared) -> tuple[str, ...]:
    found = row.measured
    kinds = ("all_gathers", "reduce_scatters", "all_reduces")
    counts = ", ".join(f"{found[kind]:g}" for kind in kinds) if "all_gathers" in found else "not measured"
    shares = (_ratio(found.get(f"{one}_share")) for one in ("exposed", "waiting", "hidden"))
    sent = (row.predicted["sent_bytes"], found.get("sent_bytes"))
    return row.name, counts, *(_number(one, ",.2f", MIB) for one in sent), *shares


def differences(row: Compared, other: Compared) -> list[float]:
    """Return by how much the losses of two rows differ, step by step [nats/token]."""
    return [abs(a - b) for a, b in zip(row.measured["losses"], other.measured["losses"], strict=False)]


def loss_table(rows: Sequence[Compared]) -> list[str]:
    """Return how far each row's losses and gradient norms are from those of our stage 3 of the same set-up."""
    titles = (
        "row", "steps", "first loss", "last loss", "largest difference from ours-3", "at the last step",
        "gradient norm, largest relative difference",
    )  # fmt: skip
    first = {row.setup: row for row in rows if row.name == f"ours-3-{row.setup}" and row.measured}
    return _table(titles, (_losses(row, first[row.setup]) for row in rows if row.measured and row.setup in first))


def _losses(row: Compared, ours: Compared) -> tuple[object, ...]:
    losses, apart = row.measured["losses"], differences(row, ours)
    if len(losses) != len(ours.measured["losses"]):  # measured by another command: another schedule and other weights
        return row.name, len(losses), f"{losses[0]:.6f}", f"{losses[-1]:.6f}", "of other steps than ours-3", "", ""
    pairs = zip(row.measured["grad_norms"], ours.measured["grad_norms"], strict=False)
    norms = max(abs(a - b) / b for a, b in pairs)
    ends = f"{losses[0]:.6f}", f"{losses[-1]:.6f}"
    return row.name, len(losses), *ends, f"{max(apart):.1e}", f"{apart[-1]:.1e}", f"{norms:.1e}"


def side_by_side(rows: Sequence[Compared]) -> list[str]:
    """Return the losses of all rows of one set-up at some steps, and how far the means of the last are from ours-3."""
    ours = next(row for row in rows if row.name == f"ours-3-{row.setup}")
    count = len(ours.measured["losses"])
    steps = sorted({1, 2, *(max(1, count * part // 8) for part in (1, 2, 4, 6, 8))})
    titles = ("row", *(f"step {step}" for step in steps), "last quarter, relative difference from ours-3")
    return _table(titles, (_beside(row, ours, steps) for row in rows))


def _beside(row: Compared, ours: Compared, steps: Sequence[int]) -> tuple[str, ...]:
    losses, true = row.measured["losses"], ours.measured["losses"]
    cells = (f"{losses[step - 1]:.4f}" if step <= len(losses) else "" for step in steps)
    return row.name, *cells, f"{apart(losses, true):.1e}" if len(losses) == len(true) else "of other steps"


def _by_setup(rows: Sequence[Compared]) -> list[Sequence[Compared]]:
    """Return the measured rows of each set-up of which ours-3 was measured."""
    known = [row for row in rows if row.measured]
    names = [row.setup for row in known if row.name == f"ours-3-{row.setup}"]
    return [[row for row in known if row.setup == name] for name in names]


def script_table(scripts: Iterable[Script]) -> list[str]:
    """Return lines of code of each way, and the loss that its script ended with."""
    lines = ["| way | lines of Python | losses, first and last |", "|---|---:|---|"]
    for script in scripts:
        ends = f"{script.losses[0]:.6f}, {script.losses[-1]:.6f}" if script.losses else script.failure
        lines.append(_cells(script.name, script.lines, ends))
    return lines


def report(rows: Sequence[Compared], scripts: Sequence[Script]) -> str:
    """Return the page of all results."""
    machines = sorted({row.about for row in rows if row.about})
    missing = [row.name for row in rows if not row.measured]
    said = [f"Measured: {one}." for one in machines] or ["Nothing has been measured."]
    if missing:
        said.append(
            f"Not measured, predicted before any measurement: {', '.join(missing)}. `python -m "
            f"benchmarks.deepspeed_zero3 --setups {' '.join(dict.fromkeys(_setups(rows, missing)))}` measures them on "
            "two GPUs."
        )
    failed = [f"{row.name}: {row.failure}" for row in rows if row.failure]
    return "\n\n".join(
        [
            "Two ranks train the same module from the same weights on the same batches: ours, `parallel.zero` of "
            "FSDP2, and DeepSpeed at its defaults.",
            *said,
            "Memory of a rank. Between steps: weights, moments, buffers that stay; measured with every live tensor's "
            "storage counted once (CPU) or what the allocator has given out (GPU). Peak: "
            "torch.cuda.max_memory_allocated. MiB and GiB are powers of two.",
            "\n".join(memory_table(rows)),
            "Steps. Predicted step times are of our module in our layout (train.spec.step_time, cluster profile "
            "h200_x4); what DeepSpeed adds or saves is not predicted. Shares are of the recorded steps, which the "
            "profiler slows down. Load: how many processes wanted to run before the row began; a time counts where it "
            "is near 0.",
            "\n".join(time_table(rows)),
            "Messages. Sent: what one rank has to put on its links. Exposed and waiting: shares of the recorded steps; "
            "hidden: of the time of messages.",
            "\n".join(message_table(rows)),
            "Losses [nats/token].",
            "\n".join(loss_table(rows)),
            f"Losses side by side. Where the learning rate is the rule's and warmed up over half of the steps (set-ups "
            f"that end with steady), rounding allows {bound('bf16'):.1e} in bf16 (study.bench.strategies_losses); in "
            "other set-ups in bf16, losses go up and down and differences grow.",
            *("\n".join(side_by_side(one)) for one in _by_setup(rows)),
            "Lines of code of a complete training loop with checkpoints (benchmarks/peers/zero_script_*.py), without "
            "model and data, which are shared. Each script was run for half of its steps, resumed, and run to the end.",
            "\n".join(script_table(scripts)),
            *failed,
        ]
    )


def _setups(rows: Iterable[Compared], names: Sequence[str]) -> list[str]:
    return [row.setup for row in rows if row.name in names]


STYLES: Mapping[str, tuple[str, str]] = {
    "ours-3": ("#1f77b4", "-"),
    "deepspeed-3": ("#d62728", "-"),
    "ours-2": ("#2ca02c", "--"),
    "deepspeed-2": ("#ff7f0e", "-"),
    "ours-1": ("#9467bd", "-."),
    "deepspeed-1": ("#8c564b", "-"),
    "ours-3-compiled": ("#17becf", ":"),
    "ours-3-exact": ("#111111", ":"),
}
"""Colour and dashes of a row in every panel, by its name without its set-up."""


def kind(row: Compared) -> str:
    """Return a row's name without its set-up: ours-3-compiled."""
    return row.name.replace(f"-{row.setup}", "", 1)


def draw(rows: Sequence[Compared], path: Path) -> None:
    """Draw a line of panels for each set-up into a file: loss curves, and how far each row's is from ours-3."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    known = {row.name: row for row in rows if row.measured}
    setups = [name for name in dict.fromkeys(row.setup for row in rows) if f"ours-3-{name}" in known]
    figure = Figure(figsize=(10.0, 3.1 * max(1, len(setups))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(max(1, len(setups)), 2, squeeze=False)
    for (left, right), name in zip(axes, setups, strict=False):
        ours = known[f"ours-3-{name}"]
        for row in (row for row in known.values() if row.setup == name):
            colour, dashes = STYLES[kind(row)]
            losses = row.measured["losses"]
            steps = range(1, len(losses) + 1)
            if row.stage == 3:
                left.plot(steps, losses, label=kind(row), color=colour, ls=dashes, lw=3.5 if row == ours else 1.3)
            if row != ours and len(losses) == len(ours.measured["losses"]):
                apart = [max(one, 1e-12) for one in differences(row, ours)]
                right.plot(steps, apart, label=kind(row), color=colour, ls=dashes, lw=1.3)
        left.set(title=f"{name}: loss", ylabel="nats/token")
        right.set(title=f"{name}: difference from ours-3 (none: 1e-12)", yscale="log")
        for one in (left, right):
            one.set_xlabel("step")
            one.xaxis.set_major_locator(MaxNLocator(integer=True))
            one.legend(fontsize=8)
            one.grid(alpha=0.3)
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)
