"""The proposal of next runs word for word, and what a simulation found in each of its three endings."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis as sa
from analysis.inputs.rows import from_csv
from analysis.next import main, text
from analysis.planning import posterior, run_noise
from analysis.planning.larger import HELPS, Larger
from analysis.planning.next_runs import Expected, Next, Proposed, Share, next_runs
from analysis.planning.next_text import far_off
from tests.analysis import studies

FIRST = Proposed(1.25e6, 3.2e8, 2.4e15, 128, 4, 0.02, 0.015, 7.5e-20)
SECOND = Proposed(4e6, 1e9, 2.4e16, None, None, 0.015, 0.01, 5.2e-21)
FOUND = Next((FIRST, SECOND), 1e18, 6.5e7, 2.5, 0.02, 0.01, 1, None, 2.49, "alpha 0.34 +- 0.06")
SHARE = Share(0.25, 3, 28, 4e16, 0.02, 0.01, 0.009, 100)
SAID = """\
target    1e18 FLOPs, 65M parameters: loss 2.500 nats per token by the law through the runs
now       2.394 to 2.590 (95 %, around the forecast 2.490; 1 basin)
then      2.442 to 2.539 after the runs below
prior     alpha 0.34 +- 0.06 (published laws; the runs add to it)

         params    tokens     FLOPs      shape  95 % after  narrower by
    1     1.25M      320M    2.4e15    128 x 4    +-0.0732         25 %
    2        4M        1B    2.4e16          -    +-0.0488         33 %
  sum                        2.6e16"""


def test_a_proposal_word_for_word() -> None:
    """The interval is 2.49 e^(-+1.96 sd), around the forecast; without one around the law's 2.5."""
    assert text(FOUND) == SAID
    free = text(replace(FOUND, prior="", basins=2, loss_unit="bits per byte")).splitlines()
    assert free[0].endswith("loss 2.500 bits per byte by the law through the runs")
    assert free[1].endswith("2.490; 2 basins)")
    assert "now       2.404 to 2.600 (95 %, around the forecast 2.500" in text(replace(FOUND, expected=float("nan")))
    assert free[2:5] == [*SAID.splitlines()[2:3], *SAID.splitlines()[4:6]]
    assert text(replace(FOUND, simulation=SHARE)).startswith(f"{SAID}\n\nsimulated: ")


def test_the_errors_that_the_forecast_expects_are_there_with_their_priors() -> None:
    """Also where published laws say nothing, or the runs contradict them."""
    found = replace(FOUND, scatter=Expected(0.0031, "seeds, 0.2 %"), form_error=Expected(0.0125, "1 %, as 3 runs"))
    lines = [
        "scatter   0.31 % from run to run (prior: seeds, 0.2 %; the runs add to it)",
        "form      1.2 % by the form of the law (prior: 1 %, as 3 runs; the runs add to it)",
    ]
    assert text(found).splitlines()[4:6] == lines
    assert text(replace(found, prior="", without=(2.4, 2.6))).splitlines()[3:5] == lines


def test_a_forecast_expects_the_errors_of_its_posterior() -> None:
    found = next_runs(from_csv(Path("docs/example-runs.csv")), target=1e22, count=1)
    assert found.scatter is not None and found.form_error is not None
    assert (found.scatter.prior, found.form_error.prior) == (run_noise.words(), posterior.form_words())
    assert found.scatter.sd == pytest.approx(0.0018, abs=1e-4)
    assert found.form_error.sd == pytest.approx(0.0040, abs=1e-4)


def test_the_interval_that_fits_and_plans_give_stands_beside_that_of_the_prior() -> None:
    """Both are seen for one budget: the line says why they differ; a law without a prior has a line of its own."""
    lines = text(replace(FOUND, without=(2.4123, 2.5877))).splitlines()
    assert lines[3].startswith("prior     alpha 0.34")
    assert lines[4] == (
        "no prior  2.412 to 2.588 by resamples of the runs alone, as analysis.fit and analysis.plan give it: without "
        "priors and the form's own error"
    )
    free = text(replace(FOUND, without=(2.4123, 2.5877), prior="")).splitlines()[3]
    assert free == lines[4].replace("no prior ", "resampled")


