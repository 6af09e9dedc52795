"""Plans against brute force and against published figures; shapes have the size that was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import loss_laws, optimum
from analysis.approaches.cost import Cost
from analysis.diagnostics import backtest
from analysis.estimation import objectives
from analysis.inputs import frame
from analysis.inputs.rows import from_csv
from analysis.laws.registry import FORMS
from analysis.plan import main, plan
from analysis.planning import shapes
from analysis.text import commandline
from tests.analysis import studies

BESIROGLU = np.array([[1.8172181, 477.826, 2143.417, 0.347310, 0.367172]])
SARDANA = np.array([[1.69, 406.4, 410.7, 0.336, 0.283]])
SIZES = (1e8, 1e11)


def grid(constants: np.ndarray, budget: float) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.linspace(np.log(1e7), np.log(1e13), 400_001)
    return sizes, optimum.surface(constants, sizes[None], np.log(budget / 6) - sizes[None])[0]


def test_training_only_is_the_lowest_loss_of_the_budget() -> None:
    sizes, losses = grid(BESIROGLU, 5.76e23)
    best = optimum.training_only(BESIROGLU, Cost.six(), 5.76e23, SIZES)
    assert best.loss[0] <= losses.min() + 1e-12
    assert best.log_params[0] == pytest.approx(sizes[np.argmin(losses)], abs=1e-3)
    assert np.exp(best.log_tokens - best.log_params)[0] == pytest.approx(17.9, abs=0.05)


def test_a_budget_may_be_a_whole_number() -> None:
    law = dict(zip(("E", "A", "B", "alpha", "beta"), map(float, BESIROGLU[0]), strict=True))
    found = plan(law, 576 * 10**21)
    assert found == plan(law, 5.76e23)
    assert isinstance(found.budget_flops, float)


def test_a_budget_and_its_best_size_are_each_other_s_inverse() -> None:
    price = Cost(1e9, 1.0, 0.3, 0.4)
    best = optimum.training_only(BESIROGLU, price, 1e22, SIZES)
    assert optimum.budget_of(BESIROGLU, price, float(best.log_params[0]))[0] == pytest.approx(1e22, rel=1e-6)


def test_over_training_keeps_the_budget_and_multiplies_the_ratio() -> None:
    best = optimum.training_only(BESIROGLU, Cost.six(), 1e22, SIZES)
    found = optimum.over_trained(BESIROGLU, Cost.six(), 1e22, SIZES, 16.0)
    assert found.training_flops[0] == pytest.approx(1e22, rel=1e-9)
    ratio = (found.log_tokens - found.log_params - best.log_tokens + best.log_params)[0]
    assert np.exp(ratio) == pytest.approx(16.0, rel=1e-6)
    assert found.loss[0] > best.loss[0]


@pytest.mark.parametrize(
    ("size", "served", "constants", "train", "saved"),
    [
        (30e9, 1e13, SARDANA, 13.6e9, 0.280),
        (13e9, 2e12, SARDANA, 6.97e9, 0.174),
        (30e9, 1e13, BESIROGLU, 11.6e9, 0.427),
    ],
)
def test_inference_plans_of_sardana(
    size: float, served: float, constants: np.ndarray, train: float, saved: float
) -> None:
    """The README's re-derived figures of Sardana et al. 2024: 13.6B and 28.0 %; 6.97B and 17.4 %; 11.6B and 42.7 %."""
    budget = float(optimum.budget_of(constants, Cost.six(), float(np.log(size)))[0])
    best = optimum.training_only(constants, Cost.six(), budget, SIZES)
    found = optimum.inference(constants, Cost.six(), best.loss, served, SIZES)
    assert found.loss[0] == pytest.approx(best.loss[0], rel=1e-9)
    assert np.exp(found.log_params[0]) == pytest.approx(train, rel=0.01)
    share = 1 - (found.training_flops + found.inference_flops)[0] / (budget + 2 * size * served)
    if constants is SARDANA:
        assert share == pytest.approx(saved, abs=0.002)


def test_limited_data_is_never_better_and_the_same_where_there_is_enough() -> None:
    best = optimum.training_only(BESIROGLU, Cost.six(), 1e22, SIZES)
    enough = optimum.limited_data(BESIROGLU, Cost.six(), 1e22, SIZES, unique=1e15, repeats=optimum.Repeats())
    assert enough.loss[0] == pytest.approx(best.loss[0], rel=1e-9)
    few = optimum.limited_data(BESIROGLU, Cost.six(), 1e22, SIZES, unique=1e10, repeats=optimum.Repeats())
    assert few.loss[0] > best.loss[0]
    assert np.exp(few.log_tokens[0]) > 1e10, "repeats pay at first"


