"""A fit of a tidy frame, by the kind of law that was asked for, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.results import tracked
from analysis.results.predicted import with_prediction
from analysis.text import files
from analysis.values.study_result import Fit, save

if TYPE_CHECKING:
    import pandas as pd

    from analysis.results.study_fit import Parts


def fitted(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[Fit, Parts | None]:
    """Return what fit.json holds, and the parts of the fit, of which other budgets can be asked.

    `asked` has every option of `python -m analysis.fit`. There are no parts where one law is all there is: of sweeps,
    of learning curves, of another quantity than the loss, or of other columns than N, D and C.
    """
    from analysis.inputs.frame import used
    from analysis.inputs.large import refuse_fitted, threads
    from analysis.laws.registry import CURVES, FORMS
    from analysis.results.single_law import curves_only, law_only, settings_only
    from analysis.results.study_fit import Parts

    asked = {**asked, "workers": threads(int(asked["workers"]), int(frame["used"].sum()))}
    if asked["form"] == CURVES:
        return curves_only(frame, asked), None
    if FORMS[asked["form"]].target in ("lr", "batch_tokens"):
        return settings_only(frame, asked), None
    complete = frame[frame["used"]][["params", "tokens", "flops", "loss"]].notna().all(axis=None)
    if not complete:
        return law_only(frame, asked), None
    refuse_fitted(frame, int(asked.get("thin") or 1))
    rows = used(frame)
    if FORMS[asked["form"]].target != "loss":  # a backtest would hold its predictions against losses
        return law_only(frame, asked), None
    parts = Parts(frame, rows, asked)
    return parts.result(), parts


def write(result: Fit, frame: pd.DataFrame, folder: Path) -> None:
    """Write `runs.csv`, `points.csv` and `metrics.json`, then `fit.json`, each by atomic rename."""
    files.write(folder / "runs.csv", with_prediction(result, frame).to_csv(index=False))
    files.write(folder / "points.csv", tracked.points(result, frame).to_csv(index=False))
    files.write(folder / "metrics.json", tracked.metrics_text(result))
    save(result, folder / "fit.json")
