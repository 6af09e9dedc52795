"""A wrong call of the notebook's functions is answered in one line, which names the argument and what to do."""

from __future__ import annotations

import importlib
import inspect
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis as sa
import study
from analysis.text.commandline import Key
from train.prepare import main as prepare
from train.spec import calls

RUNS = str(Path(__file__).parents[2] / "docs" / "example-runs.csv")
TABLE = pd.read_csv(RUNS)
LAW = {"E": 1.7, "A": 400.0, "B": 400.0, "alpha": 0.3, "beta": 0.3}
WRONG: dict[str, str] = {
    "sa.load()": "runs= is missing; load() takes runs=",
    "sa.load(RUNS, 3)": "only runs needs none",
    "sa.load(None)": "runs=None is neither a name nor a data frame",
    "sa.load(RUNS, columns=['params'])": "such as columns={'params': 'N'}",
    "sa.load(RUNS, thin=-1)": "thin=-1: a whole number",
    "sa.fit()": "runs= is missing; fit() takes runs=, form=, approach=",
    "sa.fit(RUNS, 'kaplan')": "fit() was given 2 values without a name",
    "sa.fit(RUNS, runs='x')": "runs= is given twice",
    "sa.fit(RUNS, form=None)": "form=None: a text is needed",
    "sa.fit(RUNS, resamples=None)": "resamples=None: a number is needed",
    "sa.fit(RUNS, resamples=[200])": "resamples=[200]: a number is needed",
    "sa.fit(RUNS, budget=[1e22])": "budget=[1e+22]: a positive number of FLOPs is needed",
    "sa.fit(RUNS, budget='1e22')": "budget='1e22': a positive number of FLOPs is needed, such as 1e22",
    "fit.optimum('1e22')": "budget='1e22': a positive number of FLOPs is needed, such as 1e22",
    "sa.fit(RUNS, resamples='200')": "resamples='200': a number is needed",
    "sa.fit(RUNS, seed='1')": "seed='1': a number is needed",
    "sa.fit(RUNS, window='1%')": "window='1%': a number is needed",
    "sa.fit(RUNS, delta='0.01')": "delta='0.01': a number is needed, or 'squared'",
    "sa.fit(RUNS, valley_window='8')": "valley_window='8': a number is needed, or 'all'",
    "sa.fit(RUNS, sensitivity='no')": "sensitivity='no': True or False is needed",
    "sa.load(RUNS, thin='2')": "thin='2': a number is needed",
    "sa.fit(RUNS, fix={'E': 'a'})": "names with numbers are needed, such as fix={'E': 1.7}",
    "sa.fit(RUNS, delta=-1)": "delta=-1: a positive number is needed",
    "sa.fit(RUNS, resample=200)": "did you mean resamples=?",
    "fit.optimum()": "budget= is missing; optimum() takes budget=",
    "fit.optimum(budgets=1e22)": "there is no argument budgets=; did you mean budget=?",
    "fit.optimum(1e22, 3)": "only budget needs none",
    "fit.optimum(True)": "budget=True: a positive number of FLOPs is needed",
    "fit.law.predict()": "predict(params=..., tokens=...)",
    "fit.law.predict(1e9)": "runs=1e+09 is no table",
    "fit.law.predict(1e9, 2e10)": "predict() was given 2 values without a name",
    "fit.law.predict(None)": "predict(params=..., tokens=...)",
    "fit.law.predict([[1e9, 2e10]])": "is no table",
    "fit.law.predict(params=1e9)": "no column 'tokens'",
    "fit.law.predict(params=1e9, token=2e10)": "no column 'tokens'",
    "fit.law.predict({'params': [1e9]}, tokens=2e10)": "one of the two",
    "fit.law.predict(params=[1e9, 2e9], tokens=[1e10, 2e10, 3e10])": "params has 2, tokens has 3; give one a run",
    "fit.law.get_prediction()": "predict(params=..., tokens=...)",
    "fit.law.get_prediction(params=1e9, tokens=2e10).summary_frame(alpha=2)": "alpha=2: a number between 0 and 1",
    "fit.law.profile('gamma')": "name='gamma': chinchilla has no such constant; it has E, A, B, alpha, beta",
    "fit.law.profile('alhpa')": "did you mean name=alpha?",
    "fit.law.profile('alpha', alpha=3)": "alpha=3: a number between 0 and 1",
    "fit.law.plot_profile('gamma')": "name='gamma': chinchilla has no such constant",
    "fit.report()": "folder= is missing; report() takes folder=, figures=, size=",
    "fit.report(None)": "folder=None: the path of a folder is needed",
    "fit.report(OUT, figures=('gif',))": "figures='gif' is not known; use svg, pdf, png",
    "fit.report(OUT, figures='svg')": "figures='svg': a list is needed, such as figures=['svg']",
    "fit.report(OUT, figures=3)": "figures=3: a list is needed",
    "fit.report(OUT, size='poster')": "size='poster' is not known; use screen, column, page",
    "fit.report(OUT, size='pages')": "did you mean size=page?",
    "fit.report(FILE)": "is a file, not a folder; give another folder",
    "fit.report('/proc/nope')": "folder=/proc/nope",
    "fit.save()": "folder= is missing",
    "fit.save(FILE)": "is a file, not a folder; give another folder",
    "fit.plot(ax=3)": "ax=3: axes of matplotlib are needed",
    "fit.plot_isoflop('x')": "ax='x': axes of matplotlib are needed",
    "fit.plot_frontier(['params'])": "quantity=['params']: a text is needed",
    "sa.plan()": "runs= and budget= are missing; plan() takes runs=, budget=",
    "sa.plan(fit)": "budget= is missing",
    "sa.plan(fit, 1e22, infrence_tokens=1e12)": "did you mean inference_tokens=?",
    "sa.plan(fit, 1e22, inference_tokens='many')": "inference_tokens='many': a positive number is needed",
    "sa.plan(fit, 1e22, overtrain=None)": "overtrain=None: a positive number is needed",
    "sa.plan(fit, 1e22, resamples=3)": "resamples=3: 0 for no interval, or at least 20",
    "sa.plan(fit, 1e22, resamples='a')": "resamples='a': a whole number, 0 or more is needed",
    "sa.plan(fit, 1e22, beside=['nope'], resamples=0)": "beside=nope is not known",
    "sa.plan(fit, 1e22, seed=-1)": "seed=-1: a whole number",
    "sa.plan({**LAW, 'A': 'x'}, 1e22)": "names with numbers are needed",
    "sa.next_runs()": "runs= is missing",
    "sa.next_runs(fit, 1e22)": "next_runs() was given 2 values without a name",
    "sa.next_runs(fit, targets=1e22)": "did you mean target=?",
    "sa.next_runs(fit, target=1e22, count='a')": "count='a': a whole number, 1 or more is needed",
    "sa.next_runs(fit, target=1e22, count=1.5)": "count=1.5: a whole number",
    "sa.next_runs(fit, target=1e22, power=-1)": "power=-1: a number, 0 or more is needed",
    "sa.next_runs(fit, target=1e22, power='x')": "power='x': a number, 0 or more is needed",
    "sa.next_runs(fit, target=1e22, seed=-1)": "seed=-1: a whole number",
    "sa.next_runs(fit, target=1e22, simulate=-1)": "simulate=-1: a whole number",
    "sa.next_runs(fit, target=1e22, form=3)": "form=3 is not known; use chinchilla, chinchilla_tied, farseer",
    "sa.next_runs(fit, target=1e22, ratios=3)": "ratios=3: two numbers are needed, the lower one first",
    "sa.next_runs(fit, target=1e22, ratios=(200, 2))": "the lower one first, such as (2, 200)",
    "sa.next_runs(fit, target=1e22, ratios=(-1, 2))": "ratios=-1: a positive number is needed",
    "sa.next_runs(fit, target=1e22, ratios='1:20')": "ratios='1:20': two numbers are needed",
    "sa.backtest()": "runs= is missing",
    "sa.backtest(fit, cut=3)": "did you mean cuts=?",
    "sa.backtest(fit, cuts=-1)": "cuts=-1: a whole number, 1 or more is needed",
    "sa.backtest(fit, cuts=None)": "cuts=None: a whole number",
    "sa.backtest(fit, delta=-1)": "delta=-1: a positive number is needed",
    "sa.backtest(fit, delta='sqared')": 'such as 0.001, or "squared"',
    "sa.backtest(fit, fix=3)": "fix=3: names with numbers are needed",
    "sa.backtest(fit, form=3)": "form=3: a text is needed",
    "sa.backtest(fit, loss='l3')": "loss='l3' is not known",
    "sa.compare()": "runs= is missing",
    "sa.compare(fit, [])": "forms=[]: names of laws are needed",
    "sa.compare(fit, [3])": "forms=[3]: names of laws are needed",
    "sa.compare(fit, 3)": "forms=3: names of laws are needed",
    "sa.compare(fit, los='huber')": "there is no argument los=",
    "sa.compare(fit, loss='nope')": "loss='nope' is not known; use huber",
    "sa.compare(fit, resamples='a')": "resamples='a': a whole number",
    "sa.fit_law()": "runs= is missing; fit_law() takes runs=, form=",
    "sa.fit_law(None)": "runs=None is no table",
    "sa.fit_law(3)": "runs=3 is no table",
    "sa.fit_law([1, 2])": "runs=[1, 2] is no table",
    "sa.fit_law(TABLE.iloc[:0])": "runs= holds no row: one line per run is needed, with params, tokens, loss",
    "sa.fit_law(TABLE, resamples='a')": "resamples='a': a whole number",
    "sa.fit_law(TABLE, seed=-1)": "seed=-1: a whole number",
    "sa.fit_law(TABLE, starts=0)": "starts=0: a whole number, 1 or more is needed",
    "sa.fit_law(TABLE, loss=None)": "loss=None is not known; use one of huber",
    "sa.fit_law(TABLE, resamples=19)": "resamples=19: 0 for no interval, or at least 20",
    "sa.fit_law(TABLE, resamples=0, kinds='x')": "kinds='x': names with texts are needed",
    "sa.fit_law(TABLE, resamples=0, tie={'beta': 3})": "names with texts are needed, such as tie={'beta': 'alpha'}",
    "sa.fit_law(TABLE, confidence=95)": "a number between 0 and 1 is needed, such as 0.95",
    "sa.fit_law(TABLE, 'E + A/(N D)^a')": "form=E + A/(N D)^a is not known; take a name or a formula that",
    "sa.fit_law(TABLE, 'kapln')": "form=kapln is not known; did you mean form=kaplan?",
    "sa.fit_law(TABLE['loss'])": "runs=<Series> is no table",
    "sa.sensitivity(None)": "runs=None is no table",
    "sa.sensitivity(TABLE, resamples=5)": "resamples=5: 0 for no interval, or at least 20",
    "sa.sensitivity(TABLE, resample=0)": "did you mean resamples=?; sensitivity() takes runs=, form=, quantity=",
    "sa.sensitivity(TABLE, 'chinchilla', 'alhpa', resamples=0)": "did you mean quantity=alpha?",
    "sa.load(RUNS, param='total')": "there is no argument param=; did you mean params=?; load() takes runs= and others",
    "sa.load(TABLE['loss'])": "runs=<Series> is neither a name nor a data frame",
    "sa.load(TABLE.to_dict('list'))": "runs=<dict> is neither a name nor a data frame",
    "sa.plan(RUNS, '1e22')": "budget='1e22': a positive number of FLOPs is needed",
    "sa.compare(fit, resample=0)": "did you mean resamples=?; compare() takes runs=, forms=, loss= and others by name",
    "sa.compare(fit, 'kapln')": "forms=kapln is not known; did you mean forms=kaplan?",
    "fit.law.check(3)": "runs=3 is no table",
    "fit.law.cov_params('wald')": "method='wald' is not known; use bootstrap, delta, sandwich, profile",
    "fit.law.cov_params(methods='delta')": "there is no argument methods=; did you mean method=?",
    "fit.law.conf_int(5)": "alpha=5: a number between 0 and 1 is needed, such as 0.05",
    "fit.law.prediction({'params': 1e9, 'tokens': 2e10}, how='best')": "how='best' is not known; use aic, worst",
    "fit.law.plot_fit(ax=3)": "ax=3: axes of matplotlib are needed",
    "fit.law.plot_residuals('param')": "against='param': the runs of this fit have no such column; they have params",
    "fit.law.plot_draws('alpha', 'bta')": "y='bta': chinchilla has no such constant; did you mean y=beta?",
    "sa.isoflop.optima(TABLE, 'parabel')": "did you mean method=parabola?",
    "sa.isoflop.ols(TABLE, x='flops')": "there is no argument x=; ols() takes found=, y=",
    "sa.isoflop.optima(TABLE.iloc[:0])": "runs= holds no row",
    "sa.isoflop.exponents(None)": "runs=None is no table",
    "sa.approaches.side_by_side(None)": "runs=None is no table",
    "sa.approaches.side_by_side(TABLE.iloc[:0])": "runs= holds no row",
    "study.submit('study=isoflop', dryrun=True)": "there is no argument dryrun=; did you mean dry_run=?",
    "study.points()": "study= is missing; points() takes study=, runs=",
    "study.points(3)": "study=3: a path is needed, such as 'isoflop'",
    "study.submit('study=isoflop', dry_run='no')": "dry_run='no': True or False is needed",
    "study.submit('study=isoflop', sweep='seed=0,1')": "keys with lists are needed, such as sweep={'seed': [0, 1]}",
    "sa.fit_law(TABLE, form=3)": "form=3: the name of a law, its formula, or a form of one's own is needed",
    "fit.optima(1e22)": "budgets=1e+22: a list is needed, such as budgets=[1e21, 1e22]",
    "fit.optima(['1e22'])": "budgets='1e22': a positive number of FLOPs is needed, such as 1e22",
    "fit.optima(iter([1e22]))": "a list is needed, such as budgets=[1e21, 1e22]",
    "fit.optima(TABLE.loss.to_numpy()[:1].reshape(()))": "a list is needed, such as budgets=[1e21, 1e22]",
    "fit.optimum(10**400)": "a positive number of FLOPs is needed, such as 1e22",
    "sa.fit(TABLE[['params', 'tokens', 'flops', 'loss', 'loss']])": "table has 2 columns 'loss': rename",
    "sa.fit(TABLE.assign(loss=TABLE.loss + 0j))": "column 'loss' holds what is not a number",
    "fit.optima([1e22, -1])": "budgets=-1: a positive number of FLOPs is needed",
}
OF_A_LAW = (
    "check", "conf_int", "cov_params", "get_prediction", "plot_draws", "plot_fit", "plot_profile", "plot_residuals",
    "predict", "prediction", "profile",
)  # fmt: skip
"""Methods of a law that people call; the others are for the analysis itself."""
ANSWERED = {
    "sa.fit(fit, resamples=0, sensitivity=False)", "sa.fit(RUNS, resamples=0, sensitivity=False, budget=1e22)",
    "sa.fit(RUNS, resamples=0, sensitivity=False, delta='squared', valley_window='all')",
    "fit.law.predict(params=1e9, tokens=2e10)", "fit.law.get_prediction(params=[1e9], tokens=[2e10])",
    "sa.fit_law(fit, resamples=0)", "sa.isoflop.optima(fit)", "sa.plan(fit, 1e22, beside='kaplan', resamples=0)",
    "sa.plan(fit, 1e22, beside=None, resamples=0)", "sa.load(fit)",
}  # fmt: skip


