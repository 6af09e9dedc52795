"""Every published or re-derived number of the public data sets, beside what the analysis finds, in one table.

`python -m benchmarks.analysis_anchors [data=FOLDER] [kernels=Haswell:1,Prescott:2] [out=FILE]`: data sets as their
READMEs say (default ../shared/data/scaling). A row is ok where the difference is within the tolerance that the README
states; the exit code is 1 where one is not. With `kernels` (BLAS kernel and threads) everything is computed again in a
process of its own under each, and a number that differs by more than 1e-6 is named; `out` holds ours as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.approaches import isoflop, optimum, settings
from analysis.approaches.cost import Cost
from analysis.estimation import fit_problem, multistart
from analysis.inference import resampling
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.laws.multi_power import MultiPower, Schedules

DATA = Path(__file__).parents[2] / "shared/data/scaling"
PORIAN = ["group", "dataset", "hparams", "warmup", "decay", "param_count", "split"]
WARMUP, PEAK, FLOOR = 2160, 3e-4, 3e-5


@dataclass(frozen=True)
class Anchor:
    """A quantity, ours and the anchor's value, and by how much they may differ; `below` asks for no more than it."""

    data: str
    quantity: str
    ours: float
    anchor: float
    tolerance: float
    below: bool = False

    @property
    def ok(self) -> bool:
        """Whether ours is within the tolerance."""
        gap = self.ours - self.anchor
        return bool(gap <= self.tolerance if self.below else abs(gap) <= self.tolerance)


def relative(data: str, quantity: str, ours: float, anchor: float, share: float) -> Anchor:
    return Anchor(data, quantity, float(ours), anchor, share * abs(anchor))


def chinchilla(data: Path) -> Iterator[Anchor]:
    name = "chinchilla"
    table = pd.read_csv(data / "chinchilla_epoch/runs.csv")
    runs = table[table["in_reference_fit"]]
    fit = fit_law(runs, resamples=4000)
    yield Anchor(name, "summed objective", fit.objective, 0.0010182740179, 0.0, below=True)
    for key, value in (("A", 477.826), ("B", 2143.417), ("E", 1.817218)):
        yield relative(name, key, fit.params[key], value, 1e-4)
    for key, value in (("alpha", 0.347310), ("beta", 0.367172), ("a", 0.513893)):
        yield Anchor(name, key, float({**fit.params, **fit.derived}[key]), value, 1e-5)
    rows = fit_law(runs, resamples=32000, cluster="rows")
    for title, found, errors in (("rows", rows, (0.0154, 0.0206, 0.0200)), ("sizes", fit, (0.0182, 0.0181, 0.0206))):
        for key, value in zip(("alpha", "beta", "a"), errors, strict=True):
            yield relative(name, f"bootstrap SE {key}, {title}", found.draws[key].std(), value, 0.1)
    profile = fit_law(runs, loss="student_t", resamples=0).profile("a")
    yield Anchor(name, "profile a, Student-t, low", profile.low, 0.4915, 0.003)
    yield Anchor(name, "profile a, Student-t, high", profile.high, 0.5304, 0.003)
    least = fit_law(runs, loss="squared", resamples=0)
    squares = {"A": 593.3, "B": 4875.6, "E": 1.86455, "alpha": 0.36025, "beta": 0.40588, "a": 0.5298}
    for key, value in squares.items():
        yield relative(name, f"least squares {key}", {**least.params, **least.derived}[key], value, 1e-3)
    point = rows.point.constants
    yield relative(name, "D/N at 5.76e23", _ratio(point, 5.76e23), 17.9, 0.01)
    draws = rows.draws.to_numpy()[:, :5]
    ratio = np.array([_ratio(row, 5.76e23) for row in draws])
    low, high = resampling.percentile(ratio) or (np.nan, np.nan)
    yield relative(name, "D/N at 5.76e23, low", low, 7.3, 0.05)
    yield relative(name, "D/N at 5.76e23, high", high, 35.4, 0.05)
    ordered = table.sort_values("loss", ascending=False)
    for k, value in ((0, 0.5646), (1, 0.5441), (5, 0.5139), (10, 0.5086), (20, 0.4838)):
        found = fit_law(ordered.iloc[k:], resamples=0)
        yield Anchor(name, f"a without the {k} highest", float(found.derived["a"]), value, 1e-3)
    aic = {"chinchilla": -1694.8, "chinchilla_tied": -1686.4, "chinchilla_no_floor": -1305.5, "kaplan": -1297.0,
           "kaplan_floor": -1409.9, "farseer": -1795.5, "chinchilla_interaction": -1816.2}  # fmt: skip
    for form, value in aic.items():
        lower = form in ("farseer", "chinchilla_interaction")
        found = fit_law(runs, form, loss="squared", resamples=0)
        yield Anchor(name, f"AIC {form}", found.aic, value, 0.06, below=lower)


