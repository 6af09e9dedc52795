"""What MLflow was sent of a study makes the same table of curves as the study's own files."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from study.__main__ import main
from study.records import ledger
from study.search.curves import from_mlflow, from_runs
from study.storage.layout import StudyFolder
from study.tracking.__main__ import main as tracking
from sweeps.replay.__main__ import main as replay
from tests.study.search.test_search_curves import finished
from tests.study.support.made import rolled_back


def test_an_experiment_becomes_the_table_that_its_runs_are(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = StudyFolder(tmp_path / "s")
    for lr in (0.1, 0.2, 0.3):
        finished(study, lr)
    finished(study, 0.4, "diverged")
    finished(study, 0.5, "running")
    study.study.write_text(f"study: {{name: s}}\ntracking: {{enabled: true, uri: 'sqlite:///{database}'}}\n")
    assert tracking(["sync", str(study.path)]) == 0
    uri = ["--uri", f"sqlite:///{database}"]
    assert main(["export-curves", str(study.path), str(tmp_path / "files.npz")]) == 0
    assert main(["export-curves", "mlflow:s", str(tmp_path / "mlflow.npz"), *uri]) == 0
    said = capsys.readouterr().out
    assert said.count("4 runs of 8,192 tokens, 4 columns") == 2
    assert said.count("left out: 1 not trained to the end") == 2
    with np.load(tmp_path / "files.npz") as files, np.load(tmp_path / "mlflow.npz") as store:
        assert list(files) == list(store)
        order = [list(store["keys"]).index(key) for key in files["keys"]]
        for name in ("keys", "val_loss", "config", "epoch_cost"):
            np.testing.assert_array_equal(store[name][order], files[name])
        assert list(store["config_names"]) == list(files["config_names"])

    out = tmp_path / "out.json"
    words = [
        f"curves={tmp_path / 'mlflow.npz'}",
        "scheduler=random,asha_promotion",
        "seeds=2",
        "budgets=2",
        f"out={out}",
    ]
    assert replay(words) == 0
    assert set(json.loads(out.read_text())) == {"random", "asha_promotion"}
    assert main(["export-curves", "mlflow:nothing", str(tmp_path / "no.npz"), *uri]) == 2
    assert "has no such experiment" in capsys.readouterr().err


def test_of_a_run_that_went_back_the_store_gives_the_path_that_it_took(database: Path, tmp_path: Path) -> None:
    study, lines = StudyFolder(tmp_path / "s"), rolled_back()
    run = study.run(finished(study, 0.1, "running"))
    study.study.write_text(f"study: {{name: s}}\ntracking: {{enabled: true, uri: 'sqlite:///{database}'}}\n")
    for end in (8, len(lines)):  # what is sent first is abandoned then
        run.metrics.write_text("".join(lines[:end]))
        assert tracking(["sync", str(study.path)]) == 0
    with closing(sqlite3.connect(database)) as connection:
        recorded = "select count(*) from metrics where key like '%/%' or key = 'tokens'"  # not what the run came to
        sent = connection.execute(recorded).fetchone()
        late = [json.dumps({**(row := json.loads(line)), "time": row["time"] + 99.0}) + "\n" for line in lines[-9:]]
        run.metrics.write_text("".join([*lines[:-9], *late]))  # the end was lost, with a rollback, and written again
        study.tracking.unlink()
        assert tracking(["sync", str(study.path)]) == 0
        assert connection.execute(recorded).fetchone() == sent, "no value is there twice"
    (ours,), (stored,) = from_runs(study), from_mlflow(f"sqlite:///{database}", "s")
    with closing(sqlite3.connect(database)) as connection, connection:  # as earlier versions named them
        for table in ("metrics", "latest_metrics"):
            connection.execute(f"update {table} set key = replace(key, '/', '_')")
    assert from_mlflow(f"sqlite:///{database}", "s") == [stored]
    assert stored.losses == ours.losses == {step * 128: step / 10 for step in (2, 4, 6, 8)}


def test_a_run_that_diverged_before_the_path_that_it_left_says_where_it_ended(database: Path, tmp_path: Path) -> None:
    study, lines = StudyFolder(tmp_path / "s"), rolled_back()
    run = study.run(finished(study, 0.1, "running"))
    study.study.write_text(f"study: {{name: s}}\ntracking: {{enabled: true, uri: 'sqlite:///{database}'}}\n")

    def latest() -> dict[str, float]:
        assert tracking(["sync", str(study.path)]) == 0
        with closing(sqlite3.connect(database)) as connection:
            points = "select run_uuid from tags where key = 'role' and value = 'run'"
            asked = f"select key, value from latest_metrics where run_uuid in ({points})"
            return dict(connection.execute(asked).fetchall())

    length = next(place for place, line in enumerate(lines) if '"rollback"' in line)
    run.metrics.write_text("".join(lines[:length]))  # to step 6, all of which is sent
    assert not [name for name in latest() if name.startswith("end/")], "it has not gone back yet"
    run.metrics.write_text("".join(lines[: length + 2]))  # its rollback to step 3, and step 4 anew, where it diverges
    run.outcome.write_text(json.dumps({"state": "diverged", "step": 4, "tokens": 4 * 128, "loss": {}}))
    found = latest()
    assert (found["train/loss"], found["tokens"]) == (106.0, 6 * 128.0), "of the path that it left"
    assert {name: value for name, value in found.items() if name.startswith("end/")} == {
        "end/step": 4.0, "end/tokens": 4 * 128.0, "end/train_loss": 204.0, "end/validation_loss": 0.2,
    }  # fmt: skip
    with closing(sqlite3.connect(database)) as connection:
        steps = connection.execute("select distinct step from metrics where key like 'end/%'").fetchall()
    assert steps == [(0,)], "the next end may be at an earlier step"


def test_a_copy_of_a_study_has_runs_of_its_own(database: Path, tmp_path: Path) -> None:
    study = StudyFolder(tmp_path / "runs" / "s")
    study.path.parent.mkdir()
    key = finished(study, 0.1, "running")
    ledger.append(study, "intent", name="s.w", executor="slurm", keys=[key], resources={}, code=None)
    study.study.write_text(f"study: {{name: s}}\ntracking: {{enabled: true, uri: 'sqlite:///{database}'}}\n")
    assert tracking(["sync", str(study.path)]) == 0
    for name in ("runs/copy", "others/s"):  # another experiment, and one of the same name
        copy = StudyFolder(Path(shutil.copytree(study.path, tmp_path / name)))
        for _ in range(2):
            assert tracking(["sync", str(copy.path)]) == 0
    assert tracking(["sync", str(study.path)]) == 0
    with closing(sqlite3.connect(database)) as connection:
        kept = "select experiments.name, count(*) from runs join experiments using (experiment_id) group by 1"
        assert dict(connection.execute(kept).fetchall()) == {"s": 4, "copy": 2}, "a run and the study's own of each"
        runs = connection.execute(
            "select count(distinct run_uuid) from metrics where key = 'validation/loss'"
        ).fetchone()
    assert runs == (3,)
    shutil.rmtree(study.path)
    assert tracking(["sync", str(tmp_path / "runs" / "copy")]) == 0
    with closing(sqlite3.connect(database)) as connection:
        assert dict(connection.execute(kept).fetchall()) == {"s": 4, "copy": 2}, "it keeps them"


def test_a_project_that_was_moved_goes_on_in_its_own_database(database: Path, tmp_path: Path) -> None:
    from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

    old, new = tmp_path / "old", tmp_path / "new"
    study = StudyFolder(old / "runs" / "s")
    study.path.parent.mkdir(parents=True)
    run = study.run(finished(study, 0.1, "running"))
    database.rename(old / "mlflow.db")
    uri = f"sqlite:///{old}/mlflow.db"
    study.study.write_text(f"tracking: {{enabled: true, uri: '{uri}'}}\npaths: {{runs: {old}/runs}}\n")
    run.config.write_text("{}\n")
    assert tracking(["sync", str(study.path)]) == 0
    old.rename(new)
    _artifact_repos_cache.clear()  # MLflow remembers in a process where a run's artifacts lay; this is another one
    there = StudyFolder(new / "runs" / "s")
    (new / "reports" / "s").mkdir(parents=True)
    (new / "reports" / "s" / "report.html").write_text("<html>")
    assert tracking(["sync", str(there.path)]) == 0
    assert not old.exists()
    assert [p.parent.name for p in new.rglob("report.html") if "mlartifacts" in p.parts] == ["report"]
    with closing(sqlite3.connect(new / "mlflow.db")) as connection:
        assert connection.execute("select count(*) from runs").fetchone() == (2,), "no run is there twice"
        places = connection.execute("select artifact_uri from runs").fetchall()
    assert all(place.startswith(f"file://{new}/mlartifacts/s/") for (place,) in places)
