"""Losses that are not what they are said to be are named; unfinished runs are found whatever they are called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import comparison, parametric
from analysis.approaches.comparison import side_by_side
from analysis.diagnostics import backtest, findings, suspects
from analysis.estimation import objectives
from analysis.inference.fit_law import fit_law
from analysis.inputs import frame
from analysis.inputs.rows import from_csv
from analysis.text import numbers
from analysis.values.blocks import Block
from analysis.values.study_result import Backtest, Choice, Recommendation
from tests.analysis import studies

NATS = "nats per token"


def thirty(noise: float = 0.004) -> pd.DataFrame:
    return studies.isoflop(4, noise=noise, ratios=(2, 4, 8, 16, 32, 64), budgets=(1e11, 4e11, 1.6e12, 6.4e12, 2.6e13))


def codes(table: pd.DataFrame, unit: str = NATS) -> dict[str, str]:
    return {check.code: check.message for check in suspects.findings(studies.as_rows(table), unit)}


def test_losses_in_bits_beside_nats_are_named() -> None:
    table = thirty()
    assert codes(table) == {}
    for rows in ([3, 17], [0], [1, 5, 9, 22]):
        mixed = table.copy()
        mixed.loc[rows, "loss"] /= np.log(2)
        found = codes(mixed)
        assert set(found) == {"mixed_units"}
        assert all(f"r{i} " in found["mixed_units"] for i in rows)
    nats = table.assign(loss=table["loss"] / np.log(2))
    nats.loc[[2, 8], "loss"] *= np.log(2)
    assert "0.69 times the others" in codes(nats)["mixed_units"]


def test_outliers_are_named_and_heavy_noise_is_not() -> None:
    table = thirty()
    table.loc[[7], "loss"] *= 1.09
    found = codes(table)
    assert set(found) == {"outliers"}
    assert "r7 +" in found["outliers"]
    assert codes(thirty(noise=0.03)) == {}


def test_perplexities_and_accuracies_are_no_losses() -> None:
    table = thirty()
    found = codes(table.assign(loss=np.exp(table["loss"])))
    assert set(found) == {"perplexity"}
    assert found["perplexity"].endswith(": no trained model has that; they look like perplexities")
    assert "perplexity" not in codes(table.assign(loss=np.exp(table["loss"])), "bits per byte")
    found = codes(table.assign(loss=1.0 / table["loss"]))
    assert set(found) == {"not_a_loss"}
    assert "accuracies" in found["not_a_loss"]


def test_copies_under_other_names_are_said_and_kept(tmp_path: Path) -> None:
    table = thirty().assign(name=[f"n{i}" for i in range(30)])
    both = pd.concat([table, table.iloc[[4]].assign(name="again"), table.iloc[[5]]])
    both.to_csv(tmp_path / "t.csv", index=False)
    read = from_csv(tmp_path / "t.csv")
    assert list(read["drop_code"]).count("duplicate") == 1, "what differs in no column is one row"
    found = suspects.findings(frame.used(read), NATS)
    assert [check.code for check in found] == ["copies"]


@pytest.mark.parametrize(
    ("said", "finished"),
    [("0.008", False), ("1", True), ("1.0", True), ("0.999999", True), ("true", True), ("False", False), ("no", False),
     ("done", True), ("", False), ("100%", True), ("80 %", False), ("0.98", False)],
)  # fmt: skip
def test_a_schedule_is_complete_where_all_of_it_was_done(said: str, finished: bool, tmp_path: Path) -> None:
    lines = ["params,tokens,flops,loss,schedule_complete"]
    lines += [f"{n:g},1e8,{6e8 * n:g},3.5,{said if i == 1 else 'true'}" for i, n in enumerate((1e6, 2e6, 4e6))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    read = from_csv(tmp_path / "t.csv").sort_values("params")
    assert list(read["used"]) == [True, finished, True]


def test_a_schedule_that_is_no_share_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("params,tokens,flops,loss,schedule_complete\n1e6,1e8,6e14,3.5,maybe\n")
    with pytest.raises(ValueError, match="schedule_complete=maybe: write true or false"):
        from_csv(tmp_path / "t.csv")


@pytest.mark.parametrize("column", ["run", "key"])
def test_checkpoints_are_found_where_names_repeat(column: str, tmp_path: Path) -> None:
    """One name for checkpoints of a run, and for runs of several sizes."""
    rows = [("a", 1e6, 1e8), ("a", 1e6, 2e8), ("a", 4e6, 1e8), ("b", 1e6, 1e8), ("a", 4e6, 0.5e8)]
    table = pd.DataFrame(rows, columns=[column, "params", "tokens"])
    table["flops"] = 6 * table["params"] * table["tokens"]
    table.assign(loss=[4.0, 3.8, 3.7, 4.1, 3.9]).to_csv(tmp_path / "t.csv", index=False)
    read = from_csv(tmp_path / "t.csv")
    late = {(row["params"], row["tokens"]) for _, row in read[~read["used"]].iterrows()}
    assert late == {(1e6, 1e8), (4e6, 0.5e8)}
    assert set(read.loc[~read["used"], "drop_code"]) == {"mid_schedule"}
    assert int(read["used"].sum()) == 3


def test_approach_3_of_one_size_gives_a_reason_and_no_exponent() -> None:
    """Thirty runs of one size once gave a 0.963 and an N*."""
    tokens = np.geomspace(1e7, 1e10, 30)
    loss = 2.0 + 100 / tokens**0.3
    table = {"params": np.full(30, 1e7), "tokens": tokens, "flops": 6e7 * tokens, "loss": loss}
    out: Any = side_by_side(table, 1e18, resamples=0)
    assert out["params"].isna().all()
    assert out.loc["3 surface", "reason"].startswith("30 runs of 1 size")


def test_approaches_honour_the_options_of_the_fit() -> None:
    table = thirty(0.01)
    rows = studies.as_rows(table)
    choices: tuple[dict[str, Any], ...] = ({"loss": "squared"}, {"fix": {"E": 1.7}}, {"tie": {"beta": "alpha"}})
    for options in choices:
        fit = fit_law(rows, resamples=0, **options)
        out: Any = side_by_side(rows, 1e15, resamples=0, **options)
        assert out.loc["3 surface", "a"] == pytest.approx(float(fit.derived["a"]), rel=1e-9)
    plain: Any = side_by_side(rows, 1e15, resamples=0)
    assert abs(plain.loc["3 surface", "a"] - 0.5) > 1e-3
    form = side_by_side(rows, 1e15, resamples=0, form="kaplan_floor")
    assert "3 kaplan_floor" in form.index


def test_approach_2_rests_on_the_valleys_that_were_kept() -> None:
    table = studies.isoflop(0, ratios=(100, 200, 400, 800, 1600))
    out: Any = side_by_side(table, 1e15, resamples=0)
    for name in ("2 parabola", "2 akima", "2 surface"):
        assert np.isnan(out.loc[name, "params"])
        assert "4 no minimum inside" in out.loc[name, "reason"]


def test_every_n_star_is_of_one_count(tmp_path: Path) -> None:
    """FLOPs per token beyond 6 N fall with size: the table counts them as the recommendation does."""
    from analysis.fit import fit

    table = studies.isoflop(1, noise=0.001)
    extra = 1.0 + 0.5 * (table["params"] / table["params"].min()) ** -0.5
    table.assign(flops=table["flops"] * extra, flops_budget=np.nan).to_csv(tmp_path / "t.csv", index=False)
    found = fit(from_csv(tmp_path / "t.csv"), resamples=20)
    assert found.recommendation is not None
    line = next(line for line in found.record["approaches"] if line["approach"] == "3 surface")
    own = found.recommendation.by_approach["surface"]
    assert (line["params"], line["tokens"]) == pytest.approx((own.params, own.tokens), rel=1e-9)
    sizes = [own.params, *(one["params"] for one in found.record["approaches"] if one["params"])]
    sizes += [p.params for p in found.recommendation.by_approach.values()]
    assert found.recommendation.disagreement == pytest.approx(max(sizes) / min(sizes))


def test_lack_of_fit_is_seen_with_a_single_run_at_a_budget() -> None:
    table = pd.read_csv(Path(__file__).parents[1] / "data" / "early_training.csv")
    alone = pd.concat([table, table.iloc[[0]].assign(flops=3.1e10, flops_budget=3.1e10, loss=4.4)])
    for runs in (table, alone.reset_index(drop=True)):
        rows = studies.as_rows(runs)
        found, _ = parametric.surface(rows, {**parametric.PLAIN, "resamples": 0})
        block = found if isinstance(found, Block) else found.block
        assert "lack_of_fit" in {check.code for check in findings.surface(block, rows)}


def test_the_backtest_takes_the_recommendation_s_factor_or_says_that_none_does() -> None:
    rows = studies.as_rows(studies.isoflop(0, noise=0.002))
    near, far, beyond = (backtest.backtest(rows, objectives.Huber(), factor=f) for f in (None, 10.0, 1000.0))
    assert near is not None
    assert far is not None
    assert beyond is not None
    assert near.extrapolation_factor == pytest.approx(3.25)
    assert far.extrapolation_factor == pytest.approx(10.83, rel=1e-3)
    assert far.covers
    assert beyond.extrapolation_factor == far.extrapolation_factor
    assert not beyond.covers
    near_ones = studies.as_rows(studies.isoflop(0, noise=0.002, budgets=(1e12, 1.03e12, 1.06e12)))
    assert backtest.backtest(near_ones, objectives.Huber()) is None
    assert backtest.rolling(near_ones, objectives.Huber()) == ()


def test_a_bias_on_one_side_is_said() -> None:
    table = studies.isoflop(0, noise=0.0005)
    table.loc[table["flops"] == table["flops"].max(), "loss"] *= 0.97  # better trained than the rest
    found = backtest.backtest(studies.as_rows(table), objectives.Huber(), factor=10.0)
    assert found is not None
    assert found.one_sided
    said = next(check for check in findings.outlook(None, found) if check.code == "backtest_bias")
    assert said.level == "warning"
    assert said.message.startswith("the backtest errs in one direction: all 5 held-out losses predicted too high, by ")


def test_the_outlook_names_the_ends_of_a_disagreement_and_what_the_interval_would_allow() -> None:
    plan = Recommendation(
        approach="surface", budget_flops=1e13, params=1e6, tokens=1e6, tokens_per_param=1.0, loss=2.0,
        intervals={"loss": (1.8, 2.1)}, extrapolation_factor=10.0, by_approach={}, disagreement=2.5,
    )  # fmt: skip
    test = Backtest(1e12, (1e11,), 10.0, "surface", 1.84, 2.0, -0.08, {})
    sizes = {"valleys": 1.5e6, "surface": 1e6, "2 akima": 2.5e6}
    said = {check.code: check.message for check in findings.outlook(plan, test, sizes=sizes)}
    assert (
        said["disagreement"]
        == "the approaches disagree on N* by a factor of 2.5 (surface 1M, approach 2 by akima 2.5M)"
    )
    # 2.0 is 8.7 % above the predicted 1.84; the forecast of 2.0 allows for 1.8 to 2.1.
    assert said["interval_short"] == (
        "the held-out loss is 8.7 % above its prediction, outside the forecast's interval of -10.0 to +5.0 %"
    )
    assert "interval_short" not in {check.code for check in findings.outlook(plan, replace(test, relative_error=0.08))}


def test_a_wide_range_over_choices_is_a_warning() -> None:
    def lines(*values: float) -> tuple[Choice, ...]:
        return tuple(Choice("rows", f"option {v}", "a", v, None, None, 20) for v in values)

    wide = findings.choices(lines(0.6, 0.7, 0.9), (0.55, 0.65))
    assert [check.code for check in wide] == ["choices_disagree"]
    assert "between 0.60 and 0.90 over 3 choices" in wide[0].message
    assert findings.choices(lines(0.5, 0.52, 0.55), (0.51, 0.53)) == []
    assert findings.choices(lines(0.4, 0.52, 0.55), (0.35, 0.58)) == [], "the interval holds them"
    assert comparison.FEWEST_MINIMA == 3


@pytest.mark.parametrize(
    "value, low, high, rows, codes",
    [
        (0.39, 0.16, 0.64, 10, []),  # two budgets of five: 0.11 lower, where chance alone moves them by 0.245
        (0.39, 0.32, 0.45, 10, ["choices_disagree"]),  # as few rows, but sure of it: 0.033
        (0.61, 0.37, 0.86, 10, []),
        (0.61, 0.55, 0.67, 10, ["choices_disagree"]),
        (0.39, 0.16, 0.64, 25, ["choices_disagree"]),  # the same rows: the same errors are in both
        (0.39, None, None, 10, ["choices_disagree"]),
    ],
)
def test_a_fit_of_fewer_rows_counts_where_chance_does_not_explain_it(
    value: float, low: float | None, high: float | None, rows: int, codes: list[str]
) -> None:
    kept = [
        Choice("none", "as fitted", "a", 0.5, 0.45, 0.55, 25),
        Choice("rows", "one left out", "a", 0.52, 0.46, 0.56, 24),
    ]
    kept += [Choice("loss function", "squared", "a", 0.48, 0.43, 0.53, 25)]
    found = findings.choices([*kept, Choice("compute range", "from 2e12", "a", value, low, high, rows)], (0.45, 0.55))
    assert [check.code for check in found] == codes


def in_bits(table: pd.DataFrame, rows: Any) -> pd.DataFrame:
    return table.assign(loss=table["loss"] * np.where(rows, 1 / np.log(2), 1.0))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.8])
def test_many_losses_in_bits_are_named_too(share: float) -> None:
    """Where no curve goes through the others any more: once half of the rows in bits gave no finding."""
    table = thirty(0.01)
    for seed in range(3):
        rows = np.random.default_rng(seed).permutation(len(table)) < share * len(table)
        found = codes(in_bits(table, rows))
        assert set(found) == {"mixed_units"}
        few = np.flatnonzero(rows if share <= 0.5 else ~rows)
        assert f"{len(few)} losses are {'1.44' if share <= 0.5 else '0.69'} times the others" in found["mixed_units"]
        assert all(f"r{i} " in found["mixed_units"] for i in few[: numbers.SHOWN])


@pytest.mark.parametrize("column", ["params", "tokens"])
def test_the_larger_half_in_bits_is_named(column: str) -> None:
    table = thirty()
    rows = table[column] > table[column].median()
    assert set(codes(in_bits(table, rows))) == {"mixed_units"}


def test_curves_that_do_not_hold_are_not_bits() -> None:
    """Scatter and losses near that of guessing lie anywhere from a curve, not at the ratio of bits to nats alone."""
    n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e4, 1e9, 9), np.geomspace(1e5, 1e12, 20), indexing="ij"))
    steep = pd.DataFrame({"params": n, "tokens": d, "flops": 6 * n * d, "loss": 60 / n**0.33 + 110 / d**0.3})
    assert "mixed_units" not in codes(steep)
    assert "not_a_loss" not in codes(steep), "losses fall below 1 by themselves there"
    wild = thirty(0.15)
    assert "mixed_units" not in codes(wild)


def test_losses_that_flatten_out_at_guessing_are_not_nats_beside_bits() -> None:
    """The first checkpoints of large models: a curve through the others rises far above what any loss can be."""
    sizes, budgets = np.geomspace(3e5, 9e8, 12), np.geomspace(1.25e16, 2.56e19, 6)
    n, c = (x.ravel() for x in np.meshgrid(sizes, budgets))
    d = c / (6 * n)
    steep = 2.6 + (119.7 / n) ** 0.2327 + (2.499e8 / d) ** 0.7869
    table = pd.DataFrame({"params": n, "tokens": d, "flops": c, "loss": (steep**-7 + 10.2**-7) ** (-1 / 7)})
    table = table[(d > 3e6) & (d / n < 2e4)].reset_index(drop=True)
    assert table["loss"].max() > 10
    assert "mixed_units" not in codes(table)
    assert "r20 3.9" in codes(in_bits(table, np.isin(np.arange(len(table)), [20, 33])))["mixed_units"]


def test_public_grids_with_losses_near_guessing_are_of_one_unit() -> None:
    path = Path(__file__).parents[4] / "shared" / "data" / "scaling" / "porian2024" / "isoflop_points.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    named = ["group", "dataset", "hparams", "warmup", "decay", "param_count", "split"]
    for name, table in pd.read_csv(path).groupby(named):
        runs = table[["params", "tokens", "flops", "loss"]].reset_index(drop=True)
        assert "mixed_units" not in codes(runs), name


def test_rows_that_no_neighbour_stands_apart_from_are_no_outliers() -> None:
    """At the ends of a long table a smooth curve is off by more than runs scatter, of all rows there alike."""
    n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 60), np.geomspace(2, 400, 40), indexing="ij"))
    noise = np.random.default_rng(0).normal(0, 1e-3, len(n))
    loss = (1.8 + 480 / n**0.35 + 2100 / (n * d) ** 0.37) * np.exp(noise)
    table = pd.DataFrame({"params": n, "tokens": n * d, "flops": 6 * n * n * d, "loss": loss})
    assert codes(table) == {}
    table.loc[[0, 1200], "loss"] *= 1.15
    assert "2 losses far from the others" in codes(table)["outliers"]


def test_rows_of_accuracies_are_named() -> None:
    table = thirty()
    for rows in ([4], [0, 11, 29], list(range(0, 30, 2))):
        mixed = table.copy()
        mixed.loc[rows, "loss"] = 1.0 / mixed.loc[rows, "loss"]
        found = codes(mixed)
        assert set(found) == {"not_a_loss"}
        several = f"{len(rows)} loss{'es are' if len(rows) > 1 else ' is'} at most 1"
        assert found["not_a_loss"].startswith(several)
        assert all(f"r{i} " in found["not_a_loss"] for i in rows[: numbers.SHOWN])
    assert "(r0 " in codes(table.assign(loss=1.0 / table["loss"]))["not_a_loss"]


@pytest.mark.parametrize("column", ["params", "tokens"])
def test_rows_in_millions_are_named_and_are_no_bits(column: str, tmp_path: Path) -> None:
    table = thirty().drop(columns="flops_budget")
    rows = np.arange(30) % 2 == 0
    mixed = table.assign(**{column: table[column] / np.where(rows, 1e6, 1.0)})
    mixed.to_csv(tmp_path / "t.csv", index=False)
    message = r"15 of 30 rows have one of params.*flops are 1e\+06 times.*\(row\d+ with params"
    with pytest.raises(ValueError, match=message):
        frame.used(from_csv(tmp_path / "t.csv"))
    mixed.drop(columns="flops").to_csv(tmp_path / "u.csv", index=False)
    few = frame.used(from_csv(tmp_path / "u.csv", flop_rule="6ND"))
    found = suspects.findings(few, NATS)
    assert [check.code for check in found] == ["mixed_units"]
    assert f"15 rows of 30 have {column} at least" in found[0].message
    assert "bits" not in found[0].message


def test_rows_without_a_loss_are_named_and_not_called_negative(tmp_path: Path) -> None:
    table = thirty()
    table.to_csv(tmp_path / "t.csv", index=False)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    for i, cell in ((3, ""), (7, "NaN"), (9, "-1"), (12, "diverged")):
        lines[i] = ",".join([*lines[i].split(",")[:-1], cell])
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    read = from_csv(tmp_path / "t.csv")
    lost = read[~read["used"]].set_index("key")["drop_code"].to_dict()
    assert lost == {"row3": "missing", "row7": "missing", "row9": "not_positive", "row12": "not_a_number"}
    from analysis.results.study_fit import dropped

    said = {check.code: check for check in findings.data(frame.used(read), dropped(read))}
    assert said["unusable_rows"].level == "warning"
    for name in ("row3: loss is empty or NaN", "row9: loss must be positive", "row12: loss is 'diverged'"):
        assert name in said["unusable_rows"].message
