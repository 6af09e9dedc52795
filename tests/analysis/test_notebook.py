"""What a notebook does: `import analysis as sa`, load, fit, look."""

from __future__ import annotations

import ast
import doctest
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis as sa
import study
from analysis.fit import fit as fit_frame
from analysis.next import main as next_main
from analysis.plan import main as plan_main
from analysis.results.fit_keys import KEYS
from analysis.results.fit_options import COMMAND_ONLY
from analysis.values import study_result
from study import notebook as study_notebook
from train.trained import TrainedModel

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "docs" / "example-runs.csv"


@pytest.fixture(scope="session")
def fit() -> sa.StudyFit:
    return sa.fit(RUNS, resamples=40, sensitivity=False)


def test_the_names_are_there_to_be_completed() -> None:
    assert dir(sa) == sorted([*sa.__all__, "__version__"], key=lambda name: (name.lower() == name, name))
    assert sa.__version__ == study.__version__
    assert {"load", "fit", "fit_law", "compare", "plan", "StudyFit"} <= set(dir(sa))
    shown = {name for name in dir(sa.StudyFit) if not name.startswith("_")}
    assert {"law", "optimum", "plot_isoflop", "plot_frontier", "plot_residuals", "report", "save", "summary"} <= shown
    assert all(getattr(sa.StudyFit, name).__doc__ for name in shown)


def test_a_law_completes_what_people_use_and_a_fit_says_what_only_its_law_has(fit: sa.StudyFit) -> None:
    assert {"params", "conf_int", "predict", "get_prediction", "summary", "resid"} <= set(dir(fit.law))
    assert all(hasattr(fit.law, name) for name in dir(fit.law)) and "thetas" not in dir(fit.law)
    with pytest.raises(AttributeError, match=r"'StudyFit' object has no attribute 'predict'; use law\.predict"):
        fit.predict(params=1e9, tokens=2e10)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute 'thetas'$"):
        _ = fit.thetas  # type: ignore[attr-defined]
    assert not hasattr(fit, "_repr_png_")


def test_optima_of_budgets_that_are_named(fit: sa.StudyFit) -> None:
    usual = fit.optima()
    pd.testing.assert_frame_equal(fit.optima(usual["budget_flops"]), usual)
    (found,) = fit.optima([4e21])["params"]
    assert found == fit.optimum(4e21).params
    assert fit.optima([]).empty and list(fit.optima([])) == list(usual)


@pytest.mark.parametrize("name", [name for name in sa.__all__ if inspect.ismodule(getattr(sa, name))])
def test_a_module_completes_what_a_user_calls(name: str) -> None:
    """Neither what it imports nor what is its own business; and each name says what it is."""
    module = getattr(sa, name)
    assert dir(module) == sorted(module.__all__)
    assert not [each for each in dir(module) if each.startswith("_") or inspect.ismodule(getattr(module, each))]
    assert [each for each in dir(module) if callable(getattr(module, each)) and not getattr(module, each).__doc__] == []


def test_the_packages_own_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testmod(sa)
    assert (found.attempted > 0, found.failed) == (True, 0)


