"""Population based training through the event log: copies are points of their own that go on from another's."""

import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from study.config.schema import SearchConfig, StudyConfig
from study.records import checkpoints
from study.records.points import load_points
from study.search import view
from study.search.from_overrides import settings_of
from study.search.state import Search
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from sweeps.schedulers.pbt import PopulationBased
from sweeps.space import Choice, Domain, Interval
from tests.study.support.searches import advance, begin_worker, diary, make_search, run_worker, search_settings
from tests.study.support.studies import wait_until
from train.checkpoint import layout
from train.spec.config import BudgetConfig
from train.spec.lineage import parse

SPACE = {"optim.lr": {"kind": "interval", "low": 2e-3, "high": 4e-1, "log": True}}
PBT = {"scheduler": "pbt", "space": SPACE, "trials": 5, "r": 7_000, "R": 27_008}


@pytest.fixture(scope="session")
def population(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, Search, PopulationBased]:
    study = make_search(tmp_path_factory.mktemp("population") / "s", **PBT)
    run_worker(study)
    search = TrialQueue.of(study).search
    assert isinstance(search.scheduler, PopulationBased)
    return study, search, search.scheduler


def test_every_member_reaches_the_end_and_bad_ones_copied_better_ones(
    population: tuple[StudyFolder, Search, PopulationBased],
) -> None:
    _, search, scheduler = population
    assert search.over
    assert [trial.at for trial in search.trials.values()] == [27_008] * 5
    assert len(scheduler.lineage) >= 3
    for copy in scheduler.lineage:
        assert 2e-3 <= float(copy.config["optim.lr"]) <= 4e-1


def test_a_copy_is_a_point_that_goes_on_where_its_donor_stood(
    population: tuple[StudyFolder, Search, PopulationBased],
) -> None:
    study, search, scheduler = population
    points = load_points(study)
    copies = [key for key, point in points.items() if point.config.schedule.parent]
    assert len(points) == 5 + len(scheduler.lineage)
    for key in copies:
        parent = parse(points[key].config.schedule.parent)
        assert parent is not None
        begun, _ = diary(study, key)[0]
        assert begun == parent.tokens
    billed = sum(until - begun for key in points for begun, until in diary(study, key))
    assert billed == scheduler.used
    assert search.spent == pytest.approx(billed * search.trials[0].flops_per_token)


def test_the_log_tells_the_winners_schedule_as_its_points_do(
    population: tuple[StudyFolder, Search, PopulationBased],
) -> None:
    study, search, scheduler = population
    best = search.incumbent
    assert best is not None
    points, lived, key, end = load_points(study), list[tuple[int, float]](), best.key, math.inf
    while True:
        config = points[key].config
        parent = parse(config.schedule.parent)
        assert config.optim.lr is not None
        since = 0 if parent is None else parent.tokens
        if since < end:
            lived.insert(0, (since, config.optim.lr))
        if parent is None:
            break
        key, end = parent.key, since
    assert [(at, config["optim.lr"]) for at, config in scheduler.schedule(best.number)] == lived
    said = view.as_json(search, study)
    assert [(step["tokens"], step["config"]["optim.lr"]) for step in said["schedule"]] == lived
    assert f"copied {scheduler.lineage[0].donor}" in view.text(search, study)


def test_only_checkpoints_that_can_still_be_copied_are_pinned(
    population: tuple[StudyFolder, Search, PopulationBased],
) -> None:
    study, search, _ = population
    pinned = {f"{key}@{one.tokens}" for key in search.keys for one in checkpoints.saved(study.run(key)) if one.pinned}
    assert pinned == search.needed() == {f"{trial.key}@27008" for trial in search.trials.values()}


