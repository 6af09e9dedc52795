"""`python -m analysis.fit`: from runs to scaling laws, `fit.json` and a tidy `runs.csv`."""

from __future__ import annotations

import dataclasses
import difflib
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.plain import to_json
from analysis.results import Dropped, Fit, Fits, Kinds, Runs, save

if TYPE_CHECKING:
    import pandas as pd

HELP = {
    "runs": "runs/STUDY, mlflow:EXPERIMENT, or a .csv or .parquet file (required)",
    "uri": "MLflow server or database of mlflow:EXPERIMENT (default sqlite:///mlflow.db)",
    "points": "of a study: all, or latest: those that its latest command asked for (default all)",
    "out": "folder for fit.json and runs.csv (default reports/STUDY)",
    "budget": "FLOPs to recommend a run for (default 10 times the largest run)",
    "resamples": "bootstrap resamples (default 1000)",
    "seed": "seed of the resamples (default 0)",
    "params": "count of parameters: matmul, total or non_embedding (default matmul); of a file: its name for the count",
    "delta": "Huber's delta on log residuals (default 0.001); squared: least squares",
    "workers": "threads; the numbers do not depend on it (default 1)",
    "columns": "file only: ours:theirs,... for params, tokens, flops, loss and others",
    "flop_rule": "file only: how flops were counted; 6ND computes them from params and tokens",
    "loss_unit": "file only: unit of the loss (default nats per token)",
    "where": "file only: COLUMN:VALUE,... keeps these rows",
}
FILES = (".csv", ".parquet")


@dataclass(frozen=True)
class Options:
    """The command line; see HELP for the meaning of each key."""

    runs: str
    uri: str = "sqlite:///mlflow.db"
    points: str = "all"
    out: str = ""
    budget: float | None = None
    resamples: int = 1000
    seed: int = 0
    params: str = ""
    delta: str = "0.001"
    workers: int = 1
    columns: str = ""
    flop_rule: str = "given"
    loss_unit: str = "nats per token"
    where: str = ""


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of `key=value` arguments; ValueError names an unknown key's nearest, or a bad value."""
    given: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in HELP:
            near = difflib.get_close_matches(name, HELP, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}=?" if near else ""
            raise ValueError(f"{argument!r}: there is no key {name!r}{hint} Keys: {', '.join(HELP)}")
        if not equals or not value:
            raise ValueError(f"{argument!r}: write {name}=VALUE ({HELP[name]})")
        given[name] = value
    if "runs" not in given:
        raise ValueError(f"runs= is missing: {HELP['runs']}")
    numbers = {
        name: _number(name, given.pop(name), kind)
        for name, kind in (("budget", float), ("resamples", int), ("seed", int), ("workers", int))
        if name in given
    }
    return dataclasses.replace(Options(given.pop("runs")), **given, **numbers)  # type: ignore[arg-type]


