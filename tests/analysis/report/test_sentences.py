"""Every sentence of the page and of the terminal, held against fit.json: no number that it does not hold.

A sentence with a digit has to match one of the rules below in full; a rule says which quantity of fit.json each number
is. A new sentence needs a rule; a number under another quantity's name fails.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.diagnostics import findings
from analysis.fit import fit as fit_frame
from analysis.fit import main as fit_command
from analysis.inputs.rows import from_csv
from analysis.report import sentences, terminal
from analysis.report.figures.canvas import Sheet
from analysis.report.figures.data import read_rows
from analysis.report.figures.fan import running_means
from analysis.report.page import page
from analysis.report.terminal import law_text, summary
from analysis.report.write import figures
from analysis.results import predicted
from analysis.text import commandline, numbers
from analysis.values import choice_lines, study_result
from analysis.values.json_values import to_json
from analysis.values.study_result import Choice, Cut, Fit
from tests.analysis import studies

DATA = Path(__file__).parents[1] / "data"
Expected = Callable[[dict[str, Any]], Mapping[str, str]]


class Sentences(HTMLParser):
    """Collects the text of paragraphs, captions, tiles and findings: one entry an element."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str]] = []
        self._open: list[tuple[str, bool, list[str]]] = []
        self._hidden = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = (dict(attrs).get("class") or "").split(" ")[0]
        self._hidden += tag in ("svg", "style", "title")
        wanted = tag in ("p", "figcaption", "li") or kind == "tile"
        if tag not in ("meta", "br", "link"):
            self._open.append((f"{tag} {kind}".strip(), wanted, []))

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("svg", "style", "title")
        name, wanted, words = self._open.pop()
        text = plain(" ".join("".join(words).split()))
        if wanted and text:
            self.found.append((name, text))
        elif self._open and words:
            self._open[-1][2].append(" " if tag == "div" else "")
            self._open[-1][2].extend(words)

    def handle_data(self, data: str) -> None:
        if self._open and not self._hidden:
            self._open[-1][2].append(data)


def plan(fit: dict[str, Any], name: str) -> Any:
    return (fit["recommendation"] or {})[name]


def approach(fit: dict[str, Any]) -> str:
    return str((fit["recommendation"] or {}).get("approach", ""))


def growth(fit: dict[str, Any], quantity: str, name: str) -> Any:
    return plan(fit, "growth")[quantity][name]


def ends(bounds: Any, show: Callable[[object], str] = numbers.number) -> str:
    return numbers.interval(bounds, show)


def plain(text: str) -> str:
    """Return a typeset sentence as it is in fit.json and in the terminal: 3e12 for 3×10¹²."""
    superscripts = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    power = re.compile(r"(?:([\d.]+)×)?10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)")
    return power.sub(lambda m: f"{m[1] or 1}e{m[2].translate(superscripts)}", text).replace("−", "-")


def two(value: object) -> str:
    return numbers.number(value, 2)


def four(value: object) -> str:
    return numbers.number(value, 4)


def tile(name: str, show: Callable[[object], str]) -> Expected:
    return lambda fit: {"value": show(plan(fit, name)), "low_high": ends(plan(fit, "intervals")[name], show)}


def own_test(fit: dict[str, Any]) -> tuple[str, float]:
    """Return what the recommendation's loss is from, and how far that was off: not what `relative_error` says.

    Where nothing is recommended it is the law that was fitted.
    """
    errors = {name: one["relative_error"] for name, one in fit["backtest"]["by_approach"].items()}
    if fit["recommendation"] is None:
        name = next(name for name in ("surface", "law", "valleys") if name in errors)
    else:
        name = {"frontier": "valleys"}.get(plan(fit, "loss_from"), plan(fit, "loss_from"))
    return {"valleys": "frontier", "law": "law asked for"}.get(name, name), errors[name]


def backtested(fit: dict[str, Any]) -> dict[str, str]:
    test = fit["backtest"]
    whose, error = own_test(fit)
    found = {
        "error": numbers.percent(abs(error)),
        "whose": whose,
        "budget": numbers.flops(test["held_out_budget"]),
        "far": numbers.factor(test["extrapolation_factor"]),
    }
    if not test["covers"]:
        found["wanted"] = numbers.factor(plan(fit, "extrapolation_factor"))
    if test["one_sided"]:
        mean = sum(run["relative_error"] for run in test["runs"]) / len(test["runs"])
        found |= {
            "sided": str(len(test["runs"])),
            "side": "high" if mean > 0 else "low",
            "mean": numbers.percent(abs(mean)).removesuffix(" %"),
        }
    found["trained"] = str(len(test["train_budgets"]))
    return found