@pytest.fixture(scope="session")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("wrong")
    file = folder / "file"
    file.write_text("a file")
    fit = sa.fit(RUNS, resamples=0, sensitivity=False)
    return {
        "sa": sa, "study": study, "fit": fit, "RUNS": RUNS, "TABLE": TABLE, "LAW": LAW, "OUT": str(folder / "out"),
        "FILE": str(file),
    }  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_call_is_answered_in_one_line(call: str, names: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ValueError, TypeError)) as raised:
            eval(call, names)
    said = str(raised.value)
    assert WRONG[call] in said
    assert "\n" not in said and len(said) < 260, "a line or two of a terminal"
    assert not Path(names["OUT"]).exists(), "nothing was written"


@pytest.mark.parametrize("call", sorted(ANSWERED))
def test_what_can_be_understood_is_answered(call: str, names: dict[str, Any]) -> None:
    assert eval(call, names) is not None


def test_a_named_index_holds_columns() -> None:
    runs = sa.load(TABLE)
    assert sa.load(TABLE.set_index(["params", "tokens"])).equals(runs)
    assert sa.load(TABLE.set_index("params", drop=False)).equals(runs)
    assert sa.load(TABLE.set_index(TABLE.index + 7)).equals(runs)


def test_frames_of_arrow_are_read_as_those_of_pandas(names: dict[str, Any]) -> None:
    """Polars' frames convert by the same method."""
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(TABLE)
    assert sa.load(arrow).equals(sa.load(TABLE))
    assert sa.fit_law(arrow, resamples=0).params.equals(sa.fit_law(TABLE, resamples=0).params)
    assert sa.isoflop.optima(arrow).equals(sa.isoflop.optima(TABLE))


