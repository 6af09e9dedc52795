"""Where one law is all there is: of settings, of steps, of learning curves. Its sentence, and what it rests on."""

from __future__ import annotations

from analysis.report.html import Html, table, tag
from analysis.text import numbers
from analysis.values.study_result import Fit


def is_alone(fit: Fit) -> bool:
    """Return whether one law was fitted and no surface: there is nothing to recommend."""
    law = fit.fits.law
    alone = law is not None and law.status == "ok" and fit.fits.surface.status != "ok"
    return alone and fit.recommendation is None


def lead(fit: Fit) -> Html:
    """Return in one sentence what was fitted, and how well it holds where that was tested."""
    curves, optima = fit.record.get("curves") or (), fit.record.get("optima") or ()
    if curves:
        held = [line for line in curves if not line["fitted"]]
        if not held:
            return tag(
                "p", f"One law for {numbers.counted(len(curves), 'learning curve')}, all of them fitted.", class_="lead"
            )
        worst = max(line["mean_relative"] for line in held)
        text = f" the {numbers.counted(len(held), 'curve')} held out, at most {numbers.percent(worst)} on average."
        count = numbers.counted(len(curves) - len(held), "curve")
        return tag("p", f"Fitted to {count}, the law predicts {text.strip()}", class_="lead")
    known = [name for name in fit.params if fit.intervals.get(name) is not None]
    parts = [f"{name} {numbers.number(fit.params[name])} ({numbers.interval(fit.intervals[name])})" for name in known]
    said = [part for text in parts for part in (", ", tag("b", text))][1:] or ["no constant has an interval"]
    over = f"the optima of {len(optima)} sweeps" if optima else numbers.counted(fit.rows_used, "row")
    return tag("p", f"From {over}: ", *said, ".", class_="lead")


def evidence(fit: Fit) -> tuple[tuple[str, str, Html], ...]:
    """Return the sections that such a fit has of its own: name, title, body."""
    curves, optima = fit.record.get("curves") or (), fit.record.get("optima") or ()
    found = []
    if curves:
        rows = [
            [
                f"{line['size']} {line['run']}".strip(), "fitted" if line["fitted"] else "held out",
                str(line["points"]),
                f"{line['r2']:.4f}", f"{line['mae']:.4f}", numbers.percent(line["mean_relative"]),
                numbers.percent(line["worst_relative"]),
            ]
            for line in curves
        ]  # fmt: skip
        head = ["curve", "use", "points", "R²", f"mean |error| [{fit.kinds.loss}]", "mean, relative", "worst, relative"]
        kinds = ["nowrap", "nowrap", *["number"] * 5]
        found.append(("curves", "How well the law fits each curve", table(head, rows, kinds, "learning curves")))
    if optima:
        rows = [
            [
                numbers.count(line["params"]), numbers.count(line["tokens"]), numbers.number(line["lr"], 2),
                numbers.count(line["batch_tokens"]), numbers.number(line["loss"], 4), str(line["points"]),
                line["reason"] or "inside",
            ]
            for line in optima
        ]  # fmt: skip
        head = ["N", "D", "best rate", "best batch [tokens]", f"loss [{fit.kinds.loss}]", "runs", "the optimum lies"]
        kinds = [*["number"] * 6, ""]
        found.append(("optima", "The optima of the sweeps", table(head, rows, kinds, "optima")))
    return tuple(found)
