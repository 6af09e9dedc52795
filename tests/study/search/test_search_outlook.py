"""What a search says before it starts of what it will come to, and after it of what it lacked."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from study.commands.status import run as status
from study.reconcile import search_workers
from study.search import outlook, view
from study.search.course import Pace, by_chance, course
from study.search.settings import load, save, with_rungs_of
from study.search.state import Search, ended, reported, started
from study.search.trial_queue import TrialQueue
from study.storage.files import locked
from study.storage.layout import StudyFolder
from study.sweep.__main__ import main
from study.workers import pool
from tests.study.support.searches import advance, make_search, search_settings

RATE = "optim.lr=interval(1e-4,1e-2)"
R = 27_008


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry(*words: str) -> int:
    return main([*words, "budget.tokens=65536", "dry_run=true", "-m", RATE])


def test_a_dry_run_says_what_a_search_will_come_to(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry("search=hyperband", "search.trials=12") == 0
    said = capsys.readouterr().out
    assert "4 brackets, given the same compute, whose trials start at 2,428 7,284 21,852 65,536 tokens" in said
    assert "FLOPs, " in said and "with these workers, assuming" in said
    assert "trained to the end" in said and "about 0 of" not in said
    assert dry("search=asha_promotion", "search.trials=20") == 0
    said = capsys.readouterr().out
    assert "of simulations with random losses, none was: search.trials=27 always trains one to the end" in said
    assert dry("search=asha_promotion", "search.trials=27") == 0
    assert "none was" not in capsys.readouterr().out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["search=asha", "search.trials=6"],
            "search.trials=6 is too few to train any trial to the end, whatever the losses",
        ),
        (["search=asha", "search.trials=2", "search.min_tokens=20000"], "search.trials=3 always trains one to the end"),
        (
            ["search=random", "search.budget_flops=1e6"],
            "search.budget_flops=1e6 is too small to train any trial to the end",
        ),
        (
            ["search=hyperband", "search.trials=2"],
            "search.trials=4 always trains one to the end, since only the last of 4 brackets trains its first trial to "
            "the end; a higher search.min_tokens makes fewer brackets",
        ),
        (["search=asha", "search.min_tokens=20"], "the first rung, at 30 tokens, is before the end of the first"),
        (["search=pbt", "search.min_tokens=20"], "the first rung, at 20 tokens, is before the end of the first"),
    ],
)
def test_what_can_finish_nothing_is_refused_before_it_starts(
    words: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry(*words) == 2
    assert message in capsys.readouterr().err
    assert list(here.iterdir()) == []


def few(*words: str, settings: int) -> int:
    values = ",".join(f"{k}e-3" for k in range(1, settings + 1))
    return main([*words, "budget.tokens=65536", "dry_run=true", "-m", f"optim.lr={values}"])


@pytest.mark.parametrize(
    ("scheduler", "settings", "does"),
    [
        ("asha_promotion", 3, "give search.min_tokens=21846, which makes fewer rungs"),
        ("asha_promotion", 2, "take search=random, which trains every trial to the end"),
        ("hyperband", 3, "give search.min_tokens=7282, which makes fewer brackets"),
        ("hyperband", 2, "give search.min_tokens=21846, which makes fewer brackets"),
    ],
)
def test_a_space_with_too_few_settings_is_said_to_be_what_is_short(
    scheduler: str, settings: int, does: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert few(f"search={scheduler}", "search.trials=27", settings=settings) == 2
    said = capsys.readouterr().err
    enough = {"asha_promotion": 27, "hyperband": 4}[scheduler]
    assert f"the space has only {settings} settings, too few to train any trial to the end" in said
    assert f": it takes {enough} trials, since " in said and "search.trials=27" not in said
    assert f": search over at least {enough} settings, or {does}" in said
    assert few(f"search={scheduler}", "search.trials=27", settings=enough) == 0
    assert "none was" not in capsys.readouterr().out
    helps = does.removeprefix("give ").removeprefix("take ").split(",")[0]
    assert few(f"search={scheduler}", helps, "search.trials=27", settings=settings) == 0
    assert "none was" not in capsys.readouterr().out


def test_where_a_space_may_be_too_small_the_dry_run_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert few("search=asha_promotion", "search.trials=27", settings=18) == 0
    assert "none was: it takes 27 trials, since one in 3 is promoted from each of 3 rungs: search over at least 27" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("words", [["search=random"], ["search=asha_promotion"], ["search=random", "search.workers=5"]])
def test_gpu_hours_with_which_nothing_would_be_trained_are_said_with_some_that_do(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the assumed speed a trial takes about seven seconds, and starting one five."""
    given = [*words, "search.trials=27"]
    assert dry(*given, "search.budget_gpu_hours=3e-3") == 0
    said = capsys.readouterr().out
    assert "  about 0 of " in said and "assuming 2e10 FLOP/s a core" in said
    found = re.search(
        r"in 100 % of simulations with random losses, none was: (search\.budget_gpu_hours=\S+) would do even",
        said,
    )
    assert found is not None and 0.004 < float(found[1].partition("=")[2]) < 1.0
    assert dry(*given, found[1]) == 0
    said = capsys.readouterr().out
    assert "none was" not in said and re.search(r"  about [1-9]\S* of \d+ trials? trained to the end", said)
    assert list(here.iterdir()) == []


