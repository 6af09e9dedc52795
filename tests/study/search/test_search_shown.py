"""What others see of a search: an Optuna study, labels in MLflow, pictures, curves; all from the log alone."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import optuna
import pytest

from study.executors.jobs import QueueView
from study.search.labels import Labels
from study.search.leases import renew
from study.search.optuna_export import fill, url
from study.search.plots import draw, survivors
from study.search.settings import load, save
from study.search.state import started
from study.search.trial_queue import TrialQueue
from study.search.view import verdict
from study.status.observer import Observer
from study.storage.layout import StudyFolder
from study.storage.secrets import redactor
from study.tracking.facts import Facts
from study.tracking.mapping import run_summary
from study.tracking.source import Source
from study.tracking.syncer import Syncer
from sweeps.schedulers.pbt import PopulationBased
from tests.study.support.fake_store import FakeStore
from tests.study.support.searches import advance, make_search


def stored(study: StudyFolder) -> optuna.Study:
    return optuna.load_study(study_name=study.name, storage=url(study))


def test_optuna_shows_every_trial_and_follows_the_log(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", trials=14, eta=2, r=3_500)
    queue = advance(study, 12, seed=1)
    assert fill(study) == len(queue.search.trials)
    half = stored(study).trials
    assert {t.state.name for t in half} >= {"RUNNING", "FAIL"}

    queue = advance(study, 200, seed=1, lose=0.0)
    assert queue.search.over
    assert fill(study) == fill(study) == 14
    trials = stored(study).trials
    for ours, theirs in zip(queue.search.trials.values(), trials, strict=True):
        finite = {at: value for at, value in ours.values.items() if math.isfinite(value)}
        assert theirs.params == dict(ours.config)
        assert theirs.intermediate_values == finite
        assert theirs.user_attrs["point"] == ours.key
        word = verdict(queue.search, ours)
        assert theirs.user_attrs["verdict"] == word
        state = {"completed": "COMPLETE", "failed": "FAIL"}.get(word, "PRUNED")
        assert theirs.state.name == state
    best = queue.search.incumbent
    assert best is not None and stored(study).best_trial.user_attrs["point"] == best.key
    assert stored(study).user_attrs["over"] is True
    assert stored(study).metric_names == ["validation loss [nats per token]"]

    # More trials are allowed: what Optuna has as pruned goes on, so it is written anew from the log.
    settings = load(study)
    assert settings is not None
    save(study, type(settings)(**{**vars(settings), "trials": 16}))
    queue = advance(study, 300, seed=2)
    assert fill(study) == 16
    again = stored(study).trials
    study.optuna.unlink()
    fill(study)
    rebuilt = stored(study).trials
    assert [(t.state, t.params, t.intermediate_values, t.user_attrs, t.values) for t in again] == [
        (t.state, t.params, t.intermediate_values, t.user_attrs, t.values) for t in rebuilt
    ]


def test_optuna_takes_conditional_spaces_and_two_objectives(tmp_path: Path) -> None:
    space = {
        "optim.name": {"kind": "choice", "values": ["adamw", "muon"], "ordered": False},
        "optim.momentum": {"kind": "interval", "low": 0.8, "high": 0.99, "log": False},
    }
    conditions = {"optim.momentum": {"on": "optim.name", "values": ["muon"]}}
    changes = {"conditions": conditions, "sampler": "tpe", "objectives": ("loss", "gpu_seconds"), "scheduler": "random"}
    study = make_search(tmp_path / "s", space=space, **changes)
    advance(study, 12, lose=0.0)
    assert fill(study) == 12
    trials = stored(study).trials
    assert all(("optim.momentum" in t.params) == (t.params["optim.name"] == "muon") for t in trials)
    assert all(t.values is not None and t.values[1] == 1.0 for t in trials)
    assert stored(study).best_trials


def test_a_study_that_is_no_search_has_no_trials(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a search"):
        fill(StudyFolder(tmp_path))


def test_labels_say_rung_bracket_and_verdict_as_the_search_goes_on(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", trials=30)
    labels = Labels(study)
    labels.refresh()
    assert labels.of("0" * 12) == {}
    queue = advance(study, 10, lose=0.0)
    labels.refresh()
    for trial in queue.search.trials.values():
        expected = {"trial": str(trial.number), "bracket": "0", "rung": str(trial.at), "verdict": "paused"}
        assert dict(labels.of(trial.key)) == expected
    queue = advance(study, 200, seed=1, lose=0.0)
    labels.refresh()
    said = [labels.of(trial.key)["verdict"] for trial in queue.search.trials.values()]
    assert said.count("completed") == sum(t.at == queue.settings.R for t in queue.search.trials.values()) > 0


def test_a_search_that_is_stopped_ends_in_mlflow_once_the_leases_of_its_dead_workers_run_out(tmp_path: Path) -> None:
    study, store = make_search(tmp_path / "s", lease=60.0), FakeStore()
    queue = advance(study, 3, lose=0.0)
    unit = queue.search.decide()
    assert unit is not None
    key = "f" * 12 if not queue.search.is_begun(unit) else queue.search.trials[unit.trial].key
    number = len(queue.log.records)
    renew(study, number)
    queue.log.append([started(unit, key, "w", 1.0, time.time())])
    keys = sorted({key, *(trial.key for trial in queue.search.trials.values())})
    study.points.write_text("".join(json.dumps({"key": k, "config": {}, "overrides": []}) + "\n" for k in keys))
    for each in keys:
        study.run(each).path.mkdir(exist_ok=True)
        study.run(each).config.write_text("seed: 1\n")
    TrialQueue.of(study).record_control("stopped")
    syncer = Syncer(study, store, "http://h", redactor({}))

    def statuses() -> dict[str, str]:
        syncer.sync()
        return {run.tags.get("point_key", ""): run.status for run in store.runs.values()}

    assert statuses()[""] == "RUNNING", "its worker may live"
    os.utime(study.leases / str(number), (1.0, 1.0))
    assert statuses() == dict.fromkeys(["", *keys], "KILLED"), "no file of the study has grown since"


def test_mlflow_runs_carry_what_the_search_says_and_whom_a_point_goes_on_from(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    queue = advance(study, 6, lose=0.0)
    keys = [trial.key for trial in queue.search.trials.values()]
    parent = {"schedule": {"parent": "0123456789ab@1024"}}
    lines = [{"key": key, "config": parent if key == keys[0] else {}, "overrides": []} for key in keys]
    study.points.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = Source(study, Observer(study, lambda ids: QueueView()))
    source.refresh(())
    first, other = source.labels(keys[0]), source.labels(keys[1])
    assert first["parent"] == "0123456789ab@1024" and "parent" not in other
    assert other["rung"] == str(queue.search.trials[1].at)
    card = run_summary(Facts("running"), "local", "abc", str, first)
    assert {name: card.tags[name] for name in first} == first
    rungs = {key: source.labels(key)["rung"] for key in keys}
    advance(study, 40, seed=3, lose=0.0)
    source.refresh(())
    assert {key: source.labels(key)["rung"] for key in keys} != rungs


def test_mlflow_ends_with_the_search(tmp_path: Path) -> None:
    """Runs that wait at a rung are scheduled while they may go on, and killed once none does."""
    study, store = make_search(tmp_path / "runs" / "s", eta=2, r=13_504), FakeStore()
    queue = advance(study, 8, lose=0.0)

    def write_runs() -> None:
        keys = dict.fromkeys(r["key"] for r in queue.log.records if r["event"] == "started")
        lines = [{"key": key, "config": {}, "overrides": []} for key in keys]
        study.points.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for trial in queue.search.trials.values():
            study.run(trial.key).path.mkdir(exist_ok=True)
            study.run(trial.key).config.write_text("{}")
            if trial.at == queue.settings.R:
                study.run(trial.key).outcome.write_text('{"state": "completed", "tokens": 27008}')

    def statuses() -> list[str]:
        syncer.sync()
        return [run.status for run in store.runs.values()]

    write_runs()
    syncer = Syncer(study, store, "fake", redactor({}), None)
    found = statuses()
    assert found[0] == "RUNNING" and {"SCHEDULED"} <= set(found[1:]) <= {"SCHEDULED", "FINISHED"}
    queue = advance(study, 1_000, lose=0.0)
    assert queue.search.over
    write_runs()
    found = statuses()
    finished = sum(t.at == queue.settings.R for t in queue.search.trials.values())
    assert (found[0], found.count("FINISHED"), found.count("KILLED")) == ("FINISHED", 1 + finished, 12 - finished)
    settings = load(study)
    assert settings is not None
    save(study, type(settings)(**{**vars(settings), "trials": 14}))  # it goes on, and so may they
    syncer = Syncer(study, store, "fake", redactor({}), None)
    found = statuses()
    assert found[0] == "RUNNING" and found.count("SCHEDULED") == 12 - finished


def test_optunas_parameters_of_a_member_are_what_its_weights_were_trained_with(tmp_path: Path) -> None:
    space = {"optim.lr": {"kind": "interval", "low": 1e-3, "high": 1e-1, "log": True}}
    study = make_search(tmp_path / "p", scheduler="pbt", trials=6, r=3_000, space=space)
    queue = advance(study, 400, lose=0.0)
    scheduler, best = queue.search.scheduler, queue.search.incumbent
    assert isinstance(scheduler, PopulationBased) and best is not None and queue.search.over and scheduler.lineage
    fill(study)
    for member, theirs in zip(queue.search.trials.values(), stored(study).trials, strict=True):
        lived = [(at, dict(config)) for at, config in scheduler.schedule(member.number) if at < member.at]
        told = json.loads(theirs.user_attrs["schedule"])
        assert [(step["tokens"], step["config"]) for step in told] == lived
        assert theirs.params == lived[-1][1]
    assert stored(study).best_params == dict(scheduler.schedule(best.number)[-1][1])
    assert any(dict(queue.search.first[n]) != t.params for n, t in enumerate(stored(study).trials))


def test_pictures_are_drawn_of_a_search_and_of_a_population(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", trials=30)
    queue = advance(study, 200)
    assert {path.stem for path in draw(queue.search, tmp_path / "out")} == {"curves", "settings", "survival"}
    rows = survivors(queue.search)
    assert rows[0][1] == len([t for t in queue.search.trials.values() if t.values])
    assert all(further <= came and further + bad <= came for _, came, further, bad in rows)
    assert [came for _, came, _, _ in rows] == sorted((came for _, came, _, _ in rows), reverse=True)
    space = {"optim.lr": {"kind": "interval", "low": 1e-3, "high": 1e-1, "log": True}}
    population = make_search(tmp_path / "p", scheduler="pbt", trials=6, r=3_000, space=space)
    queue = advance(population, 60, lose=0.0)
    drawn = draw(queue.search, tmp_path / "pbt")
    assert {path.stem for path in drawn} == {"curves", "settings", "lineage", "schedule"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_an_empty_search_has_pictures_too(tmp_path: Path) -> None:
    assert len(draw(TrialQueue.of(make_search(tmp_path / "s")).search, tmp_path / "out")) == 3