def test_a_member_that_copied_and_has_not_moved_is_copied_from_where_its_weights_are(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", **{**PBT, "trials": 3, "quantile": 0.34, "r": 5_000})
    queue = TrialQueue.of(study)
    first = [queue.claim(f"w{number}") for number in range(3)]
    for value, claim in zip((1.0, 3.0, 2.0), first, strict=True):
        assert claim is not None
        assert queue.record_end(claim, "reached", value=value, tokens=5_120)
    moved = queue.claim("w")  # the best goes on
    copy = queue.claim("w")  # the worst copies it
    assert moved is not None and copy is not None
    assert (moved.unit.trial, moved.unit.until, moved.unit.parent) == (0, 10_000, None)
    assert (copy.unit.trial, copy.unit.parent) == (1, (0, 5_000))
    assert load_points(study)[copy.key].config.schedule.parent == f"{moved.key}@5120"
    assert queue.search.trials[1].checkpoint_refs == {5_000: f"{moved.key}@5120"}
    assert f"{moved.key}@5120" in queue.search.needed()
    assert queue.record_end(copy, "lost")
    assert queue.record_end(moved, "reached", value=0.9)
    assert f"{moved.key}@5120" in queue.search.needed()  # its donor is further, the copy is still to come
    again = queue.claim("other")
    assert again is not None and (again.key, again.unit) == (copy.key, copy.unit)
    assert len(load_points(study)) == 4


def test_what_a_copy_cannot_take_over_is_refused() -> None:
    run = search_settings().base

    def define(space: Mapping[str, Domain], name: str = "pbt", explore: str = "perturb") -> Any:
        from study.config.compose import check
        from study.records.points import resolve_run

        search = SearchConfig(name=name, trials=4, explore=explore)
        config = StudyConfig(search=search, budget=BudgetConfig(tokens=27_008))
        return settings_of(config, resolve_run(check(dict(run))), dict(run), dict(space))

    assert define({"optim.lr": Interval(1e-3, 1e-1, log=True)}).r == 1351
    with pytest.raises(ValueError, match=r"model.layers: a member of a population continues with"):
        define({"model.layers": Choice((1, 2, 3, 4))})
    with pytest.raises(ValueError, match=r"search.trials=4 members would differ, but the space has 2 settings"):
        define({"optim.lr": Choice((0.1, 0.2))})
    rates = {"optim.lr": Interval(1e-3, 1e-1, log=True)}
    assert define(rates, explore="pb2").explore == "pb2"
    with pytest.raises(ValueError, match="explore=pb2 models real-valued settings, and the space has none"):
        define({"optim.lr": Choice((0.1, 0.2, 0.3, 0.4))}, explore="pb2")
    with pytest.raises(ValueError, match=r"it needs search=pbt, and search.name is asha"):
        define(rates, name="asha", explore="pb2")


def test_settings_chosen_by_what_they_gained_are_those_of_the_log(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", **{**PBT, "r": 1_500, "explore": "pb2"})
    queue = advance(study, 70)
    assert isinstance(queue.search.scheduler, PopulationBased)
    lineage = queue.search.scheduler.lineage
    plain = make_search(tmp_path / "p", **{**PBT, "r": 1_500})
    search = advance(plain, 70).search
    assert isinstance(search.scheduler, PopulationBased)
    same = [ours.config == theirs.config for ours, theirs in zip(lineage, search.scheduler.lineage, strict=False)]
    assert not all(same)
    again = TrialQueue.of(study).search
    assert isinstance(again.scheduler, PopulationBased)
    assert again.scheduler.lineage == lineage
    assert again.scheduler.seen == queue.search.scheduler.seen
    assert again.decide() == queue.search.decide()
    assert f"copied {lineage[0].donor}" in view.text(again, study)


def test_names_of_files_agree_with_the_trainers() -> None:
    assert layout.folder_of(Path(), 7).name.startswith(checkpoints.PREFIX)
    assert (layout.MANIFEST, layout.PIN) == (checkpoints.MANIFEST, checkpoints.PIN)


def wait_for_event(study: StudyFolder, seen: int, worker: "subprocess.Popen[str]") -> None:
    wait_until("an event", lambda: len(TrialQueue.of(study).log.records) > seen or worker.poll() is not None)


@pytest.mark.slow
def test_kills_at_any_moment_leave_lineage_and_winner_as_they_were(
    population: tuple[StudyFolder, Search, PopulationBased], tmp_path: Path
) -> None:
    study, rng = make_search(tmp_path / "s", lease=0.3, **PBT), random.Random(1)
    for number in range(3):
        seen = len(TrialQueue.of(study).log.records)
        # The first one's unit lasts until it is killed: however late that is on a busy machine, one unit is lost.
        worker = begin_worker(study, f"pool{number}", seconds=0.05 if number else 600.0)
        wait_for_event(study, seen, worker)
        time.sleep(rng.uniform(0.0, 0.8))
        with suppress(ProcessLookupError):  # its search came to the end
            os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        time.sleep(0.35)
    run_worker(study)
    search, (_, calm, calm_scheduler) = TrialQueue.of(study).search, population
    assert isinstance(search.scheduler, PopulationBased)
    assert search.lost_units >= 1
    assert search.scheduler.lineage == calm_scheduler.lineage
    assert {n: (t.key, t.values) for n, t in search.trials.items()} == {
        n: (t.key, t.values) for n, t in calm.trials.items()
    }
    assert search.scheduler.used == calm_scheduler.used  # nothing is counted twice
    test_only_checkpoints_that_can_still_be_copied_are_pinned((study, search, search.scheduler))