def words(fit: dict[str, Any]) -> dict[str, str]:
    n, d = (growth(fit, q, "exponent") for q in ("params", "tokens"))
    return {
        "n10": numbers.factor(10**n), "d10": numbers.factor(10**d),
        "a": numbers.number(n), "b": numbers.number(d),
        "a_ends": ends(growth(fit, "params", "interval")),
        "b_ends": ends(growth(fit, "tokens", "interval")), "by": plan(fit, "approach"),
    }  # fmt: skip


def lead(fit: dict[str, Any]) -> dict[str, str]:
    if fit["recommendation"] is None:
        return {}
    return {
        "budget": numbers.flops(plan(fit, "budget_flops")), "far": numbers.factor(plan(fit, "extrapolation_factor")),
        "params": numbers.amount(plan(fit, "params")), "tokens": numbers.amount(plan(fit, "tokens")),
        "loss": four(plan(fit, "loss")), **doubt(fit),
    }  # fmt: skip


def refused(fit: dict[str, Any]) -> dict[str, str]:
    return {"why": next(check["message"] for check in fit["checks"] if check["code"] == "no_recommendation")}


def doubt(fit: dict[str, Any]) -> dict[str, str]:
    """Return by how much the backtest missed, where it missed by more than 3 %."""
    error = own_test(fit)[1] if fit["backtest"] and fit["backtest"]["approach"] else 0.0
    if abs(error) <= 0.03:
        return {}
    return {"missed": numbers.percent(abs(error)), "wrong": "low" if error < 0 else "high"}


def chosen(fit: dict[str, Any]) -> dict[str, str]:
    """Return the range over choices that chance does not explain: the one that the finding states."""
    lines = choice_lines.telling(Choice(**line) for line in fit["sensitivity"])
    found = [line.value for line in lines if line.value is not None]
    own = {} if approach(fit) == "surface" else {"own": approach(fit)}
    return {"low": numbers.number(min(found)), "high": numbers.number(max(found)), "count": str(len(found)), **own}


def beyond(fit: dict[str, Any]) -> dict[str, str]:
    """Return how many rows of the figure are not in the range over choices."""
    count = sum(line["value"] is not None for line in fit["sensitivity"]) - int(chosen(fit)["count"])
    return {"rest": numbers.counted(count, "row")} if count else {}


def stars(fit: dict[str, Any]) -> dict[str, str]:
    """Return the budget of the proposals, and whose the marks beside the star are."""
    budget = numbers.flops(plan(fit, "budget_flops"))
    others = sorted(set(plan(fit, "by_approach")) - {plan(fit, "approach")})
    return {"budget": budget, **dict(zip(("other", "third"), others, strict=False))}


def reaches_out(fit: dict[str, Any]) -> bool:
    """Return whether the interval of a minimum reaches beyond all sizes that were run."""
    valleys = fit["fits"]["valleys"]["valleys"]
    low, high = min(v["params_range"][0] for v in valleys), max(v["params_range"][1] for v in valleys)
    bounds = [v["params_interval"] for v in valleys if v["status"] == "minimum" and v["params_interval"]]
    return any(b[0] < low or b[1] > high for b in bounds)


def apart(fit: dict[str, Any]) -> dict[str, str]:
    """Return the largest ratio of N* over every approach that the page shows, each counted once."""
    sizes = {name: p["params"] for name, p in plan(fit, "by_approach").items()}
    for line in fit["record"].get("approaches", ()):
        if line["params"] is not None and line["approach"] != "3 surface" and not line.get("note"):
            sizes[line["approach"]] = line["params"]
    return {"ratio": numbers.factor(max(sizes.values()) / min(sizes.values())), "count": str(len(sizes))}