def test_the_command_can_be_called_whatever_was_imported_first() -> None:
    """As a function and as a module, and run as a command; the package alone imports nothing heavy."""
    code = """
import inspect, runpy, sys
import analysis as sa
light = set(sys.modules)
first = sa.fit, sa.compare, sa.plan, sa.backtest
assert all(map(inspect.isfunction, first))
import analysis.fit, analysis.compare, analysis.plan, analysis.backtest
from analysis import backtest, compare, fit, plan
assert (analysis.fit, analysis.compare, analysis.plan, analysis.backtest) == (fit, compare, plan, backtest) == first
for name in [name for name in sys.modules if name.partition(".")[0] == "analysis"]:
    del sys.modules[name]
import analysis.compare
import analysis.fit
import analysis.plan
import analysis as sa
assert inspect.isfunction(sa.plan) and sys.modules["analysis.plan"].main
assert inspect.isfunction(sa.fit) and inspect.isfunction(sa.compare) and sys.modules["analysis.fit"].main
del sys.modules["analysis.fit"]
sys.argv = ["", "--help"]
try:
    runpy.run_module("analysis.fit", run_name="__main__")
except SystemExit as end:
    assert end.code in (0, None), end.code
assert not light & {"numpy", "pandas", "scipy", "matplotlib"}, "import analysis"
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: python -m analysis.fit" in done.stdout


def test_help_of_a_fit_is_that_of_the_function() -> None:
    """It names every key of the command, and the defaults of those in the signature are the command's."""
    shown = pydoc.plain(pydoc.render_doc(sa.fit))
    assert "fit(runs:" in shown and "module" not in shown.splitlines()[0].removesuffix("in module analysis.notebook")
    keys = {key.name: key for key in KEYS if key.name not in COMMAND_ONLY}
    assert [name for name in keys if not re.search(rf"\b{name}\b", shown)] == []
    signature = inspect.signature(sa.fit).parameters
    given = {name: one.default for name, one in signature.items() if one.kind is one.KEYWORD_ONLY}
    assert given == {name: keys[name].default for name in given} | {"approach": "all"}


def test_numbers_are_held_to_the_same_limits_as_on_a_command_line() -> None:
    with pytest.raises(ValueError, match=r"resamples=5: 0 for no interval, or at least 20"):
        sa.fit(RUNS, resamples=5)
    with pytest.raises(TypeError, match=r"there is no argument resample=; did you mean resamples=\?; fit\(\) takes"):
        sa.fit(RUNS, resample=5)


def test_a_fit_says_in_a_line_what_it_is(fit: sa.StudyFit) -> None:
    assert repr(fit) == "StudyFit(example-runs: 25 of 25 runs, L(N, D) = 1.80 + 527/N^0.356 + 1910/D^0.365)"
    assert repr(fit.law) == "LawFit(chinchilla: E 1.80, A 527, B 1910, alpha 0.356, beta 0.365; 25 rows)"
    assert len(repr(fit.optimum(1e22))) < 160
    assert repr(fit.result) == "Fit(example-runs: 25 of 25 runs, ok: E + A/N^alpha + B/D^beta)"
    one, many = fit.law.get_prediction(params=1e9, tokens=2e10), fit.law.get_prediction(params=[1e9] * 9, tokens=2e10)
    low, high = one.summary_frame()[["mean_ci_lower", "mean_ci_upper"]].iloc[0]
    assert repr(one) == f"Prediction(2.464 ({low:.3f} to {high:.3f}); 95 % intervals of the mean)"
    assert repr(many).count("2.464 (") == 3 and "), ...; 95 %" in repr(many)
    assert one._repr_html_().count("mean_ci_lower") == 1
    profile = fit.law.profile("alpha")
    assert repr(profile) == f"Profile(alpha: {profile.low:.3f} to {profile.high:.3f}; {len(profile.values)} values)"
    assert repr(replace(profile, closed_high=False)).startswith(f"Profile(alpha: {profile.low:.3f} to no upper end;")
    for shown, words in ((fit, "train"), (fit.law, "chinchilla"), (fit.optimum(1e22), "parameters N*")):
        html = shown._repr_html_()
        assert words in html
        assert html.count("<table") == html.count("</table>")
        assert "<script" not in html


def test_it_is_the_fit_of_the_command(fit: sa.StudyFit) -> None:
    options = {"runs": str(RUNS), "resamples": 40, "sensitivity": False}
    again = fit_frame(sa.load(RUNS), options)
    assert replace(again, created="") == replace(fit.result, created="")
    assert fit.law.params.to_dict() == pytest.approx(fit.result.params)
    assert len(fit.runs) == 25 and fit.runs["predicted"].notna().all()
    assert fit.checks == fit.result.checks


def test_the_optimum_of_the_fits_own_budget_is_its_recommendation(fit: sa.StudyFit) -> None:
    plan = fit.recommendation
    assert plan is not None
    here = fit.optimum(plan.budget_flops)
    assert (here.params, here.tokens, here.loss) == (plan.params, plan.tokens, plan.loss)
    assert here.intervals == plan.intervals
    far = fit.optimum(1e22)
    assert far.params > here.params and far.extrapolation_factor == pytest.approx(100, rel=0.01)
    with pytest.raises(ValueError, match="a positive number of FLOPs"):
        fit.optimum(-1.0)


