"""A plan in words: lines for a terminal, and one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.text import numbers

if TYPE_CHECKING:
    from analysis.planning.scenarios import Option, Plan


def line(found: Plan) -> str:
    """Return what a plan says first, in one line."""
    first = found.options[0]
    return (
        f"Plan({numbers.flops(found.budget_flops)}: N* {_with_ends(first, 'params')}, "
        f"D* {_with_ends(first, 'tokens')}, loss {_four(first.loss)}; options "
        f"{', '.join(option.name for option in found.options)})"
    )


def _with_ends(option: Option, name: str) -> str:
    bounds = numbers.interval(option.intervals[name], numbers.amount)
    return numbers.amount(getattr(option, name)) + ("" if bounds == numbers.MISSING else f" ({bounds})")


def text(found: Plan) -> str:
    """Return the plan as lines for a terminal."""
    unit = found.kinds["loss"]
    law = found.law if found.form == "valleys" else f"{found.law} {unit}"
    lines = [f"law       {law}", f"budget    {numbers.flops(found.budget_flops, 3)}" + _hours(found)]
    for option in found.options:
        lines += ["", f"{option.name}: {option.assumption}"]
        for label, name, show in (
            ("parameters", "params", numbers.amount), ("tokens", "tokens", numbers.amount),
            ("tokens per parameter", "tokens_per_param", numbers.number), (f"loss [{unit}]", "loss", _four),
        ):  # fmt: skip
            bounds = numbers.interval(option.intervals[name], show)
            known = "" if bounds == numbers.MISSING else f"  ({bounds})"
            lines.append(f"  {label:<22}{show(getattr(option, name))}{known}")
        if option.epochs is not None:
            lines.append(f"  {'epochs':<22}{numbers.number(option.epochs)}")
        if option.inference_flops:
            cost = f"{numbers.flops(option.training_flops)} and {numbers.flops(option.inference_flops)}"
            lines.append(f"  {'training and serving':<22}{cost}")
        if option.gpu_hours is not None:
            lines.append(f"  {'device-hours':<22}{numbers.count(option.gpu_hours)}")
        for shape in option.shapes:
            size = f"{shape.layers} layers x {shape.width} channels, {shape.heads} heads"
            lines.append(f"  {'shape, ' + shape.name:<22}{size}: {numbers.amount(shape.params)}")
        lines += [f"  note: {note}" for note in option.notes]
    lines += _other_laws(found)
    lines += ["", *(f"note: {note}" for note in found.notes)] if found.notes else []
    return "\n".join(lines).translate(numbers.ASCII)


def _other_laws(found: Plan) -> list[str]:
    """Return what other laws through the same runs would train, a line each."""
    if len(found.other_laws) < 2:
        return []
    lines = ["", "training-only by other laws through the same runs (least squares), the best by AICc first:"]
    for one in found.other_laws:
        size = "no best size" if one.params is None else (
            f"{numbers.amount(one.params):>8} parameters, {numbers.number(one.tokens_per_param)} tokens per parameter, "
            f"loss {_four(one.loss)}"
        )  # fmt: skip
        lacking = f"; does not qualify: {one.lacking}" if one.lacking else ""
        lines.append(f"  {one.form:<24}{size}  (AICc {numbers.number(one.aicc_behind)} behind{lacking})")
    return lines


def _hours(found: Plan) -> str:
    far = (
        "" if found.extrapolation_factor is None else f", {numbers.factor(found.extrapolation_factor)} the largest run"
    )
    if found.speed is None:
        return far
    hours = numbers.count(found.budget_flops / found.speed / 3600)
    return f"{far}; {hours} device-hours at {numbers.scientific(found.speed, 3)} FLOP/s a device"


def _four(value: object) -> str:
    return numbers.number(value, 4)