NUM = r"[-+]?[\d.]+(?:e-?\d+)?"
COUNT = rf"{NUM}[KMBT]?"
FLOPS = rf"{NUM} FLOPs"
FAR = rf"{NUM}×"
SPAN = r"(?:at (?:least|most) )?\S+(?: to \S+)?"
STARS = (
    rf"; the star is the proposal for (?P<budget>{FLOPS})(?:; the square is that of the (?P<other>\w+)"
    r"(?: and the triangle is that of the (?P<third>\w+))? for the same budget, drawn beside it)?"
)
UNCOVERED = rf"(?:; no test reaches the recommendation's (?P<wanted>{FAR}))?"
SIDED = rf"(?:; all (?P<sided>\d+) held-out losses predicted too (?P<side>high|low), by (?P<mean>{NUM}) % on average)?"
CHOSEN = (
    rf"the surface's a lies between (?P<low>{NUM}) and (?P<high>{NUM}) over (?P<count>\d+) choices of rows and loss"
)
NOT_OWN = r"(?:; the recommendation is by the (?P<own>\w+))?"
PAGE: tuple[tuple[str, Expected], ...] = (
    (rf"With (?P<budget>{FLOPS}), (?P<far>{FAR}) the largest run, train (?P<params>{COUNT}) parameters on "
     rf"(?P<tokens>{COUNT}) tokens(?:: expect (?P<loss>{NUM}) nats per token"
     rf"(?: \(the backtest was (?P<missed>{NUM} %) too (?P<wrong>low|high)\))?)?\.", lead),
    (rf"parameters N(?: \[\w+\])? (?P<value>{COUNT}) (?P<low_high>{SPAN})", tile("params", numbers.amount)),
    (rf"training tokens D (?P<value>{COUNT}) (?P<low_high>{SPAN})", tile("tokens", numbers.amount)),
    (rf"tokens per parameter (?P<value>{NUM}) (?P<low_high>{SPAN})", tile("tokens_per_param", two)),
    (rf"expected loss, nats per token (?P<value>{NUM}) (?P<low_high>{SPAN})", tile("loss", four)),
    (r"These runs do not yet say what to train next: (?P<why>.*)\.", refused),
    (r"The compute-optimal size could not be followed over budgets: (?P<why>.*)\.",
     lambda fit: {"why": plain(fit["fits"]["valleys"]["reason"])}),
    (rf"extrapolation (?P<far>{FAR}) beyond the largest run's compute", lead),
    (rf"backtest error (?P<error>{NUM} %) (?:of the (?P<whose>[\w ]+), )?predicting (?P<budget>{FLOPS}), "
     rf"(?P<far>{FAR}) beyond its fit"
     + UNCOVERED + SIDED, backtested),
    (r"(?P<count>\d+) warnings?: see What to be careful about\.", lambda fit: {"count": str(len(warnings(fit)))}),
    (r"Intervals of other choices are of (?P<few>\d+) resamples, that of the fit of (?P<all>\d+)\.",
     lambda fit: {"few": "200", "all": str(fit["resamples"])}),
    (rf"Approach 1 follows .* Approach 2 takes .* Approach 3 fits .*(?:N\* and D\* are for (?P<budget>{FLOPS})\. )?"
     r"a \+ b is 1 only where FLOPs are in proportion to N D\.", lead),
    (rf"approaches agree within (?P<ratio>{FAR}) in parameters, by (?P<count>\d+) fits", apart),
    (r"runs used (?P<used>\S+) of (?P<total>\d+), at (?P<budgets>\d+) budgets",
     lambda fit: {"used": numbers.count(fit["runs"]["used"]), "total": str(fit["runs"]["total"]),
                  "budgets": str(fit["runs"]["budgets"])}),
    (rf"In words: ten times the compute is best spent on a model (?P<n10>{FAR}) larger, trained on (?P<d10>{FAR}) the "
     rf"tokens\. The optimal size grows as C(?P<a>{NUM}) \((?P<a_ends>{SPAN})\), the tokens as C(?P<b>{NUM}) "
     rf"\((?P<b_ends>{SPAN})\), by the (?P<by>\w+)\.", words),
    (rf"The line is the recommended law's path, by the (?P<by>\w+): with ten times the compute the best model is "
     rf"(?P<n10>{FAR}) larger, its N\* grows as C(?P<a>{NUM}) \((?P<a_ends>{SPAN})\)(?:; dots are the minima of single "
     rf"budgets, by their parabolas)?{STARS}\.", lambda fit: {**words(fit), **stars(fit)}),
    (rf"The dots are the [\w ]+; the line is the loss along the recommended law's path, by the (?P<by>\w+)"
     rf"(?:, dashed beyond the data)?{STARS}\.",
     lambda fit: {"by": plan(fit, "loss_from") or plan(fit, "approach"), **stars(fit)}),
    (rf"For a paper: .* Bars and bands are (?P<level>\d+) % intervals; what lies beyond the largest run has a grey "
     rf"ground and dashed lines\. In \(c\) {STARS[2:]}\..*",
     lambda fit: {"level": f"{100 * fit['confidence']:.0f}", **stars(fit)}),
    (r"Ranges are (?P<level>\d+) % intervals\.", lambda fit: {"level": f"{100 * fit['confidence']:.0f}"}),
    (rf"Fitted to the (?P<trained>\d+) smallest budgets, the (?:law|(?P<whose>[\w ]+)) predicted "
     rf"(?P<budget>{FLOPS}), (?P<far>{FAR}) beyond them, with an error of (?P<error>{NUM} %) in the lowest loss"
     + UNCOVERED + SIDED + r"\.", backtested),
    (rf"Each dot is the best run for (?P<budget>{FLOPS}) by one resample of the runs(?:; the star is that of all runs, "
     r"(?P<own>the proposal|not the one recommended))?\. Dots lie on the budget's line: .*",
     lambda fit: {"budget": numbers.flops(fit["cloud"]["budget_flops"]),
                  "own": "the proposal" if approach(fit) in ("surface", "law") else "not the one recommended"}),
    (r"Each colour is one compute budget: (?P<kept>\d+) of (?P<all>\d+) valleys ha(?:ve|s) (?:their|its) lowest point "
     r"inside the sizes swept \(diamonds(?:, with intervals)?\)\.(?: Hollow marks belong "
     r"to budgets without a minimum, which approach 2 leaves out\.)?(?P<cut> A bar without a cap goes on beyond the "
     r"edge\.)?(?: Where the law and a budget's own parabola "
     r"diverge, one of them does not hold there\.)?",
     lambda fit: {"cut": " A bar without a cap goes on beyond the edge." if reaches_out(fit) else "none does",
                  "kept": str(sum(v["status"] == "minimum" for v in fit["fits"]["valleys"]["valleys"])),
                  "all": str(len(fit["fits"]["valleys"]["valleys"]))}),
    (rf"Each colour is a law fitted to the runs up to a cut of compute; it then predicts all runs above it\. Mean "
     rf"errors \(lines\) reach (?P<worst>{NUM} %), at (?P<far>{FAR}) the compute of the "
     rf"fit(?:; the exponent a lies between (?P<low>{NUM}) and (?P<high>{NUM}) over the "
     rf"cuts)?\.",
     lambda fit: {**worst(fit),
                  "low": numbers.number(min(exponents(fit), default=None)),
                  "high": numbers.number(max(exponents(fit), default=None))}),
    (rf"Each row changes one choice and fits the surface again: {CHOSEN}(?:, against (?P<whole>{SPAN}) by its interval "
     rf"alone)?{NOT_OWN}(?:\. (?P<rest>\d+ rows?) of fewer runs may lie beyond that by chance)?\.",
     lambda fit: {**chosen(fit), **beyond(fit), "whole": ends(fit["fits"]["surface"]["intervals"]["a"])}),
    (rf"The best run of each budget along one law, the (?P<by>\w+): parameters N\*(?: \[\w+\])?, "
     rf"tokens D\* and loss in nats per token; the largest run had (?P<largest>{FLOPS})\."
     r"(?: Where there is no interval: .*)?",
     lambda fit: {"by": plan(fit, "approach"), "largest": numbers.flops(fit["runs"]["largest_flops"])}),
    (r"A constant is known where .* its (?P<level>\d+) % interval by likelihood\.(?: Open on a side: .*)?"
     r"(?: Closed here, .*)?",
     lambda fit: {"level": f"{100 * fit['confidence']:.0f}"}),
)  # fmt: skip
FREE = (
    r"Points should scatter around the lines.*",  # of runs.csv: its columns loss and predicted
    r"N in parameters.*", r"parameters N.*error is predicted over observed.*",
    r"surface: L\(N, D\) = .*", r"valleys: .*", r"frontier: .*", r"envelope: .*",  # forms without numbers of a fit
    r"L\(N, D\) = .*",  # held against the terminal's line below
    r"a and b: N\* grows as Ca.*",
)  # fmt: skip
"""Sentences whose numbers are no result, or are held elsewhere."""


