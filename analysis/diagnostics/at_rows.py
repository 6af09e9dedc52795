"""What rows say against any conclusion from them: losses that cannot be such, and settings that are fitted together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.values.blocks import Check
from analysis.values.findings import finding

if TYPE_CHECKING:
    import pandas as pd


def findings(frame: pd.DataFrame, form: str) -> tuple[Check, ...]:
    """Return what every command says of the rows that it rests on, whatever it concludes from them by a law `form`.

    Rows that lack params, tokens or flops are judged by their losses and settings alone.
    """
    from analysis.diagnostics import suspects
    from analysis.inputs.columns import REQUIRED
    from analysis.inputs.frame import used

    good = frame[frame["used"]]
    if not len(good) or good[list(REQUIRED)].isna().any(axis=None):
        return (*_of_losses(good), *settings(frame, form))
    return (*suspects.findings(used(frame), str(good["loss_unit"].iloc[0])), *settings(frame, form))


def _of_losses(good: pd.DataFrame) -> list[Check]:
    """Return what the losses of rows without sizes or tokens say against being such."""
    from analysis.diagnostics import suspects

    known = good["loss"].notna()
    if not known.any():
        return []
    of = good[known]
    flops = of["flops"] if of["flops"].notna().all() else of["flops"].iloc[:0]
    losses = suspects.Losses(tuple(map(str, of["key"])), of["loss"].to_numpy(float), flops.to_numpy(float))
    return suspects.of_losses(losses, str(of["loss_unit"].iloc[0]))


def wrong(checks: Iterable[Check]) -> Check | None:
    """Return the first finding that makes the rows worth no conclusion; None without any."""
    return next((check for check in checks if check.level == "error"), None)


def alone(frame: pd.DataFrame) -> str:
    """Return what is typed to fit the loss of these runs over compute alone; only the key where they have no name."""
    words = frame.attrs.get("words")
    return f"python -m analysis.fit {words} form=compute" if words else "form=compute"


def settings(frame: pd.DataFrame, form: str) -> list[Check]:
    """Return what was done to the rows, and a finding for every setting whose values are fitted together.

    What the law `form` reads is no such setting.
    """
    from analysis.laws.registry import CURVES, FORMS

    read = () if form == CURVES else FORMS[form].inputs
    found: list[Check] = list(frame.attrs.get("checks", ()))
    for name, values in frame.attrs.get("settings", {}).items():
        if name in read:
            continue
        text = f"{name} has {len(values)} values ({', '.join(values[:6])}), which are fitted together"
        found.append(finding("mixed_settings", text, f"where={name}:{values[0]} keeps one of them"))
    return found