def test_published_check_points_of_repeated_data() -> None:
    """Muennighoff et al. 2023, as its repository prints them: A, B, E with alpha = beta and R_D*, R_N*."""
    law = np.array([[1.86914, np.exp(6.255414), np.exp(7.3049974), 0.3526596, 0.3526596]])
    law[0, 0] = np.exp(0.6254804)
    for params, tokens, expected in ((6.34e9, 242e9, 2.2256440890), (8.67e9, 178e9, 2.2269634075)):
        places = (np.array([[np.log(params)]]), np.array([[np.log(tokens)]]), np.array([[np.log(25e9)]]))
        found = optimum.repeated(
            law, places[0], places[1], log_unique=places[2], repeats=optimum.Repeats(15.387756, 5.309743),
        )  # fmt: skip
        assert float(found[0, 0]) == pytest.approx(expected, abs=2e-4)


def test_plans_and_the_law_of_repeats_count_unique_tokens_alike() -> None:
    """Also where fewer tokens are read than there are: the distinct ones are those that were read."""
    from analysis.laws.registry import FORMS

    law = np.array([[1.87, 521.0, 1488.0, 0.35, 0.36]])
    form, worn = FORMS["repeats"], (15.4, 5.3)
    theta = form.internal(np.array([[*law[0], *worn]]), np.zeros(3))
    tokens = np.log(np.array([[2e9, 1e10, 2.5e10, 1e11]]))
    for params in (1e8, 3e9, 5e10):
        size = np.full_like(tokens, np.log(params))
        unique = np.full_like(tokens, np.log(2.5e10))
        ours = optimum.repeated(law, size, tokens, log_unique=unique, repeats=optimum.Repeats(*worn))
        x = np.stack((size[0], tokens[0], unique[0]))
        np.testing.assert_allclose(ours[0], np.exp(form.log_value(theta, x)[0]), rtol=1e-9)


@pytest.mark.parametrize("kind", ["matmul", "total", "non_embedding"])
@pytest.mark.parametrize("params", [3e6, 1.2e8, 7e9, 1e12])
def test_shapes_have_the_size_asked_for(params: float, kind: str) -> None:
    found = shapes.propose(params, kind, 32_000 if params > 1e8 else 257)
    assert found
    assert all(abs(shape.params / params - 1) < 0.15 and shape.heads >= 1 for shape in found)


def test_the_command_plans_from_runs_and_writes_what_it_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    studies.isoflop(1, noise=0.002).to_csv(tmp_path / "a.csv", index=False)
    given = [f"runs={tmp_path / 'a.csv'}", "gpu_hours=2", "mfu=40%", "peak=1e12", "unique_tokens=1e9",
             "inference_tokens=1e12", "resamples=60", f"out={tmp_path}"]  # fmt: skip
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "limited data" in said
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["budget_flops"] == pytest.approx(2 * 3600 * 0.4e12)
    names = [option["name"] for option in found["options"]]
    assert names == ["training-only", "over-trained", "inference", "limited data"]
    first = found["options"][0]
    assert first["intervals"]["params"][0] < first["params"] < first["intervals"]["params"][1]
    assert first["gpu_hours"] == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["budget=1e20"], "give runs="),
        (["constants=E:1.7,A:400,B:400,alpha:0.3", "budget=1e20"], "lacks beta"),
        (["constants=E:1.7,A:400,B:400,alpha:0.3,beta:0.3", "gpu_hours=5"], "needs the speed of a GPU"),
        (["constants=E:1.7,A:400,B:400,alpha:0.3,beta:0.3", "mfu=0.4"], "needs peak="),
        (["constants=E:1.7,A:400,B:400,alpha:0.3,beta:0.3", "budget=1e20", "params_opt=1e9"], "both set the budget"),
        (["constants=E:1.7,A:400,B:400,alpha:0.3,beta:-1", "budget=1e20"], "a positive number"),
    ],
)
def test_what_is_wrong_is_named(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["budget=1e20", "gpu_hours=5"], "budget=1e+20 and gpu_hours=5 both set the budget: give one of them"),
        (["peak=989e12"], "needs mfu= beside it"),
        (["out=file/plan"], "out=file/plan: file is a file, not a folder; give another folder"),
    ],
)
def test_contradictions_are_named_before_laws_are_fitted(
    given: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr("analysis.results.load.load", lambda _: pytest.fail("runs were read"))
    assert main(["runs=runs.csv", *given]) == 2
    assert message in capsys.readouterr().err


def test_hours_without_a_speed_are_refused_before_laws_are_fitted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("analysis.planning.basis._rested", lambda *_, **__: pytest.fail("laws were fitted"))
    assert main(["runs=docs/example-runs.csv", "gpu_hours=5"]) == 2
    assert "gpu_hours=5 needs the speed of a GPU: mfu= and peak=, or runs=runs/STUDY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"budget": 0}, "budget=0: a positive number"),
        ({"overtrain": -2.0}, "overtrain=-2: a positive number"),
        ({"inference_tokens": -1e12}, "inference_tokens=-1e[+]12: a positive number"),
        ({"unique_tokens": 0.0}, "unique_tokens=0: a positive number"),
        ({"repeats": {"R_D": -1.0}}, "repeats=R_D:-1: a positive number"),
        ({"repeats": {"R": 1.0}}, "repeats=R: the constants are R_D and R_N"),
    ],
)
def test_plans_are_asked_for_in_positive_numbers(asked: dict[str, Any], message: str) -> None:
    law = dict(zip(("E", "A", "B", "alpha", "beta"), map(float, BESIROGLU[0]), strict=True))
    with pytest.raises(ValueError, match=message):
        plan(law, **{"budget": 1e23, **asked})