def _ratio(constants: Any, budget: float) -> float:
    _, A, B, alpha, beta = constants
    size = (alpha * A / (beta * B) * (budget / 6) ** beta) ** (1 / (alpha + beta))
    return float(budget / 6 / size**2)


def muennighoff(data: Path) -> Iterator[Anchor]:
    name = "muennighoff"
    table = pd.read_csv(data / "muennighoff2023/runs.csv")
    runs = table[table["in_published_fit"].astype(str) == "True"]
    fixed = {
        "E": np.exp(0.6254804),
        "A": np.exp(6.255414),
        "B": np.exp(7.3049974),
        "alpha": 0.3526596,
        "beta": 0.3526596,
    }
    fit = fit_law(runs, "repeats", fix=fixed, resamples=2000, cluster="rows", starts=16)
    yield Anchor(name, "best summed objective", fit.objective, 0.0158046626, 0.0, below=True)
    yield relative(name, "R_D at it", fit.params["R_D"], 95.4, 0.002)
    yield relative(name, "R_N at it", fit.params["R_N"], 1.71, 0.005)
    basins = [basin.objective for basin in fit.optimizer.basins]
    for value in (0.0158073787, 0.0158113):
        yield Anchor(name, f"basin at {value}", min(basins, key=lambda b: abs(b - value)), value, 5e-8)
    published = fit_law(runs, "repeats", fix={**fixed, "R_D": 15.387756}, resamples=0)
    p = published.problem
    theta = p.form.internal(np.array([[*(fixed[n] for n in p.form.names[:5]), 15.387756, 5.309743]]), p.centres)
    value = np.exp(p.form.log_value(theta, p.x)[0])
    residual = fit_problem.residuals(p, theta)[0]
    yield Anchor(
        name,
        "objective at the published constants",
        float(p.loss.summed(residual[None], None)[0][0]),
        0.01582593526,
        1e-9,
    )
    observed = fit.observed
    yield Anchor(
        name,
        "R2 at them",
        1 - float(((value - observed) ** 2).sum() / ((observed - observed.mean()) ** 2).sum()),
        0.772205,
        2e-6,
    )
    points = {"params": [6.34e9, 8.67e9], "tokens": [242e9, 178e9], "unique_tokens": [25e9, 25e9]}
    for found, at in zip(fit.predicted(theta, points)[0], (2.2256440890, 2.2269634075), strict=True):
        yield Anchor(name, f"check point {at}", float(found), at, 1e-9)
    draws = fit.draws["R_D"].to_numpy()
    # 6.4 is of searches from one start, as 400 resamples were fitted: a quarter of them ends above its lowest minimum.
    # On a grid, which misses none, the low end is 4.6 to 4.7; the tolerance is what 2,000 draws scatter by.
    weights = resampling.cluster_weights(np.arange(len(fit.data)), 2000, 1)
    once = multistart.fit_many(fit.problem, replace(fit.point, minima=None), weights=weights)
    once_low = float(np.quantile(fit.form.natural(once.theta, fit.problem.centres)[:, 5], 0.025))
    yield relative(name, "R_D bootstrap, low, one start a resample", once_low, 6.4, 0.15)
    low = float(np.quantile(_on_a_grid(runs, fixed, weights), 0.025))
    yield relative(name, "R_D bootstrap, low, as on a grid", float(np.quantile(draws, 0.025)), low, 0.1)
    yield Anchor(
        name, "R_D bootstrap, high (log10)", min(99.0, float(np.log10(np.quantile(draws, 0.975)))), 10.0, np.inf
    )
    yield Anchor(name, "R_D identified above (1 = yes)", float(np.isfinite(fit.conf_int()[1]["R_D"])), 0.0, 0.0)
    seeds = table[(table["params"] == 2.81e9) & np.isclose(table["tokens"], 55e9)]
    several = seeds[seeds.groupby("cfg")["cfg"].transform("size") >= 5]
    noise = _pooled(several)
    yield relative(name, "seed noise, nats", noise, 0.00194, 0.01)


