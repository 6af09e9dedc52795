"""Losses taken in mid-schedule, corrected: by how much they lie above the law of the finished runs, as it grows with N.

A loss read before the learning rate has decayed is 1 to 2 % too high, the more so the larger the model, so that mixing
it with final losses tilts the exponents. Excluding such rows is the default; with enough finished runs beside them the
bias can be measured and taken out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.estimation import fit_problem, multistart, objectives
from analysis.laws.sum_of_powers import SURFACE
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding

if TYPE_CHECKING:
    import pandas as pd

FEWEST_FINAL, FEWEST_MID = 8, 4
FAR = 5.0
"""Rows whose bias lies further than this many robust standard deviations from the others' stay out."""
LARGEST = 0.25
"""A bias (in ln loss) above this is no schedule's: the row is something else."""


def corrected(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame in which rows of unfinished schedules are used, their bias taken out.

    The law of the finished runs says what the loss would have been; ln(observed/said) = b0 + b1 (ln N - mean) over the
    unfinished ones is the bias, and they keep what is left of their residual. `attrs["checks"]` say how large it was.

    Parameters
    ----------
    frame : DataFrame
        A tidy frame (see :mod:`analysis.inputs.frame`) with rows dropped as mid_schedule.

    Returns
    -------
    DataFrame
        The frame with `loss` divided by exp(bias) in those rows, and `used` set.

    Raises
    ------
    ValueError
        Fewer than eight finished runs of three sizes, or four unfinished ones, or no such row.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.from_csv(Path("docs/example-runs.csv"))
    >>> runs.loc[::3, "loss"] *= 1.015
    >>> runs.loc[::3, "used"] = False
    >>> runs.loc[::3, "drop_code"] = "mid_schedule"
    >>> mended = corrected(runs)
    >>> int(mended["used"].sum()), mended.attrs["checks"][0].code
    (25, 'mid_schedule_corrected')
    """
    from analysis.inputs.frame import used

    mid = _unfinished(frame)
    good = used(frame)
    p = fit_problem.problem(SURFACE, (good.params, good.tokens), good.loss, objectives.Huber())
    theta = multistart.fit_point(p).theta
    x = np.log(frame.loc[mid, ["params", "tokens"]].to_numpy(dtype=float).T) - p.centres[:, None]
    above = np.log(frame.loc[mid, "loss"].to_numpy(dtype=float)) - SURFACE.log_value(theta[None], x)[0]
    bias, keep = _bias(x[0], above)
    out = frame.copy()
    out.attrs = dict(frame.attrs)
    index = frame.index[mid][keep]
    out.loc[index, "loss"] = out.loc[index, "loss"] * np.exp(-bias[keep])
    out.loc[index, ["drop_code", "drop_reason"]] = ("", "")
    out["used"] = out["drop_code"] == ""
    out.attrs["checks"] = (
        *frame.attrs.get("checks", ()),
        _said(bias[keep], above[keep] - bias[keep], int((~keep).sum())),
    )
    return out


def _unfinished(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are in mid-schedule and hold numbers; ValueError where too few runs measure their bias."""
    final, rows = frame["used"], frame["drop_code"] == "mid_schedule"
    mid = rows & frame[["params", "tokens", "flops", "loss"]].gt(0).all(axis=1)
    if not rows.any():
        raise ValueError("mid_schedule=correct: no row is in mid-schedule; leave it out")
    sizes = frame.loc[final, "params"].nunique()
    if int(final.sum()) < FEWEST_FINAL or sizes < 3 or int(mid.sum()) < FEWEST_MID:
        raise ValueError(
            f"mid_schedule=correct: {int(final.sum())} finished runs of {sizes} sizes and {int(mid.sum())} unfinished "
            f"ones; {FEWEST_FINAL} of 3 sizes and {FEWEST_MID} are needed to measure the bias: leave the rows out "
            "(mid_schedule=exclude)"
        )
    return mid


def _bias(size: np.ndarray, above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bias of each row as it goes with ln N, and which rows it is measured on."""
    keep = np.abs(above) < LARGEST
    bias = np.full(len(above), float(np.median(above)))
    for _ in range(5):
        if int(keep.sum()) < FEWEST_MID:
            raise ValueError(
                f"mid_schedule=correct: the unfinished runs lie {100 * np.expm1(np.median(above)):+.1f} % from the law "
                "of the finished ones, too far for a schedule: leave them out (mid_schedule=exclude)"
            )
        sloped = len(np.unique(size[keep].round(3))) >= 3
        design = np.stack((np.ones(len(size)), size - size[keep].mean() if sloped else np.zeros(len(size))), axis=1)
        bias = design @ np.linalg.lstsq(design[keep], above[keep], rcond=None)[0]
        spread = 1.4826 * float(np.median(np.abs(above[keep] - bias[keep])))
        near = (np.abs(above - bias) <= FAR * max(spread, 1e-3)) & (np.abs(above) < LARGEST)
        if (near == keep).all():
            break
        keep = near
    return bias, keep


def _said(bias: np.ndarray, left: np.ndarray, lost: int) -> Check:
    low, high = 100 * np.expm1(bias.min()), 100 * np.expm1(bias.max())
    text = (
        f"{numbers.counted(len(bias), 'row')} in mid-schedule were corrected by {-low:+.2f} to {-high:+.2f} %, which "
        f"is how far they lie from the law of the finished runs; the rest scatters by {100 * float(np.std(left)):.2f} %"
    )
    text += f"; {lost} lie too far and stay out" if lost else ""
    advice = "compare with mid_schedule=exclude: intervals do not include the error of the correction"
    return finding("mid_schedule_corrected", text, advice)
