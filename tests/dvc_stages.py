"""Stands in for the stages of dvc.yaml, `python -m MODULE …`: what they write, in moments and without training."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import yaml

SHARDS, RUNS, REPORT = Path("data/code-bytes257"), Path("runs/isoflop"), Path("reports/isoflop")
FLOPS_PER_TOKEN = 6


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def prepare() -> None:
    put(SHARDS / "manifest.json", Path("conf/data/bytes.yaml").read_text("utf-8"))
    put(SHARDS / "train-00000.bin", "tokens" * 1000)


def sweep() -> None:
    asked = yaml.safe_load(Path("conf/study/isoflop.yaml").read_text("utf-8"))
    lines = []
    for budget in asked["search"]["budgets"]:
        for ratio in asked["search"]["ratios"]:
            params = math.sqrt(float(budget) / FLOPS_PER_TOKEN / ratio)
            loss = 2 + 100 / params + 50 / math.sqrt(params * ratio) + asked["optim"]["lr_scale"] / 10
            lines.append({"budget": float(budget), "params": params, "loss": loss})
    put(RUNS / "latest.json", json.dumps({"keys": [f"{i:012x}" for i in range(len(lines))]}))
    put(RUNS / "outcomes.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def fit() -> None:
    rows = [json.loads(line) for line in (RUNS / "outcomes.jsonl").read_text("utf-8").splitlines()]
    best = min(rows, key=lambda row: row["loss"])
    found = {"a": 0.5, "loss": best["loss"], "N": best["params"], "D": 20 * best["params"], "backtest": 0.001}
    law = {"E": 2.0, "A": 100.0, "B": 50.0, "alpha": 1.0, "beta": 0.5}
    put(REPORT / "metrics.json", json.dumps({**found, **law, "runs": len(rows)}))
    table = "".join(f"{row['budget']},{i:012x},{row['params']},1,1,{row['loss']}\n" for i, row in enumerate(rows))
    put(REPORT / "points.csv", f"budget,key,params,tokens,flops,loss\n{table}")
    put(REPORT / "runs.csv", table)
    put(REPORT / "fit.json", json.dumps(found))


def report() -> None:
    put(REPORT / "report.html", (REPORT / "fit.json").read_text("utf-8"))
    put(REPORT / "figures" / "valleys.svg", (REPORT / "runs.csv").read_text("utf-8"))


def sent() -> None:
    """As `study sync` where MLflow's server is away."""
    assert sys.argv[3:] == ["sync", "isoflop"]
    assert (REPORT / "report.html").is_file(), "the report is there before it is sent"
    sys.exit(75)


STAGES = {"train.prepare": prepare, "study.sweep": sweep, "analysis.fit": fit, "analysis.report": report, "study": sent}

if __name__ == "__main__":
    assert sys.argv[1] == "-m"
    print(f"stands in for {sys.argv[2]}")
    STAGES[sys.argv[2]]()