def test_a_value_is_quoted_in_a_line() -> None:
    assert [calls.shown(one) for one in (3, 1e9, 0.05, "a", None, [1, 2])] == [
        "3",
        "1e+09",
        "0.05",
        "'a'",
        "None",
        "[1, 2]",
    ]
    assert calls.shown(TABLE["loss"]) == "<Series>"
    assert calls.shown(list(range(99))) == "<list>"
    assert calls.shown("x" * 99) == f"'{'x' * 40}'..."


def test_what_a_function_passes_on_is_checked_too() -> None:
    @calls.answered(lambda: ("count", "colour"), count=calls.whole(1))
    def act(name: str, **given: Any) -> dict[str, Any]:
        return given

    assert act("a", count=2, colour="red") == {"count": 2, "colour": "red"}
    with pytest.raises(TypeError, match=r"no argument color=; did you mean colour=\?; act\(\) takes name= and others"):
        act("a", color="red")
    with pytest.raises(TypeError, match=r"^name= is missing; act\(\) takes name= and others by name"):
        act(count=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="count=0: a whole number, 1 or more is needed"):
        act("a", count=0)


def test_inputs_by_name_are_the_table(names: dict[str, Any]) -> None:
    law = names["fit"].law
    both = {"params": [1e9, 2e9], "tokens": [2e10, 3e10]}
    assert law.predict(**both).tolist() == law.predict(both).tolist()
    assert law.predict(params=1e9, tokens=[2e10, 3e10]).shape == (2,)


