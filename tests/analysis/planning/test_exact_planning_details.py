"""What planning does in single cases, by hand: what is proposed, simulated, compared and said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import analysis.next
from analysis.approaches.cost import Cost
from analysis.diagnostics import at_rows
from analysis.estimation import fit_problem, multistart
from analysis.inputs import frame as frames
from analysis.inputs import large
from analysis.inputs.dataset import rows
from analysis.laws.registry import FORMS
from analysis.planning import (
    advice,
    basis,
    candidates,
    grid_share,
    next_runs,
    posterior,
    priors,
    recommend,
    scenarios,
    without_prior,
)
from analysis.planning.basis import OfValleys
from analysis.planning.candidates import Size
from analysis.planning.grid_share import Studies
from analysis.planning.next_runs import Next
from analysis.planning.posterior import Choice
from analysis.values.blocks import Identified
from analysis.values.study_result import Proposal
from tests.analysis.planning.test_exact_advice import candidate
from tests.analysis.planning.test_exact_beyond import falling
from tests.analysis.planning.test_exact_design import made
from tests.analysis.planning.test_exact_next_command import FOUND
from tests.analysis.planning.test_exact_next_runs import candidates as pool_of
from tests.analysis.planning.test_exact_plan_command import basis as based
from tests.analysis.planning.test_exact_recommend import of_valleys, power

NO_SIZE = (1.7, 0.0, 900.0, 0.34, 0.28)


def test_one_resample_without_a_best_size_is_more_than_one_in_twenty() -> None:
    said = "more than one in twenty of its resamples have no best size for 1e21 FLOPs"
    assert advice._sizeless(candidate(draws=[NO_SIZE]), 1e21) == said
    assert advice._sizeless(candidate(), 1e21) == "", "without resamples there is no interval to be missed"


def test_a_law_is_held_against_valleys_that_count_parameters_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clash = SimpleNamespace(budget=1e19, surface=3e8, valley=1e8)
    monkeypatch.setattr(recommend, "clash_of", lambda *_: clash)

    def said(form: str) -> str:
        one: Any = SimpleNamespace(fit=SimpleNamespace(form=FORMS[form]), law=None, price=None, sizes=None)
        return advice.elsewhere(one, of_valleys())

    assert said("chinchilla") == "it puts the best size of 1e19 FLOPs at 300M parameters, the runs put it at 100M"
    assert said("moe") == "", "it counts the parameters that a token passes through"
    monkeypatch.setattr(recommend, "clash_of", lambda *_: None)
    assert said("chinchilla") == ""


def beside(monkeypatch: pytest.MonkeyPatch, *names: str, lacks: str = "") -> dict[str, tuple[float, str]]:
    """Return what is said of other laws beside chinchilla, whose fits differ by 10 in AICc from one to the next."""
    order = ("chinchilla_tied", "chinchilla", "kaplan", "precision")

    def squared(rows: Any, name: str) -> Any:
        if name not in order:
            return None
        point = SimpleNamespace(theta=np.zeros(5))
        return SimpleNamespace(form=FORMS[name], aicc=10.0 * order.index(name), point=point,
                               problem=SimpleNamespace(centres=None))  # fmt: skip

    monkeypatch.setattr(basis, "_squared", squared)
    monkeypatch.setattr(advice, "law_lacks", lambda one, rows, minima: f"{one.fit.form.name} lacks")
    runs: Any = SimpleNamespace(beside=names, rows=SimpleNamespace(params=np.array([1e6, 1e8])))
    found = basis._beside(runs, Cost.six(), "chinchilla", of_valleys(), lacks)
    return {one.form: (one.behind, one.lacking) for one in found}


def test_other_laws_stand_beside_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = beside(monkeypatch, "kaplan", "precision", "farseer", "chinchilla_tied", lacks="flat")
    assert said == {
        "chinchilla": (10.0, "flat"),
        "kaplan": (20.0, "kaplan lacks"),
        "chinchilla_tied": (0.0, "chinchilla_tied lacks"),
    }, "bits are no input of a plan, and farseer could not be fitted"
    assert beside(monkeypatch, "kaplan")["chinchilla"] == (0.0, "chinchilla lacks")
    assert beside(monkeypatch) == {}


@pytest.mark.parametrize(
    ("strict", "why", "notes"),
    [(True, "", ()), (True, "flat", ()), (False, "flat", ("no advice: flat",)), (False, "", ())],
)
def test_what_a_law_lacks_is_a_note_where_it_is_planned_with_all_the_same(
    strict: bool, why: str, notes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    fit = SimpleNamespace(identified={"E": Identified(True)}, check=lambda: (), params={})
    said = SimpleNamespace(follows="valleys" if why else "law", why=why, law=why, form="chinchilla")
    judged = SimpleNamespace(candidate=SimpleNamespace(fit=fit, law=None), at_all=said)
    monkeypatch.setattr(at_rows, "findings", lambda *_: ())
    monkeypatch.setattr(basis, "judged_of", lambda *_, **__: (judged, None, None))
    monkeypatch.setattr(basis, "_beside", lambda *_: ())
    monkeypatch.setattr(basis, "_of_valleys", lambda *_: None)
    monkeypatch.setattr(basis, "_price", lambda *_: (Cost.six(), (1e6, 1e8)))
    one = SimpleNamespace(flops=np.array([1e18]), labels=np.array([1e18]))
    frame = pd.DataFrame({"used": [True], "params_kind": "total", "flop_rule": "6ND", "loss_unit": "nats per token",
                          "study": "ours"})  # fmt: skip
    runs: Any = SimpleNamespace(frame=frame, rows=one, asked={}, label="", beside=())
    found = basis._rested(runs, "chinchilla", {}, strict)
    assert (found.notes, found.source, found.largest) == (notes, "ours", 1e18)


def test_what_rounding_leaves_of_no_gain_is_no_gain() -> None:
    assert falling(0.0, 0.0, 5e-10) == "" and falling(0.0, 0.0, 2e-9) != ""


def test_errors_of_simulated_studies_are_forecast_less_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = SimpleNamespace(theta=np.zeros((2, 5)))
    problem = SimpleNamespace(expanded=lambda theta: theta)
    monkeypatch.setattr(fit_problem, "Problem", lambda *_: problem)
    monkeypatch.setattr(multistart, "fit_point", lambda *_: None)
    monkeypatch.setattr(multistart, "fit_many", lambda *_, **__: fits)
    form = SimpleNamespace(log_value=lambda theta, x: np.array([[1.5], [1.25]]))
    setting: Any = SimpleNamespace(
        posterior=SimpleNamespace(form=form, centres=None), problem=SimpleNamespace(loss=None), aims=np.zeros((2, 1))
    )
    studies = Studies(setting, np.zeros((2, 3)), np.zeros((2, 3)), np.array([1.0, 2.0]))
    assert studies.errors(np.arange(3)).tolist() == [0.5, -0.75]


def test_the_target_of_a_simulated_study_lies_beyond_its_runs() -> None:
    """Without noise or a form's error, runs and target are the law's own losses."""
    found = made(noise=0.0, misfit=1e-9)
    aims = found.to_logs(([3e9, 1e7], [6e10, 1e9]))
    setting: Any = SimpleNamespace(posterior=found, aims=aims)
    columns = (np.array([1e6, 2e6]), np.array([1e8, 1e8]))
    studies = grid_share.simulate(setting, columns, 3, 0)
    form, theta = found.form, found.basins[0].theta[None]
    np.testing.assert_allclose(studies.target, np.full(3, form.log_value(theta, aims)[0, 0]), atol=1e-4)
    np.testing.assert_allclose(
        studies.seen, np.tile(form.log_value(theta, found.to_logs(columns))[0], (3, 1)), atol=1e-4
    )


@pytest.mark.parametrize(("grid", "asked"), [(0.89, True), (0.91, False), (1.2, False)])
def test_designs_are_compared_where_the_grid_narrows_the_forecast(
    grid: float, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, own = pool_of([1e6, 2e6]), np.random.default_rng(0).normal(size=100)
    setting: Any = SimpleNamespace(posterior=SimpleNamespace(to_logs=np.stack), candidates=pool, grid=pool, aims=None)
    compared = list[int]()

    def errors(chosen: Any) -> Any:
        compared.append(len(chosen))
        return {1: 1.0, 3: grid}.get(len(chosen), 5.0) * own

    monkeypatch.setattr(posterior, "batch", lambda *_, **__: [Choice(0, 1.0, 1.0, 1.0), Choice(1, 1.0, 1.0, 1.0)])
    monkeypatch.setattr(grid_share, "simulate", lambda *_: SimpleNamespace(errors=errors))
    done: Any = SimpleNamespace(params=np.ones(1), tokens=np.ones(1))
    assert grid_share.simulated(setting, done, 5, 0).share == (1.0 if asked else None), "both runs, as in the grid"
    assert compared == ([1, 3, 2, 3] if asked else [1, 3])


def test_a_proposal_is_shown_in_one_line() -> None:
    assert repr(FOUND) == ("Next(2 runs with 2.6e16 FLOPs for the loss at 1e18 FLOPs: sd 2.0 % now, 1.0 % after them)")


def test_what_a_run_brings_is_a_drop_of_variance_per_flop() -> None:
    pool = candidates.Candidates(np.array([1e6]), np.array([2e7]), np.array([3e14]), (Size(1e6, 128, 4),))
    found = next_runs._proposed(pool, Choice(0, 2.0, 0.09, 0.04))
    assert (found.params, found.tokens, found.flops, found.width, found.layers) == (1e6, 2e7, 2.0, 128, 4)
    assert (found.before, found.after) == pytest.approx((0.3, 0.2))
    assert found.drop_per_flop == pytest.approx(0.025)


def test_few_runs_are_continued_at_their_own_ratio() -> None:
    params, tokens = np.array([1e6, 2e6, 4e6]), np.array([1e7, 6e7, 2e8])
    few = rows(("a", "b", "c"), params=params, tokens=tokens, flops=6 * params * tokens, loss=np.ones(3))
    assert next_runs._own_ratio(few, 3) == 30.0
    assert next_runs._own_ratio(few, 2) is None


def test_no_run_is_not_a_number_of_runs() -> None:
    with pytest.raises(ValueError, match=r"^count=0: the most runs to propose, 1 or more$"):
        next_runs.next_runs(None, count=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "now", "after"),
    [([Choice(0, 1.0, 0.09, 0.04), Choice(1, 1.0, 0.04, 0.01)], 0.3, 0.1), ([], 0.5, 0.5)],
)
def test_a_proposal_narrows_what_is_known_before_its_first_run(
    choices: list[Choice], now: float, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    done = SimpleNamespace(flops=np.array([1e18]), loss=np.array([3.0]), params=np.ones(1), tokens=np.ones(1))
    prior = priors.Prior(np.zeros(1), np.eye(1), True)
    setting = SimpleNamespace(
        posterior=SimpleNamespace(to_logs=np.stack, basins=(1,), prior=prior, noise=0.01, misfit=0.02),
        candidates=pool_of([1e6, 2e6]),
        aims=np.zeros((2, 3)), target=1e20, target_params=1e8, target_tokens=2e9, loss=2.5, constants={},
    )  # fmt: skip
    monkeypatch.setattr(large, "refuse_weighed", lambda *_: None)
    monkeypatch.setattr(frames, "used", lambda frame: done)
    monkeypatch.setattr(next_runs, "_setting", lambda *_, **__: setting)
    monkeypatch.setattr(posterior, "batch", lambda *_, **__: choices)
    monkeypatch.setattr(posterior, "forecast", lambda *_: (np.array([0.9]), np.array([0.5])))
    monkeypatch.setattr(at_rows, "findings", lambda *_: ())
    monkeypatch.setattr(without_prior, "interval", lambda *_: (None, ""))
    monkeypatch.setattr(next_runs, "larger", lambda *_, **__: None)
    found: Next = next_runs.next_runs(pd.DataFrame({"used": [True], "loss_unit": ["nats per token"]}))
    assert (found.sd_now, found.sd_after, len(found.runs)) == pytest.approx((now, after, len(choices)))


def test_batches_are_made_by_the_powers_that_the_command_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[float]()

    def greedy(state: Any, costs: Any, budget: float, count: int, power: float) -> list[Choice]:
        asked.append(power)
        return []

    monkeypatch.setattr(posterior, "_greedy", greedy)
    monkeypatch.setattr(posterior, "_state", lambda *_: None)
    found: Any = None
    for given in (None, 0.7):
        assert posterior.batch(found, found, found, found, budget=1.0, count=1, power=given) == []
    (key,) = (key for key in analysis.next.KEYS if key.name == "power")
    assert asked == [1.0, 0.4, 0.0, 0.7]
    assert "the best batch of 1, 0.4 and 0" in key.help


def test_a_prior_that_the_best_fit_follows_is_no_further_off(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = SimpleNamespace(middle=np.zeros(2), penalty=lambda theta: 0.0)
    monkeypatch.setattr(priors, "_maximum", lambda problem, start, prior, scale: start + 1.0)
    of = {0.0: 2.0, 1.0: 6.0}
    monkeypatch.setattr(priors, "squares", lambda problem, theta: of[float(theta[0])])
    problem: Any = None
    assert priors._apart(problem, np.ones(2), given, 2.0) == 0.0
    assert priors._apart(problem, np.zeros(2), given, 2.0) == (6.0 - 2.0) / 4
    given.penalty = lambda theta: 0.75
    assert priors._apart(problem, np.ones(2), given, 2.0) == 1.5


@pytest.mark.parametrize(("largest", "far", "notes"), [(1e20, 10.0, 1), (1e18, 1000.0, 2), (None, None, 1)])
def test_a_plan_of_valleys_says_how_far_it_is_from_the_runs(
    largest: float | None, far: float | None, notes: int
) -> None:
    best = Proposal(1e9, 2e10, 20.0, None, dict.fromkeys(("params", "tokens", "tokens_per_param", "loss")))
    laws = {"params": power(0.5, 1e8), "tokens": power(0.5, 1e9)}
    there = based(largest=largest, valleys=OfValleys(lambda budget: best, laws, ()), beside=())
    said: Any = SimpleNamespace(follows="valleys", why="form=chinchilla does not qualify (flat)", form="chinchilla")
    found = scenarios._without_law(there, said, scenarios.Asked(1e21), None)
    assert (found.extrapolation_factor, len(found.notes), found.options[0].params) == (far, notes, 1e9)
    assert notes == 1 or found.notes[-1].startswith("the budget is 1e+03 times the largest run")