def _on_a_grid(runs: pd.DataFrame, held: Mapping[str, float], weights: Any) -> Any:
    """Return R_D (R,) of each resample's lowest objective on a grid of R_D and R_N: no search that misses a minimum."""
    size, tokens, unique, loss = (runs[c].to_numpy(float) for c in ("params", "tokens", "unique_tokens", "loss"))
    unique = np.minimum(unique, tokens)
    useful = np.minimum(size, (held["A"] / held["B"]) ** (1 / held["alpha"]) * unique)

    def worth(base: Any, ratio: Any, decay: Any) -> Any:
        return base * (1 - decay * np.expm1(-(ratio - 1) / decay))

    decays, others = np.geomspace(0.5, 1e11, 420), np.geomspace(0.02, 1e4, 260)[:, None]
    by_size = held["A"] / worth(useful, size / useful, others) ** held["alpha"]
    best, at = np.full(len(weights), np.inf), np.zeros(len(weights))
    for decay in decays:
        by_tokens = held["B"] / worth(unique, tokens / unique, decay) ** held["beta"]
        residual = np.log(held["E"] + by_size + by_tokens) - np.log(loss)
        pull = np.clip(residual, -1e-3, 1e-3)
        lowest = (weights @ (pull * (residual - 0.5 * pull)).T).min(axis=1)
        at, best = np.where(lowest < best, decay, at), np.minimum(best, lowest)
    return at


def _pooled(frame: pd.DataFrame) -> float:
    groups = [g["loss"].to_numpy() for _, g in frame.groupby("cfg")]
    df = sum(len(g) - 1 for g in groups)
    return float(np.sqrt(sum(((g - g.mean()) ** 2).sum() for g in groups) / df))


def gadre(data: Path) -> Iterator[Anchor]:
    table = pd.read_csv(data / "gadre2024/models.csv")
    table["flops"] = 6.0 * table["params"] * table["tokens"]
    small = ["d=96_l=8_h=4", "d=512_l=8_h=4", "d=576_l=24_h=8", "d=1024_l=24_h=8"]
    constants = {
        "c4_original": ((1.508, 141.3, 189.5, 0.1212), ((4, 1.50), (1, 4.30))),
        "rpj": ((1.837, 212.2, 366.7, 0.1364), ((32, 0.710), (1, 0.732))),
        "rw_original": ((1.734, 157.1, 246.2, 0.1272), ((16, 0.005), (1, 1.62))),
    }
    for train, (values, errors) in constants.items():
        name = f"gadre {train}"
        runs = table[table["train_dataset"] == train]
        fitted = (runs["model"].isin(small) & (runs["cc_mult"] == 1)) | (
            (runs["model"] == small[0]) & (runs["cc_mult"] == 16)
        )
        chosen = runs[fitted].assign(loss=runs["loss_c4_val"])
        law = fit_law(chosen, "overtraining", loss="squared", plain=True, resamples=0)
        for key, value in zip(law.form.names, values, strict=True):
            yield relative(name, key, law.params[key], value, 1e-3)
        big = [runs[(runs["model"] == m) & (runs["cc_mult"] == mult)] for m, mult in
               (("open_lm_1b", errors[0][0]), ("open_lm_7b", errors[1][0]))]  # fmt: skip
        for row, (mult, value) in zip(big, errors, strict=True):
            error = 100 * abs(float(law.predict(row)[0]) / float(row["loss_c4_val"].iloc[0]) - 1)
            yield Anchor(name, f"error %, {row['model'].iloc[0]} at M = {20 * mult}", error, value, 0.01)
        yield Anchor(name, "residual df flagged (1 = yes)", float("low_df" in {c.code for c in law.check()}), 1.0, 0.0)
        if train == "rpj":
            yield from _downstream(name, runs, fitted, law, big)