@pytest.mark.parametrize("form", ["chinchilla", "chinchilla_tied"])
def test_the_interval_without_the_prior_is_that_of_the_plan(form: str) -> None:
    """To the last digit, or "next" and "plan" would contradict each other; too few runs for the law have none."""
    frame = from_csv(Path("docs/example-runs.csv"))
    found = next_runs(frame, target=1e22, count=1, form=form)
    planned = sa.plan(frame, 1e22, form=form, strict=False, beside=()).options[0]
    assert found.without is not None
    assert found.without == planned.intervals["loss"]
    assert found.loss == pytest.approx(planned.loss, rel=1e-3)


def test_runs_that_the_law_is_too_much_for_have_no_interval_without_a_prior() -> None:
    frame = from_csv(Path("docs/example-runs.csv"))
    few = frame.iloc[[0, 1, 2, 6]].assign(used=True)
    found = next_runs(few, count=1)
    assert found.without is None
    assert "no prior" not in text(found)


TRUTH = (1.8172, 477.84, 2143.0, 0.3473, 0.3672)


def lowest(budget: float) -> float:
    """Return the lowest loss that a budget [FLOPs] buys by the true law."""
    size = np.geomspace(1e6, 1e12, 20_000)
    return float(studies.loss(TRUTH, size, budget / 6 / size).min())


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_of_runs_at_one_budget_holds_the_truth(seed: int) -> None:
    """The law through them puts E far too high; the interval lies around the forecast, which has the prior."""
    one = studies.isoflop(seed, noise=0.003, law=TRUTH, budgets=(6e18,), ratios=np.geomspace(0.6, 720, 9).tolist())
    found = next_runs(sa.load(one), target=1e21, count=1)
    low, high = found.between(found.sd_now)
    assert low < lowest(1e21) < high
    assert low < found.expected < high


@pytest.mark.parametrize("seed", range(3))
def test_a_ladder_at_one_ratio_is_continued_at_that_ratio(seed: int) -> None:
    """Its runs do not tell N from D: the law's best size there, 0.7 tokens per parameter say, would be an accident."""
    size = np.geomspace(2e7, 1e9, 5)
    value = studies.loss(TRUTH, size, 20 * size) * np.exp(0.002 * np.random.default_rng(seed).normal(size=5))
    ladder = pd.DataFrame({"params": size, "tokens": 20 * size, "flops": 120 * size**2, "loss": value})
    for runs in (ladder, pd.concat([ladder, ladder.assign(loss=value * 1.001)])):
        found = next_runs(sa.load(runs), count=1)
        assert found.target_ratio == pytest.approx(20, rel=1e-6)
        at = float(studies.loss(TRUTH, found.target_params, 20 * found.target_params))
        low, high = found.between(found.sd_now)
        assert low < at < high


def test_runs_that_barely_narrow_the_forecast_come_with_what_would() -> None:
    """At 2.49 half widths are 2.49 sinh(1.96 sd): 0.0976 of sd 0.02, 0.0879 of 0.018, 0.0488 of 0.01."""
    little = replace(FOUND, sd_after=0.018)
    assert "barely" not in text(replace(FOUND, sd_after=0.0169))
    line = next(line for line in text(little).splitlines() if line.startswith("barely"))
    known = "barely    these runs narrow the interval of the loss at 1e18 FLOPs only from +-0.0976 to +-0.0879"
    assert line == known
    larger = Larger(2.534e17, 3e7, 1.4e9, 0.01)
    assert text(replace(little, larger=larger)).splitlines()[4] == (
        f"{known}; a larger run would help more: one of 2.53e17 FLOPs alone, 30M parameters on 1.4B tokens, narrows "
        "it to +-0.0488 (ask with budget=2.53e17 largest=2.53e17)"
    )
    assert "barely" not in text(replace(little, runs=()))


