"""`measure=` of `python -m study plan parallel`: layouts that are run, beside what was predicted of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from study.__main__ import main
from study.bench import layouts
from study.config.schema import ClusterConfig
from study.failures.kinds import Kind
from study.planning.parallel.answer import Answer, answer
from study.planning.parallel.measured import MEASURED, Measured, Measurement, columns, fields, table, verdict
from study.planning.parallel.question import Measuring, ask
from study.records.points import load_points
from study.status.states import PointState, PointStatus
from study.storage.layout import RunFolder, StudyFolder
from study.watch.follow import INTERRUPTED
from tests.study.planning.parallel.questions import CPU, config, question
from tests.warm_trainer import trainer
from train.spec.step_time import step_time

TINY = ["model=tiny", "model.width=32", "model.layers=1", "data.vocab_size=512", "data.sequence_length=32"]
WORDS = [f"cluster={CPU}", "batch.tokens=256", *TINY, "parallel.tp=1", "parallel.cp=1"]


@pytest.fixture(scope="session")
def found() -> Answer:
    return answer(question("gpus=8", "precision=bf16", "parallel.pp=1", "top=3"), step_time)


def measurement(*rows: Measured, interrupted: bool = False) -> Measurement:
    return Measurement("layouts", 10, rows, 0, interrupted)


def test_two_ranks_are_measured_over_gloo_and_stay_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUDY_TRAINER", trainer())
    words = [*WORDS, "measure=1", "steps=4", "out=made"]
    assert main(["plan", "parallel", *words, "--json"]) == 0
    out, told = capsys.readouterr()
    said = json.loads(out)
    study, (row,) = said["measured"]["study"], said["measured"]["layouts"]
    assert row["state"] == MEASURED and row["peak"] is None and row["predicted_peak"] > 0
    assert row["seconds"] * row["tokens_per_second"] == pytest.approx(256, rel=1e-6)
    assert f"measuring 1 layout, 4 steps each: study {study}" in told and "1 completed" in told
    run = RunFolder(Path(row["run"]))
    assert json.loads(run.outcome.read_text())["world_size"] == 2
    assert not run.checkpoints.exists()
    (point,) = load_points(StudyFolder(tmp_path / "runs" / study)).values()
    settings = said["layouts"][0]["settings"]
    assert all(f"{key}={str(value).lower()}" in point.overrides for key, value in settings.items() if key != "schedule")
    (listed, *_) = csv.DictReader((tmp_path / "made" / "parallel.csv").open())
    assert float(listed["measured_seconds"]) == row["seconds"]
    assert "Predicted and measured" in (tmp_path / "made" / "parallel.md").read_text("utf-8")
    assert main(["plan", "parallel", *words]) == 0
    out, told = capsys.readouterr()
    assert "1 have been run before" in told
    assert "Measured fastest: No. 1" in out and "another study.name= runs them anew" in out


def test_what_was_measured_until_ctrl_c_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layouts, "step", lambda *given: None)
    monkeypatch.setattr(layouts, "follow", lambda *given: INTERRUPTED)
    assert main(["plan", "parallel", *WORDS, "measure=true", "--json"]) == 130
    said = json.loads(capsys.readouterr().out)["measured"]
    assert said["interrupted"] and [row["state"] for row in said["layouts"]] == ["not run yet"] * 3
    assert len({row["key"] for row in said["layouts"]}) == 3, "points of their own"

    def pressed(*given: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(layouts, "follow", pressed)
    assert main(["plan", "parallel", *WORDS, "measure=true"]) == 130
    assert "Nothing was measured. Interrupted: the same command goes on." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("status", "state", "error"),
    [
        (PointStatus("k", PointState.FAILED, kind=Kind.GPU_MEMORY, headline="no room"), "out of GPU memory", "no room"),
        (PointStatus("k", PointState.FAILED, kind=Kind.HOST_MEMORY, why="killed"), "out of host memory", "killed"),
        (PointStatus("k", PointState.FAILED, kind=Kind.CODE_ERROR, headline="bug"), "failed", "bug"),
        (PointStatus("k", PointState.TIME_LIMIT), "time_limit", ""),
        (PointStatus("k", PointState.QUEUED), "not run yet", ""),
    ],
)
def test_a_layout_that_was_not_measured_says_why(tmp_path: Path, status: PointStatus, state: str, error: str) -> None:
    row = layouts._row(2, RunFolder(tmp_path), status, 10)
    assert (row.place, row.state, row.error, row.seconds) == (2, state, error, None)


def test_measured_stands_beside_predicted(found: Answer) -> None:
    first, second = (one.time.seconds for one in found.best[:2])
    rows = [
        Measured(1, "a", "runs/a", MEASURED, seconds=2 * first, tokens_per_second=5.0, peak=10**9),
        Measured(2, "b", "runs/b", MEASURED, seconds=second, tokens_per_second=9.0),
        Measured(3, "c", "runs/c", "out of GPU memory", "no room"),
    ]
    done = measurement(*rows)
    said = table(found, done).rows
    assert [row[3] for row in said] == ["-50.0 %", "+0.0 %", "-"]
    assert (said[0][7], said[1][7], said[2][-1]) == ("1.00", "-", "out of GPU memory")
    slower = 100 * (2 * first / second - 1)
    told = verdict(found, done)
    assert told.startswith("Measured fastest: No. 2") and f"took {slower:.1f} % longer" in told
    assert "No. 3 out of GPU memory: no room (runs/c)." in told
    assert done.code == 1 and measurement(*rows[:2]).code == 0
    assert fields(found, done)["layouts"][0]["peak"] == 10**9
    assert columns(done)[3]["measured_seconds"] == "" and columns(None) == {}


def test_layouts_measured_alike_count_as_equal(found: Answer) -> None:
    taken = [Measured(1, "a", "", MEASURED, seconds=1.01), Measured(2, "b", "", MEASURED, seconds=1.0)]
    assert "took 1.0 % longer, which is as good as equal." in verdict(found, measurement(*taken))
    assert verdict(found, measurement(taken[0])) == "Measured fastest: No. 1, 1.01 s a step."


def test_jobs_have_whole_nodes_and_processes_a_slot() -> None:
    hosts = replace(question("gpus=16"), measuring=Measuring(1, 4))
    job = layouts.cluster_of(ClusterConfig(executor="slurm", partition="big"), hosts)
    assert (job.nodes, job.tasks_per_node, job.gpus_per_node, job.partition) == (2, 8, 8, "big")
    four = layouts.cluster_of(ClusterConfig(executor="slurm", gpus_per_node=4), hosts)
    assert (four.nodes, four.tasks_per_node, four.gpus_per_node) == (4, 4, 4)
    with pytest.raises(ValueError, match=r"gpus=16 is not a multiple of cluster.gpus_per_node=3: .* gpus=15"):
        layouts.cluster_of(ClusterConfig(executor="slurm", gpus_per_node=3), hosts)
    cpus = layouts.cluster_of(ClusterConfig(), question(f"cluster={CPU}"))
    assert (cpus.nodes, cpus.tasks_per_node, cpus.slots, cpus.warm) == (1, 2, 1, False)


def test_gpus_that_are_not_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "gpu_count", lambda: 2)
    with pytest.raises(ValueError, match=r"gpus=8 on this machine, which shows 2: take cluster.executor=slurm"):
        layouts.cluster_of(ClusterConfig(), question("gpus=8"))
    assert layouts.cluster_of(ClusterConfig(), question("gpus=2")).tasks_per_node == 2


def test_gpus_that_are_not_here_are_refused_before_layouts_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "gpu_count", lambda: 0)
    monkeypatch.setattr("study.planning.parallel.plan.answer", lambda *_: pytest.fail("it was searched"))
    with pytest.raises(ValueError, match=r"measure= runs gpus=8 on this machine, which shows 0"):
        layouts.reply(["cluster=h200_x8_400g", "model=tiny", "measure=true"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["measure=0"], "measure=0 is not allowed: true, false, or how many"),
        (["steps=8"], "steps=8 says how long layouts are run: give measure=true as well"),
        (["measure=2", "steps=2"], "steps=2 is not allowed: 4 or more"),
        (["mesure=2"], "unknown key 'mesure' in mesure=2: did you mean measure=2"),
    ],
)
def test_words_about_measuring_are_checked(words: Sequence[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ask(["cluster=h200_x8_400g", *words], config)


def test_words_say_how_many_and_how_long() -> None:
    assert ask([f"cluster={CPU}", "measure=true"], config).measuring == Measuring(3, 10)
    asked = ask([f"cluster={CPU}", "measure=4", "top=2", "steps=5"], config)
    assert (asked.measuring, asked.top) == (Measuring(4, 6), 4)
    assert ask([f"cluster={CPU}", "measure=false"], config).measuring is None
