"""The page is valid, self-contained, complete and honest; the command line says what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.laws.registry import FORMS
from analysis.report import formula, sentences
from analysis.report.__main__ import main, parse
from analysis.report.figures import canvas, frontier, paper, registry
from analysis.report.figures.data import Row, read_rows
from analysis.report.html import VOID, Html, join, tag
from analysis.report.page import page
from analysis.report.write import figures, write
from analysis.text import numbers
from analysis.values import study_result
from analysis.values.blocks import Check, Identified
from analysis.values.study_result import Fit

DATA = Path(__file__).parents[1] / "data"
FIT = DATA / "fit_example.json"
HOSTILE = """<script>alert("x")</script><img src=x onerror='y'>&amp;$\\frac{1}{2}$"""


class Page(HTMLParser):
    """Collects elements, text and ids; `problems` names every element that is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]


FIGURES = tuple(name for name in registry.FIGURES if name != "curves")  # the example has no learning curves


@pytest.fixture(scope="session")
def fit() -> Fit:
    return study_result.load(FIT)


@pytest.fixture(scope="session")
def rows() -> tuple[Row, ...]:
    return read_rows(DATA / "runs.csv")


@pytest.fixture(scope="session")
def html(fit: Fit, rows: tuple[Row, ...]) -> str:
    return page(fit, rows, figures(fit, rows))


@pytest.fixture(scope="session")
def read(html: str) -> Page:
    return Page(html)


def test_every_element_is_closed_and_every_id_is_unique(read: Page) -> None:
    assert read.problems == []
    assert read.open == []
    assert len(read.ids()) == len(set(read.ids()))


def test_the_page_asks_for_nothing_and_runs_nothing(html: str, read: Page) -> None:
    assert not re.search(r'(?:src|href|action|data)\s*=\s*"(?!#)', html)
    assert not re.search(r"url\((?!#)|@import|javascript:", html)
    names = {name for name, _ in read.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "img", "base", "form"}
    assert not [key for _, attributes in read.tags for key in attributes if key.startswith("on")]
    elsewhere = [a["href"] for name, a in read.tags if name == "a" and (a["href"] or "")[1:] not in read.ids()]
    assert elsewhere == []


def test_every_figure_is_in_the_page_with_a_name_and_a_caption(fit: Fit, rows: tuple[Row, ...], read: Page) -> None:
    drawn = figures(fit, rows)
    assert [f.name for f in drawn] == [*FIGURES]
    images = [a for name, a in read.tags if name == "svg"]
    assert len(images) == sum(len(f.panels) for f in drawn if f.shown)
    assert all(a.get("role") == "img" and a.get("aria-label") for a in images)
    for figure in (f for f in drawn if f.shown):
        caption = " ".join(numbers.typeset(figure.caption).split()).replace("^", "")  # raised on the page
        assert caption in read.text
        assert figure.name in read.ids()


def test_the_answer_leads(read: Page) -> None:
    start = read.text[: read.text.index("In words")]
    for part in ("5×10¹⁵ FLOPs", "5.13M parameters", "148M tokens", "2.630", "3.59M to 7.70M", "2.591 to 2.667"):
        assert part in start
    assert "extrapolation10×" in start.replace(" ", "")
    assert "Ranges are 95 % intervals." in start
    first, _, second = read.text[read.text.index("What each approach") :].partition(
        "one law L(N,\u00a0D) through all runs"
    )
    assert "the best size of each budget, continued by a power law" in f"{first}{second[:99]}", (
        "both names are explained"
    )
    assert "0.81 %" in start
    assert "matmul" in start
    assert "nats per token" in start