def test_a_form_by_search_plans_like_the_closed_surface() -> None:
    zeros = np.zeros(2)
    searched = loss_laws.Fitted(FORMS["chinchilla"], FORMS["chinchilla"].internal(BESIROGLU, zeros), zeros, Cost.six())
    answers: list[Callable[[loss_laws.Law | np.ndarray], optimum.Answers]] = [
        lambda law: optimum.training_only(law, Cost.six(), 1e22, SIZES),
        lambda law: optimum.over_trained(law, Cost.six(), 1e22, SIZES, 16.0),
        lambda law: optimum.inference(law, Cost.six(), np.array([2.2]), 1e12, SIZES),
        lambda law: optimum.limited_data(law, Cost.six(), 1e22, SIZES, unique=1e10, repeats=optimum.Repeats()),
    ]
    for make in answers:
        ours, closed = make(searched), make(BESIROGLU)
        np.testing.assert_allclose(ours.log_params, closed.log_params, atol=1e-4)
        np.testing.assert_allclose(ours.loss, closed.loss, rtol=1e-8)
    budgets = searched.budget_of(Cost.six(), 23.0), optimum.budget_of(BESIROGLU, Cost.six(), 23.0)
    assert budgets[0][0] == pytest.approx(budgets[1][0], rel=1e-4)


