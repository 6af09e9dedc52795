"""Where runs come from: what a study's records say is said, what they lack is absent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.inputs import provenance
from analysis.inputs.provenance import Code, Provenance
from analysis.report import origin
from analysis.report.figures.data import read_rows
from analysis.values import study_result
from tests.analysis import studies

DATA = Path(__file__).parents[1] / "data"


def lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def attempt(run: Path, number: int, began: float, ended: float | None, **job: Any) -> None:
    said = {"name": "s.1", "job_id": "7_0", "restart": 0, "host": "node1", "executor": "slurm", "code": "abc123-clean"}
    write(run / "attempts" / str(number) / "job.json", {**said, "started": began, **job})
    if ended is not None:
        write(run / "attempts" / str(number) / "outcome.json", {"state": "completed", "ended": ended})


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two points of one packed job on two shared GPUs, one retried, and one on a CPU that was never finished."""
    lines(
        tmp_path / "points.jsonl",
        *({"key": key, "config": {"runtime": {"threads": 3}}} for key in ("a", "b", "c", "d")),
    )
    shape = {"nodes": 1, "gpus_per_node": 2, "cpus_per_task": 8, "pack": 2, "pack_gpus": "mps"}
    lines(
        tmp_path / "ledger.jsonl",
        {"event": "waiting", "keys": []},
        {"event": "intent", "name": "s.1", "executor": "slurm", "resources": shape},
        {"event": "intent", "name": "l.1", "executor": "local", "resources": {"tasks": 2}},
    )
    attempt(tmp_path / "a", 1, 1000.0, 2800.0)
    attempt(tmp_path / "b", 1, 1100.0, 1900.0)
    attempt(tmp_path / "b", 2, 9000.0, 12600.0, restart=1, host="node2", code="abc123-ff00ff00")
    attempt(tmp_path / "c", 1, 500.0, 1500.0, name="l.1", job_id="local-1", executor="local", code="abc123-clean")
    attempt(tmp_path / "d", 1, 20000.0, None, name="l.1", job_id="local-2", executor="local", code="abc123-clean")
    write(tmp_path / "code" / "abc123-clean.json", {"sha": "abc123", "python": "3.12.1"})
    parent = {
        "tokens": 100,
        "flops": 1000.0,
        "flops_own": 1000.0,
        "torch": "2.11",
        "device": "cuda",
        "device_name": "H200",
    }
    write(tmp_path / "a" / "outcome.json", parent)
    write(tmp_path / "b" / "outcome.json", {**parent, "tokens": 150, "flops": 1500.0, "flops_own": 500.0})
    write(tmp_path / "c" / "outcome.json", {"tokens": 7, "torch": "2.11", "device": "cpu"})
    return tmp_path


def test_what_the_records_say_is_said(study: Path) -> None:
    found = provenance.read(study)
    assert found is not None
    assert found.code == (Code("abc123", ""), Code("abc123", "ff00ff00"))
    assert found.machines == ("node1", "node2")
    assert found.devices == {"H200": 2, "cpu": 1}
    assert (found.jobs, found.attempts) == ({"local": 2, "slurm": 2}, 5)
    assert found.gpu_hours == pytest.approx(2 * (1800 + 3600) / 3600), "points of one job hold its GPUs together"
    assert found.core_hours == pytest.approx(2 * 3 * 1000 / 3600)
    assert found.tokens == pytest.approx(100 + 50 + 7), "a branch without its parent's tokens"
    assert found.flops == 1500.0
    assert (found.began, found.ended) == (500.0, 12600.0)
    assert found.versions == ("Python 3.12.1", "torch 2.11")


def test_what_they_lack_is_absent(study: Path, tmp_path: Path) -> None:
    assert provenance.read(study / "none") is None
    (study / "ledger.jsonl").unlink()
    found = provenance.read(study)
    assert found is not None
    assert (found.gpu_hours, found.core_hours) == (None, None)
    made = tmp_path / "plain"
    studies.write_study(made, studies.isoflop(0).head(4))
    plain = provenance.read(made)
    assert plain is not None
    assert replace(plain, tokens=None, flops=None) == Provenance()


def test_torn_and_wrong_records_are_left_out(study: Path) -> None:
    with (study / "points.jsonl").open("a") as file:
        file.write('[1]\n{"key": "e", "conf')
    (study / "a" / "attempts" / "1" / "outcome.json").write_text("{")
    (study / "c" / "outcome.json").write_text("[]")
    found = provenance.read(study)
    assert found is not None
    assert found.attempts == 5 and found.devices == {"H200": 2}


def test_the_page_says_it_and_invents_nothing(study: Path) -> None:
    fit, rows = study_result.load(DATA / "fit_example.json"), read_rows(DATA / "runs.csv")
    text = origin.section(fit, rows, provenance.read(study))
    for part in ("commit abc123, unchanged; commit abc123 with changes (patch ff00ff00)", "node1, node2",
                 "H200 (2 runs)", "2 local jobs, 2 SLURM jobs, 5 attempts", "3.00 GPU-hours and 1.67 core-hours",
                 "1970-01-01 00:08 UTC, 3.4 h to the end"):  # fmt: skip
        assert part in text
    table = origin.section(fit, rows, None)
    assert "which has no record of code, machines and time" in table
    assert "commit" not in table and "hours" not in table
    assert "None" not in text + table and "nan" not in text + table


def test_the_command_that_fits_again_has_the_options_that_differ() -> None:
    fit = study_result.load(DATA / "fit_example.json")
    assert origin.command(replace(fit, record={})) == ""
    options = {"runs": "runs/my study", "form": "chinchilla", "budget": 1e22, "fix": {"E": 1.7}, "sensitivity": False,
               "approach": ["2"], "resamples": 1000, "where": ""}  # fmt: skip
    said = origin.command(replace(fit, record={"options": options}))
    assert said == (
        "python -m analysis.fit 'runs=runs/my study' approach=2 fix=E:1.7 budget=1e+22 sensitivity=no"
    ).replace("'runs=runs/my study'", "runs='runs/my study'")