def test_what_is_not_identified_is_never_given_an_interval(fit: Fit, rows: tuple[Row, ...]) -> None:
    """Even where a fit carries an interval for it."""
    surface = replace(fit.fits.surface, intervals={**fit.fits.surface.intervals, "E": (1.91234, 1.95678)})
    read = Page(page(replace(fit, fits=replace(fit.fits, surface=surface)), rows, ()))
    assert "E is not identified by these runs (at most 2.41)" in read.text
    assert "not identified, at most 2.41. The objective stays within" in read.text
    assert "1.91" not in read.text
    assert "1.96" not in read.text
    assert "L(N, D) = E + 45.1/N0.326" in read.text


def test_an_unbounded_constant_says_at_least(fit: Fit, rows: tuple[Row, ...]) -> None:
    found = {**fit.fits.surface.identified, "A": Identified(False, "flat", "lower", 3.0)}
    surface = replace(fit.fits.surface, identified=found)
    read = Page(page(replace(fit, fits=replace(fit.fits, surface=surface)), rows, ()))
    assert "not identified, at least 3.00. Flat." in read.text


def test_checks_runs_and_dropped_rows_are_all_there(fit: Fit, rows: tuple[Row, ...], read: Page) -> None:
    for check in (*fit.checks, *fit.fits.valleys.checks):
        said = " ".join(numbers.typeset(check.message.rstrip(". ")).split())
        said = said[:1].upper() + said[1:]
        assert read.text.count(said) == 1
    for row in rows:
        assert row.key in read.text
    assert "the run failed: no final loss" in read.text
    assert "the learning-rate schedule was not finished" in read.text
    for version in fit.versions.values():
        assert version in read.text
    assert "100 % of 8 starts agree" in read.text


def test_the_last_budgets_without_a_minimum_are_not_counted_as_data(fit: Fit, rows: tuple[Row, ...]) -> None:
    last = replace(fit.fits.valleys.valleys[-1], status="edge")
    valleys = replace(fit.fits.valleys, valleys=(*fit.fits.valleys.valleys[:-1], last))
    read = Page(page(replace(fit, fits=replace(fit.fits, valleys=valleys)), rows, ()))
    assert "39× beyond the largest budget with a minimum" in read.text
    assert "budget with a minimum" not in Page(page(fit, rows, ())).text


def test_errors_stand_beside_the_answer(fit: Fit, rows: tuple[Row, ...]) -> None:
    alarm = Check("mixed", "Two kinds of loss.", "Fit them apart.", "error")
    read = Page(page(replace(fit, checks=(*fit.checks, alarm)), rows, ()))
    assert read.text.index("Two kinds of loss.") < read.text.index("parameters N [matmul]")


def hostile(fit: Fit) -> Fit:
    """The fit with html in every text that a user or a file can give."""
    return replace(
        fit,
        study=HOSTILE,
        source=HOSTILE,
        kinds=replace(fit.kinds, params=HOSTILE, loss=HOSTILE, tokenizer=HOSTILE, flops=HOSTILE),
        checks=(Check("c", HOSTILE, HOSTILE, HOSTILE),),
        versions={HOSTILE: HOSTILE},
    )


def test_hostile_text_is_shown_not_obeyed(fit: Fit, rows: tuple[Row, ...]) -> None:
    bad = [replace(rows[0], key=HOSTILE, used=False, drop_code=HOSTILE, drop_reason=HOSTILE), *rows[1:]]
    text = page(hostile(fit), bad, figures(hostile(fit), bad))
    read = Page(text)
    assert read.problems == []
    assert "<script" not in text
    assert "<img" not in text
    assert not [key for _, attributes in read.tags for key in attributes if key.startswith("on")]
    assert read.text.count('<script>alert("x")</script>') >= 8


@given(st.text(), st.text())
def test_text_comes_back_as_it_went_in(body: str, value: str) -> None:
    read = Page(tag("p", body, title=value))
    shown = numbers.typeset(body).replace("\r\n", "\n")
    assert "".join(read.words).replace("\r\n", "\n") == shown
    assert read.tags == [("p", {"title": value})]
    assert join(Html("<b>"), "<b>") == "<b>&lt;b&gt;"


