"""Made-up studies whose law is known, and the public data where the checkout has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimation import fit_problem, multistart, objectives
from analysis.inputs.dataset import Rows, rows
from analysis.laws.sum_of_powers import SURFACE

SHARED = Path(__file__).parents[3] / "shared" / "data" / "scaling"
LAW = (1.9, 60.0, 110.0, 0.33, 0.30)
BUDGETS = (4e11, 1.2e12, 4e12, 1.3e13)
RATIOS = (2.5, 5.0, 10.0, 20.0, 40.0)


def public(name: str) -> Path:
    """Return a public data file, or skip the test with the reason."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the public data are not here: {path}")
    return path


def chinchilla() -> pd.DataFrame:
    """Return the 240 points of the reference fit."""
    frame = pd.read_csv(public("chinchilla_epoch/runs.csv"))
    return frame[frame["in_reference_fit"]].reset_index(drop=True)


def loss(law: tuple[float, ...], params: Any, tokens: Any) -> Any:
    E, A, B, alpha, beta = law
    return E + A / params**alpha + B / tokens**beta


def as_rows(frame: pd.DataFrame) -> Rows:
    """Return a frame of numbers as rows, in its order."""
    names = ("params", "tokens", "flops", "loss")
    columns: dict[str, Any] = {name: frame[name].to_numpy(dtype=float) for name in names}
    nominal = frame["flops_budget"].to_numpy(dtype=float) if "flops_budget" in frame else None
    return rows(tuple(f"r{i}" for i in range(len(frame))), **columns, nominal=nominal)


def surface_point(frame: pd.DataFrame | Rows, criterion: objectives.Loss) -> multistart.PointFit:
    """Return the best surface through the rows."""
    held = frame if isinstance(frame, Rows) else as_rows(frame)
    return multistart.fit_point(fit_problem.problem(SURFACE, (held.params, held.tokens), held.loss, criterion))


def exponent(constants: Any) -> Any:
    """Return a = beta/(alpha+beta) of the surface's constants (..., 5)."""
    return SURFACE.derived(np.asarray(constants))["a"]


def isoflop(
    seed: int = 0,
    *,
    noise: float = 0.0,
    law: tuple[float, ...] = LAW,
    budgets: tuple[float, ...] = BUDGETS,
    ratios: tuple[float, ...] = RATIOS,
) -> pd.DataFrame:
    """Return an isoFLOP study with C = 6 N D: sizes by tokens per parameter, log-normal noise."""
    generator = np.random.default_rng(seed)
    flops, ratio = (a.ravel() for a in np.meshgrid(budgets, ratios, indexing="ij"))
    params = np.sqrt(flops / (6 * ratio))
    tokens = flops / (6 * params)
    values = loss(law, params, tokens) * np.exp(noise * generator.normal(size=len(params)))
    return pd.DataFrame({"params": params, "tokens": tokens, "flops": flops, "flops_budget": flops, "loss": values})


def config(width: int, flops: float | None, **data: Any) -> dict[str, Any]:
    """Return what the analysis reads of a run's frozen config, and a little more."""
    return {
        "model": {"width": width, "layers": 2, "kv_heads": 2, "qk_norm": True},
        "data": {"name": "code", "tokenizer": "bpe", "vocab_size": 4096, "sequence_length": 128,
                 "fingerprint": "012345678901", "source": None, **data},
        "batch": {"tokens": 4096},
        "optim": {"lr": 0.004},
        "schedule": {"name": "cosine"},
        "budget": {"tokens": 1000, "flops": flops, "tokens_per_param": None},
        "eval": {"sequences": 64},
        "precision": {"name": "fp32"},
        "seed": 0,
    }  # fmt: skip


def outcome(params: float, tokens: float, flops: float, value: float, state: str = "completed") -> dict[str, Any]:
    """Return a trainer's outcome."""
    return {
        "format": 1, "state": state, "step": 10, "tokens": int(tokens), "flops": flops,
        "flop_rule": "6*matmul+attention",
        "params": {"total": int(params) + 90, "embedding": 50, "non_embedding": int(params) - 10,
                   "matmul": int(params)},
        "loss": {"validation_nats_per_token": value, "validation_bits_per_byte": value / 2.4,
                 "train_nats_per_token": value},
        "schedule_complete": state == "completed",
    }  # fmt: skip


def write_study(folder: Path, frame: pd.DataFrame, failed: int = 1, waiting: int = 1) -> None:
    """Write the files of a study: finished runs, failed ones, and points that never started."""
    folder.mkdir(parents=True)
    lines = []
    records = [{str(k): v for k, v in r.items()} for r in frame.to_dict("records")]
    for number, row in enumerate(records):
        key = f"{number:012x}"
        lines.append({"key": key, "config": config(64 + number, row["flops_budget"]), "overrides": []})
        run = folder / key / "attempts" / "1"
        run.mkdir(parents=True)
        text = json.dumps(outcome(row["params"], row["tokens"], row["flops"], row["loss"]))
        (folder / key / "outcome.json").write_text(text)
    for number in range(failed + waiting):
        key = f"f{number:011x}"
        lines.append({"key": key, "config": config(32, 1e12), "overrides": []})
        if number < failed:
            run = folder / key / "attempts" / "1"
            run.mkdir(parents=True)
            (run / "outcome.json").write_text(json.dumps({"state": "failed", "exit_code": 1, "error": "boom"}))
    (folder / "points.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def ladder(seed: int, count: int, noise: float, apart: float = 0.0) -> pd.DataFrame:
    """Return runs of about 20 tokens per parameter, which differ by a factor of e^`apart` (standard deviation)."""
    draws = np.random.default_rng(seed)
    low, decades = draws.uniform(6, 8), draws.uniform(1, 2.5)
    params = 10 ** draws.uniform(low, low + decades, count)
    tokens = 20 * params * np.exp(apart * draws.normal(size=count))
    return _along(params, tokens, noise * draws.normal(size=count))


def ray(ratio: float = 20.0) -> pd.DataFrame:
    """Return twelve evenly spaced runs with `ratio` tokens per parameter and 0.2 % of noise."""
    params = np.geomspace(1e7, 1e9, 12)
    return _along(params, ratio * params, 0.002 * np.random.default_rng(10).normal(size=12))


def _along(params: Any, tokens: Any, errors: Any) -> pd.DataFrame:
    """Return runs of the ladders' law whose ln loss is off by `errors`."""
    losses = loss((1.7, 400.0, 900.0, 0.34, 0.3), params, tokens) * np.exp(errors)
    return pd.DataFrame({"params": params, "tokens": tokens, "flops": 6 * params * tokens, "loss": losses})
