"""Figures show what they should: data preparation is pure and exact, axes hold the artists and labels."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report.figures import backtest, canvas, curves, data, fan, frontier, law, loss, paper, style, valleys
from analysis.report.figures.along import along
from analysis.report.figures.canvas import Figure
from analysis.values import study_result
from analysis.values.blocks import Identified
from analysis.values.study_result import Cut, Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def fit() -> Fit:
    return study_result.load(DATA / "fit_example.json")


@pytest.fixture(scope="session")
def rows() -> tuple[data.Row, ...]:
    return data.read_rows(DATA / "runs.csv")


def axes() -> Axes:
    from matplotlib.figure import Figure as Canvas

    return Canvas().add_subplot()


def drawn(figure: Figure | None, name: str) -> Axes:
    assert figure is not None
    (panel,) = [p for p in figure.panels if p.name == name]
    ax = axes()
    assert panel.draw(ax) is ax
    return ax


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def key_of(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def dotted(ax: Axes) -> list[Any]:
    """Return the lines that are dots of named runs."""
    return [line for line in ax.lines if str(line.get_gid() or "").startswith(style.HOVER)]


def test_rows_keep_what_the_fit_did_not_use(rows: tuple[data.Row, ...]) -> None:
    left = {row.key: row for row in rows if not row.used}
    assert set(left) == {"0badc0ffee01", "0badc0ffee02"}
    assert all(set(row.extra) <= set(data.EXTRA) and all(row.extra.values()) for row in rows)
    assert any("lr" in row.extra for row in rows)
    failed = left["0badc0ffee01"]
    assert failed.state == failed.drop_code == "failed"
    assert math.isnan(failed.loss)
    assert math.isnan(failed.error)


def test_a_missing_column_or_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("key,params,tokens,loss\n")
    with pytest.raises(ValueError, match="no column 'flops'"):
        data.read_rows(tmp_path / "runs.csv")
    with pytest.raises(ValueError, match="does not exist"):
        data.read_rows(tmp_path / "other.csv")


def test_curves_skip_torn_lines_other_kinds_and_missing_runs(tmp_path: Path, rows: tuple[data.Row, ...]) -> None:
    run = tmp_path / rows[0].key
    run.mkdir()
    lines = [
        json.dumps({"kind": kind, "step": i, "tokens": 100 * i, "metrics": {"loss": value}})
        for i, (kind, value) in enumerate(
            [("validation", 5.0), ("train", 4.0), ("validation", 3.5), ("validation", 3.0)]
        )
    ]
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "validation", "tok']))
    (found,) = data.read_curves(tmp_path, rows)
    assert (found.key, found.tokens, found.losses) == (rows[0].key, (200.0, 300.0), (3.5, 3.0))


def test_curves_never_leave_the_study_folder(tmp_path: Path, rows: tuple[data.Row, ...]) -> None:
    study = tmp_path / "study"
    study.mkdir()
    line = json.dumps({"kind": "validation", "tokens": 1, "metrics": {"loss": 1.0}})
    (tmp_path / "metrics.jsonl").write_text(line)
    assert data.read_curves(study, [replace(rows[0], key="..")]) == ()


def test_valleys_are_sampled_from_their_coefficients(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    curves_ = valleys.prepare(fit.fits.valleys.valleys, rows)
    assert [curve.kept for curve in curves_] == [False, True, True, True, True]
    for valley, curve in zip(fit.fits.valleys.valleys, curves_, strict=True):
        assert len(curve.points) == valley.points
        assert [n for n, _ in (curve.parabola[0], curve.parabola[-1])] == pytest.approx(valley.params_range)
        c0, c1, c2 = valley.coefficients
        for n, value in curve.parabola[::20]:
            x = math.log(n) - valley.center
            assert value == pytest.approx(c0 + c1 * x + c2 * x * x)
    lowest = min(curves_[1].parabola, key=lambda point: point[1])
    assert curves_[1].minimum is not None
    assert lowest[1] == pytest.approx(curves_[1].minimum[1], rel=1e-3)


def test_rows_are_read_whatever_else_the_file_holds(rows: tuple[data.Row, ...], tmp_path: Path) -> None:
    lines = (DATA / "runs.csv").read_text().splitlines()
    more = ["mine," + lines[0], *(f"{i}," + line for i, line in enumerate(lines[1:])), ""]
    (tmp_path / "runs.csv").write_text("\n\n".join(more))
    assert repr(data.read_rows(tmp_path / "runs.csv")) == repr(rows)
    (tmp_path / "runs.csv").write_text("key,params\n")
    with pytest.raises(ValueError, match=r"has no column 'tokens', only key, params; run analysis\.fit again"):
        data.read_rows(tmp_path / "runs.csv")


def test_very_many_unused_runs_are_found_by_budget_and_drawn_in_part(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    some = fit.fits.valleys.valleys
    first = next(row for row in rows if row.used)
    unused = tuple(
        replace(first, key=f"u{i}", used=False, drop_code="mid_schedule" if i % 3 else "not_best",
                budget=some[i % len(some)].flops_budget * (1.005, 0.995, 1.02, math.nan)[i % 4])
        for i in range(4000)
    )  # fmt: skip
    shown = valleys.prepare(some, (*rows, *unused))
    plain = valleys.prepare(some, rows)
    for curve, before in zip(shown, plain, strict=True):
        near = [row.name for row in unused if abs(math.log(row.budget / curve.budget)) < valleys.SAME_BUDGET]
        assert sorted(name for *_, name in curve.left) == sorted([*(name for *_, name in before.left), *near])
        assert near
    ax = axes()
    valleys.draw(ax, shown, "matmul", "nats per token")
    left = [line for line in dotted(ax) if line.get_marker() in ("+", "1")]
    assert 0 < sum(len(line.get_xdata()) for line in left) <= data.MOST_DOTS
    assert len(left) <= 2 * len(shown), "a line of dots for each reason, not for each run"


def test_valleys_show_every_budget_its_minimum_and_what_was_dropped(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    ax = drawn(valleys.figure(fit, rows), "valleys")
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "parameters N [matmul]"
    assert ax.get_ylabel() == "loss [nats per token]"
    assert sum(line.get_marker() == "D" and len(line.get_xdata()) > 0 for line in ax.lines) == 4  # type: ignore[arg-type]
    hollow = [line for line in dotted(ax) if line.get_markerfacecolor() == style.PAPER]
    assert len(hollow) == 1
    assert len(ax.containers) == 4  # the intervals of the minima
    assert key_of(ax) == ["run", "minimum of a parabola", "the minima, joined", "fitted law", "the budget's parabola",
                          "left out: no minimum inside", "left out: schedule not finished"]  # fmt: skip
    solid, dashed = ([line for line in ax.lines if line.get_linestyle() == how and len(line.get_xdata()) > 50]  # type: ignore[arg-type]
                     for how in ("-", "--"))  # fmt: skip
    assert len(solid) == len(dashed) == 5
    assert all(above.get_zorder() > below.get_zorder() for above in solid for below in dashed)
    (unfinished,) = [line for line in ax.lines if line.get_marker() == "+" and len(line.get_xdata())]  # type: ignore[arg-type]
    assert "left out: mid schedule" in str(unfinished.get_gid())
    assert {"8×10¹²", "3.2×10¹³", "1.3×10¹⁴", "5×10¹⁴"} <= set(texts(ax))


def test_valley_labels_do_not_overlap(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    """Six budgets with nearly the same losses still get labels that are apart."""
    one = fit.fits.valleys.valleys[2]
    near = [replace(one, flops_budget=one.flops_budget * (1 + i)) for i in range(6)]
    ax = axes()
    valleys.draw(ax, valleys.prepare(near, rows), "matmul", "nats per token")
    heights = sorted(text.get_position()[1] for text in ax.texts if "×10" in text.get_text())
    assert len(heights) == 6
    low, high = ax.get_ylim()
    assert min(b - a for a, b in pairwise(heights)) >= 0.05 * (high - low)


def test_many_budgets_are_counted_not_named(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    kept, edge = fit.fits.valleys.valleys[2], fit.fits.valleys.valleys[0]
    many = [replace(kept, flops_budget=1e13 * 1.3**i) for i in range(11)]
    many += [replace(edge, flops_budget=1e12 * 1.3**i) for i in range(30)]
    ax = axes()
    valleys.draw(ax, valleys.prepare(many, rows), "given", "nats per token")
    assert ax.get_xlabel() == "parameters N"
    assert len(ax.texts) == 8
    assert ax.get_title(loc="right") == "budget C [FLOPs], 30 left out and faint"
    heights = sorted(text.get_position()[1] for text in ax.texts)
    low, high = ax.get_ylim()
    assert min(b - a for a, b in pairwise(heights)) >= 0.05 * (high - low)


def test_no_minimum_is_said_in_the_caption(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    edges = tuple(replace(v, status="edge", params_opt=None) for v in fit.fits.valleys.valleys)
    bare = replace(fit, fits=replace(fit.fits, valleys=replace(fit.fits.valleys, valleys=edges)))
    figure = valleys.figure(bare, rows)
    assert figure is not None
    assert "No budget has a minimum" in figure.caption


def test_the_line_is_the_recommended_path_with_its_band(fit: Fit) -> None:
    plan = fit.recommendation
    assert plan is not None
    line = frontier.followed(fit, "params")
    assert line is not None
    assert line.flops[-1] == plan.budget_flops
    assert (line.value[-1], line.low[-1], line.high[-1]) == (plan.params, *(plan.intervals["params"] or ()))
    assert all(low < v < high for low, v, high in zip(line.low, line.value, line.high, strict=True))


def test_a_path_without_intervals_has_no_band_and_no_path_no_line(fit: Fit) -> None:
    plan = fit.recommendation
    assert plan is not None
    bare = tuple(replace(point, intervals={}) for point in plan.path)
    line = frontier.followed(replace(fit, recommendation=replace(plan, path=bare)), "params")
    assert line is not None
    assert line.low == ()
    assert frontier.followed(replace(fit, recommendation=replace(plan, path=())), "params") is None
    assert frontier.followed(replace(fit, recommendation=None), "params") is None


def test_beyond_the_data_begins_where_the_runs_end(fit: Fit) -> None:
    """Not at the last budget whose valley has a minimum."""
    some = tuple(replace(v, status="flat", params_opt=None) for v in fit.fits.valleys.valleys[1:])
    few = replace(fit.fits.valleys, valleys=(fit.fits.valleys.valleys[0], *some))
    path = frontier.prepare(replace(fit, fits=replace(fit.fits, valleys=few)), "params")
    assert path.data_end == fit.runs.largest_flops == 5e14


def test_captions_name_what_is_drawn_and_whose_law_it_is(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    drawn_frontier = frontier.figure(fit)
    assert drawn_frontier is not None
    assert "by the valleys" in drawn_frontier.caption
    none = frontier.figure(replace(fit, recommendation=None))
    assert none is not None
    assert none.caption.startswith("No law is drawn")
    one = tuple(v if i == 2 else replace(v, status="flat", params_opt=None)
                for i, v in enumerate(fit.fits.valleys.valleys))  # fmt: skip
    single = valleys.figure(replace(fit, fits=replace(fit.fits, valleys=replace(fit.fits.valleys, valleys=one))), rows)
    assert single is not None
    assert "1 of 5 valleys has its lowest point" in single.caption
    assert "the minima, joined" not in key_of(drawn(single, "valleys"))
    assert "without a cap" not in single.caption
    wide = [replace(v, params_interval=(v.params_range[0] / 10, v.params_range[1])) if v.params_interval else v
            for v in fit.fits.valleys.valleys]  # fmt: skip
    cut = valleys.figure(
        replace(fit, fits=replace(fit.fits, valleys=replace(fit.fits.valleys, valleys=tuple(wide)))), rows
    )
    assert cut is not None
    assert "A bar without a cap goes on beyond the edge." in cut.caption
    both = valleys.figure(fit, rows)
    assert both is not None
    assert "4 of 5 valleys have their lowest point" in both.caption
    assert "the minima, joined" in key_of(drawn(both, "valleys"))


def test_captions_say_what_the_marks_beside_the_star_are(fit: Fit) -> None:
    plan = fit.recommendation
    assert plan is not None
    assert set(plan.by_approach) == {"surface", "valleys"}
    other = "surface" if plan.approach == "valleys" else "valleys"
    for figure in (frontier.figure(fit), loss.figure(fit)):
        assert figure is not None
        assert f"the square is that of the {other} for the same budget, drawn beside it" in figure.caption
    alone = replace(plan, by_approach={plan.approach: plan.by_approach[plan.approach]})
    for figure in (
        frontier.figure(replace(fit, recommendation=alone)),
        loss.figure(replace(fit, recommendation=alone)),
    ):
        assert figure is not None
        assert "the star is the proposal for" in figure.caption
        assert "beside it" not in figure.caption
    third = replace(plan, by_approach={**plan.by_approach, "envelope": plan.by_approach["valleys"]})
    three = frontier.figure(replace(fit, recommendation=third))
    assert three is not None
    assert "the square is that of the envelope and the triangle is that of the" in three.caption


@pytest.mark.parametrize("size", canvas.SIZES)
def test_no_proposal_hides_another_in_print(fit: Fit, rows: tuple[data.Row, ...], size: str) -> None:
    figure = paper.figure(fit, rows)
    assert figure is not None
    sheet = figure.sized(size)
    sheet.png(50)
    ax = sheet._canvas.axes[2]
    marks = {line.get_label(): line for line in ax.lines if str(line.get_label()).startswith(("recommended:", "also:"))}
    (star, square) = marks.values()
    left, right = (ax.transData.transform(np.asarray(line.get_xydata()))[0, 0] for line in (star, square))
    apart = (right - left) / sheet._canvas.dpi * 72
    assert apart > star.get_markersize() / 2, "the star's arm would lie over the middle of the square"


def test_without_a_minimum_the_frontier_shows_the_path_over_the_data(fit: Fit) -> None:
    edges = tuple(replace(v, status="edge") for v in fit.fits.valleys.valleys)
    found = replace(fit, fits=replace(fit.fits, valleys=replace(fit.fits.valleys, valleys=edges)))
    path = frontier.prepare(found, "params")
    assert path.line is not None and not path.observed
    low, _ = drawn(frontier.figure(found), "params").get_xlim()
    assert low < path.line.flops[0]


@pytest.mark.parametrize(("name", "label"), [("params", "N* [matmul]"), ("tokens", "D* [tokens]")])
def test_the_frontier_shows_minima_band_and_every_proposal(fit: Fit, name: str, label: str) -> None:
    ax = drawn(frontier.figure(fit), name)
    assert label in ax.get_ylabel()
    assert ax.get_xlabel() == "compute C [FLOPs]"
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert len(ax.collections) >= 1  # the band
    assert len(ax.containers) == 4 + 2  # intervals of four minima and two proposals
    assert key_of(ax) == ["its interval", "recommended law", "beyond the data", "minima of the valleys",
                          "recommended: valleys", "also: surface"]  # fmt: skip
    low, high = ax.get_xlim()
    assert low < 7.984e12
    assert high > 5e15 * 1.12


def test_loss_frontier_draws_the_fitted_law(fit: Fit) -> None:
    path = loss.prepare(fit)
    assert path.line is not None
    params, reference = fit.fits.frontier.params, fit.fits.frontier.reference_flops
    assert reference is not None
    for c, value in zip(path.line.flops[:-1:3], path.line.value[:-1:3], strict=True):
        assert value == pytest.approx(params["L_inf"] + params["a"] * (c / reference) ** -params["alpha"])
    figure = loss.figure(fit)
    ax = drawn(figure, "loss")
    assert "nats per token" in ax.get_ylabel()
    assert figure is not None
    assert "along the recommended law's path, by the frontier" in figure.caption
    unknown = {n: Identified(False, "resamples put L_inf on its bound 0") for n in params}
    fits = replace(fit.fits, frontier=replace(fit.fits.frontier, identified=unknown))
    bare = loss.figure(replace(fit, fits=fits, recommendation=None))
    assert bare is not None
    assert "no law is drawn through them: resamples put L_inf on its bound 0" in bare.caption


def test_of_very_many_runs_some_are_drawn_and_the_captions_say_so(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    many = tuple(replace(rows[i % len(rows)], key=str(i), used=True) for i in range(data.MOST_DOTS + 500))
    found = law.figure(fit, [row for row in many if math.isfinite(row.error)])
    assert found is not None
    assert sum(len(line.get_xdata()) for line in dotted(drawn(found, found.panels[0].name))) == data.MOST_DOTS
    assert f"runs {data.MOST_DOTS:,} are drawn." in found.caption and len(found.table.rows) > data.MOST_DOTS
    each = data.MOST_DOTS // 3
    ax, shown = axes(), valleys.prepare(fit.fits.valleys.valleys, rows)[:2]
    crowded = tuple(replace(curve, points=curve.points * 400) for curve in shown)
    valleys.draw(ax, (*crowded, shown[1]), "matmul", "nats per token")
    assert max(len(line.get_xdata()) for line in ax.lines if line.get_marker() == "o") == each  # type: ignore[arg-type]
    assert data.dots(5) == [0, 1, 2, 3, 4] and len(set(data.dots(9000))) == data.MOST_DOTS


def test_law_panels_hold_every_fitted_run(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    figure = law.figure(fit, rows)
    fitted = law.prepare(rows)
    assert len(fitted) == 25
    for name, scale in (("observed", "linear"), ("params", "log"), ("tokens", "log"), ("flops", "log")):
        ax = drawn(figure, name)
        assert ax.get_xscale() == scale
        assert sum(len(line.get_xdata()) for line in dotted(ax)) == 25
        assert len({line.get_markerfacecolor() for line in dotted(ax)}) == 5, "a colour for each budget"
        unit = "nats per token" if name == "observed" else "%"
        assert unit in ax.get_ylabel()


def test_residuals_say_how_parameters_are_counted(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    assert drawn(law.figure(fit, rows), "params").get_xlabel() == "parameters N [matmul]"
    given = replace(fit, kinds=replace(fit.kinds, params="given"))
    assert drawn(law.figure(given, rows), "params").get_xlabel() == "parameters N"
    assert drawn(law.figure(fit, rows), "tokens").get_xlabel() == "training tokens D"


def test_residuals_have_a_mean_for_each_budget(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    fitted = law.prepare(data.grouped(rows, fit.fits.valleys.valleys))
    means = law.by_budget(fitted)
    assert len(means) == len(fit.fits.valleys.valleys)
    errors = [row.error for row in fitted if row.budget == fitted[0].budget]
    assert means[0][1:] == pytest.approx((np.mean(errors), np.std(errors, ddof=1) / math.sqrt(len(errors))))
    assert "mean of a budget, its standard error" in key_of(drawn(law.figure(fit, rows), "flops"))


def test_the_law_along_a_budget_predicts_its_runs(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    """At a run's own N and exact C: the tokens of these runs are what C pays for, 10 % above 6 N each."""
    found = along(fit, rows)
    assert found is not None
    p = fit.params
    for row in law.prepare(rows):
        said = p["E"] + p["A"] / row.params ** p["alpha"] + p["B"] / row.tokens ** p["beta"]
        assert found(row.flops, [row.params]) == pytest.approx([said], rel=1e-6)
    assert along(replace(fit, params={}), rows) is None