def test_the_larger_run_does_what_it_is_said_to_do() -> None:
    """Asked for with its budget, the command proposes runs that narrow the forecast at least as much."""
    frame = from_csv(Path("docs/gallery/runs.csv"))
    found = next_runs(frame, budget=1e12)
    assert found.barely
    one = found.larger
    assert one is not None
    assert one.after <= HELPS * found.sd_now
    assert found.runs[-1].flops < one.flops < found.target
    asked = next_runs(frame, target=found.target, budget=one.flops, largest=one.flops, power=0.0, count=1)
    assert asked.sd_after == pytest.approx(one.after, rel=0.02)
    assert not asked.barely and asked.larger is None


def test_runs_far_from_the_targets_ratio_come_with_the_reason() -> None:
    """0.17 tokens per parameter for a target at 20; 150 are within the factor of ten."""
    odd = replace(FIRST, params=1e7, tokens=1.7e6)
    found = replace(FOUND, runs=(odd, replace(SECOND, tokens=6e8)), target_ratio=20.0, done_ratios=(0.15, 300.0))
    said = " ".join(text(found).partition("\nwhy  ")[2].split())
    assert said.startswith(
        "tokens per parameter 0.17 (run 1) are far from the target's 20. These runs are not proposed"
    )
    assert "150 (run 2) are far" in " ".join(far_off(replace(found, target_ratio=0.5)))
    assert said.endswith("the finished runs have 0.15 to 300; ratios=2:200 leaves such runs out")
    beyond = " ".join(far_off(replace(found, done_ratios=(1.0, 300.0))))
    assert "so the law is tested beyond what it was fitted to" in beyond
    assert far_off(replace(found, runs=(replace(SECOND, tokens=6e8),))) == ()


@pytest.mark.parametrize(("text", "words"), [("2", "two numbers are needed"), ("9:2", "the lower one comes first"),
                                             ("9:9", "ratios=9:9: the lower one comes first"),
                                             ("a:2", "a positive number is needed")])  # fmt: skip