def test_laws_are_written_as_maths() -> None:
    text = formula.law("L_inf + a*(C/reference_flops)^-alpha", {"a": "2.02", "alpha": "0.11"}, frozenset({"L_inf"}))
    assert "<sup>−" in text
    assert Page(text).text == "L∞ + 2.02 (C/Cref)−0.11"
    assert 'class="unknown"' in text


def test_exponents_are_raised_wherever_the_page_has_them() -> None:
    fit, rows = study_result.load(FIT), read_rows(DATA / "runs.csv")
    reason = "the law fits the runs as well without B/D^beta"
    surface = replace(fit.fits.surface, identified={**fit.fits.surface.identified, "B": Identified(False, reason)})
    text = page(replace(fit, fits=replace(fit.fits, surface=surface)), rows, figures(fit, rows))
    caption = next(f.caption for f in figures(fit, rows) if f.name == "frontier")
    power = re.search(r"its N\* grows as C\^(0\.\d+)", caption)
    assert power is not None
    assert f"its N* grows as C<sup>{power[1]}</sup>" in text
    assert "as well without B/D<sup>β</sup>" in text
    assert "N* grows as C<sup>a</sup>, D* as C<sup>b</sup>" in text
    assert "^" not in Page(text).text


def empty(fit: Fit) -> Fit:
    """The fit of a study in which nothing could be fitted."""
    no: dict[str, Any] = {
        "status": "not possible",
        "reason": "only 2 runs",
        "params": {},
        "derived": {},
        "intervals": {},
        "identified": {},
        "checks": (),
        "optimizer": None,
        "objective": None,
    }
    fits = replace(
        fit.fits,
        valleys=replace(fit.fits.valleys, **no, valleys=(), exponents={}),
        surface=replace(fit.fits.surface, **no),
        frontier=replace(fit.fits.frontier, **no, points=(), reference_flops=None),
    )
    return replace(fit, **no, fits=fits, backtest=None, recommendation=None)


def test_a_study_without_an_answer_says_so(fit: Fit) -> None:
    read = Page(page(empty(fit), (), figures(empty(fit), ())))
    assert read.problems == []
    assert "These runs do not yet say what to train next: only 2 runs" in read.text
    assert "needs at least three budgets" in read.text
    assert "None" not in read.text
    assert "nan" not in read.text.lower().replace("finance", "")


def test_long_tables_are_folded(fit: Fit, rows: tuple[Row, ...]) -> None:
    many = [replace(rows[i % 20], key=f"{i:012x}") for i in range(1200)]
    read = Page(page(fit, many, ()))
    assert "details" in {name for name, _ in read.tags}
    assert "Show 1000 of 1200 runs" in read.text
    assert f"{999:012x}" in read.text or f"{0:012x}" in read.text


def test_the_command_writes_all_files_and_the_same_bytes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"fit={FIT}", f"out={tmp_path}"]
    assert main(given) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{n}.{e}" for n in FIGURES for e in ("svg", "pdf", "png", "csv")}
    linked = {a["href"] for name, a in Page((tmp_path / "report.html").read_text("utf-8")).tags if name == "a"}
    assert {f"figures/{name}" for name in names} <= linked
    first = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    assert all(content for content, _ in first.values())
    stale = tmp_path / "figures" / "curves.svg"
    stale.write_text("of an earlier fit")
    assert main(given) == 0
    assert not stale.exists()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in first} == first


