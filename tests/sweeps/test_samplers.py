"""Samplers: functions of history and seed, within the space, better than chance where there is something to learn."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sweeps.history import Config
from sweeps.rungs import Rung
from sweeps.samplers import MODELS
from sweeps.samplers.base import Sampler, SamplerOptions, Tried, identity, make_sampler
from sweeps.samplers.grid import Grid
from sweeps.samplers.optuna_models import Modelled, clipped, compared, ranked
from sweeps.samplers.random import RandomDraws
from sweeps.samplers.rung_density import WIDER, WIDTH, DensityDraws, DensityRatio, Kernels
from sweeps.space import Choice, Condition, Integers, Interval, Space

R = 27
SPACE = Space(
    {
        "lr": Interval(1e-4, 1e-1, log=True),
        "width": Choice((64, 128, 256), ordered=True),
        "rule": Choice(("adamw", "muon")),
        "steps": Integers(1, 9, log=True),
    },
    {"steps": Condition("rule", ("muon",))},
)
SMOOTH = Space({"lr": Interval(1e-4, 1e-1, log=True), "decay": Interval(0.0, 1.0)})
KINDS = ("random", "sobol", "tpe", "density")


def made(kind: str, space: Space = SPACE, seed: int = 0, startup: int = 10) -> Sampler:
    if kind in MODELS:
        return Modelled(kind, space, seed, R, startup=startup)
    return make_sampler(kind, SamplerOptions(kind, space, seed, R))


def bowl(config: Config) -> float:
    return (math.log10(float(config["lr"])) + 2.3) ** 2 + (float(config["decay"]) - 0.7) ** 2


def best_of(kind: str, seed: int, trials: int, startup: int = 10) -> float:
    """Full trainings, one after the other; a learning rate too high diverges, as it would."""
    sampler, tried = made(kind, SMOOTH, seed, startup), list[Tried]()
    for trial in range(trials):
        config = sampler.propose(trial, tried)
        assert config is not None
        tried.append(Tried(config, {R: math.inf if float(config["lr"]) > 0.05 else bowl(config)}))
    return min(one.values[R] for one in tried)


def history(seed: int, count: int, sampler: Sampler | None = None) -> list[Tried]:
    """Trials at different rungs: some finished, some paused, one failed, one diverged, the last just started."""
    rng, tried = random.Random(seed), list[Tried]()
    for trial in range(count):
        config = (sampler or RandomDraws(SPACE, seed)).propose(trial, tried)
        assert config is not None
        rungs = (1, 3, 9, R)[: rng.randint(1, 4)]
        values = {at: rng.random() + 1 / at for at in rungs} if trial < count - 1 else {}
        if trial == 3:
            values[rungs[-1]] = math.nan
        tried.append(Tried(config, values, failed=trial == 2, seconds={at: 2.0 * at for at in values}))
    return tried


def rungs_of(tried: Sequence[Tried]) -> list[Rung]:
    rungs = [Rung(level) for level in (1, 3, 9, R)]
    for rung in rungs:
        for number, one in enumerate(tried):
            if rung.level in one.values:
                rung.record(number, one.values[rung.level])
    return rungs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_proposal_is_a_function_of_history_and_seed(kind: str, seed: int) -> None:
    tried = history(seed, 24)
    asked = [made(kind, seed=seed).propose(24, tried, rungs_of(tried)) for _ in range(2)]
    sampler = made(kind, seed=seed)
    for trial in (5, 11, 24):  # what one and the same sampler was asked before does not matter
        again = sampler.propose(trial, tried[:trial], rungs_of(tried[:trial]))
    assert asked[0] == asked[1] == again
    assert asked[0] is not None and identity(asked[0]) not in {identity(one.config) for one in tried}
    assert made(kind, seed=seed + 100).propose(24, tried, rungs_of(tried)) != asked[0]


@pytest.mark.parametrize("kind", KINDS)
def test_proposals_are_in_the_space_and_hold_only_what_exists(kind: str) -> None:
    sampler, tried = made(kind), list[Tried]()
    for one in history(3, 30, sampler):
        config = sampler.propose(len(tried), tried, rungs_of(tried))
        assert config is not None
        assert all(SPACE.domains[name].holds(value) for name, value in config.items())
        assert ("steps" in config) == (config["rule"] == "muon")
        assert set(config) - {"steps"} == {"lr", "width", "rule"}
        tried.append(Tried(config, one.values, one.failed))
    assert len({identity(one.config) for one in tried}) == 30


def test_tpe_learns_from_trials_that_were_paused() -> None:
    tried = [
        Tried({"lr": lr, "decay": 0.5}, {3: abs(math.log10(lr) + 2)}) for lr in np.geomspace(1e-4, 1e-1, 31).tolist()
    ]
    near = [made("tpe", SMOOTH, seed).propose(31, tried) for seed in range(8)]
    spread = [made("random", SMOOTH, seed).propose(31, tried) for seed in range(8)]

    def distance(configs: list[Any]) -> float:
        return float(np.mean([abs(math.log10(config["lr"]) + 2) for config in configs]))

    assert distance(near) < 0.5 * distance(spread)


def test_tpe_leaves_places_to_those_that_run_there() -> None:
    """Workers that ask before any has ended would else all go to the one place that looks best."""
    space = Space({"lr": Interval(0.0, 1.0)})
    tried = [Tried({"lr": lr}, {R: abs(lr - 0.5)}) for lr in np.linspace(0.01, 0.99, 30).tolist()]
    running = [Tried({"lr": 0.5 + 0.001 * k}) for k in range(-8, 9)]

    def apart(history: Sequence[Tried]) -> float:
        proposed = [made("tpe", space, seed).propose(len(history), history) for seed in range(6)]
        return float(np.mean([abs(float(config["lr"]) - 0.5) for config in proposed if config]))

    assert apart([*tried, *running]) > 2 * apart(tried)


def test_a_density_is_drawn_from_near_good_trials_and_ranked_against_the_bad_ones() -> None:
    """BOHB's way: draws of a widened l, of which the one with the highest l/g is taken."""
    good = Kernels(np.array([[0.9, 1.0], [0.8, 1.0], [0.85, 0.5]]), (0, 3))
    drawn = good.draw(np.random.default_rng(0), 4_000, 1.0)
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert drawn[:, 0].mean() == pytest.approx(0.8, abs=0.03)  # truncated at 1, so below the 0.85 of the points
    assert drawn[:, 0].std() < WIDTH
    shares = [float(np.mean(np.isclose(drawn[:, 1], place))) for place in (0.0, 0.5, 1.0)]
    leaves = good.leaves(3, 1.0)
    assert shares == pytest.approx([leaves / 2, 1 / 3, 2 / 3 * (1 - leaves) + leaves / 6], abs=0.03)
    assert good.draw(np.random.default_rng(0), 4_000, WIDER)[:, 0].std() > drawn[:, 0].std()
    assert good.at(np.array([[0.85, 1.0]])) > good.at(np.array([[0.85, 0.0]])) > good.at(np.array([[0.1, 0.0]]))