def test_ratios_that_are_none_are_named(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs=docs/example-runs.csv", f"ratios={text}"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "simulated: 3 chosen runs with 25 % of the FLOPs of the isoFLOP grid of 28 runs (4e16 FLOPs) forecast as "
             "narrowly (sd of the loss at the target 2.0 % now, 1.0 % by the grid; 100 studies)"),
        ({"runs": 1}, "simulated: 1 chosen run with 25 %"),
        ({"share": None, "sd_chosen": 0.012},
         "simulated: the isoFLOP grid of 28 runs (4e16 FLOPs) narrows the forecast more than 3 chosen runs do (sd of "
         "the loss at the target 2.0 % now, 1.0 % by the grid, 1.2 % by the chosen runs; 100 studies)"),
        ({"share": None}, "simulated: 3 chosen runs may forecast as narrowly as the isoFLOP grid of 28 runs (4e16 "
                          "FLOPs), but 100 studies cannot tell; simulate=1000 may (sd of the loss at the target 2.0 % "
                          "now, 1.0 % by the grid, 0.90 % by the chosen runs)"),
        ({"sd_grid": 0.0179}, "simulated: 3 chosen runs with"),
        ({"sd_grid": 0.9 * 0.02}, "simulated: the isoFLOP grid of 28 runs (4e16 FLOPs) would hardly narrow the "
                             "forecast (2.0 % now, 1.8 % by the grid): the uncertainty there is in the form of the "
                             "law so far out, which runs of this size cannot reduce"),
        ({"sd_grid": 0.03, "share": None}, "simulated: the isoFLOP grid of 28 runs (4e16 FLOPs) would hardly narrow"),
    ],
)  # fmt: skip
def test_what_a_simulation_found(changed: dict[str, Any], words: str) -> None:
    said = text(replace(FOUND, simulation=replace(SHARE, **changed))).splitlines()[-1]
    assert said.startswith(words)
    if not changed or (changed.get("share", 1) is None and "sd_grid" not in changed):
        assert said == words


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the command asked for; it is given FOUND, or what is set as `found`."""
    seen: dict[str, Any] = {"found": FOUND}

    def answer(frame: Any, **given: Any) -> Next:
        seen.update(given)
        made: Next = seen["found"]
        return made

    monkeypatch.setattr(sys.modules["analysis.next"], "next_runs", answer)
    return seen


def test_the_command_hands_on_what_it_was_asked(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = studies.isoflop().iloc[:6].assign(study="ours", loss_unit="bits_per_byte")
    table.to_csv(tmp_path / "a.csv", index=False)
    given = [f"runs={tmp_path / 'a.csv'}", f"out={tmp_path / 'next'}"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert said.startswith("target    1e18 FLOPs")
    assert said.endswith(
        "note: no model shape comes near some of these sizes: no config is written for python -m study.sweep\n"
    )
    assert [path.name for path in (tmp_path / "next").iterdir()] == ["next.json"]
    asked.pop("found")
    assert asked == {
        "target": None, "budget": None, "largest": None, "count": 8, "power": None, "form": "chinchilla",
        "simulate": 100, "seed": 0, "ratios": None,
    }  # fmt: skip
    for given_power, power in (("0", 0.0), ("0.0", 0.0), ("0.4", 0.4)):
        asked["found"] = FOUND
        assert main([*given, f"power={given_power}"]) == 0
        assert asked["power"] == power
    asked["found"] = replace(FOUND, runs=())
    assert main(given) == 2
    assert "no candidate fits into the budget" in capsys.readouterr().err


def test_configs_are_written_where_every_run_has_a_shape(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = studies.isoflop().iloc[:6].assign(study="ours")
    table.to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.chdir(tmp_path)
    asked["found"] = replace(FOUND, runs=(FIRST,), scatter=Expected(0.0031, "seeds, 0.2 %"))
    assert main(["runs=a.csv"]) == 0
    assert (tmp_path / "reports/ours/next/next.yaml").is_file()
    numbers = json.loads((tmp_path / "reports/ours/next/next.json").read_text())
    assert numbers["scatter"] == {"sd": 0.0031, "prior": "seeds, 0.2 %"}
    assert (numbers["prior"], numbers["form_error"], numbers["runs"][0]["width"]) == (FOUND.prior, None, 128)
    assert capsys.readouterr().out.endswith(
        "\nwrote reports/ours/next/next.yaml and next.json; look at the points first; "
        "without dry_run=true the command submits them:\n"
        "  python -m study.sweep --config-dir reports/ours/next --config-name next dry_run=true\n"
    )


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((2,), "ratios=(2,): two numbers are needed, the lower one first"),
        ((2, 20, 200), "two numbers are needed"),
        ((), "two numbers are needed"),
        ((20, 2), "ratios=(20, 2): two numbers are needed, the lower one first"),
        ((20, 20), "two numbers are needed"),
        ((0, 20), "ratios=0: "),
        ((2, -20), "ratios=-20: "),
        (("2", 20), "ratios="),
        ("2:20", "two numbers are needed"),
        (2.0, "two numbers are needed"),
    ],
)
def test_ratios_of_a_call_are_two_positive_numbers(ratios: object, words: str) -> None:
    with pytest.raises(ValueError, match=f"^(analysis\\.next\\.)?.*{re.escape(words)}"):
        sa.next_runs("docs/example-runs.csv", target=1e22, ratios=ratios)  # type: ignore[arg-type]


def test_ratios_of_a_call_bound_what_is_proposed() -> None:
    for ratios in ((15.0, 40.0), [15.0, 40.0]):
        found = sa.next_runs("docs/example-runs.csv", target=1e22, count=3, simulate=0, ratios=ratios)  # type: ignore[arg-type]
        each = found.frame["tokens"] / found.frame["params"]
        assert each.between(15.0, 40.0).all() and len(each)