def warnings(fit: dict[str, Any]) -> set[tuple[str, str]]:
    blocks = [fit, *(b for name, b in fit["fits"].items() if b and (name != "surface" or not fit["fits"]["law"]))]
    return {(c["code"], c["message"]) for b in blocks for c in b["checks"] if c["level"] == "warning"}


def worst(fit: dict[str, Any]) -> dict[str, str]:
    """Return the largest mean error that the fan's lines show, and how far beyond its fit."""
    lines = [running_means(Cut(c["flops"], c["rows"], c["a"], 0.0, c["runs"])) for c in fit["rolling"]]
    far, error = max((point for line in lines for point in line), key=lambda point: abs(point[1]))
    return {"worst": numbers.signed(error, 1), "far": numbers.factor(far)}


def exponents(fit: dict[str, Any]) -> list[float]:
    return [cut["a"] for cut in fit["rolling"] if cut["a"] is not None]


def said(text: str, rules: tuple[tuple[str, Expected], ...], fit: dict[str, Any]) -> str:
    """Return what is wrong with a sentence; empty where a rule knows it and its numbers are those of fit.json."""
    for rule, expected in rules:
        match = re.fullmatch(rule, text)
        if match is not None:
            wanted = expected(fit)
            wrong = {
                k: (v, wanted.get(k)) for k, v in match.groupdict().items() if v is not None and v != wanted.get(k)
            }
            return f"{text!r}: {wrong}" if wrong else ""
    return f"no rule knows {text!r}"