def _downstream(name: str, runs: pd.DataFrame, fitted: Any, law: LawFit, big: list[pd.DataFrame]) -> Iterator[Anchor]:
    rows = runs[fitted | ((runs["model"] == "open_lm_1b") & (runs["cc_mult"] == 1))]
    found = fit_law(
        {"loss": rows["loss_c4_val"], "error": rows["err_avg17"]}, "downstream", loss="squared", plain=True, resamples=0
    )
    for key, value, tolerance in (("k", 2.21, 0.005), ("gamma", 0.715, 5e-4), ("eps", 0.857, 5e-4)):
        yield Anchor(name, f"downstream {key}", float(found.params[key]), value, tolerance)
    for row, value in zip(big, (3.637, 0.046), strict=True):
        predicted = float(found.predict({"loss": law.predict(row)})[0])
        error = 100 * abs(predicted / float(row["err_avg17"].iloc[0]) - 1)
        yield Anchor(name, f"downstream error %, {row['model'].iloc[0]}", error, value, 0.01)


def porian(data: Path) -> Iterator[Anchor]:
    points = pd.read_csv(data / "porian2024/isoflop_points.csv")
    fits = pd.read_csv(data / "porian2024/published_fits.csv")
    for _, published in fits.iterrows():
        runs = points[(points[PORIAN] == published[PORIAN]).all(axis=1)]
        found = isoflop.exponents(isoflop.optima(runs, "akima"))
        label = " ".join(str(published[key]) for key in ("dataset", "hparams", "warmup", "decay", "param_count"))
        yield Anchor("porian", f"a, {label}", found.exponent, float(published["a_unweighted"]), 0.005)


def step_law(data: Path) -> Iterator[Anchor]:
    runs = pd.read_csv(data / "lr_batch_scalebench/runs.csv").rename(columns={"params_non_embedding": "params"})
    for window, values in ((0.01, (-0.729, 0.296, 0.544)), (0.02, (-0.667, 0.251, 0.509))):
        found = settings.laws(runs, window, resamples=0)
        pairs = ((found.learning_rate, "p"), (found.learning_rate, "q"), (found.batch, "r"))
        for (law, key), value in zip(pairs, values, strict=True):
            yield Anchor("lr x batch", f"{key}, {100 * window:g} % window", float(law.params[key]), value, 1e-3)
        if window == 0.01:
            for (law, key), value in zip(pairs, (-0.713, 0.307, 0.571), strict=True):
                spread = float(np.sqrt(law.cov_params("delta")[key][key]))
                yield Anchor(
                    "lr x batch", f"{key}, published mean within 2 SE", float(law.params[key]), value, 2 * spread
                )
            moved = float("window_matters" in {c.code for c in found.checks})
            yield Anchor("lr x batch", "window flagged (1 = yes)", moved, 1.0, 0.0)


def nanochat(data: Path) -> Iterator[Anchor]:
    table = pd.read_csv(data / "nanochat2026/isoflop_optima.csv")
    exact = {
        "matmul_incl_lm_head": (0.536, 0.489),
        "all_params": (0.374, 0.501),
        "transformer_matrices_only": (0.696, 0.406),
    }
    for counting, values in exact.items():
        runs = table[table["counting"] == counting]
        runs = runs.assign(flops=runs["flops_budget"].astype(float))
        for y, value in zip(("params_opt", "tokens_opt"), values, strict=True):
            yield Anchor("nanochat", f"{y}, {counting}", isoflop.exponents(runs, y).exponent, value, 1e-3)


def sardana(_: Path) -> Iterator[Anchor]:
    cases = {
        "(.336, .283)": ((0.336, 0.283), 30e9, 1e13, 13.6e9, 28.0),
        "(.34, .28)": ((0.34, 0.28), 30e9, 1e13, 15.9e9, 18.2),
        "13B quality": ((0.336, 0.283), 13e9, 2e12, 6.97e9, 17.4),
    }
    for label, (exponents, quality, served, size, saved) in cases.items():
        law = np.array([[1.69, 406.4, 410.7, *exponents]])
        yield from _served(label, law, quality=quality, served=served, size=size, saved=saved)
    besiroglu = np.array([[1.8169, 482.01, 2085.43, 0.3478, 0.3658]])
    yield from _served("Besiroglu", besiroglu, quality=30e9, served=1e13, size=11.6e9, saved=42.7)