def _number(name: str, text: str, kind: type[float]) -> float:
    """Return a number; 1e21 is welcome as a whole number too."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    lowest = 0.0 if kind is int else 1e-300
    if not lowest <= value < float("inf") or (kind is int and value != int(value)):
        what = "a whole number, 0 or more" if kind is int else "a positive number"
        raise ValueError(f"{name}={text}: {what} is needed ({HELP[name]})")
    return kind(value)


def load_frame(options: Options) -> pd.DataFrame:
    """Return the tidy frame that `runs=` names."""
    from analysis import frame

    if options.runs.startswith("mlflow:"):
        return frame.from_mlflow(options.uri, options.runs.removeprefix("mlflow:"), options.params or "matmul")
    path = Path(options.runs)
    if path.suffix in FILES:
        return frame.from_csv(
            path,
            columns=_pairs("columns", options.columns),
            params_kind=options.params or "given",
            flop_rule=options.flop_rule,
            loss_unit=options.loss_unit,
            where=_pairs("where", options.where),
        )
    return frame.from_runs(path, options.params or "matmul", options.points)


def _pairs(name: str, text: str) -> dict[str, str]:
    """Return "a:b,c:d" as a mapping."""
    pairs = [part.partition(":") for part in text.split(",") if part]
    for left, colon, right in pairs:
        if not colon or not left or not right:
            raise ValueError(f"{name}={text}: write {name}=NAME:VALUE,NAME:VALUE ({HELP[name]})")
    return {left: right for left, _, right in pairs}


def fit(frame: pd.DataFrame, options: Options) -> Fit:
    """Return all fits, the backtest and the recommendation for a tidy frame (see analysis.frame)."""
    from analysis import backtest, bootstrap, checks, engine, frontier, recommend, surface, valleys
    from analysis.frame import used

    rows = used(frame)
    dropped = _dropped(frame)
    loss: engine.Loss = engine.Squared() if options.delta == "squared" else engine.Huber(_delta(options.delta))
    workers = max(1, options.workers)
    found = surface.fit(rows, loss, resamples=options.resamples, seed=options.seed, workers=workers)
    block = found.block if isinstance(found, surface.Surface) else found
    valley_fit = valleys.fit(rows, resamples=options.resamples, seed=options.seed)
    law = frontier.fit(rows, valley_fit)
    budget = options.budget or 10.0 * float(rows.labels.max())
    fitted = found if isinstance(found, surface.Surface) else None
    plan = recommend.recommend(rows, valley_fit, law, surface=fitted, budget=budget)
    test = backtest.backtest(rows, loss)
    kinds, waiting = _kinds(frame), int(frame.attrs.get("not_started", 0))
    at_data = tuple(checks.data(rows, dropped, flop_rule=kinds.flops, waiting=waiting))
    at_surface = tuple(checks.surface(block, rows, recommend.clash(rows, valley_fit, fitted)))
    block = dataclasses.replace(block, checks=at_surface, rows_dropped=dropped)
    front = law.block if isinstance(law, frontier.FrontierFit) else law
    every = (*at_data, *valley_fit.block.checks, *block.checks, *checks.outlook(plan, test))
    shared = {f.name: getattr(block, f.name) for f in dataclasses.fields(block)}
    return Fit(
        **{**shared, "checks": every},
        study=_name(options, frame),
        source=options.runs,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        kinds=kinds,
        interval_method=f"surface: {bootstrap.plan(rows).text}; valleys: residual bootstrap, pooled over budgets",
        confidence=bootstrap.CONFIDENCE,
        resamples=options.resamples,
        seed=options.seed,
        versions=_versions(),
        runs=Runs(len(frame), len(rows), len(dropped), int((frame["state"] == "completed").sum()), len(rows.labels)),
        fits=Fits(dataclasses.replace(valley_fit.block, rows_dropped=dropped), block, front),
        backtest=test,
        recommendation=plan,
    )


def _delta(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ValueError(f"delta={text}: a positive number or the word squared ({HELP['delta']})")
    return value


def _dropped(frame: pd.DataFrame) -> tuple[Dropped, ...]:
    bad = frame[~frame["used"]]
    columns = zip(bad["key"], bad["drop_code"], bad["drop_reason"], strict=True)
    return tuple(Dropped(str(k), str(c), str(r)) for k, c, r in columns)


def _kinds(frame: pd.DataFrame) -> Kinds:
    """Return what the numbers of the rows used mean."""
    first = frame[frame["used"]].iloc[0]
    tokenizer = f"{first['tokenizer']} {first['fingerprint']}".strip()
    return Kinds(first["params_kind"], first["flop_rule"], first["loss_unit"], tokenizer=tokenizer)


def _name(options: Options, frame: pd.DataFrame) -> str:
    return str(frame["study"].iloc[0]) or Path(options.runs).stem


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("scaling-study", "numpy", "scipy", "pandas", "statsmodels"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def write(result: Fit, frame: pd.DataFrame, folder: Path) -> None:
    """Write `runs.csv`, then `fit.json`, each by atomic rename."""
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / "runs.csv.tmp"
    with_prediction(result, frame).to_csv(staged, index=False)
    staged.replace(folder / "runs.csv")
    save(result, folder / "fit.json")


def with_prediction(result: Fit, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the column `predicted`: the surface's loss, empty where there is none."""
    import numpy as np

    from analysis.surface import FORM, predict

    out = frame.copy()
    if result.params:
        constants = np.array([result.params[name] for name in FORM.names])
        predicted = predict(constants, out["params"].to_numpy(float), out["tokens"].to_numpy(float))
        out["predicted"] = np.where(out["used"], predicted, np.nan)
    else:
        out["predicted"] = np.nan
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 with a message where the arguments or the runs are wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print("usage: python -m analysis.fit runs=... [key=value ...]\n")
        print("\n".join(f"  {name:<10} {text}" for name, text in HELP.items()))
        return 0 if given else 2
    try:
        options = parse(given)
        frame = load_frame(options)
        result = fit(frame, options)
    except ValueError as error:
        print(f"analysis.fit: {error}", file=sys.stderr)
        return 2
    folder = Path(options.out or Path("reports") / result.study)
    write(result, frame, folder)
    _print(result, folder)
    return 0


def _print(result: Fit, folder: Path) -> None:
    """Print the findings, what was written, and last the law and the recommendation."""
    from analysis.summary import summary

    for check in result.checks:
        print(f"{check.level:<8} {check.code}: {check.message}. {check.advice[:1].upper()}{check.advice[1:]}.")
    print(f"wrote    {folder / 'fit.json'} and runs.csv ({result.runs.used} of {result.runs.total} runs used)\n")
    fields: Mapping[str, object] = to_json(result)
    print(summary(fields))


if __name__ == "__main__":
    sys.exit(main())