def test_the_gpu_hours_that_are_named_do_for_slow_workers_and_only_what_is_short_is_named() -> None:
    asked = search_settings(scheduler="random", trials=5, gpu_hours=0.5 * R / 3600)
    found = outlook.outlook(asked, [1.0], 1, Pace(1.0, 5.0))
    assert found.possible and found.none == 1.0 and found.hours is not None and found.hours > 4 * R / 3600
    slow = course(replace(asked, gpu_hours=found.hours), 1.0, 1, by_chance(0), 10_000, pace=Pace(0.25, 20.0))
    assert slow.finished
    found = outlook.outlook(replace(asked, gpu_hours=1e-3 * R / 3600), [1.0], 1, Pace(1.0, 5.0))
    assert not found.possible and found.untimed and found.hours is not None
    found = outlook.outlook(replace(asked, budget=0.5 * R, gpu_hours=3 * R / 3600), [1.0], 1, Pace(1.0, 5.0))
    assert (found.possible, found.none, found.enough, found.hours) == (False, 1.0, R, None) and not found.untimed
    found = outlook.outlook(replace(asked, gpu_hours=9 * R / 3600), [1.0], 1, Pace(1.0, 5.0))
    assert (found.finished, found.none, found.hours) == (5, 0.0, None)


def test_gpu_hours_that_could_do_for_no_worker_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also for one four times as fast as is assumed."""
    given = ["search=random", "search.trials=4"]
    assert dry(*given, "search.budget_gpu_hours=0.0004") == 2
    said = capsys.readouterr().err
    assert (
        "search.budget_gpu_hours=0.0004 is too small to train any trial to the end, even by workers 4 times as" in said
    )
    found = re.search(r"about (\S+) is enough even for ones 4 times as slow, assuming 2e10 FLOP/s a core", said)
    assert found is not None
    assert dry(*given, f"search.budget_gpu_hours={found[1]}") == 0
    assert "none was" not in capsys.readouterr().out
    assert dry(*given, "search.budget_gpu_hours=1e-9") == 2
    said = capsys.readouterr().err
    assert "search.budget_gpu_hours=1e-09 is not allowed: it is less than 1 s of a worker, and no unit is given" in said
    assert dry("search=asha", "search.trials=6", "search.budget_gpu_hours=0.0004") == 2
    assert "search.trials=6 is too few" in capsys.readouterr().err, "no budget would do"


def test_units_that_all_ended_at_their_share_say_what_would_give_them_longer(tmp_path: Path) -> None:
    search = Search(search_settings(scheduler="random", trials=4, gpu_hours=0.008))
    search.price, count = lambda unit: 1.0, 0
    while (unit := search.decide()) is not None:
        reserved, number, count = search.reservation(unit, 1.0), search._count, count + 1
        assert reserved is not None and reserved >= 1.0
        search.apply(started(unit, f"key{unit.trial}", "w", 1.0, 0.0, reserved=reserved))
        search.apply({**ended(search.claims[number], "lost", "", 0.0, seconds=reserved), "limited": True})
    assert 3 < count < 29 and search.over and search.incumbent is None
    shown = view.text(search, StudyFolder(tmp_path / "s"))
    assert f"{count} units ended without a result (used up the device time that was set aside: {count})" in shown
    assert "lost with their workers" not in shown
    said = outlook.nothing_finished(search)
    found = re.search(r"that was set aside for it, (\S+) s at most: with (\S+)=(\S+) the first one gets (\S+) s", said)
    assert found is not None and found[2] == "search.budget_gpu_hours"
    larger = Search(search_settings(scheduler="random", trials=4, gpu_hours=float(found[3])))
    larger.price = search.price
    first = larger.decide()
    assert first is not None
    gets = larger.reservation(first, 1.0)
    assert gets is not None and gets >= float(found[4]) >= 4 * float(found[1]) - 0.01


@pytest.mark.parametrize("limits", [{}, {"budget": 1e15}])
def test_a_search_that_has_tried_its_whole_space_is_told_that(tmp_path: Path, limits: dict[str, object]) -> None:
    rates = {"optim.lr": {"kind": "choice", "values": [k / 1000 for k in range(1, 9)]}}
    study = make_search(tmp_path / "s", trials=27, r=1_001, space=rates, sampler="grid", **limits)
    search = advance(study, 1_000, lose=0.0).search
    assert search.over and len(search.trials) == 8
    assert outlook.nothing_finished(search).endswith(
        ": the space has only 8 settings, and it takes 27 trials, since one in 3 is promoted from each of 3 rungs: "
        "search over at least 27 settings, or give search.min_tokens=9003, which makes fewer rungs, in a new study "
        "(study.name=…)"
    )


def test_enough_trials_of_which_too_many_diverged_are_not_said_to_have_been_too_few(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", trials=27, r=1_001)
    search = advance(study, 1_000, seed=1, lose=0.25).search
    assert search.over and len(search.trials) == 27 and search.incumbent is not None
    assert outlook.nothing_finished(search).endswith(": more search.trials continue it")


@pytest.mark.parametrize(
    ("changes", "finished"),
    [
        ({"scheduler": "random", "trials": 5}, 5),
        ({"scheduler": "random", "trials": 5, "budget": 2.5 * R}, 2),
        ({"scheduler": "asha_promotion", "trials": 9, "r": 3_001}, 1),
    ],
)
def test_rehearsals_count_what_the_search_will_finish(changes: dict[str, object], finished: int) -> None:
    found = outlook.outlook(search_settings(**changes), [1.0, 1.0], 1)
    assert found.possible and found.none == 0.0
    if changes["scheduler"] == "random":  # where chance has no say
        assert found.finished == finished
        assert found.flops == found.clock == finished * R
    assert found.finished >= finished


def test_a_search_that_finished_nothing_says_so_and_what_would_have_been_enough(tmp_path: Path) -> None:
    study = make_search(tmp_path / "runs" / "s", trials=5, r=1_001)
    queue = advance(study, 1_000, lose=0.0)
    assert queue.search.over
    said = view.text(queue.search, study)
    assert "no trial was trained to the end: none was among the best of enough at each rung" in said
    assert "search.trials=27 always trains one to the end" in said
    assert view.as_json(queue.search, study)["nothing_finished"]

    class Options:
        study, runs, json = "s", tmp_path / "runs", False

    assert status(Options()) == 1  # type: ignore[arg-type]
    assert pool.watch(study) == 1
    settings = load(study)
    assert settings is not None
    save(study, type(settings)(**{**vars(settings), "trials": 27}))
    queue = advance(study, 1_000, lose=0.0)
    assert outlook.nothing_finished(queue.search) == ""
    assert any(trial.at == R for trial in queue.search.trials.values())


def test_a_budget_that_was_too_small_is_named_with_one_that_was_not(tmp_path: Path) -> None:
    search = Search(search_settings(trials=12, budget=0.5 * R, r=1_001))
    search.price = lambda unit: 1.0
    while (unit := search.decide()) is not None:
        number = search._count
        search.apply(started(unit, f"key{unit.trial}", "w", 1.0, 0.0))
        claim = search.claims[number]
        search.apply(reported(claim, unit.until, float(unit.trial), 0.0))
        search.apply(ended(claim, "reached", "", 0.0))
    best = search.incumbent
    assert best is not None and 0 < best.at < R
    found = re.search(
        r"the budget is used up: search\.budget_flops=(\S+) would have brought the best one there",
        outlook.nothing_finished(search),
    )
    needed = search.spent + R - best.at
    assert found is not None and needed <= float(found[1]) < 1.01 * needed
    for seed, said in ((0, "with a finite loss: 1 came there and diverged"), (4, "more search.trials continue it")):
        study = make_search(tmp_path / f"h{seed}", scheduler="hyperband", trials=20)
        assert said in outlook.nothing_finished(advance(study, 500, seed=seed, lose=0.3).search)
    failing = advance(make_search(tmp_path / "f", trials=4), 1_000, lose=1.0)
    assert outlook.nothing_finished(failing.search) == "no trial was trained to the end: 4 of 4 failed or diverged"


def test_a_second_driver_changes_nothing_and_is_told_who_is_the_first(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "stay", lambda *_: 0)
    monkeypatch.setattr(pool, "gather", lambda *_: {})
    monkeypatch.setattr(pool, "DRIVER_SECONDS", 0.0)
    words = ["study.name=t", "search=random", "budget.tokens=65536"]
    assert main([*words, "search.trials=4", "-m", RATE]) == 0
    study = StudyFolder(here / "runs" / "t")
    before = {path: path.read_bytes() for path in (study.search, study.study, study.points)}
    more = [*words, "search.trials=6", "search.enqueue=[{optim.lr:3e-4}]", "-m", RATE]
    with locked(study.controller):
        assert main(more) == 1
    said = capsys.readouterr().err
    assert f"study t is being searched by another command, and nothing was changed: {study.controller} is held" in said
    assert f"another process: {os.getpid()} on {os.uname().nodename}" in said
    assert f"kill {os.getpid()}" in said and "python -m study status" in said
    assert {path: path.read_bytes() for path in before} == before
    assert TrialQueue.of(study).search.queue == [] and TrialQueue.of(study).settings.trials == 4
    assert main(more) == 0
    assert len(TrialQueue.of(study).search.queue) == 1 and TrialQueue.of(study).settings.trials == 6


def test_a_command_that_is_refused_the_submission_has_changed_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(search_workers, "submit_workers", lambda folder, services, cluster, count: sent.append(count))
    monkeypatch.setattr(pool, "gather", lambda *_: {})
    monkeypatch.setattr("study.reconcile.step.SUBMITTER_SECONDS", 0.0)
    words = ["study.name=t", "search=random", "budget.tokens=65536", "cluster=slurm", "search.workers=2"]
    assert main([*words, "search.trials=4", "-m", RATE]) == 0 and sent == [2]
    study = StudyFolder(here / "runs" / "t")
    before = {path: path.read_bytes() for path in (study.search, study.study, study.points)}
    with locked(study.submitting):
        assert main([*words, "search.trials=6", "search.enqueue=[{optim.lr:3e-4}]", "-m", RATE]) == 1
    assert f"{study.submitting} is held by another process" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before and sent == [2]
    assert TrialQueue.of(study).search.queue == []


def test_a_holder_that_is_gone_is_not_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        path.write_text(f"{os.uname().nodename} {2**22 + 1}\n")  # of a version that does not sign: the one before's
        with pytest.raises(TimeoutError, match="another process: try again"), locked(path, 0.0):
            pass


def test_a_search_that_has_begun_goes_on_where_a_new_one_would_be_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "stay", lambda *_: 0)
    monkeypatch.setattr(pool, "gather", lambda *_: {})
    words = ["study.name=t", "search=asha_promotion", "budget.tokens=65536"]
    assert main([*words, "search.trials=27", "-m", RATE]) == 0
    study = StudyFolder(here / "runs" / "t")
    said = json.loads(study.search.read_text())
    study.search.write_text(json.dumps({**said, "r": 100}))  # as an earlier version let one begin
    advance(study, 6, lose=0.0)
    assert main([*words, "search.min_tokens=100", "search.trials=27", "-m", RATE]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "begun: " in said and "/27 trials" in said and "python -m study status t" in said
    assert dry("study.name=other", "search=asha_promotion", "search.min_tokens=100", "search.trials=27") == 2
    assert "before the end of the first optimizer step" in capsys.readouterr().err


def test_a_lock_of_links_names_its_holder_too(tmp_path: Path) -> None:
    (tmp_path / ".locks").write_text("link\n")
    message = f"is held by another process: {os.getpid()} on {os.uname().nodename}"
    with locked(tmp_path / "lock"), pytest.raises(TimeoutError, match=message), locked(tmp_path / "lock", 0.0):
        pass


def test_the_guard_begins_at_a_lower_rung_where_an_optimizer_step_comes_before_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "stay", lambda *_: 0)
    monkeypatch.setattr(pool, "gather", lambda *_: {})
    begun = {}
    for name, search, tokens in (
        ("guard", "asha_guarded", 810_000), ("short", "asha_guarded", 81_000), ("asha", "asha_promotion", 810_000)
    ):  # fmt: skip
        words = [f"study.name={name}", f"search={search}", "batch.tokens=2048", f"budget.tokens={tokens}"]
        assert main([*words, "search.trials=27", "-m", RATE]) == 0
        found = load(StudyFolder(here / "runs" / name))
        assert found is not None
        begun[name] = (found.r, round(found.R / found.r))
    assert [parts for _, parts in begun.values()] == [81, 27, 27]
    assert begun["short"][0] >= 2048 > begun["short"][0] / 3, "a rung lower lies before the first step"


def test_a_search_of_the_version_before_keeps_its_rungs() -> None:
    there = search_settings(r=1_000)
    for asked in (1_001, None):
        assert with_rungs_of(there, search_settings(r=1_001), asked).r == 1_000
        assert with_rungs_of(None, search_settings(r=1_001), asked).r == 1_001
    assert with_rungs_of(there, search_settings(r=3_001), 3_001).r == 3_001
    assert with_rungs_of(there, search_settings(r=334), None).r == 1_000, "that version began at R / eta^3"
    assert with_rungs_of(there, search_settings(r=334), 334).r == 334
    assert with_rungs_of(there, search_settings(r=334, eta=4), None).r == 334, "refused as another search"
