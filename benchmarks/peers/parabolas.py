"""The fit that people write: a parabola in ln N for each budget, then power laws through the minima.

`python parabolas.py runs.csv` reads the columns budget, params, tokens and loss and prints JSON. It imports nothing of
this project.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from scipy.stats import linregress


def fit(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return exponents of N* and D* in C with the minima behind them; None without two budgets that have one."""
    groups: dict[float, list[tuple[float, float, float]]] = {}
    for row in rows:
        values = np.log(float(row["params"])), np.log(float(row["tokens"])), float(row["loss"])
        groups.setdefault(float(row["budget"]), []).append(values)
    minima, left_out = [], []
    for budget, runs in sorted(groups.items()):
        x, d, loss = np.array(runs).T
        middle = x.mean()
        a, b, _ = np.polyfit(x - middle, loss, 2) if len(set(x)) > 2 else (0.0, 0.0, 0.0)
        best = middle - b / (2 * a) if a > 0 else np.inf
        if not x.min() <= best <= x.max():
            left_out.append(budget)
            continue
        tokens = np.polyval(np.polyfit(x - middle, d, 2), best - middle)
        minima.append((float(np.log(budget)), float(best), float(tokens)))
    found: dict[str, Any] = {"minima": np.exp(minima).tolist() if minima else [], "left_out": left_out}
    if len(minima) < 2:
        return found | {"N": None, "D": None}
    c, n, d = np.array(minima).T
    return found | {"N": float(linregress(c, n).slope), "D": float(linregress(c, d).slope)}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - as people write it
        print(json.dumps(fit(csv.DictReader(file))))
