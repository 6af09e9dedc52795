"""The few lines at the end of a study: the law, what to train next, how far to trust it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from analysis.report import optima, sentences
from analysis.text import numbers

if TYPE_CHECKING:
    from analysis.values.study_result import Fit

WIDEST = 116
"""Characters of a line that says why there is no figure."""


def summary(fit: Mapping[str, Any], report: str | None = None, *, told: bool = False) -> str:
    """Return the lines for a terminal, without a newline at the end; `fit` is the content of `fit.json`.

    `report` is the path to name in the last line; None leaves that line out. told: the findings stand above these
    lines, which then do not repeat why nothing is recommended.
    """
    if _alone(fit):
        lines = [("fitted law", _law(fit)), *_constants(fit), *_curves(fit), *_optima(fit)]
    else:
        lines = [("fitted law", _law(fit)), *_frontier(fit), *_next(fit, told), *_best_sizes(fit)]
        lines += [("backtest", sentences.backtest(fit))]
        above = told and any(check.get("code") == "choices_disagree" for check in fit.get("checks") or ())
        lines += [("choices", text) for text in (sentences.choices(fit),) if text and not above]
        lines += _approaches(fit)
    errors = [check for check in fit.get("checks") or () if check.get("level") == "error"]
    lines += [("but", text) for check in errors if (text := _but(fit, check, told))]
    if report is not None:
        lines.append(("report", report))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {part}" for name, part in _wrapped(lines)).translate(numbers.ASCII)


def _wrapped(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the lines, a long reason why there is none on several of them, which end between words."""
    for name, text in lines:
        parts = textwrap.wrap(text, WIDEST, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
        parts = parts if text.startswith("none: ") else [text]
        yield from zip((name, *("" for _ in parts[1:])), parts, strict=True)


def used(fit: Fit) -> str:
    """Return what the law was fitted to, in a few words."""
    of, rows = f"{fit.runs.used} of {fit.runs.total}", numbers.count(fit.rows_used)
    if fit.approach == "curves":
        return f"{of} curves used, {rows} points of them"
    return f"{of} runs used" + (f", {rows} optima of them" if "optima" in fit.record else "")


def law_text(block: Mapping[str, Any]) -> str:
    """Return the fitted form with its numbers; a constant that is not identified stays a letter."""
    text = str(block.get("form", ""))
    params = block.get("params") or {}
    identified = block.get("identified") or {}
    known = {name for name in params if (identified.get(name) or {}).get("identified", True)}
    pieces, word = [], ""
    for character in text + " ":
        if character.isalnum() or character == "_":
            word += character
            continue
        pieces.append(numbers.number(params[word]) if word in known else word)
        pieces.append(character)
        word = ""
    return "".join(pieces).strip()


def limit_text(name: str, found: Mapping[str, Any]) -> str:
    """Return what the data do say of a constant that they do not identify: "E not identified: at most 2.41"."""
    limit = numbers.one_sided(found.get("side"), found.get("limit"))
    return f"{name} not identified" + (f": {limit}" if limit else "")


def _law(fit: Mapping[str, Any]) -> str:
    fits = fit.get("fits") or {}
    surface = fits.get("law") or fits.get("surface") or fit
    if surface.get("status") != "ok":
        return f"none: {surface.get('reason') or 'no surface could be fitted'}"
    unit = (fit.get("kinds") or {}).get("loss", "")
    unknown = [limit_text(n, f) for n, f in (surface.get("identified") or {}).items() if not f.get("identified")]
    shown = [text for text in unknown if text.split(" ", 1)[0] in (surface.get("params") or {})]
    side = sentences.side(fits["law"]) if fits.get("law") else "L(N, D) = "
    if _alone(fit):
        unit = ""
    plan = fit.get("recommendation") or {}
    if plan and plan.get("approach") not in ("surface", "law"):
        shown.append(f"not used: the recommendation is by {sentences.by(plan)}")
    return f"{side}{law_text(surface)} {unit}".rstrip() + (f"  ({'; '.join(shown)})" if shown else "")


def _alone(fit: Mapping[str, Any]) -> bool:
    """Return whether one law is all there is: no loss of N and D, so nothing to recommend."""
    fits = fit.get("fits") or {}
    alone = (fits.get("law") or {}).get("status") == "ok" and (fits.get("surface") or {}).get("status") != "ok"
    return alone and not fit.get("recommendation")


def _constants(fit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return every constant with its interval."""
    ends = fit.get("intervals") or {}
    out = []
    for name, value in (fit.get("params") or {}).items():
        between = numbers.interval(ends.get(name))
        out.append((f"  {name}", numbers.number(value, 4) + ("" if between == numbers.MISSING else f" ({between})")))
    return out


def _curves(fit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how well each learning curve is said."""
    out = []
    for score in (fit.get("record") or {}).get("curves") or ():
        name = f"{score.get('size', '')} {score.get('run', '')}".strip()
        seen = "fitted" if score.get("fitted") else "held out"
        out.append((
            f"  {name}",
            f"{seen}, R2 {float(score['r2']):.4f}, MAE {float(score['mae']):.4f}, error "
            f"{numbers.percent(score['mean_relative'])} on average, {numbers.percent(score['worst_relative'])} at most",
        ))  # fmt: skip
    return [("curves", f"{len(out)} learning curves"), *out] if out else []


def _optima(fit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how many sweeps had an optimum inside."""
    found = (fit.get("record") or {}).get("optima") or ()
    good = sum(1 for line in found if line.get("status") == "minimum")
    return [("rests on", f"the optima of {good} of {len(found)} sweeps")] if found else []


def _frontier(fit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how N* and D* grow along the recommended law; nothing of any other."""
    plan = fit.get("recommendation")
    if not plan:
        why = ((fit.get("fits") or {}).get("valleys") or {}).get("reason")
        return [("frontier", f"none: {why or 'no approach identifies how the best size grows'}")]
    laws = [text for name in ("params", "tokens") if (text := sentences.power_law(fit, name))]
    if not laws:
        return [("frontier", f"N* = {numbers.amount(plan.get('params'))} at {numbers.flops(plan.get('budget_flops'))}")]
    first = f"{laws[0]} (by {sentences.by(plan)})"
    return [("frontier", first), *(("", text) for text in laws[1:])]


def _but(fit: Mapping[str, Any], check: Mapping[str, Any], told: bool) -> str:
    """Return an error and what to do; of one that "train next" says already only what to do, if that is not above."""
    message, advice = str(check.get("message", "")), str(check.get("advice", ""))
    if check.get("code") == "no_recommendation" and not fit.get("recommendation") and not _alone(fit):
        return "" if told else f"no recommendation: {advice}"
    return f"{message}: {advice}"


def _next(fit: Mapping[str, Any], told: bool) -> list[tuple[str, str]]:
    plan = fit.get("recommendation")
    if not plan:
        said = [c for c in fit.get("checks") or () if c.get("code") == "no_recommendation"]
        why = str(said[0].get("message")) if said else "no approach could be fitted"
        return [("train next", f"no recommendation: {'see above' if said and told else why}")]
    bounds = plan.get("intervals") or {}

    def both(name: str, show: Any) -> str:
        return f"{show(plan.get(name))} ({sentences.between(fit, bounds.get(name), show)})"

    kinds = fit.get("kinds") or {}
    return [
        (
            "train next",
            f"{both('params', numbers.amount)} {_kind(kinds)}parameters "
            f"on {both('tokens', numbers.amount)} tokens for {numbers.flops(plan.get('budget_flops'))}",
        ),
        ("expect", _expected(plan, both("loss", _loss), str(kinds.get("loss", "")))),
        ("extrapolation", _far(numbers.finite(plan.get("extrapolation_factor")))),
    ]


def _best_sizes(fit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the compute-optimal run of each budget, one a line; intervals are in the report and in fit.json."""
    heads = ("FLOPs", "parameters", "tokens", "per parameter", "loss")
    rows = [(line.budget, *line.values.values(), "extrapolated" * line.beyond) for line in optima.lines(fit)]
    widths = [max(map(len, column)) for column in zip(heads, *(row[:-1] for row in rows), strict=True)]
    said = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:5], widths[1:])]) for row in (heads, *rows)]
    notes = ["", *(row[-1] for row in rows)]
    texts = [f"{text}  {note}".rstrip() for text, note in zip(said, notes, strict=True)] if rows else []
    return [("best sizes" if number == 0 else "", text) for number, text in enumerate(texts)]


def _expected(plan: Mapping[str, Any], loss: str, unit: str) -> str:
    """Return the loss to expect, and whose it is where another approach proposes the size."""
    if numbers.finite(plan.get("loss")) is None:
        give = "give" if plan.get("approach") == "valleys" else "gives"
        return f"no loss: {sentences.by(plan)} {give} sizes only"
    source = str(plan.get("loss_from") or "")
    other = source and source != plan.get("approach")
    return f"loss {loss} {unit}" + (f" (at this N and D by the {source})" if other else "")


def _approaches(fit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a, b and N* at the recommendation's budget by each approach, and by how much N* differs."""
    found: list[tuple[str, str]] = []
    none: dict[tuple[str, str], list[str]] = {}
    lines = (fit.get("record") or {}).get("approaches") or ()
    for line in lines:
        size = numbers.finite(line.get("params"))
        number, _, way = str(line.get("approach")).partition(" ")
        if size is None:
            none.setdefault((number, str(line.get("reason") or "not possible")), []).append(way)
            continue
        note = f" ({line['note']})" if line.get("note") else ""
        found.append((f"  {number}: {way}".rstrip(": "), f"{_exponents(line)}N* {numbers.amount(size)}{note}"))
    found += [(f"  {number}:", f"none by {', '.join(ways)} ({reason})") for (number, reason), ways in none.items()]
    found.sort(key=lambda line: line[0].strip()[:1])
    ratio, count = sentences.apart(fit)
    left = sentences.noted(fit)
    if not lines or not (count or left):
        return []
    apart = "one alone" if count else "none"
    if ratio is not None:
        apart = f"N* differs by a factor of {numbers.number(ratio, 2)}"
    apart = f"{apart} {left}".rstrip()
    return [("approaches", apart), *found]


def _exponents(line: Mapping[str, Any]) -> str:
    """Return "a 0.51 (0.49 to 0.52), b 0.49, " of an approach; nothing of one that has no exponents."""
    if numbers.finite(line.get("a")) is None:
        return ""
    ends = numbers.interval([line.get("a_low"), line.get("a_high")])
    between = "" if ends == numbers.MISSING else f" ({ends})"
    return f"a {numbers.number(numbers.settled(line.get('a')))}{between}, b {numbers.number(line.get('b'))}, "


def _kind(kinds: Mapping[str, Any]) -> str:
    kind = str(kinds.get("params") or "given")
    return "" if kind == "given" else f"{kind} "


def _far(factor: float | None) -> str:
    if factor is not None and factor <= 1.0:
        return f"none: {numbers.percent(factor)} of the largest run"
    return f"{numbers.factor(factor)} beyond the largest run"


def _loss(value: object) -> str:
    return numbers.number(value, 4)