def test_few_draws_of_a_density_find_a_corner_of_many_dimensions() -> None:
    """A maximum over uniform draws is rarely near the good trials where there are six settings; a draw from l is."""
    space = Space({f"x{k}": Interval(0.0, 1.0) for k in range(6)})
    rng, rung, tried = np.random.default_rng(0), Rung(1), []
    for number in range(40):
        low, high = (0.0, 0.15) if number < 6 else (0.0, 1.0)
        tried.append(Tried({f"x{k}": float(rng.uniform(low, high)) for k in range(6)}, {1: float(number)}))
        rung.record(number, float(number))
    proposals = [DensityDraws(space, seed).propose(40, tried, [rung]) for seed in range(40)]
    means = [float(np.mean([float(x) for x in config.values()])) for config in proposals if config]
    assert float(np.median(means)) < 0.25


def test_a_rung_of_diverged_trials_says_nothing_of_where_good_ones_are() -> None:
    rung = Rung(1)
    for number in range(20):
        rung.record(number, math.nan if number else 1.0)
    assert DensityRatio(0).split([[0.5]] * 20, [rung], (0,)) is None


def test_tpe_beats_random_draws_on_a_smooth_loss_that_diverges() -> None:
    pairs = [(best_of("tpe", seed, 30), best_of("random", seed, 30)) for seed in range(5)]
    assert np.mean([tpe for tpe, _ in pairs]) < 0.5 * np.mean([drawn for _, drawn in pairs])


def test_the_gaussian_process_beats_random_draws_with_fewer_trials() -> None:
    drawn = [best_of("random", seed, 12) for seed in range(20)]
    assert best_of("gp", 0, 12, startup=7) < 0.5 * np.median(drawn)


def test_what_diverged_or_failed_is_clipped_to_where_the_rest_is() -> None:
    assert clipped([1.0, 2.0, 3.0, 11.0, math.inf]) == [1.0, 2.0, 3.0, 5.5, 5.5]
    assert clipped([2.0, 2.0, math.inf]) == [2.0, 2.0, 2.0]
    assert clipped([math.inf, math.inf]) is None
    tried = [Tried({"lr": 1e-3}, {9: value}) for value in (1.0, 2.0, 4.0)] + [Tried({"lr": 1e-1}, failed=True)]
    shown = compared(tried, 3, 1)
    assert shown is not None
    assert [one.values for one in shown] == [(1.0,), (2.0,), (4.0,), (4.0,)]