def test_figures_are_those_of_the_report(fit: sa.StudyFit) -> None:
    assert fit.plot_isoflop().get_xlabel() == "parameters N"
    assert "optimal tokens D*" in fit.plot_frontier("tokens").get_ylabel()
    assert "lowest loss" in fit.plot_loss().get_ylabel()
    ax = fit.plot_residuals()
    assert fit.plot_residuals("params", ax=ax) is ax
    with pytest.raises(ValueError, match="'size' is no panel of frontier; use one of params, tokens"):
        fit.plot_frontier("size")
    with pytest.raises(ValueError, match="figure='valley' is not known"):
        fit.plot("valley")
    with pytest.raises(ValueError, match="cannot fill the figure 'curves'"):
        fit.plot("curves")


def test_the_report_is_written_with_what_the_command_writes(fit: sa.StudyFit, tmp_path: Path) -> None:
    page = fit.report(tmp_path / "rep", figures=("svg",))
    assert page == tmp_path / "rep" / "report.html"
    made = {path.name for path in page.parent.iterdir()}
    assert {"fit.json", "runs.csv", "metrics.json", "report.html", "figures"} <= made
    kept = study_result.load(page.parent / "fit.json")
    assert replace(kept, created="") == replace(fit.result, created="")
    assert {path.suffix for path in (page.parent / "figures").iterdir()} == {".svg", ".csv"}


def test_a_recommendation_is_short_to_read(fit: sa.StudyFit) -> None:
    assert len(repr(fit.recommendation)) < 600


def test_options_are_those_of_the_command(tmp_path: Path) -> None:
    frame = sa.load(str(RUNS), where="params:<1e9")
    assert frame["params"].max() < 1e9
    with pytest.raises(TypeError, match=r"did you mean resamples=\?"):
        sa.fit(frame, resample=3)
    with pytest.raises(ValueError, match="form=chinchila is not known; did you mean form=chinchilla"):
        sa.fit(frame, form="chinchila")
    with pytest.raises(ValueError, match="does not exist"):
        sa.load(tmp_path / "none.csv")
    tied = sa.fit(frame, form="tied", interval="delta", resamples=0, sensitivity=False)
    assert tied.law.form.name == "chinchilla_tied" and tied.result.resamples == 0


