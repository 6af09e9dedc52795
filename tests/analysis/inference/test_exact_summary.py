"""A fit's summary as text, HTML, LaTeX and CSV, letter for letter, and the record beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.inference.summary import Summary, record, summary, versions
from analysis.values.blocks import Block, Check

TABLE = (("", "value", "std err", "[5 %", "95 %", ""), ("E", "1.5", "0.1", "1.2", "1.75", ""),
         ("alpha", "0.34", "0.02", "0.3", "inf", "held"))  # fmt: skip
SMALL = Summary("law_1: loss", (("law", "E + A/N^alpha"), ("rows", "7 & 3 %")), TABLE, ("few: a < b.", "odd_1: $."))


def test_as_text_facts_are_left_and_constants_right() -> None:
    assert SMALL.as_text().splitlines() == [
        "              law_1: loss",
        "=======================================",
        "law:   E + A/N^alpha",
        "rows:  7 & 3 %",
        "=======================================",
        "       value  std err  [5 %  95 %",
        "---------------------------------------",
        "E        1.5      0.1   1.2  1.75",
        "alpha   0.34     0.02   0.3   inf  held",
        "=======================================",
        "[1] few: a < b.",
        "[2] odd_1: $.",
    ]
    assert str(SMALL) == SMALL.as_text()


def test_as_html_escapes_what_it_says() -> None:
    assert SMALL.as_html() == (
        "<table class='facts'><caption>law_1: loss</caption><tbody><tr><th scope='row'>law</th><td>E + A/N^alpha</td>"
        "</tr><tr><th scope='row'>rows</th><td>7 &amp; 3 %</td></tr></tbody></table><table class='constants'><thead>"
        "<tr><th scope='col'></th><th scope='col'>value</th><th scope='col'>std err</th><th scope='col'>[5 %</th>"
        "<th scope='col'>95 %</th><th scope='col'></th></tr></thead><tbody><tr><td>E</td><td>1.5</td><td>0.1</td>"
        "<td>1.2</td><td>1.75</td><td></td></tr><tr><td>alpha</td><td>0.34</td><td>0.02</td><td>0.3</td><td>inf</td>"
        "<td>held</td></tr></tbody></table><ol><li>few: a &lt; b.</li><li>odd_1: $.</li></ol>"
    )
    assert SMALL._repr_html_() == SMALL.as_html()


def test_as_latex_has_a_column_for_each_of_the_table() -> None:
    assert SMALL.as_latex() == "\n".join((
        r"\begin{tabular}{ll}", r"\multicolumn{2}{c}{law\_1: loss} \\", r"\hline",
        r"law & E + A/N\^{}alpha \\", r"rows & 7 \& 3 \% \\", r"\end{tabular}", "",
        r"\begin{tabular}{lrrrrr}", r"\hline", r" & value & std err & [5 \% & 95 \% &  \\", r"\hline",
        r"E & 1.5 & 0.1 & 1.2 & 1.75 &  \\", r"alpha & 0.34 & 0.02 & 0.3 & inf & held \\", r"\hline",
        r"\end{tabular}", r"\begin{enumerate}", r"\item few: a < b.", r"\item odd\_1: \$.", r"\end{enumerate}",
    ))  # fmt: skip
    assert "enumerate" not in Summary("t", SMALL.facts, TABLE, ()).as_latex()


def test_as_csv_quotes_what_has_a_comma() -> None:
    made = Summary("t", (), (("", "value", "of"), ("a", "1,000", "b")), ())
    assert made.as_csv() == ',value,of\na,"1,000",b'


CONSTANTS = ("E", "A", "alpha", "beta")


def draws(count: int) -> pd.DataFrame:
    """Return draws of A and alpha that move together, of E by itself, of beta that is held."""
    steps = np.linspace(-1, 1, count)
    apart = np.cos(np.arange(count) * 2.0)
    return pd.DataFrame(
        {"E": np.exp(0.1 * apart), "A": np.exp(steps), "alpha": 0.5 * np.exp(2 * steps), "beta": np.full(count, 0.3),
         "ratio": steps}
    )  # fmt: skip


def fitted(count: int = 40, **changes: Any) -> Any:
    """Return all that a summary reads of a fit: a law of four constants, the last held, and one derived number."""
    ends = {0: {"E": 1.2, "A": 0.0, "alpha": -np.inf, "beta": 0.3, "ratio": np.nan},
            1: {"E": 1.7, "A": np.inf, "alpha": 0.5, "beta": 0.3, "ratio": 2.0}}  # fmt: skip
    whole = {
        "form": SimpleNamespace(name="mine", target="loss", text="E + A/N^alpha", reference="Somebody 2020",
                                names=CONSTANTS, inputs=("params",)),
        "optimizer": SimpleNamespace(agree_share=0.875, starts=32, basins=(1, 2, 3), gradient_norm=2.5e-9),
        "loss_function": "huber", "objective": 0.123456789012345, "nobs": 17, "df_resid": 13, "llf": 12.34567,
        "aicc": -9.126, "aic": -10.001, "bic": -8.0, "confidence": 0.9, "interval_method": "bootstrap",
        "params": pd.Series({"E": 1.5, "A": 410.0, "alpha": 0.34, "beta": 0.3}),
        "derived": pd.Series({"ratio": 1.0617}),
        "bse": pd.Series({"E": 0.1, "A": 20.0, "alpha": 0.012345678, "beta": np.nan}),
        "conf_int": lambda: ends, "held": {"beta": 0.3}, "thetas": np.zeros((count, 3)), "draws": draws(count),
        "identified": {name: SimpleNamespace(identified=name != "alpha") for name in (*CONSTANTS, "ratio")},
        "constraints": {"beta": 0.3}, "problem": SimpleNamespace(plain=False), "undefined": {"ratio": 0.25, "E": 0.0},
        "kinds": {"params": "matmul"}, "seed": 7,
        "data": SimpleNamespace(size=np.array([1.0, 2.0, 2.0, 3.0]), columns={"params": np.array([2e6, 1e6, 3e6])}),
    }  # fmt: skip
    return SimpleNamespace(**{**whole, **changes})


def test_the_facts_of_a_fit() -> None:
    found = summary(fitted(), [Check("few", "there are few rows", "run more")])
    assert found.title == "mine: loss"
    assert found.facts == (
        ("law", "E + A/N^alpha"),
        ("reference", "Somebody 2020"),
        ("loss function", "huber"),
        ("objective (summed)", "0.123456789012"),
        ("rows, residual df", "17, 13"),
        ("log likelihood", "12.3457"),
        ("AICc, AIC, BIC", "-9.13, -10.00, -8.00"),
        ("starts that agree", "88 % of 32"),
        ("basins", "3"),
        ("relative gradient", "2.5e-9"),
        ("intervals", "90 %, bootstrap"),
    )
    assert found.notes == ("few: there are few rows; run more.", "correlations beyond 0.9: alpha A +1.000.")


def test_the_constants_of_a_fit() -> None:
    found = summary(fitted(), [])
    steps = np.linspace(-1, 1, 40)
    deviation = float(np.sqrt(((steps - steps.mean()) ** 2).sum() / 39))
    assert found.constants == (
        ("", "value", "std err", "[5 %", "95 %]", ""),
        ("E", "1.5000", "0.10000", "1.2000", "1.7000", ""),
        ("A", "410.00", "20.000", "0", "inf", ""),
        ("alpha", "0.34000", "0.012346", "-inf", "0.50000", "not identified"),
        ("beta", "0.30000", "-", "0.30000", "0.30000", "held"),
        ("ratio", "1.0617", f"{deviation:.5g}", "-", "2.0000", ""),
    )
    narrow = summary(fitted(confidence=0.5), []).constants[0]
    assert narrow[3:5] == ("[25 %", "75 %]")
    without = summary(fitted(0, draws=draws(1)), []).constants
    assert without[-1][2] == "-", "no draws, no spread"


@pytest.mark.parametrize(("count", "notes"), [(0, 0), (19, 0), (20, 1), (21, 1)])
def test_correlations_are_told_from_twenty_draws_on(count: int, notes: int) -> None:
    assert len(summary(fitted(count, draws=draws(max(count, 2))), []).notes) == notes


def test_small_constants_move_together_as_large_ones_do() -> None:
    tiny = draws(30)
    tiny[["A", "alpha"]] *= 1e-9
    assert summary(fitted(30, draws=tiny), []).notes == ("correlations beyond 0.9: alpha A +1.000.",)
    apart = draws(30)
    apart["alpha"] = np.exp(np.sin(np.arange(30) * 3.0))
    assert summary(fitted(30, draws=apart), []).notes == ()


def test_a_record_has_what_repeats_the_fit() -> None:
    block = Block(form="E + A/N^alpha", loss_function="huber", approach="parametric")
    found = record(fitted(), block)
    chosen = {name: found[name] for name in (
        "name", "reference", "constraints", "residual", "nobs", "df_resid", "llf", "aicc", "aic", "bic", "kinds",
        "interval_method", "confidence", "resamples", "undefined_draws", "seed", "model_sizes", "ranges")}  # fmt: skip
    assert chosen == {
        "name": "mine", "reference": "Somebody 2020", "constraints": {"beta": 0.3},
        "residual": "ln predicted - ln observed", "nobs": 17, "df_resid": 13, "llf": 12.34567, "aicc": -9.126,
        "aic": -10.001, "bic": -8.0, "kinds": {"params": "matmul"}, "interval_method": "bootstrap", "confidence": 0.9,
        "resamples": 40, "undefined_draws": {"ratio": 0.25}, "seed": 7, "model_sizes": 3,
        "ranges": {"params": [1e6, 3e6]},
    }  # fmt: skip
    assert found["versions"] == versions() and set(versions()) == {
        "python",
        "scaling-study",
        "numpy",
        "scipy",
        "pandas",
    }
    assert versions()["numpy"] == np.__version__
    plain = record(fitted(problem=SimpleNamespace(plain=True), aicc=np.inf, bse=pd.Series({"E": 0.5})), block)
    assert (plain["residual"], plain["aicc"], plain["bse"]) == ("predicted - observed", None, {"E": 0.5})