def _served(label: str, law: Any, *, quality: float, served: float, size: float, saved: float) -> Iterator[Anchor]:
    sizes = (1e8, 1e12)
    budget = optimum.budget_of(law, Cost.six(), float(np.log(quality)))
    best = optimum.training_only(law, Cost.six(), float(budget[0]), sizes)
    cheap = optimum.inference(law, Cost.six(), best.loss, served, sizes)
    totals = [float((p.training_flops + 2 * np.exp(p.log_params) * served)[0]) for p in (best, cheap)]
    yield relative("sardana", f"size, {label}", float(np.exp(cheap.log_params[0])), size, 0.005)
    yield Anchor("sardana", f"saved %, {label}", 100 * (1 - totals[1] / totals[0]), saved, 0.05)


def multi_power(data: Path) -> Iterator[Anchor]:
    curves = pd.read_csv(data / "lr_schedule_curves_mpl/curves.csv")
    fitted = ("cosine_24000", "constant_24000", "wsdcon_9")
    published = {
        25: ((3.040, 0.525, 0.508, 363.8, 2.066, 0.583, 0.641), (0.9988, 0.00376, 0.00110, 0.00409)),
        100: ((2.651, 0.601, 0.453, 437.9, 2.132, 0.598, 0.655), (0.9983, 0.00435, 0.00142, 0.00583)),
        400: ((2.375, 0.654, 0.429, 523.4, 2.025, 0.594, 0.635), (0.9978, 0.00484, 0.00168, 0.00995)),
    }
    digits = np.array([5e-4, 5e-4, 5e-4, 0.05, 5e-4, 5e-4, 5e-4])
    for millions, (constants, scores) in published.items():
        own = curves[curves["model_millions"] == millions]
        given = {
            str(s): (_rates(str(s), int(c["step"].max())), c["step"].to_numpy(), c["loss"].to_numpy())
            for s, c in own.groupby("schedule")
        }
        test = [given[s] for s in given if s not in fitted]
        # The constants are printed to three or four digits, which moves the scores: the tolerance is what that makes.
        generator = np.random.default_rng(0)
        around = np.array(constants) + digits * generator.uniform(-1, 1, size=(40, 7))
        found = _scores(test, np.vstack((constants, around)))
        reach = np.abs(found[1:] - found[0]).max(axis=0)
        for key, ours, value, far in zip(("R2", "MAE", "PredE", "WorstE"), found[0], scores, reach, strict=True):
            unit = 1e-4 if key == "R2" else 1e-5
            yield Anchor(f"multi-power {millions}M", f"test {key}, printed constants", ours, value, far + unit)
        law = MultiPower(Schedules.of([given[s][:2] for s in fitted]))
        losses = np.concatenate([given[s][2] for s in fitted])
        fit = fit_law({"observation": np.arange(len(losses)) + 1.0, "loss": losses}, law, resamples=0, starts=4)
        theta = law.internal(np.array([constants]), np.zeros(1))
        residual = fit_problem.residuals(fit.problem, theta)
        limit = float(fit.problem.loss.summed(residual, None)[0][0])
        yield Anchor(
            f"multi-power {millions}M",
            "objective of our fit, at most the published constants'",
            fit.objective,
            limit,
            0.0,
            below=True,
        )
    yield from _mid_schedule(curves)


def _scores(test: list[Any], constants: Any) -> Any:
    """Return R2, MAE, mean and worst relative error (R, 4), means over the curves."""
    out = []
    for rates, steps, losses in test:
        law = MultiPower(Schedules.of([(rates, steps)]))
        x = np.log(np.arange(len(steps)) + 1.0)[None]
        value = np.concatenate([np.exp(law.log_value(law.internal(c[None], np.zeros(1)), x)) for c in constants])
        error, share = value - losses, np.abs(value / losses - 1)
        r2 = 1 - (error**2).sum(axis=1) / ((losses - losses.mean()) ** 2).sum()
        out.append(np.stack((r2, np.abs(error).mean(axis=1), share.mean(axis=1), share.max(axis=1)), axis=1))
    return np.mean(out, axis=0)