def test_a_frame_is_read_as_a_file_with_its_columns_is() -> None:
    table = pd.read_csv(RUNS)
    by_file, by_frame = sa.load(RUNS), sa.load(table)
    pd.testing.assert_frame_equal(by_frame.drop(columns="study"), by_file.drop(columns="study"))
    assert table.columns.tolist() == ["params", "tokens", "flops", "loss"]
    renamed = table.rename(columns={"loss": "val_loss"})
    found = sa.fit(renamed, columns="loss:val_loss", resamples=0, sensitivity=False)
    assert found.law.params.equals(sa.fit_law(table, resamples=0).params)
    with pytest.raises(ValueError, match=r"table has no column 'loss'; map with perhaps columns=loss:val_loss"):
        sa.fit(renamed)
    with pytest.raises(ValueError, match="holds no row"):
        sa.fit(pd.DataFrame())
    wrong: Any = [1, 2]
    with pytest.raises(ValueError, match=r"runs=\[1, 2\] is neither a name nor a data frame"):
        sa.fit(wrong)
    with pytest.raises(ValueError, match=r"budget=\[1\]: a positive number of FLOPs is needed"):
        found.optimum([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compare needs a list of fits"):
        sa.compare([])


def test_columns_are_mapped_by_a_mapping_too() -> None:
    table = pd.read_csv(RUNS)
    theirs = table.rename(columns={"params": "N", "loss": "val_loss"})
    mapped = sa.load(theirs, columns={"params": "N", "loss": "val_loss"}, where={"params": "<1e9"})
    pd.testing.assert_frame_equal(mapped, sa.load(theirs, columns="params:N,loss:val_loss", where="params:<1e9"))
    assert 0 < len(mapped) < len(table)


def test_every_function_takes_runs_in_every_way(fit: sa.StudyFit) -> None:
    """A name, a frame of one's own, one that was loaded and a fit are the same runs, and give the same numbers."""
    ways: list[Any] = [RUNS, str(RUNS), pd.read_csv(RUNS), sa.load(RUNS), fit]
    functions: list[Callable[[Any], pd.DataFrame]] = [
        lambda runs: sa.plan(runs, 1e22, resamples=0, beside=()).frame,  # laws beside it read the same runs
        lambda runs: sa.next_runs(runs, target=1e22, count=1).frame,
        lambda runs: sa.backtest(runs, cuts=2),
        lambda runs: sa.compare(runs, ["kaplan"]),
    ]
    for function in functions:
        first, *others = map(function, ways)
        assert len(first) > 0
        for other in others:
            pd.testing.assert_frame_equal(first, other)
    wrong: Any = [1, 2]
    for ask in (lambda: sa.plan(wrong, 1e22), lambda: sa.next_runs(wrong), lambda: sa.backtest(wrong)):
        with pytest.raises(ValueError, match=r"runs=\[1, 2\] is neither a name nor a data frame"):
            ask()
    text: Any = "1e22"
    with pytest.raises(ValueError, match="budget='1e22': a positive number of FLOPs is needed"):
        sa.plan(RUNS, text)
    with pytest.raises(ValueError, match="target='1e22': a positive number of FLOPs is needed"):
        sa.next_runs(RUNS, target=text)


def test_a_plan_is_shown_as_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = sa.plan(RUNS, 1e22, resamples=40)
    assert plan_main([f"runs={RUNS}", "budget=1e22", "resamples=40"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == str(found)
    assert repr(found).startswith("Plan(1e22 FLOPs: N* 9.04B (") and "\n" not in repr(found)
    assert found._repr_html_().startswith("<pre>law ")
    table = found.frame
    assert table.index.tolist() == ["training-only", "over-trained"]
    best = table.loc["training-only"]
    assert best["params_low"] < best["params"] == found.options[0].params < best["params_high"]


def test_next_runs_are_shown_as_the_command_prints_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sa.next_runs(RUNS, target=1e22, count=2)
    monkeypatch.chdir(tmp_path)
    assert next_main([f"runs={RUNS}", "target=1e22", "count=2", "simulate=0"]) == 0
    assert capsys.readouterr().out.startswith(str(found))
    assert repr(found).startswith("Next(2 runs with ") and "\n" not in repr(found)
    assert found.frame["flops"].tolist() == [run.flops for run in found.runs]
    assert "<pre>target" in found._repr_html_()


def test_laws_are_compared_by_name_or_as_fits() -> None:
    table = pd.read_csv(RUNS)
    named = sa.compare(table, ["chinchilla", "kaplan"])
    fits = [sa.fit_law(table, form, loss="squared", resamples=0) for form in ("chinchilla", "kaplan")]
    assert named["aicc"].to_dict() == pytest.approx(sa.compare(fits)["aicc"].to_dict())
    assert sa.compare(table, "kaplan").index.tolist() == ["kaplan"]
    with pytest.raises(ValueError, match="a list of fits alone"):
        sa.compare(fits, ["kaplan"])
    with pytest.raises(ValueError, match="forms=chinchila is not known"):
        sa.compare(table, ["chinchila"])


def test_a_name_of_runs_is_no_table_of_columns() -> None:
    for function in (sa.fit_law, sa.sensitivity):
        with pytest.raises(ValueError, match=r"is a name, and a table is needed: analysis.load\("):
            function(str(RUNS))


def test_a_law_leaves_out_the_rows_that_loading_did() -> None:
    table = pd.read_csv(RUNS)
    broken = table.assign(loss=table["loss"].where(table.index != 3))
    frame = sa.load(broken)
    assert frame["used"].sum() == 24
    found, by_hand = (sa.fit_law(runs, resamples=0) for runs in (frame, broken.dropna()))
    assert found.nobs == 24 and found.params.to_dict() == pytest.approx(by_hand.params.to_dict(), rel=1e-6)
    with pytest.raises(ValueError, match=r"column 'loss': positive numbers are needed, not nan \(1 of 25 values\)"):
        sa.fit_law(broken, resamples=0)


def test_a_law_goes_by_its_name_its_paper_and_its_formula() -> None:
    table = pd.read_csv(RUNS)
    names = {sa.fit_law(table, form, resamples=0).form.name for form in ("Hoffmann", "E + A/N^alpha + B/D^beta")}
    assert names == {"chinchilla"}


def test_where_one_law_is_all_there_is_no_size_is_recommended(tmp_path: Path) -> None:
    table = pd.read_csv(RUNS)[["flops", "loss"]].groupby("flops", as_index=False).min()
    table.to_csv(tmp_path / "frontier.csv", index=False)
    found = sa.fit(tmp_path / "frontier.csv", form="compute", resamples=0)
    assert found.law.form.name == "compute" and found.law.nobs == 5
    assert repr(found).startswith("StudyFit(frontier: 5 of 5 runs, ")
    assert found.recommendation is None and "<div" in found._repr_html_()
    with pytest.raises(ValueError, match="no best size for 1e22 FLOPs: one law is all there is"):
        found.optimum(1e22)


def test_a_far_budget_follows_what_a_plan_for_it_follows(fit: sa.StudyFit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A law may have no best size so far out, though it has one at the fit's own budget."""
    from analysis.planning import advice, recommend

    own = advice._sizeless
    monkeypatch.setattr(advice, "_sizeless", lambda one, budget: "none so far" if budget > 1e22 else own(one, budget))
    assert fit.recommendation is not None
    assert fit.optimum(fit.recommendation.budget_flops).approach == fit.recommendation.approach == "surface"
    far = fit.optimum(1e23)
    planned = sa.plan(fit, 1e23, overtrain=1)
    assert (far.approach, planned.form) == ("valleys", "valleys")
    assert far.params == pytest.approx(planned.frame["params"]["training-only"], rel=1e-6)
    with monkeypatch.context() as sizeless:
        sizeless.setattr(recommend, "by_valleys", lambda *_: None)
        with pytest.raises(ValueError, match="for 1e23 FLOPs: the valleys has none near the sizes swept"):
            fit.optimum(1e23)
    monkeypatch.setattr(advice, "_sizeless", lambda one, budget: "")
    monkeypatch.setattr(advice.Advice, "follows", property(lambda said: ""))
    with pytest.raises(ValueError, match="these runs give no best size for 1e23 FLOPs: "):
        fit.optimum(1e23)


@pytest.mark.parametrize(("losses", "codes"), [("loss", []), ("perplexity", ["perplexity"]), ("share", ["not_a_loss"])])
def test_a_law_of_compute_alone_looks_whether_its_losses_are_such(losses: str, codes: list[str]) -> None:
    flops = np.geomspace(1e18, 1e21, 9)
    values = 3 + 5 * (flops / 1e18) ** -0.2
    of = {"loss": values, "perplexity": np.exp(2 * values), "share": 1 / values}
    found = sa.fit(pd.DataFrame({"flops": flops, "loss": of[losses]}), form="compute", resamples=0)
    assert [check.code for check in found.checks if check.level == "error"] == codes


def test_the_manuals_blocks_run_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block about laws is run, but for its report; of the others the names are there."""
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)\n```", (ROOT / "docs/howto/notebook.md").read_text("utf-8"), re.DOTALL)
    scope: dict[str, Any] = {}
    lines = [line for line in blocks[0].replace("resamples=200", "resamples=0").splitlines() if ".report(" not in line]
    exec("\n".join(lines), scope)
    assert scope["fit"].optimum(1e22).params > 1e9
    for block, names in ((blocks[1], dir(study_notebook)), (blocks[2], dir(TrainedModel))):
        used = {node.attr for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Attribute)}
        assert used - {"load_checkpoint"} <= set(names)