@pytest.mark.parametrize(
    ("one", "values", "stopped"),
    [
        (Tried({"lr": 1.0}, {9: 2.0, R: 1.0}), (1.0,), None),
        (Tried({"lr": 1.0}, {9: 2.0, 3: 3.0}), None, (9, 2.0)),
        (Tried({"lr": 1.0}, {9: 2.0, R: math.nan}), None, (0, math.inf)),
        (Tried({"lr": 1.0}, {9: 2.0}, failed=True), None, (0, math.inf)),
        (Tried({"lr": 1.0}), None, None),
    ],
)
def test_tpe_is_told_how_far_a_trial_came(one: Tried, values: Any, stopped: Any) -> None:
    shown = ranked(one, R)
    assert (shown.values, shown.stopped) == (values, stopped)


def test_values_are_compared_at_the_highest_resource_that_enough_have_reached() -> None:
    tried = [Tried({"lr": 1.0}, {1: 4.0, 3: 3.0, 9: 2.0}, seconds={1: 1.0, 3: 5.0, 9: 9.0})] * 2
    tried += [Tried({"lr": 1.0}, {1: 6.0, 3: 5.0}, seconds={1: 1.0, 3: 7.0}), Tried({"lr": 1.0}, failed=True)]
    shown = compared(tried, 4, 2)
    assert shown is not None
    assert [one.values for one in shown] == [(3.0, 5.0), (3.0, 5.0), (5.0, 7.0), (5.0, 7.0)]
    assert compared(tried, 5, 1) is None


def test_two_objectives_find_cheap_trials_too() -> None:
    sampler = Modelled("tpe", SMOOTH, 0, R, objectives=("loss", "gpu_seconds"))
    tried: list[Tried] = []
    for trial in range(40):
        config = sampler.propose(trial, tried)
        assert config is not None
        decay = float(config["decay"])  # loss falls with it, time rises
        tried.append(Tried(config, {R: (1 - decay) + bowl(config) * 0.1}, seconds={R: 100 * decay}))
    drawn = [made("random", SMOOTH).propose(trial, ()) for trial in range(40)]

    def covered(points: Sequence[tuple[float, float]]) -> float:
        """The area that is dominated, up to (2, 100)."""
        area, reach = 0.0, 2.0
        for seconds, loss in sorted(points):
            if loss < reach:
                area, reach = area + (reach - loss) * (100 - seconds), loss
        return area

    found = [(one.seconds[R], one.values[R]) for one in tried]
    chance = [(100 * float(c["decay"]), 1 - float(c["decay"]) + bowl(c) * 0.1) for c in drawn if c]
    assert covered(found) > covered(chance)


def test_sobol_leaves_smaller_gaps_than_draws() -> None:
    def gap(kind: str, seed: int) -> float:
        sampler = made(kind, SMOOTH, seed)
        places = sorted(SMOOTH.unit(config)[0] for t in range(32) if (config := sampler.propose(t, ())) is not None)
        return max(b - a for a, b in zip([0.0, *places], [*places, 1.0], strict=True))

    assert all(gap("sobol", seed) < gap("random", seed) for seed in range(5))
    assert gap("sobol", 0) < 2 / 32


def test_a_grid_is_every_combination_once_and_then_ends() -> None:
    space = Space(
        {"rule": Choice(("adamw", "muon")), "steps": Integers(3, 5), "width": Choice((64, 128))},
        {"steps": Condition("rule", ("muon",))},
    )
    tried: list[Tried] = []
    while (config := Grid(space).propose(len(tried), tried)) is not None:
        tried.append(Tried(config))
    assert [one.config for one in tried[:3]] == [
        {"rule": "adamw", "width": 64},
        {"rule": "adamw", "width": 128},
        {"rule": "muon", "steps": 3, "width": 64},
    ]
    assert len(tried) == 8


def test_a_grid_cannot_list_an_interval() -> None:
    with pytest.raises(ValueError, match="grid cannot list the values of lr"):
        Grid(SPACE)


@pytest.mark.parametrize("bad", [{"kind": "cma"}, {"objectives": ("time",)}, {"startup": 0}])
def test_models_that_there_are_not_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed are tpe, gp"):
        Modelled(**{"kind": "tpe", "space": SPACE, "seed": 0, "R": R, **bad})
