"""The whole page: one HTML document with its style and figures inside, and no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from analysis.inputs.provenance import Provenance
from analysis.report import alone, answer, details, formula, origin
from analysis.report.figures import canvas
from analysis.report.figures.canvas import Figure
from analysis.report.figures.data import Row
from analysis.report.html import Html, join, tag
from analysis.text import numbers
from analysis.values.study_result import Fit

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

FOLDER = "figures"
"""Where the figures' files are, beside the page."""


def page(
    fit: Fit,
    rows: Sequence[Row],
    figures: Sequence[Figure],
    kinds: Sequence[str] = (),
    found: Provenance | None = None,
    *,
    panels: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the report as one HTML document that asks for nothing from outside.

    It links each figure's files, of these kinds, in the folder `figures` beside it. `found` is what the study's
    records say of its runs. `panels`: the SVG elements of each figure by its name; drawn here where they are not given.
    """
    style = files("analysis.report").joinpath("style.css").read_text(encoding="utf-8")
    if panels is None:
        panels = {figure.name: figure.inline() for figure in figures if figure.shown}
    body = _main(fit, rows, figures, kinds=kinds, found=found, panels=panels)
    style += f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {canvas.dark_colours(body)} }} }}\n"
    title = f"{fit.study}: " + ("a law" if alone.is_alone(fit) else "what to train next")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", body), lang="en") + "\n"


def head(fit: Fit) -> Html:
    """Return the answer, the law and the findings that forbid trusting it as a fragment of HTML, for a notebook."""
    single = alone.is_alone(fit)
    style = files("analysis.report").joinpath("notebook.css").read_text(encoding="utf-8")
    return tag(
        "div",
        tag("style", Html(style)),
        alone.lead(fit) if single else answer.lead(fit),
        answer.alarms(fit),
        Html("") if single else answer.tiles(fit),
        answer.law(fit),
        class_="study-fit",
    )


def _main(
    fit: Fit,
    rows: Sequence[Row],
    figures: Sequence[Figure],
    *,
    kinds: Sequence[str],
    found: Provenance | None,
    panels: Mapping[str, Sequence[str]],
) -> Html:
    single = alone.is_alone(fit)
    sections = [
        *(alone.evidence(fit) if single else ()),
        ("constants", "The constants", details.constants(fit)),
        ("checks", "What to be careful about", details.checks(fit)),
        ("choices", "Other choices and approaches", join(details.sensitivity(fit), details.ways(fit))),
        ("runs", "The runs", details.runs(fit, rows)),
        ("left-out", "What was left out", details.dropped(fit, rows)),
        ("method", "How it was done", details.method(fit)),
        ("provenance", "Where it comes from", origin.section(fit, rows, found)),
    ]
    sections = [part for part in sections if not (single and part[0] == "choices")]
    sizes = answer.best_sizes(fit)
    first = [("optima", "Compute-optimal sizes", sizes)] if sizes else []
    shown = [figure for figure in figures if figure.shown]
    apart = [figure for figure in figures if not figure.shown] if kinds else []
    links = [("#" + s, title) for s, title, _ in first] + [("#" + f.name, f.title.split(":")[0]) for f in shown]
    links += [("#" + s, title) for s, title, _ in sections]
    return tag(
        "main",
        tag("h1", f"Scaling study “{fit.study}”"),
        alone.lead(fit) if single else answer.lead(fit),
        answer.alarms(fit),
        Html("") if single else answer.tiles(fit),
        details.warned(fit),
        answer.law(fit),
        answer.approaches(fit),
        tag("nav", *(tag("a", text, href=target) for target, text in links), aria_label="sections"),
        *_sections(first),
        *(tag("p", f"{f.title}. {f.caption} ", _files(f, kinds), class_="quiet apart") for f in apart),
        *(_figure(figure, kinds, panels[figure.name]) for figure in shown),
        *_sections(sections),
        tag(
            "footer",
            f"{numbers.count(fit.runs.used)} runs from {fit.source}, fitted "
            f"{numbers.moment(fit.created) or 'at an unknown time'}. "
            "This page is one file: it loads nothing from outside.",
        ),
    )


def _sections(parts: Sequence[tuple[str, str, Html]]) -> list[Html]:
    """Return sections of their ids, titles and contents."""
    return [tag("section", tag("h2", title), body, id=name) for name, title, body in parts]


def _figure(figure: Figure, kinds: Sequence[str], panels: Sequence[str]) -> Html:
    return tag(
        "section",
        tag("h2", figure.title),
        tag(
            "figure",
            tag("figcaption", formula.prose(figure.caption), " ", _files(figure, kinds), class_="caption"),
            tag("div", *map(Html, panels), class_="panels"),
            class_="single" if len(panels) == 1 else None,
        ),
        id=figure.name,
    )


def _files(figure: Figure, kinds: Sequence[str]) -> Html:
    """Return links to a figure's files; nothing where none were written."""
    links = [tag("a", kind.upper(), href=f"{FOLDER}/{figure.name}.{kind}") for kind in kinds]
    between = [part for link in links for part in (" ", link)][1:]
    return tag("span", *between, class_="files") if links else Html("")
