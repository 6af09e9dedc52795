"""Samplers in a search: decisions follow from the log alone, points of the user's come first, keys hang on others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from study.records.settings import find_study
from study.search.event_log import Record
from study.search.from_overrides import domains, enqueued
from study.search.settings import described, domain_of
from study.search.state import Search, ended, reported, started
from study.search.trial_queue import TrialQueue
from sweeps.history import Config
from sweeps.samplers.optuna_models import distribution
from sweeps.space import Choice, Condition, Domain, Integers, Interval, Space
from tests.study.support.searches import make_search, search_settings

SPACE: dict[str, Domain] = {"optim.name": Choice(("adamw", "muon")), "optim.lr": Interval(1e-3, 1e-1, log=True)}
HANGS = {"optim.momentum": {"on": "optim.name", "values": ["muon"]}}


def ran(sampler: str, units: int, **changes: object) -> tuple[Search, list[Record]]:
    """A search of one worker whose losses are best at a rate of 0.01; returns it and its log."""
    search, log = Search(search_settings(sampler=sampler, trials=60, **changes)), list[Record]()

    def write(record: Record) -> None:
        log.append(record)
        search.apply(record)

    for time in range(units):
        unit = search.decide()
        if unit is None:
            break
        number = len(log)
        write(started(unit, f"{unit.trial:012x}", "w", 1.0, float(time)))
        claim = search.claims[number]
        rate = float(search.trials[unit.trial].config["optim.lr"])
        write(reported(claim, unit.until, abs(rate - 0.01) + 1 / unit.until, float(time)))
        write(ended(claim, "reached", "", float(time + 1)))
    return search, log


@pytest.mark.parametrize("sampler", ["random", "sobol", "tpe", "density"])
def test_the_log_up_to_any_record_decides_as_the_search_did(sampler: str) -> None:
    _, log = ran(sampler, 40)
    again = Search(search_settings(sampler=sampler, trials=60))
    for record in log:
        if record["event"] == "started":
            unit = again.decide()
            assert unit is not None
            assert (unit.trial, unit.until) == (record["trial"], record["until"])
            if record["config"] is not None:
                assert dict(unit.config or {}) == record["config"]
        again.apply(record)


def test_points_of_the_users_come_first_and_are_completed_by_draws() -> None:
    search = Search(search_settings())
    for point in ({"optim.lr": 0.0123}, {"optim.lr": 0.2, "model.layers": 1}, {"optim.lr": 0.0123}):
        search.apply({"event": "enqueued", "time": 0.0, "config": point})
    configs: list[Config] = []
    for number in range(3):
        unit = search.decide()
        assert unit is not None and unit.config is not None
        search.apply(started(unit, f"{number:012x}", "w", 1.0, 0.0))
        configs.append(unit.config)
    assert configs[0]["optim.lr"] == 0.0123 and set(configs[0]) == {"optim.lr", "model.layers"}
    assert configs[1] == {"optim.lr": 0.2, "model.layers": 1}
    assert configs[2]["optim.lr"] not in (0.0123, 0.2)


def test_enqueue_is_a_command_and_the_same_point_is_queued_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from study.__main__ import main

    study = make_search(tmp_path / "runs" / "s")
    words = ["enqueue", str(study.path), "optim.lr=3e-3", "model.layers=2"]
    assert main(words) == main(words) == 0
    assert "is tried next" in capsys.readouterr().out
    assert TrialQueue.of(find_study(str(study.path), tmp_path)).search.queue == [{"optim.lr": 0.003, "model.layers": 2}]
    assert main(["enqueue", str(study.path), "optim.lr=3"]) == 2
    assert "optim.lr=3.0 is outside the search: it takes numbers from " in capsys.readouterr().err


def test_a_population_whose_members_have_all_begun_takes_no_more_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from study.__main__ import main

    study = make_search(tmp_path / "runs" / "s", scheduler="pbt", trials=2, r=9_000, space={
        "optim.lr": {"kind": "interval", "low": 2e-3, "high": 4e-1, "log": True},
    })  # fmt: skip
    queue = TrialQueue.of(study)
    assert queue.claim("w") is not None
    assert main(["enqueue", str(study.path), "optim.lr=3e-3"]) == 0
    assert "is tried next" in capsys.readouterr().out
    assert queue.claim("w") is not None
    assert queue.search.trials[1].config == {"optim.lr": 0.003}
    assert main(["enqueue", str(study.path), "optim.lr=4e-3"]) == 2
    assert "s: optim.lr=0.004 would never be tried: all 2 members of the population have begun" in (
        capsys.readouterr().err
    )
    assert main(["enqueue", str(study.path), "optim.lr=3e-3"]) == 0, "it is there already"
    assert TrialQueue.of(study).search.queue == [{"optim.lr": 0.003}]


def test_a_key_that_hangs_on_another_is_in_the_point_only_where_it_exists() -> None:
    space = {**SPACE, "optim.momentum": Interval(0.8, 0.99)}
    settings = replace(search_settings(), space={n: described(d) for n, d in space.items()}, conditions=HANGS)
    search = Search(settings)
    seen = set()
    for number in range(12):
        unit = search.decide()
        assert unit is not None and unit.config is not None
        assert ("optim.momentum" in unit.config) == (unit.config["optim.name"] == "muon")
        seen.add(unit.config["optim.name"])
        search.apply(started(unit, f"{number:012x}", "w", 1.0, 0.0))
    assert seen == {"adamw", "muon"}


def parsed(*lines: str) -> tuple[dict[str, Any], dict[str, Condition], list[str]]:
    return domains(OverridesParser.create().parse_overrides(list(lines)))


def test_conditions_are_tags_of_hydras_grammar() -> None:
    space, conditions, fixed = parsed(
        'optim.momentum=tag(log,"optim.name=muon|sgd",interval(0.8,0.99))', "optim.name=adamw,muon,sgd", "seed=1"
    )
    assert list(space) == ["optim.name", "optim.momentum"]
    assert space["optim.momentum"] == Interval(0.8, 0.99, log=True)
    assert conditions == {"optim.momentum": Condition("optim.name", ("muon", "sgd"))}
    assert fixed == ["seed=1"]


def test_ordered_choices_keep_their_order_from_the_command_to_the_sampler() -> None:
    space, _, _ = parsed(
        "model.width=range(64,512,64)", "model.layers=tag(ordered,choice(2,4,8,16))", "optim.name=adamw,muon"
    )
    expected = [True, True, False]
    assert [isinstance(d, Choice) and d.ordered for d in space.values()] == expected
    settings = replace(search_settings(), space={name: described(domain) for name, domain in space.items()})
    again = settings.make_space().domains
    assert again == space
    assert type(distribution(again["model.layers"])).__name__ == "IntDistribution"
    random = np.random.default_rng(0)
    assert {again["model.layers"].perturb(4, factor, random) for factor in (0.8, 1.2)} == {2, 8}


@pytest.mark.parametrize(
    "domain", [Choice((1, 2)), Choice((1, 2), ordered=True), Integers(1, 9, log=True), Interval(0.1, 2.0)]
)
def test_a_domain_is_what_its_description_says(domain: Domain) -> None:
    assert domain_of(json.loads(json.dumps(described(domain)))) == domain


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('optim.momentum=tag("optim.name=lion",interval(0,1))', "optim.name is never 'lion', only adamw, muon"),
        ('optim.momentum=tag("model.act=gelu",interval(0,1))', "must be searched over as a list of values"),
        (
            'optim.momentum=tag("optim.name=muon","optim.lr=1",interval(0,1))',
            "give one condition for the key, not optim.lr=1 and optim.name=muon",
        ),
        (
            "model.layers=tag(log,choice(2,4,8))",
            r"model.layers=tag.*: tag log: in a list .* take tag\(log,interval.*; tag\(ordered,…\) keeps its order",
        ),
        ("model.layers=tag(log,ordered,choice(2,4,8))", "model.layers=tag.*: tag log: in a list each value"),
        ("model.width=tag(log,range(64,512,64))", "model.width=tag.*: tag log: a range of steps of 64 is a list"),
        ("optim.lr=tag(lgo,interval(1e-4,1e-2))", "optim.lr=tag.*: tag lgo is not known: take log or ordered"),
        ("optim.lr=interval(1e-4,inf)", r"^optim.lr=interval.*must be between two finite numbers"),
        ("model.width=range(0,inf)", r"model.width=range\(0,inf\): start, stop and step of a range must be finite"),
        ("optim.lr=range(1e-4,1,nan)", "start, stop and step of a range must be finite"),
        ("model.position=glob(*)", "model.position has none: list its values"),
    ],
)
def test_conditions_that_cannot_hold_are_named(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed("optim.name=adamw,muon", line)


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ({"optim": {"beta1": 0.9}}, "the search is not over it"),
        ({"optim.lr": 1}, "is outside the search: it takes numbers from "),
        ({"optim.name": "lion"}, "optim.name=lion is outside the search: it takes one of adamw, muon"),
        ({"optim.name": "adamw", "optim.momentum": 0.9}, "means nothing where optim.name=adamw"),
        ({"optim.momentum": 0.9}, "also needs optim.name"),
        ({}, "no point to try"),
    ],
)
def test_points_that_the_space_does_not_hold_are_refused(point: dict[str, Any], said: str) -> None:
    space = Space(
        {**SPACE, "optim.momentum": Interval(0.8, 0.99)}, {"optim.momentum": Condition("optim.name", ("muon",))}
    )
    with pytest.raises(ValueError, match=said):
        enqueued(point, space)
    assert enqueued({"optim": {"lr": 1e-2}}, space) == {"optim.lr": 1e-2}


def test_two_objectives_take_device_seconds_from_the_log() -> None:
    search, _ = ran("tpe", 12, objectives=("loss", "gpu_seconds"), scheduler="random", devices=4)
    assert [trial.seconds for trial in search.trials.values()] == [{27_008: 4.0}] * 12


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampler": "grid"}, "grid cannot list the values of optim.lr"),
        ({"sampler": "sobol", "objectives": ("loss", "gpu_seconds")}, "needs one of search.sampler=tpe, gp"),
        ({"sampler": "tpe", "scheduler": "pbt"}, "a population starts from random settings"),
        ({"scheduler": "pbt", "objectives": ("loss", "gpu_seconds")}, "leave search.objectives=.loss."),
    ],
)
def test_samplers_that_do_not_suit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        search_settings(**changes).make_sampler()
