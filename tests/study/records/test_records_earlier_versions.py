"""What an earlier version wrote stays what it is: its points keep their keys, its studies go on."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, field, fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main as study
from study.records.frozen_config import canonical, key_of
from study.records.point import stored
from study.records.points import load_points
from study.search.settings import load, refuse_another
from study.storage.layout import StudyFolder
from study.sweep.__main__ import main as sweep
from tests.environment import python_path
from tests.study.support.recorded import DATA, SAID, unpack
from tests.study.support.studies import LIMIT_SECONDS
from tests.study.tracking.conftest import begun
from tests.warm_trainer import trainer
from train.spec import later
from train.spec.config import SCIENTIFIC, BudgetConfig, ModelConfig, RunConfig, key
from train.spec.resolve import resolve

UNFINISHED = "46f2ae765da8"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(unpack(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def lines(here: Path) -> list[str]:
    files = (here / "presets.jsonl", here / "runs/recorded/points.jsonl", here / "runs/searched/points.jsonl")
    return [line for file in files for line in file.read_text().splitlines()]


def test_every_recorded_point_keeps_its_key(here: Path) -> None:
    said = [json.loads(line) for line in lines(here)]
    assert len(said) == 52
    for entry in said:
        assert key_of(entry["config"]) == entry["key"], entry["overrides"]


def test_a_recorded_point_is_read_and_resolved_to_the_same_point(here: Path) -> None:
    for line in lines(here):
        point = stored(line)
        assert key_of(asdict(point.config)) == point.key
        assert key_of(asdict(resolve(point.config, begun=True))) == point.key, point.overrides


def test_a_new_key_has_a_former_value() -> None:
    recorded = json.loads((DATA / "keys.json").read_text())
    now = [name for name in _names(RunConfig) if name.partition(".")[0] in SCIENTIFIC]
    later_keys = {name: value for name, value in later.keys().items() if name.partition(".")[0] in SCIENTIFIC}
    assert not set(recorded["first"]) - set(now), "points that were frozen with these keys cannot be read any more"
    new = set(now) - set(recorded["first"]) - set(later_keys)
    assert not new, f"these keys change the key of every finished point: give them former=… (train.spec.later): {new}"
    plain = json.loads(json.dumps(later_keys))
    assert plain == recorded["later"], "later keys stand in keys.json with their former values, which never change"


def _names(kind: type, prefix: str = "") -> list[str]:
    inner = later._schema(kind)[1]
    found = []
    for spec in fields(kind):
        name = f"{prefix}{spec.name}"
        found += _names(inner[spec.name], f"{name}.") if spec.name in inner else [name]
    return found


def grown() -> type:
    """Return the schema with a key that came later, whose default has changed since, and a later section."""
    model = make_dataclass(
        "Grown", [("activation", str, key("gelu", "", former="silu"))], bases=(ModelConfig,), frozen=True
    )
    teacher = make_dataclass("Teacher", [("weight", float, key(0.5, "", former=0.0))], frozen=True)
    return make_dataclass(
        "GrownRun",
        [("model", model, field(default_factory=model)), ("teacher", teacher, field(default_factory=teacher))],
        bases=(RunConfig,),
        frozen=True,
    )


def frozen(**changes: Any) -> dict[str, Any]:
    """Return a frozen config with the keys of the first schema."""
    config = asdict(resolve(RunConfig(budget=BudgetConfig(tokens=2**20), **changes)))
    return later.without(json.loads(json.dumps(config)))


def test_a_config_without_a_later_key_is_the_one_with_its_former_value() -> None:
    kind, old = grown(), frozen()
    full = later.filled(old, kind)
    assert full["model"]["activation"] == "silu", "not the default of today"
    assert full["teacher"] == {"weight": 0.0}
    assert later.without(full, kind) == later.without(old, kind) == old


def test_another_value_of_a_later_key_is_another_config() -> None:
    kind = grown()
    full = later.filled(frozen(), kind)
    changed = {**full, "model": {**full["model"], "activation": "gelu"}}
    assert later.without(changed, kind)["model"]["activation"] == "gelu"
    assert later.without({**full, "teacher": {"weight": 0.5}}, kind)["teacher"] == {"weight": 0.5}


def test_a_config_that_a_person_wrote_has_the_defaults_of_today() -> None:
    kind, old = grown(), frozen()
    assert later.is_frozen(old, kind) and later.is_frozen(later.filled(old, kind), kind)
    assert not later.is_frozen({"model": {"width": 64}, "budget": {"tokens": 4096}}, kind)
    partial = {**old, "model": {"width": 64}}
    assert not later.is_frozen(partial, kind)


def test_a_schema_without_later_keys_hashes_what_it_always_did() -> None:
    config = frozen(seed=3)
    data = {name: value for name, value in config["data"].items() if name != "source"}
    science = {**{name: config[name] for name in SCIENTIFIC}, "data": data}
    assert canonical(config) == json.dumps(science, sort_keys=True, separators=(",", ":"))


def test_a_dry_run_over_a_recorded_study_finds_all_of_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [*SAID, "model.width=16,24", "optim.lr=1e-3,3e-3", "budget.tokens=8192,16384", "dry_run=true"]
    assert sweep(["-m", "study.name=recorded", *words]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "0 new, 8 already" in said and "(8 completed)" in said
    assert set(load_points(StudyFolder(here / "runs/recorded"))) == {
        p.name for p in (here / "runs/recorded").glob("[0-9a-f]" * 12)
    }


def test_a_recorded_study_has_its_status_and_its_law(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert study(["status", "recorded", "--json"]) == 0
    counts = json.loads(capfd.readouterr().out)["counts"]
    assert {name: number for name, number in counts.items() if number} == {"completed": 9, "interrupted": 1}
    from analysis.inputs.study import from_runs

    assert from_runs(here / "runs/recorded")["used"].sum() == 9


def test_a_recorded_search_is_read_and_taken_for_the_same(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert study(["status", "searched", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["search"] and shown["over"] and len(shown["trials"]) == 6
    folder = StudyFolder(here / "runs/searched")
    there = load(folder)
    assert there is not None
    base = {name: dict(value) if isinstance(value, dict) else value for name, value in there.base.items()}
    assert refuse_another(folder, there) == there
    base["runtime"].pop("measure_peak")  # as if the key had come since
    (folder.search).write_text(folder.search.read_text().replace('"measure_peak": false', '"measure_peak": false '))
    from dataclasses import replace

    assert refuse_another(folder, replace(there, base=base)) == there
    base["seed"] = 7
    with pytest.raises(ValueError, match="holds another search"):
        refuse_another(folder, replace(there, base=base))


@pytest.mark.slow
def test_a_recorded_run_goes_on_from_its_checkpoint(here: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "STUDY_TRAINER": trainer()}
    command = [sys.executable, "-m", "study", "retry", "recorded"]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    run = StudyFolder(here / "runs/recorded").run(UNFINISHED)
    assert json.loads(run.outcome.read_text())["tokens"] == 131072
    steps = [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] == 512
    assert "resumed from step-000000324" in run.attempt(2).stdout(0).read_text()


@pytest.mark.slow
def test_a_recorded_study_goes_to_mlflow_once_whatever_is_lost(here: Path) -> None:
    """Also where rows were sent, cut, and written again at another time, and tracking.json is gone."""
    folder = StudyFolder(here / "runs/recorded")
    metrics = folder.run(UNFINISHED).metrics
    for again in (False, True):
        if again:
            lines = metrics.read_text().splitlines()
            later = [json.loads(line) for line in lines[-9:]]
            late = [json.dumps({**record, "time": record["time"] + 99.0}) for record in later]
            metrics.write_text("\n".join([*lines[:-9], *late]) + "\n")
            folder.tracking.unlink()
        syncing = begun("study.tracking", "sync", "runs/recorded", "--uri", "sqlite:///m.db", cwd=here)
        _, trouble = syncing.communicate(timeout=LIMIT_SECONDS)
        assert syncing.returncode == 0, trouble
    with closing(sqlite3.connect(here / "m.db")) as database:
        (values,) = database.execute("select count(*) from metrics").fetchone()
        (steps,) = database.execute(
            "select count(*) from (select distinct run_uuid, key, step from metrics)"
        ).fetchone()
        (runs,) = database.execute("select count(*) from runs").fetchone()
    assert values == steps > 1000
    assert runs == 11, "ten points and the study"
