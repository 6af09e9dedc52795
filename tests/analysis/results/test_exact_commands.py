"""The keys of fit and compare with their defaults, and a comparison as text and as a file, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.inputs import frame
from analysis.results import fit_keys, law_comparison
from analysis.text import terminal
from analysis.values.findings import finding

ROOT = Path(__file__).parents[3]
FIT: dict[str, Any] = {
    "form": "chinchilla", "approach": ("1", "2", "3"), "loss": "huber", "delta": "0.001", "interval": "bootstrap",
    "cluster": "auto", "fix": {}, "tie": {}, "budget": None, "window": 0.01, "optimum": "quadratic",
    "resamples": 1000, "seed": 0, "workers": 0, "sensitivity": True, "report": True,
}  # fmt: skip


def test_what_a_fit_does_unless_it_is_told() -> None:
    found = fit_keys.parse(["runs=table.csv"])
    assert {name: found[name] for name in FIT} == FIT
    assert (found["runs"], found["out"], found["train"]) == ("table.csv", found["out"], found["train"])
    assert not found["out"] and not found["train"]


def test_what_a_fit_is_told() -> None:
    found = fit_keys.parse(
        ["runs=t.csv", "window=2%", "resamples=0", "seed=3", "workers=2", "sensitivity=no", "report=off", "budget=1e21",
         "fix=E:1.7,alpha:0.3", "tie=beta:alpha", "delta=squared"]
    )  # fmt: skip
    assert (found["window"], found["resamples"], found["seed"], found["workers"]) == (0.02, 0, 3, 2)
    assert (found["sensitivity"], found["report"], found["budget"]) == (False, False, 1e21)
    assert (found["fix"], found["tie"]) == ({"E": 1.7, "alpha": 0.3}, {"beta": "alpha"})
    assert found["delta"] == "squared"


@pytest.mark.parametrize(
    ("said", "approaches"),
    [("all", ("1", "2", "3")), ("1", ("1",)), ("isoflop, surface", ("2", "3")), ("parametric", ("3",)),
     ("envelope,valleys", ("1", "2"))],
)  # fmt: skip
def test_approaches_have_names(said: str, approaches: tuple[str, ...]) -> None:
    assert fit_keys.parse(["runs=t.csv", f"approach={said}"])["approach"] == approaches


@pytest.mark.parametrize(
    ("word", "said"),
    [("approach=1,4", "approach=1,4: '4' is none of 1, 2, 3, all"), ("delta=-1", "delta=-1: a positive number is need"),
     ("resamples=10", "resamples=10: 0 for no interval, or at least"), ("window=1", "a number between 0 and 1"),
     ("seed=1.5", "seed=1.5: a whole number, 0 or more is needed"), ("report=maybe", "report=maybe: yes or no")],
)  # fmt: skip
def test_a_bad_value_is_told_with_its_key(word: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        fit_keys.parse(["runs=t.csv", word])
    assert said in str(error.value)


def test_a_law_of_learning_curves_can_be_fitted_and_not_compared() -> None:
    assert fit_keys.parse(["runs=t.csv", "form=multi_power"])["form"] == "multi_power"
    with pytest.raises(ValueError, match="nonsense"):
        fit_keys.parse(["runs=t.csv", "form=nonsense"])


def table() -> pd.DataFrame:
    rows = {
        "chinchilla": (1, -123.4567, 0.0, 0.9876, -124.0, -120.0, 5, 1e-3, 0.0123, None),
        "kaplan": (2, -100.0, 23.4567, 0.0124, -101.0, -99.0, 4, 2e-3, 0.2, "held out: worse"),
    }
    made = pd.DataFrame.from_dict(rows, orient="index", columns=list(law_comparison.COLUMNS)).astype(
        {"warning": object}
    )
    made.loc["farseer", "warning"] = "not fitted: too few rows"
    made.loc["chinchilla", "warning"] = np.nan
    return made


TEXT = [
    "               AICc  behind  weight      AIC      BIC   k  held out",
    "chinchilla  -123.46       0    0.99  -124.00  -120.00   5     1.2 %",
    "kaplan      -100.00    23.5   0.012  -101.00   -99.00   4      20 %",
    "             held out: worse",
    "farseer           -       -       -        -        -   -         -",
    "             not fitted: too few rows",
    "",
    "behind    AICc above the best law's; weight: Akaike's, of AICc; k: fitted constants",
    "held out  mean |error| of the largest fifth of the runs, predicted from the others",
]


def test_a_comparison_as_text() -> None:
    assert law_comparison.text(table()).splitlines() == TEXT


def test_each_code_of_a_comparison_is_explained_once_as_a_fit_prints_it() -> None:
    made = table()
    made["warning"] = ["not_identified basins", "not_identified", "not fitted: too few rows"]
    made.attrs["findings"] = {
        "not_identified": finding("not_identified", "1 constant is not identified", "do not quote them"),
        "basins": finding("basins", "30 % of 8 starts agree", "compare them"),
    }
    said = law_comparison.text(made).splitlines()
    assert said[-4:] == [
        TEXT[-1],
        "",
        "warning  not_identified: the data do not determine a constant. Do not quote them.",
        "warning  basins: fewer than half of the starting points reach the same minimum. Compare them.",
    ]


def test_a_comparison_of_runs_has_the_findings_of_its_codes() -> None:
    runs = frame.from_csv(ROOT / "docs" / "example-runs.csv")
    made = law_comparison.compare(runs, ["chinchilla", "kaplan_floor"], resamples=0)
    codes = {code for said in made["warning"] for code in said.split()}
    assert codes and set(made.attrs["findings"]) == codes


def test_a_comparison_is_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def compared(frame: object, names: list[str], **given: Any) -> pd.DataFrame:
        asked.update(given, frame=frame, names=names)
        return table()

    mixed = finding("mixed_settings", "corpus has 2 values", "where=corpus:web")
    monkeypatch.setattr("analysis.results.load.load", lambda options: "a frame")
    monkeypatch.setattr("analysis.diagnostics.at_rows.findings", lambda frame, form: (mixed,))
    monkeypatch.setattr(law_comparison, "compare", compared)
    out = tmp_path / "new" / "folder"
    for _ in range(2):  # a folder that is there is written to again
        assert law_comparison.main(["runs=t.csv", "forms=chinchilla, kaplan,,farseer", f"out={out}", "seed=5"]) == 0
    assert asked == {
        "loss": "squared", "resamples": 0, "seed": 5, "frame": "a frame", "names": ["chinchilla", "kaplan", "farseer"],
        "tell": terminal.complain,
    }  # fmt: skip
    written = (out / "compare.json").read_text()
    assert capsys.readouterr().out.splitlines() == [str(mixed), *TEXT, f"wrote {out / 'compare.json'}"] * 2
    assert (
        written.startswith('{\n "loss": "squared",\n "laws": [\n  {\n   "form": "chinchilla",')
        and written[-2:] == "}\n"
    )
    laws = json.loads(written)["laws"]
    assert [law["form"] for law in laws] == ["chinchilla", "kaplan", "farseer"]
    assert laws[1]["warning"] == "held out: worse" and laws[2]["aicc"] is None and laws[0]["delta_aicc"] == 0.0
    assert law_comparison.main(["runs=t.csv"]) == 0 and asked["seed"] == 0
    assert asked["names"] == law_comparison.DEFAULT.split(",")
    assert "wrote" not in capsys.readouterr().out


def test_a_comparison_of_very_many_runs_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = frame.from_csv(ROOT / "docs" / "example-runs.csv")
    told: list[str] = []
    law_comparison.compare(runs, ["chinchilla", "kaplan"], resamples=0, tell=told.append)
    assert told == [], "few runs take no time"
    monkeypatch.setattr(law_comparison, "LONG", 24)
    law_comparison.compare(runs, ["chinchilla", "kaplan"], resamples=0, tell=told.append)
    assert told[:2] == ["fitting law 1 of 2 to 25 runs: chinchilla", "fitting law 2 of 2 to 25 runs: kaplan"]
    assert told[2].startswith("judging them") and len(told) == 3


def test_the_laws_are_listed_with_what_they_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert law_comparison.main(["runs=t.csv", "forms=list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("chinchilla ")).endswith("[loss of params, tokens]")
    assert len({line.index("  ") for line in lines if line.startswith("chinchilla")}) >= 1 and len(lines) > 10
