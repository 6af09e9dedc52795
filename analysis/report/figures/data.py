"""What the figures are made of: rows of `runs.csv` and learning curves, read with the standard library."""

from __future__ import annotations

import csv
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.inputs.learning import validations
from analysis.text import numbers
from analysis.values.blocks import Valley

MOST_DOTS = 1500
"""Runs of a panel that are drawn as dots: of more nothing is seen, and a page of them is slow to write and to open."""

EXTRA = ("bits_per_byte", "lr", "batch_tokens", "seed", "width", "layers")
"""Further columns of `runs.csv` that the table of runs shows."""
NEEDED = ("key", "params", "tokens", "flops", "loss")
READ = (*NEEDED, "state", "flops_budget", "predicted", "used", "drop_code", "drop_reason", *EXTRA)
"""The columns of `runs.csv` that figures and tables look at."""


def dots(count: int, most: int = MOST_DOTS) -> list[int]:
    """Return which of so many runs are drawn as dots: all of them, or as many as are allowed, always the same ones."""
    return list(range(count)) if count <= most else sorted(random.Random(0).sample(range(count), most))


@dataclass(frozen=True, slots=True)
class Row:
    """One run; counts in parameters, tokens and FLOPs, losses in the fit's unit, NaN where unknown.

    `extra` has what the run's cells of EXTRA say, where they say something.
    """

    key: str
    state: str
    params: float
    tokens: float
    flops: float
    budget: float
    loss: float
    predicted: float
    used: bool
    drop_code: str
    drop_reason: str
    extra: Mapping[str, str]

    @property
    def error(self) -> float:
        """Predicted over observed loss, less one; NaN without a prediction."""
        return self.predicted / self.loss - 1 if self.loss > 0 else math.nan

    @property
    def name(self) -> str:
        """The run in one line, for a pointer that rests on its dot: key, N, D, C and loss."""
        counts = f"N {numbers.count(self.params)}, D {numbers.count(self.tokens)}, C {numbers.scientific(self.flops)}"
        why = "" if self.used else f" (left out: {(self.drop_code or self.state or 'not used').replace('_', ' ')})"
        return f"{self.key}: {counts}, loss {numbers.number(self.loss, 4)}{why}"


@dataclass(frozen=True)
class Curve:
    """Validation losses of one run by training tokens; the budget is in FLOPs."""

    key: str
    budget: float
    params: float
    tokens: tuple[float, ...]
    losses: tuple[float, ...]


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read `runs.csv`; ValueError names a column that is missing."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            columns = next(reader, [])
            for name in NEEDED:
                if name not in columns:
                    held = ", ".join(columns)
                    raise ValueError(f"{path} has no column {name!r}, only {held}; run analysis.fit again")
            places = [(name, columns.index(name)) for name in READ if name in columns]
            # One row at a time: the texts of very many are gigabytes.
            return tuple(
                _row({name: line[i] if i < len(line) else "" for name, i in places}) for line in reader if line
            )
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; it is written beside fit.json by python -m analysis.fit") from None


def as_rows(frame: Any) -> tuple[Row, ...]:
    """Return a tidy frame with predictions as rows, as `runs.csv` would give them: analysis.notebook draws them."""
    known = frame[[name for name in READ if name in frame]]
    text = known.astype(object).where(known.notna(), "").to_dict("records")
    return tuple(_row({str(name): str(value) for name, value in record.items()}) for record in text)


def read_curves(folder: Path, rows: Iterable[Row]) -> tuple[Curve, ...]:
    """Read the validation losses of each row's run from `<folder>/<key>/metrics.jsonl`.

    Runs without that file, torn lines and losses that are not finite are left out: curves are for looking.
    """
    curves = []
    for row in rows:
        if "/" in row.key or row.key in ("", ".", ".."):
            continue
        points = validations(folder / row.key / "metrics.jsonl")
        if points:
            tokens, losses = zip(*points, strict=True)
            curves.append(Curve(row.key, row.budget, row.params, tokens, losses))
    return tuple(curves)


def budget_labels(budgets: Iterable[float]) -> dict[float, str]:
    """Return each budget for a legend, with as many digits as tell it from the others: 2×10¹², 3.2×10¹³."""
    each = set(budgets)
    for digits in (2, 3, 4):
        found = {budget: numbers.power(budget, digits) for budget in each}
        if len(set(found.values())) == len(each):
            return found
    return {budget: numbers.power(budget, 6) for budget in each}


def grouped(rows: Sequence[Row], valleys: Sequence[Valley]) -> tuple[Row, ...]:
    """Return the rows, each with the budget of the valley that it lies in where it names none of its own."""
    known = {key: valley.flops_budget for valley in valleys for key in valley.keys}
    return tuple(replace(row, budget=known[row.key]) if row.key in known else row for row in rows)


def _row(record: Mapping[str, str]) -> Row:
    used = record.get("used", "True").strip().lower() in ("true", "1")
    return Row(
        key=record["key"],
        state=sys.intern(record.get("state", "")),
        params=_number(record["params"]),
        tokens=_number(record["tokens"]),
        flops=_number(record["flops"]),
        budget=_number(record.get("flops_budget", "")),
        loss=_number(record["loss"]),
        predicted=_number(record.get("predicted", "")),
        used=used,
        drop_code=sys.intern(record.get("drop_code", "")),
        drop_reason=record.get("drop_reason", ""),
        extra={name: text for name in EXTRA if (text := record.get(name))},
    )


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