def read(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    table.to_csv(folder / "runs.csv", index=False)
    return from_csv(folder / "runs.csv")


def test_plans_rest_on_every_form_of_parameters_and_tokens(tmp_path: Path) -> None:
    forms: dict[str, dict[str, Any]] = {
        "kaplan": {}, "chinchilla_tied": {}, "repeats": {"unique_tokens": 1e9}
    }  # fmt: skip
    table = studies.isoflop(3, noise=0.001, budgets=(1e17, 1e18, 1e19, 1e20), law=(1.7, 400.0, 900.0, 0.34, 0.3))
    made = read(table.assign(unique_tokens=table["tokens"]), tmp_path)
    closed = plan(made, 1e20, resamples=0)
    truth = closed.options[0]
    for form, asked in forms.items():
        found = plan(made, 1e20, form=form, resamples=0, beside=(), strict=False, inference_tokens=1e11, **asked)
        assert found.form == form
        assert [o.name for o in found.options][:3] == ["training-only", "over-trained", "inference"]
        if form != "kaplan":  # which has no floor, and so another size
            assert found.options[0].params == pytest.approx(truth.params, rel=0.35), form
        assert found.options[1].tokens_per_param == pytest.approx(4 * found.options[0].tokens_per_param, rel=1e-6)
        assert found.options[2].loss == pytest.approx(found.options[0].loss, rel=1e-6), "at the same loss"
        assert found.options[2].params < found.options[0].params
    assert {one.form for one in closed.other_laws} >= {"chinchilla_tied", "farseer"}


def test_a_form_that_gives_no_size_or_reads_more_is_named(tmp_path: Path) -> None:
    made = read(studies.isoflop(3), tmp_path)
    with pytest.raises(ValueError, match="gives no loss of N and D to plan with; use one of chinchilla"):
        plan(made, 1e14, form="compute")
    with pytest.raises(ValueError, match=r"form=precision reads .*say for which with at="):
        plan(made, 1e14, form="precision")
    with pytest.raises(ValueError, match="form=farseer does not read it"):
        plan(made, 1e14, form="farseer", at={"experts": 8.0})
    with pytest.raises(ValueError, match="lacks N_c, alpha_N"):
        plan({"D_c": 1e13, "alpha_D": 0.1}, 1e20, form="kaplan")


def flat_terms() -> pd.DataFrame:
    """Return runs whose loss does not depend on the tokens: B and beta are not there to be found."""
    table = studies.isoflop(2, noise=0.001)
    return table.assign(loss=1.9 + 60.0 / table["params"] ** 0.33 + 0.001 * np.sin(np.arange(len(table))))


def test_no_plan_rests_on_a_law_that_the_runs_do_not_identify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused with the reason and the exit code of a question that the runs do not answer."""
    flat_terms().to_csv(tmp_path / "a.csv", index=False)
    given = [f"runs={tmp_path / 'a.csv'}", "budget=1e15", "resamples=30"]
    assert main(given) == commandline.UNANSWERED
    said = capsys.readouterr().err
    assert "no recommendation: form=chinchilla does not qualify (" in said
    assert "the valleys do not qualify (" in said
    assert "not identified" in said
    assert "strict=no" in said


def test_no_law_takes_the_place_of_one_that_does_not_qualify(tmp_path: Path) -> None:
    """A law of fewer constants looks identified because it assumes the rest, and is too sure of it."""
    made = read(studies.isoflop(1, noise=0.002), tmp_path)
    found = plan(made, 1e15, form="chinchilla_interaction", resamples=30)
    assert found.form == "valleys"
    assert found.notes[0].startswith("form=chinchilla_interaction does not qualify (")
    asked = plan(made, 1e15, form="chinchilla_interaction", resamples=30, strict=False, beside=())
    assert asked.form == "chinchilla_interaction"
    assert asked.notes[0].startswith("no advice: form=chinchilla_interaction does not qualify")


def test_runs_without_a_backtest_hold_no_plan(tmp_path: Path) -> None:
    table = studies.isoflop(1, noise=0.001, budgets=(1e12, 1.02e12, 1.04e12))
    made = read(table, tmp_path)
    with pytest.raises(commandline.UnansweredError, match="does not qualify"):
        plan(made, 1e13, resamples=0, beside=())
    from analysis.diagnostics import qualify
    from analysis.inference.fit_law import fit_law

    rows = frame.used(made)
    assert qualify.backtests(fit_law(rows, resamples=0), rows) == ()
    assert backtest.backtest(rows, objectives.Huber()) is None, "a step of 1.03 is no extrapolation"


def test_the_public_points_are_planned_as_their_law_is_known(tmp_path: Path) -> None:
    """At 5.76e23 FLOPs: about 70B parameters and 20 tokens each, whatever fits better and cannot be."""
    made = read(studies.chinchilla()[["params", "tokens", "flops", "loss"]], tmp_path)
    found = plan(made, 5.76e23, resamples=0)
    best = found.options[0]
    assert 60e9 < best.params < 80e9
    assert 15 < best.tokens_per_param < 25
    by_form = {one.form: one for one in found.other_laws}
    assert "bound 0" in by_form["chinchilla_interaction"].lacking
    assert not any("plan with form=" in note or "see form=chinchilla_interaction" in note for note in found.notes)
    assert any("no plan rests on it" in note for note in found.notes)
    from analysis.planning import next_runs as upcoming

    forecast = upcoming.next_runs(made, target=5.76e23, count=3)
    assert forecast.loss == pytest.approx(best.loss, abs=1e-3), "one loss for one model and budget"
    assert forecast.target_params == pytest.approx(best.params, rel=1e-3)
    ratios = made["tokens"] / made["params"]
    assert all(min(1.0, ratios.min()) <= run.tokens / run.params <= max(3000.0, ratios.max()) for run in forecast.runs)


def test_a_plan_looks_at_its_rows_and_runs_its_backtests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from analysis.diagnostics import at_rows, qualify

    counted: list[str] = []
    for module, name in ((at_rows, "findings"), (qualify, "backtests")):
        own = getattr(module, name)

        def counting(*given: Any, own: Any = own, name: str = name) -> Any:
            counted.append(name)
            return own(*given)

        monkeypatch.setattr(module, name, counting)
    asked = ["runs=docs/example-runs.csv", "budget=1e22", "resamples=0", "beside=none"]
    assert main(asked) == 0
    assert sorted(counted) == ["backtests", "findings"]