def _rates(schedule: str, last: int) -> Any:
    """Return the learning rate of every step from 0, as the data's README says them."""
    t = np.arange(WARMUP, last + 1)
    kind, *numbers = schedule.split("_")
    rate = np.full(len(t), PEAK)
    if kind == "cosine":
        rate = FLOOR + 0.5 * (PEAK - FLOOR) * (1 + np.cos(np.pi * (t - WARMUP) / (int(numbers[0]) - WARMUP)))
    elif kind in ("wsd", "wsdld"):
        begin, end = (int(n) for n in numbers)
        share = np.maximum(t - begin, 0) / (end - begin)
        rate = PEAK * 0.1**share if kind == "wsd" else PEAK + (FLOOR - PEAK) * share
    elif kind == "wsdcon":
        rate = np.where(t < 8000, PEAK, int(numbers[0]) * 1e-5)
    return np.concatenate((np.arange(WARMUP) / WARMUP * PEAK, rate))


def _mid_schedule(curves: pd.DataFrame) -> Iterator[Anchor]:
    values = {25: (0.0364, 0.0429, -0.0278), 100: (0.0448, 0.0563, -0.0277), 400: (0.0595, 0.0771, -0.0174)}
    for millions, gaps in values.items():
        own = curves[curves["model_millions"] == millions]
        final = float(own[own["schedule"] == "cosine_24000"]["loss"].iloc[-1])
        for schedule, gap in zip(("cosine_72000", "constant_24000", "wsd_20000_24000"), gaps, strict=True):
            one = own[own["schedule"] == schedule]
            at = one.iloc[(one["step"] - 23920).abs().argmin()]
            yield Anchor(
                "mid-schedule", f"{schedule} less cosine_24000, {millions}M", float(at["loss"]) - final, gap, 1e-3
            )


def main() -> int:
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    data = Path(given.get("data", DATA))
    if not data.is_dir():
        print(f"the public data are not here: {data}")
        return 1
    anchors: list[Anchor] = []
    for part in (chinchilla, muennighoff, gadre, porian, step_law, nanochat, sardana, multi_power):
        anchors += part(data)
    print(f"{'data':18}{'quantity':62}{'ours':>18}{'anchor':>18}{'tolerance':>12}  ok")
    for a in anchors:
        anchor = f"{'<=' if a.below else '':>3}{a.anchor:15.10g}"
        print(f"{a.data:18}{a.quantity:62}{a.ours:18.10g}{anchor}{a.tolerance:12.2g}  {'yes' if a.ok else 'NO'}")
    bad = sum(not a.ok for a in anchors)
    print(f"\n{len(anchors) - bad} of {len(anchors)} anchors within their tolerance")
    if "out" in given:
        Path(given["out"]).write_text(json.dumps(ours(anchors)))
    apart = [
        line for setting in given.get("kernels", "").split(",") if setting for line in under(setting, data, anchors)
    ]
    print("\n".join(apart))
    return 1 if bad or any("differs" in line for line in apart) else 0


def ours(anchors: list[Anchor]) -> dict[str, float]:
    """Return our numbers by data set and quantity."""
    return {f"{a.data}, {a.quantity}": float(a.ours) for a in anchors}


def under(setting: str, data: Path, anchors: list[Anchor]) -> list[str]:
    """Return what differs under another BLAS kernel and number of threads, and how many numbers there are."""
    kernel, _, threads = setting.partition(":")
    count = threads or "1"
    env = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "anchors.json"
        command = [sys.executable, "-m", "benchmarks.analysis_anchors", f"data={data}", f"out={path}"]
        subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL)
        other = json.loads(path.read_text())
    mine = ours(anchors)
    lines = [
        f"{setting}: {name} differs: {mine[name]!r} here, {value!r} there"
        for name, value in other.items()
        if not np.isclose(mine[name], value, rtol=1e-6, atol=1e-12, equal_nan=True)
    ]
    return [*lines, f"{setting}: {len(other) - len(lines)} of {len(other)} numbers are the same to 1e-6"]


if __name__ == "__main__":
    sys.exit(main())