@pytest.mark.parametrize("name", ["load", "fit", "fit_law", "plan", "next_runs", "backtest", "compare", "sensitivity"])
def test_a_checked_function_keeps_its_name_its_words_and_its_arguments(name: str) -> None:
    function = getattr(sa, name)
    assert function.__name__ == name
    assert function.__doc__
    assert next(iter(inspect.signature(function).parameters)) == "runs"
    assert function.__module__.startswith("analysis.")


def test_every_function_of_the_notebook_is_checked() -> None:
    """A new function without the check would answer in Python's own words."""
    functions = [getattr(sa, name) for name in sa.__all__ if inspect.isfunction(getattr(sa, name))]
    functions += [getattr(sa.isoflop, name) for name in ("exponents", "ols", "optima")]
    methods = [
        method for of, names in ((sa.StudyFit, vars(sa.StudyFit)), (sa.LawFit, OF_A_LAW))
        for name, method in inspect.getmembers(of, inspect.isfunction)
        if name in names and not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    ]  # fmt: skip
    assert len(functions) + len(methods) > 29
    assert [f.__qualname__ for f in (*functions, *methods) if not hasattr(f, "__wrapped__")] == []


def test_a_check_is_of_what_was_given_only() -> None:
    @calls.answered(count=calls.whole(1), name=calls.one_of("a", "b"))
    def act(count: int = 0, *, name: str | None = None) -> tuple[int, str | None]:
        return count, name

    assert act() == (0, None), "a default is not checked"
    assert act(2, name=None) == (2, None), "None where it is the default"
    with pytest.raises(ValueError, match="count=0: a whole number, 1 or more is needed"):
        act(0)
    with pytest.raises(ValueError, match=r"name='c' is not known; use a, b"):
        act(name="c")
    with pytest.raises(TypeError, match=r"no argument nmae=; did you mean name=\?; act\(\) takes count=, name="):
        act(nmae="a")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["fit", "plan", "next", "backtest", "results.law_comparison", "score"])
def test_a_command_without_arguments_says_what_is_missing_and_where_help_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"analysis.{name}")
    command = {"results.law_comparison": "compare"}.get(name, name)
    assert module.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) <= 3
    keys: tuple[Key, ...] = module.KEYS
    for key in keys:
        assert (f"{key.name}= is missing" in lines[0]) == key.required
    assert lines[-1] == f"all keys: python -m analysis.{command} --help"


def test_prepare_alone_says_what_is_missing_and_where_help_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare([]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("usage: python -m train.prepare")
    assert "replace existing data" not in said.out, "not all of its help"
    assert "--help says more" in said.err