def test_learning_curves_join_when_the_runs_are_given(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for row in read_rows(DATA / "runs.csv")[:3]:
        (runs / row.key).mkdir(parents=True)
        lines = [
            {"kind": "validation", "tokens": t, "metrics": {"loss": 9 - t / 1e5}} for t in (10_000, 50_000, 100_000)
        ]
        (runs / row.key / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    written = write(FIT, tmp_path / "out", runs, kinds=())
    assert tmp_path / "out" / "figures" / "curves.csv" in written.figures
    assert "curves" in Page(written.report.read_text(encoding="utf-8")).ids()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "fit= is missing"),
        (["fits=x"], "did you mean fit=PATH?"),
        ([f"fit={FIT}", "figures=jpg"], "figures=jpg: 'jpg' is not allowed; use svg, pdf, png"),
        ([f"fit={FIT}", "size=poster"], "size=poster: 'poster' is not allowed; use screen, column, page"),
        (["fit=/nowhere/fit.json"], "does not exist"),
        ([f"fit={FIT}", "runs=/nowhere", "out=/tmp/never"], "runs=/nowhere is not a folder"),
    ],
)
def test_errors_name_key_and_value(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_help_and_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "fit=reports/STUDY/fit.json" in capsys.readouterr().out
    assert parse(["fit=a=b", "out=c"]) == {"fit": Path("a=b"), "out": Path("c")}
    assert parse(["fit=a", "figures=png,svg", "size=page"]) == {
        "fit": Path("a"),
        "figures": ("svg", "png"),
        "size": "page",
    }


def test_figures_for_print_are_as_wide_as_a_column_and_of_the_kinds_asked_for(tmp_path: Path) -> None:
    assert main([f"fit={FIT}", f"out={tmp_path}", "figures=pdf", "size=column"]) == 0
    made = sorted((tmp_path / "figures").iterdir())
    assert {path.suffix for path in made} == {".pdf", ".csv"}
    for path in made:
        if path.suffix == ".pdf":
            content = path.read_bytes()
            box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", content)
            assert box is not None
            assert float(box[1]) == pytest.approx(72 * 3.35, abs=0.1), path.name
            assert b"/Type3" not in content and b"CreationDate" not in content


def test_the_figure_for_a_paper_has_three_panels_and_exponents(fit: Fit, rows: tuple[Row, ...]) -> None:
    figure = paper.figure(fit, rows)
    assert figure is not None
    assert len(figure.panels) == 3
    wide = figure.sized("page").svg(figure.name, transparent=False)
    size = re.search(r'width="([\d.]+)pt"', wide)
    assert size is not None and float(size[1]) == pytest.approx(72 * 7)
    text = Page(wide[wide.index("<svg") :]).text
    growth = fit.recommendation.growth if fit.recommendation else {}
    for name, letter in (("params", "a"), ("tokens", "b")):
        assert f"{letter} = {numbers.number(growth[name].exponent)} ({numbers.interval(growth[name].interval)})" in text
    assert paper.figure(replace(fit, recommendation=None), rows) is None
    keys = paper.draw_growth(canvas.new_axes(), fit, [frontier.prepare(fit, name) for name in growth]).get_legend()
    assert keys is not None
    marks = [line.get_marker() for line in keys.get_lines()]
    assert marks == ["o", "s"], "without colours the marks tell the two apart"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from analysis.report.__main__ import main; main(['--help'])\n"
        "heavy = {'matplotlib', 'pandas', 'numpy', 'scipy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900, stdout=subprocess.DEVNULL)


def test_indices_sums_and_sizes_are_typeset() -> None:
    text = formula.law("L_0 + A S^-alpha - B sum_k (eta_(k-1) - eta_k)", {})
    assert text == ("L<sub>0</sub> + A S<sup>−α</sup> − B Σ<sub>k</sub> (η<sub>k−1</sub> − η<sub>k</sub>)")
    assert formula.symbol("beta (25M)") == "β (25M)" and formula.symbol("L_0 (25M)") == "L<sub>0</sub> (25M)"


def test_a_law_that_was_asked_for_says_what_it_gives() -> None:
    named = {form.name for form in FORMS.values() if form.target != "loss"}
    assert named <= sentences.TARGETS.keys(), "laws of anything but the loss"
    assert sentences.side({"approach": "learning_rate"}) == "learning rate = "
    assert sentences.side({"approach": "surface"}) == "loss = " and sentences.side({"approach": "mine"}) == ""