def page_of(fit: Fit, rows: Any) -> str:
    """Return the page with every figure; its panels are filled but not written as SVG, whose text is no sentence."""
    drawn = figures(fit, rows)
    for panel in (panel for figure in drawn if figure.shown for panel in figure.panels):
        Sheet([panel])
    return page(fit, rows, drawn, ("svg",), panels={f.name: ["<svg></svg>"] * len(f.panels) for f in drawn if f.shown})


def page_sentences(fit: Fit, rows: Any) -> Iterator[tuple[str, str]]:
    html = page_of(fit, rows)
    for kind, text in Sentences(html).found:
        if re.search(r"\d", text) and not any(re.fullmatch(free, text) for free in FREE):
            yield kind, text.removesuffix(" SVG")


class Cells(HTMLParser):
    """Collects the rows of one table, by its label: each cell's text."""

    def __init__(self, text: str, label: str) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self._label, self._inside = label, False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = self._inside or dict(attrs).get("aria-label") == self._label
        if self._inside and tag == "tr":
            self.rows.append([])
        elif self._inside and tag == "td":
            self.rows[-1].append("")
        elif self._inside and tag == "div" and self.rows and self.rows[-1]:
            self.rows[-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "table"

    def handle_data(self, data: str) -> None:
        if self._inside and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


SIZES: dict[str, Callable[[object], str]] = {
    "params": numbers.amount, "tokens": numbers.amount, "tokens_per_param": two, "loss": four,
}  # fmt: skip


def check_sizes(html: str, told: dict[str, Any]) -> None:
    """Hold the table of best sizes against fit.json, cell by cell."""
    wanted = []
    for one in (told["recommendation"] or {}).get("optima", ()):
        far = " beyond the data" if one["beyond"] else ""
        spans = {name: ends(one["intervals"][name], show) for name, show in SIZES.items()}
        known = {name: "" if span == numbers.MISSING else f" {span}" for name, span in spans.items()}
        row = [f"{numbers.scientific(one['budget_flops'], 3)} FLOPs{far}"]
        wanted.append([*row, *(f"{show(one[name])}{known[name]}" for name, show in SIZES.items())])
    shown = [[plain(" ".join(cell.split())) for cell in row] for row in Cells(html, "compute-optimal sizes").rows]
    assert [row for row in shown if row] == wanted


def size_lines(told: dict[str, Any]) -> set[str]:
    """Return how the terminal's lines of best sizes have to read."""
    return {
        " ".join([
            numbers.scientific(one["budget_flops"], 3), *(show(one[name]) for name, show in SIZES.items()),
            *(["extrapolated"] if one["beyond"] else []),
        ]).translate(numbers.ASCII)
        for one in (told["recommendation"] or {}).get("optima", ())
    }  # fmt: skip


def check_page(fit: Fit, rows: Any) -> int:
    told = to_json(fit)
    check_sizes(page(fit, rows, ()), told)
    blocks = [told, *(b for b in told["fits"].values() if b)]
    messages = {c["message"].rstrip(". ").replace("e+", "e")[1:] for b in blocks for c in b["checks"]}
    reasons = {line["reason"] for line in told["record"].get("approaches", ())} | {"losses before the schedules ended"}
    limits = {numbers.number(v["limit"]) for b in blocks for v in b["identified"].values() if v["limit"] is not None}
    problems, count = [], 0
    for kind, text in page_sentences(fit, rows):
        count += 1
        if kind.startswith("li"):
            known = any(m in text for m in messages) or any(text.endswith(r) for r in reasons if r)
            problems += [] if known else [f"no finding or reason says {text!r}"]
        elif "is not identified by these runs" in text:
            shown = re.search(r"\(at (?:most|least) (\S+)\)", text)
            problems += [] if shown is None or shown[1] in limits else [text]
        else:
            problems += [wrong for wrong in [said(text, PAGE, told)] if wrong]
    assert not problems, "\n".join(problems)
    return count


def power(quantity: str) -> Expected:
    return lambda fit: {
        "value": numbers.amount(plan(fit, quantity)), "at": numbers.scientific(plan(fit, "budget_flops")),
        "exponent": numbers.number(growth(fit, quantity, "exponent")), "ends": ends(growth(fit, quantity, "interval")),
        "by": plan(fit, "approach"),
    }  # fmt: skip


def following(fit: dict[str, Any]) -> dict[str, str]:
    kinds = plan(fit, "intervals")
    return {
        **lead(fit), "n_ends": ends(kinds["params"], numbers.amount), "d_ends": ends(kinds["tokens"], numbers.amount),
        "l_ends": ends(kinds["loss"], four), "source": plan(fit, "loss_from"),
    }  # fmt: skip


POWER = rf"(?P<value>{COUNT}) \(C / (?P<at>{NUM})\)\^(?P<exponent>{NUM}), exponent (?P<ends>{SPAN})"
TERMINAL: tuple[tuple[str, Expected], ...] = (
    (rf"frontier +N\* = {POWER} \(by the (?P<by>\w+)\)", power("params")),
    (rf" +D\* = {POWER}", power("tokens")),
    (rf"train next +(?P<params>{COUNT}) \((?P<n_ends>{SPAN})\) (?:\w+ )?parameters on (?P<tokens>{COUNT}) "
     rf"\((?P<d_ends>{SPAN})\) tokens for (?P<budget>{FLOPS})", following),
    (rf"expect +loss (?P<loss>{NUM}) \((?P<l_ends>{SPAN})\) nats per token(?: \(at this N and D by the "
     r"(?P<source>\w+)\))?", following),
    (rf"extrapolation +(?P<far>{NUM}x) beyond the largest run",
     lambda fit: {"far": numbers.factor(plan(fit, "extrapolation_factor")).replace("×", "x")}),
    ((rf"backtest +(?P<error>{NUM} %) error(?: by the (?P<whose>[\w ]+))? in the lowest loss of the held-out largest "
      rf"budget, (?P<budget>{FLOPS}), (?P<far>{FAR}) beyond its fit" + UNCOVERED + SIDED).replace("×", "x"),
     lambda fit: {k: v.replace("×", "x") for k, v in backtested(fit).items()}),
    (rf"choices +{CHOSEN}{NOT_OWN}", chosen),
    (rf"approaches +N\* differs by a factor of (?P<ratio>{NUM})(?: without approach 1)?",
     lambda fit: {"ratio": numbers.number(float(max_ratio(fit)), 2)}),
)  # fmt: skip


def max_ratio(fit: dict[str, Any]) -> float:
    sizes = [p["params"] for p in plan(fit, "by_approach").values()]
    lines = [line for line in fit["record"].get("approaches", ()) if not line.get("note")]
    sizes += [line["params"] for line in lines if line["params"] is not None]
    return float(max(sizes) / min(sizes))


def lines_of(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how the lines of approaches have to read: those that fail alike are one."""
    yield from (line_of(line) for line in lines if line["params"] is not None)
    none = [(line["approach"].split(" ", 1), line["reason"]) for line in lines if line["params"] is None]
    for number, reason in {(words[0], reason) for words, reason in none}:
        ways = [words[1] for words, other in none if (words[0], other) == (number, reason)]
        yield f"{number}: none by {', '.join(ways)} ({reason})"


def line_of(line: Mapping[str, Any]) -> str:
    """Return how the line of an approach that gives a size has to read."""
    name = ": ".join(line["approach"].split(" ", 1))
    between = ends([line["a_low"], line["a_high"]])
    known = "" if between == numbers.MISSING else f" ({between})"
    note = f" ({line['note']})" if line["note"] else ""
    a = numbers.number(line["a"])
    return f"{name} a {a}{known}, b {numbers.number(line['b'])}, N* {numbers.amount(line['params'])}{note}"


def whole_lines(text: str) -> list[str]:
    """Return the lines, those that were wrapped in one again; none of them is clipped or too wide."""
    lines = text.splitlines()
    column = re.match(r"fitted law +", lines[0])
    assert column is not None
    found: list[str] = []
    for line in lines:
        if len(line) - len(line.lstrip()) == column.end() + 2:
            assert len(found[-1]) <= column.end() + 116
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
    return found


def check_terminal(fit: Fit) -> None:
    told = to_json(fit)
    text = whole_lines(summary(told))
    problems = []
    approaches = {
        " ".join(line.split()).translate(numbers.ASCII) for line in lines_of(told["record"].get("approaches", ()))
    }
    errors = {f"but {c['message']}: {c['advice']}".translate(numbers.ASCII) for c in told["checks"]}
    sizes = size_lines(told)
    assert sizes <= {" ".join(line.split()) for line in text}
    for line in text:
        flat = " ".join(line.split())
        if line.startswith("fitted law"):
            surface = told["fits"]["law"] or told["fits"]["surface"]
            known = law_text(surface) if surface["status"] == "ok" else surface["reason"]
            problems += [] if known.translate(numbers.ASCII) in line else [line]
        elif flat in approaches | errors | sizes or not re.search(r"\d", line):
            continue
        elif "none:" in line or "no recommendation:" in line:
            reasons = [c["message"] for c in told["checks"]] + [told["fits"]["valleys"]["reason"]]
            problems += [] if any(r and r.translate(numbers.ASCII) in line for r in reasons) else [line]
        else:
            problems += [wrong for wrong in [said(line, TERMINAL, told)] if wrong]
    assert not problems, "\n".join(problems)


def fitted(table: pd.DataFrame, folder: Path, **options: Any) -> tuple[Fit, Any]:

    path = folder / "t.csv"
    table.to_csv(path, index=False)
    rows = from_csv(path)
    found = fit_frame(rows, resamples=40, **options)
    predicted.with_prediction(found, rows).to_csv(folder / "runs.csv", index=False)
    return found, read_rows(folder / "runs.csv")


def flat(noise: float = 0.02) -> pd.DataFrame:
    """Return a study whose smallest budgets have valleys that drown in the noise."""
    table = studies.isoflop(3, noise=0.0, budgets=(8e10, 2.5e11, 8e11, 2.5e12), ratios=(6, 14, 32, 70, 150))
    noisy = studies.isoflop(3, noise=noise, budgets=(8e10, 2.5e11, 8e11, 2.5e12), ratios=(6, 14, 32, 70, 150))
    return table.assign(loss=table["loss"].where(table["flops"] > 3e11, noisy["loss"]))


CASES: dict[str, Callable[[], pd.DataFrame]] = {
    "example": lambda: pd.read_csv("docs/example-runs.csv"),
    "tutorial": lambda: pd.read_csv("docs/tutorial/runs.csv"),
    "flat": flat,
    "noisy": lambda: studies.isoflop(5, noise=0.03),
    "public": lambda: studies.chinchilla()[["params", "tokens", "flops", "loss"]],
}


def test_the_stored_fit_says_what_it_holds() -> None:
    fit, rows = study_result.load(DATA / "fit_example.json"), read_rows(DATA / "runs.csv")
    assert check_page(fit, rows) > 15
    check_terminal(fit)


@pytest.mark.parametrize("name", CASES)
def test_every_sentence_is_of_fit_json(name: str, tmp_path: Path) -> None:
    fit, rows = fitted(CASES[name](), tmp_path, sensitivity=name in ("example", "flat"))
    assert check_page(fit, rows) > 5
    check_terminal(fit)


def problems_of_the_backtest(fit: Fit, rows: Any) -> list[str]:
    """Return what is wrong with each of tile, caption and terminal's line of the backtest; empty where nothing is."""
    told = to_json(fit)
    starts = ("backtest error", "Fitted to the")
    found = [said(text, PAGE, told) for _, text in page_sentences(fit, rows) if text.startswith(starts)]
    found += [said(line, TERMINAL, told) for line in summary(told).splitlines() if line.startswith("backtest")]
    assert len(found) == 3
    return found


@pytest.mark.parametrize(
    ("budgets", "approach"), [((1e11, 3e11, 1e12, 3e12, 1e13, 3e13), "valleys"), ((4e11, 1.2e12, 4e12, 1.3e13), "")]
)
def test_the_backtest_is_of_what_the_loss_is_from(tmp_path: Path, budgets: tuple[float, ...], approach: str) -> None:
    """Where the law is not advised the loss is the frontier's: the law's errors are no test of it."""
    table = studies.isoflop(1, noise=0.001, budgets=budgets, ratios=(2.5, 5.0, 10.0, 20.0, 40.0, 80.0))
    fit, rows = fitted(table, tmp_path, sensitivity=False, form="chinchilla_interaction")
    told, test = fit.recommendation, fit.backtest
    assert told is not None and test is not None
    assert (told.approach, told.loss_from, test.approach) == ("valleys", "frontier", approach)
    assert not {"backtest_bias"} & {check.code for check in fit.checks}
    if not approach:
        assert test.relative_error is None
        assert f"none: {test.reason}" in " ".join(summary(to_json(fit)).split())
        assert f"The recommendation's loss has no backtest: {test.reason}." in unescape(page_of(fit, rows))
        (check,) = [check for check in fit.checks if check.code == "no_backtest"]
        assert (check.message, check.level) == (f"no backtest: {test.reason}", "warning")
        return
    assert not any(problems_of_the_backtest(fit, rows))
    law = test.by_approach["law"].relative_error
    wrong = dataclasses.replace(fit, backtest=dataclasses.replace(test, relative_error=law))
    assert all(problems_of_the_backtest(wrong, rows)), "the rules know whose error it has to be"


def test_another_approach_is_never_said_to_be_the_recommended_one(tmp_path: Path) -> None:
    """Where the valleys are not identified their exponent is nowhere on the page as the law's own."""
    fit, rows = fitted(flat(0.01), tmp_path, sensitivity=False)
    told = fit.recommendation
    assert told is not None
    assert told.approach == "surface"
    assert set(told.by_approach) == {"surface"}
    valleys = fit.fits.valleys.exponents["params"]
    own = told.growth["params"].exponent
    assert abs(valleys.exponent - own) > 0.01, "this study is to tell them apart"
    assert f"C<sup>{numbers.number(own)}</sup>" in page_of(fit, rows)
    assert f"^{numbers.number(valleys.exponent)}" not in summary(to_json(fit))


def test_the_rules_see_a_number_that_is_another_law_s() -> None:
    """The check of the checks: a page that says another law's exponent, N*, or interval is found out."""
    fit, rows = study_result.load(DATA / "fit_example.json"), read_rows(DATA / "runs.csv")
    plan_ = fit.recommendation
    assert plan_ is not None
    wrong = dataclasses.replace(plan_.growth["params"], exponent=0.64)
    other = dataclasses.replace(
        fit, recommendation=dataclasses.replace(plan_, growth={**plan_.growth, "params": wrong})
    )
    for text in (t for _, t in page_sentences(other, rows) if t.startswith("In words")):
        assert "0.640" in said(text, PAGE, to_json(fit))
    assert said("With 1 FLOPs of a kind.", PAGE, to_json(fit)).startswith("no rule")


def test_one_range_over_choices_is_said_once_and_whose_it_is() -> None:
    """A fit of few rows that chance explains is in neither range; the terminal does not repeat a finding."""
    fit = study_result.load(DATA / "fit_example.json")
    values: Any = (
        ("as fitted", 0.5, 0.45, 0.55, 25), ("squared", 0.42, 0.37, 0.47, 25), ("linear", 0.55, 0.5, 0.6, 25),
        ("from 2e12", 0.70, 0.4, 0.9, 10),
    )  # fmt: skip
    lines = tuple(Choice("choice", option, "a", *rest) for option, *rest in values)
    (check,) = findings.choices(lines, (0.45, 0.55))
    assert check.message.startswith("the surface's exponent a lies between 0.42 and 0.55 over 3 choices")
    made = to_json(dataclasses.replace(fit, sensitivity=lines))
    said_ = "the surface's a lies between 0.420 and 0.550 over 3 choices of rows and loss"
    assert sentences.choices(made) == f"{said_}; the recommendation is by the valleys"
    made["recommendation"]["approach"] = "surface"
    assert sentences.choices(made, ", x") == f"{said_}, x"
    assert sentences.choices({**made, "recommendation": None}) == said_
    assert sentences.choices({**made, "sensitivity": made["sensitivity"][:2]}) == ""
    assert f"choices        {said_}" in summary(made, told=True).splitlines()
    known = {**made, "checks": [*made["checks"], to_json(check)]}
    assert f"choices        {said_}" in summary(known).splitlines()
    assert "choices  " not in summary(known, told=True), "it stands above"


def test_without_a_recommendation_the_command_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = studies.isoflop(1, noise=0.05, budgets=(1e12, 4e12), ratios=(5, 20, 80))
    table.to_csv(tmp_path / "t.csv", index=False)
    asked = [f"runs={tmp_path / 't.csv'}", f"out={tmp_path}", "resamples=20", "sensitivity=no", "report=no"]
    assert fit_command(asked) == commandline.UNANSWERED == 3
    assert "no_recommendation" in capsys.readouterr().out
    assert (tmp_path / "fit.json").exists()


def test_an_approach_with_a_note_is_shown_and_not_compared() -> None:
    lines = [
        {"approach": "1 hull", "params": 9e6, "note": "losses before the schedules ended"},
        {"approach": "2 parabola", "params": 1.2e6, "note": ""},
    ]
    fit: dict[str, Any] = {
        "recommendation": {"by_approach": {"surface": {"params": 1e6}}}, "record": {"approaches": lines}
    }  # fmt: skip
    ratio, count = sentences.apart(fit)
    assert ratio == pytest.approx(1.2)
    assert count == 2
    head, first, _ = terminal._approaches(fit)
    assert head == ("approaches", "N* differs by a factor of 1.2 without approach 1")
    assert first == ("  1: hull", "N* 9.00M (losses before the schedules ended)")
    alone: dict[str, Any] = {"record": {"approaches": lines[:1]}}
    assert sentences.apart(alone) == (None, 0)
    assert terminal._approaches(alone)[0] == ("approaches", "none without approach 1")
    assert terminal._approaches({"record": {"approaches": lines[1:]}})[0] == ("approaches", "one alone")