def test_dots_say_which_run_they_are(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    """In every SVG; an artist whose dots are not all there says nothing wrong."""
    figure = valleys.figure(fit, rows)
    assert figure is not None
    used = {row.key for row in rows if row.used}
    for text in (*figure.inline(), figure.sheet.svg(figure.name, transparent=False)):
        titles = [e.text or "" for e in ElementTree.fromstring(text).iter() if e.tag.rpartition("}")[2] == "title"]
        assert {title.partition(":")[0] for title in titles} >= used
        assert all(", loss " in title for title in titles)
        assert style.HOVER not in text

    def wrong(ax: Axes) -> Axes:
        style.hover(ax.plot([1, 2], [1, 2], "o")[0], ["a <b>"])
        return ax

    panel = canvas.Panel("p", "p", wrong)
    assert "title" not in canvas.Sheet([panel]).svg("p", transparent=False)


def test_robust_sd_is_the_scaled_median() -> None:
    assert law.robust_sd([-1.0, 1.0, 3.0]) == pytest.approx(1.4826)
    assert law.robust_sd([1.0, -3.0]) == pytest.approx(2 * 1.4826)


def test_backtest_shows_held_out_runs_and_signed_errors(fit: Fit) -> None:
    figure = backtest.figure(fit)
    ax = drawn(figure, "runs")
    assert [np.size(line.get_xdata()) for line in ax.lines] == [5, 5]
    assert ax.get_legend_handles_labels()[1] == ["predicted by the law", "observed"]
    from matplotlib.patches import Rectangle

    bars = drawn(figure, "errors")
    assert [bar.get_width() for bar in bars.patches if isinstance(bar, Rectangle)] == pytest.approx([0.81, -0.5, 0.86])
    assert texts(bars) == ["+0.81\xa0%", "−0.50\xa0%", "0.86\xa0%"]
    assert backtest.figure(replace(fit, backtest=None)) is None
    test = fit.backtest
    assert test is not None
    none = replace(test, approach="", predicted=None, relative_error=None, runs=(), mean_abs_relative_error=None,
                   reason="because")  # fmt: skip
    bare = backtest.figure(replace(fit, backtest=none))
    assert bare is not None
    assert bare.caption == "The recommendation's loss has no backtest: because. The bars are other approaches'."
    colours = [{bar.get_facecolor() for bar in drawn(one, "errors").patches} for one in (figure, bare)]
    assert [len(found) for found in colours] == [2, 1], "none stands out that is not the recommendation's"
    assert backtest.figure(replace(fit, backtest=replace(none, by_approach={}))) is None


def test_learning_curves_end_in_a_dot_each(fit: Fit) -> None:
    found = [
        data.Curve(f"run{i}", budget, 1e5, (1e3, 1e4, 1e5), (9.0, 5.0, 4.0 - i / 10))
        for i, budget in enumerate([1e12, 1e12, 4e12])
    ]
    ax = drawn(curves.figure(fit, found), "curves")
    assert len(ax.lines) == 6
    assert ax.get_legend_handles_labels()[1] == ["10¹²", "4×10¹²"]
    assert curves.figure(fit, []) is None


def test_a_fit_that_found_nothing_draws_nothing(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    fits = replace(
        fit.fits,
        valleys=replace(fit.fits.valleys, valleys=(), exponents={}),
        frontier=replace(fit.fits.frontier, status="not possible", reason="no", params={}, points=()),
    )
    bare = replace(fit, fits=fits, recommendation=None, backtest=None)
    assert valleys.figure(bare, rows) is None
    assert frontier.figure(bare) is None
    assert loss.figure(bare) is None
    assert law.figure(bare, [replace(row, used=False) for row in rows]) is None


def test_svg_is_xml_with_real_text_and_the_same_every_time(fit: Fit, rows: tuple[data.Row, ...]) -> None:
    figure = valleys.figure(fit, rows)
    assert figure is not None
    first = figure.sheet.svg(figure.name, transparent=False)
    assert first == figure.sheet.svg(figure.name, transparent=False), "laid out once, saved alike"
    assert first == canvas.Sheet(figure.panels).svg(figure.name, transparent=False)
    found = "".join(ElementTree.fromstring(first).itertext())
    assert "parameters N [matmul]" in found


def test_inline_svg_has_its_own_ids_and_follows_the_page(fit: Fit) -> None:
    figure = frontier.figure(fit)
    assert figure is not None
    both = [ElementTree.fromstring(text) for text in figure.inline()]
    ids = [{e.get("id") for e in tree.iter() if e.get("id")} for tree in both]
    assert ids[0]
    assert not ids[0] & ids[1]
    for tree, known in zip(both, ids, strict=True):
        refs = {e.get("href", "#")[1:] for e in tree.iter() if e.get("href")}
        assert refs <= known
    text = figure.inline()[0]
    assert "currentColor" in text
    assert style.INK not in text
    assert "xlink" not in text.partition(">")[0]


def test_panels_are_drawn_once_for_each_file_and_laid_out_by_the_first(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawings: list[Axes] = []
    draw: Callable[..., None] = Axes.draw

    def counted(ax: Axes, renderer: object) -> None:
        drawings.append(ax)
        draw(ax, renderer)

    monkeypatch.setattr(Axes, "draw", counted)
    figure = frontier.figure(fit)
    assert figure is not None
    sheet = canvas.Sheet(figure.panels)
    first = sheet.svg("f", transparent=False)
    assert len(drawings) == len(figure.panels)
    places = [ax.get_position().bounds for ax in drawings]
    sheet.png()
    assert len(drawings) == 2 * len(figure.panels)
    assert [ax.get_position().bounds for ax in drawings] == 2 * places
    assert sheet.svg("f", transparent=False) == first


def test_csv_has_full_precision_and_empty_for_missing() -> None:
    table = canvas.Table(("a", "b"), ((1 / 3, None), (math.nan, "x,y")))
    assert canvas.csv_text(table) == 'a,b\n0.3333333333333333,\n,"x,y"\n'


@pytest.mark.parametrize("build", [valleys.figure, law.figure])
def test_tables_have_a_value_for_each_column(
    build: Callable[..., Figure], fit: Fit, rows: tuple[data.Row, ...]
) -> None:
    table = build(fit, rows).table
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.columns)}


@given(st.floats(min_value=1e-3, max_value=1e20), st.floats(min_value=1.05, max_value=1e12))
def test_log_axes_always_have_readable_ticks(low: float, ratio: float) -> None:
    ticks = style.log_ticks(low, low * ratio)
    assert 3 <= len(ticks) <= 7
    assert all(low * (1 - 1e-9) <= t <= low * ratio * (1 + 1e-9) for t in ticks)
    assert ticks == sorted(set(ticks))
    assert all(float(f"{t:.2e}") == pytest.approx(t, rel=1e-12) for t in ticks), "a tick is not a round number"


@given(st.lists(st.floats(min_value=-100, max_value=100), max_size=12), st.floats(min_value=0.01, max_value=10))
def test_spread_labels_are_apart_and_in_order(wanted: list[float], gap: float) -> None:
    places = style.spread(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert all(places[b] - places[a] >= gap * (1 - 1e-6) - 1e-9 for a, b in pairwise(order))
    if all(wanted[b] - wanted[a] > gap * 1.001 for a, b in pairwise(order)):
        assert places == pytest.approx(wanted)


def test_budgets_that_round_alike_get_more_digits() -> None:
    assert data.budget_labels([1.24e12, 1.21e12, 1.24e12]) == {1.24e12: "1.24×10¹²", 1.21e12: "1.21×10¹²"}
    assert data.budget_labels([2e12, 4e12]) == {2e12: "2×10¹²", 4e12: "4×10¹²"}
    assert data.budget_labels([1.00001e12, 1.00002e12]) == {1.00001e12: "1.00001×10¹²", 1.00002e12: "1.00002×10¹²"}


def test_drawing_leaves_no_global_state() -> None:
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy()\n"
        "from pathlib import Path\n"
        "from analysis.values import study_result as results\n"
        "from analysis.report.figures import frontier\n"
        f"f = frontier.figure(results.load(Path({str(DATA / 'fit_example.json')!r})))\n"
        "f.sheet.png(dpi=30)\n"
        "assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)


def test_runs_of_one_budget_are_one_mean_of_the_fan_however_their_exact_compute_differs() -> None:
    budget = tuple((3e12 * (1 + 1e-5 * i), 0.01 * i) for i in range(5))
    ((factor, error),) = fan.running_means(Cut(1e12, 15, 0.4, 0.0, budget))
    assert factor == pytest.approx(3.0, rel=1e-4) and error == pytest.approx(0.02)
    assert len(fan.running_means(Cut(1e12, 15, 0.4, 0.0, (*budget, (9e12, 0.1))))) == 2
