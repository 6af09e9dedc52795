"""What every command says of the rows that it rests on: settings that are mixed, losses that cannot be such."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.diagnostics import at_rows
from analysis.inputs.frame import from_csv
from analysis.laws.registry import CURVES
from analysis.values.findings import finding
from tests.analysis import studies


def loaded(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    path = folder / "runs.csv"
    table.to_csv(path, index=False)
    return from_csv(path)


def study() -> pd.DataFrame:
    return studies.isoflop(4, noise=0.004, ratios=(2, 4, 8, 16, 32, 64), budgets=(1e11, 4e11, 1.6e12, 6.4e12))


def two_corpora() -> pd.DataFrame:
    table = study()
    return pd.concat([table.assign(corpus="web"), table.assign(corpus="code", loss=table["loss"] + 0.1)])


def test_settings_that_are_fitted_together_are_named(tmp_path: Path) -> None:
    frame = loaded(two_corpora(), tmp_path)
    (check,) = at_rows.settings(frame, "chinchilla")
    assert (check.code, check.level) == ("mixed_settings", "warning")
    assert check.message == "corpus has 2 values (code, web), which are fitted together"
    assert check.advice == "where=corpus:code keeps one of them"
    assert check in at_rows.findings(frame, "chinchilla")


def test_no_more_than_six_values_are_listed() -> None:
    frame = pd.DataFrame()
    frame.attrs["settings"] = {"corpus": list("abcdefgh")}
    (check,) = at_rows.settings(frame, "chinchilla")
    assert check.message == "corpus has 8 values (a, b, c, d, e, f), which are fitted together"


def test_what_the_law_reads_is_no_setting_that_is_mixed() -> None:
    frame = pd.DataFrame()
    frame.attrs["settings"] = {"experts": ["1", "8"], "corpus": ["code", "web"]}
    assert [check.message.split()[0] for check in at_rows.settings(frame, "chinchilla")] == ["experts", "corpus"]
    assert [check.message.split()[0] for check in at_rows.settings(frame, "moe")] == ["corpus"]
    assert [check.message.split()[0] for check in at_rows.settings(frame, CURVES)] == ["experts", "corpus"]


def test_what_was_done_to_the_rows_comes_first() -> None:
    frame = pd.DataFrame()
    done = finding("mid_schedule_corrected", "3 losses", "check them")
    frame.attrs = {"checks": (done,), "settings": {"corpus": ["code", "web"]}}
    assert [check.code for check in at_rows.settings(frame, "chinchilla")] == [
        "mid_schedule_corrected",
        "mixed_settings",
    ]


def test_losses_are_judged_where_rows_have_all_that_is_needed(tmp_path: Path) -> None:
    table = two_corpora()
    table["loss"] = 1 - table["loss"] / 10  # as accuracies rise
    frame = loaded(table, tmp_path)
    codes = [check.code for check in at_rows.findings(frame, "chinchilla")]
    assert codes[-1] == "mixed_settings" and len(codes) > 1
    lacking = frame.assign(flops=float("nan"))
    lacking.attrs = frame.attrs
    assert [check.code for check in at_rows.findings(lacking, "chinchilla")] == ["mixed_settings"]
    none = frame.assign(used=False)
    none.attrs = frame.attrs
    assert [check.code for check in at_rows.findings(none, "chinchilla")] == ["mixed_settings"]


def test_a_study_without_settings_has_no_finding(tmp_path: Path) -> None:
    assert at_rows.findings(loaded(study(), tmp_path), "chinchilla") == ()
