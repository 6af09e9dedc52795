"""One tidy frame from run folders, MLflow and foreign files; what is not used says why; kinds are never mixed."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import parametric
from analysis.inputs import frame
from analysis.inputs.columns import COLUMNS
from analysis.inputs.dataset import clusters
from analysis.inputs.rows import from_csv
from analysis.inputs.study import from_mlflow, from_runs
from analysis.results import evidence
from tests.analysis import studies


def flat(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a config as the syncer writes it to MLflow."""
    out: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            out |= flat(item, f"{prefix}{name}.")
        else:
            out[prefix + name] = item if isinstance(item, str) else json.dumps(item)
    return out


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "isoflop"
    studies.write_study(folder, studies.isoflop(0, noise=0.004), failed=2, waiting=3)
    return folder


def test_run_folders_become_rows(study: Path) -> None:
    found = from_runs(study)
    assert list(found.columns) == list(COLUMNS)
    assert len(found) == 22
    assert found.attrs["not_started"] == 3
    bad = found[~found["used"]]
    assert bad["drop_code"].tolist() == ["failed", "failed"]
    assert "no final loss" in bad["drop_reason"].iloc[0]
    rows = frame.used(found)
    assert len(rows) == 20
    np.testing.assert_array_equal(rows.labels, studies.BUDGETS)
    assert found["params_total"].iloc[0] == found["params"].iloc[0] + 90
    total = from_runs(study, "total")
    assert set(total["params_kind"]) == {"total"}
    assert total["params"].iloc[0] == found["params_total"].iloc[0]


def test_mlflow_gives_the_same_frame(study: Path, tmp_path: Path) -> None:
    from mlflow.entities import Param
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("isoflop", artifact_location=str(tmp_path / "artifacts"))
    client.create_run(experiment, tags={"role": "study"})
    for line in (study / "points.jsonl").read_text().splitlines()[:-3]:
        point = json.loads(line)
        path = study / point["key"] / "outcome.json"
        tags = {"role": "run", "point_key": point["key"], "state": "completed" if path.exists() else "failed"}
        if path.exists():
            tags["outcome"] = path.read_text()
        run = client.create_run(experiment, tags=tags)
        client.log_batch(run.info.run_id, params=[Param(k, v) for k, v in flat(point["config"]).items()])
    pd.testing.assert_frame_equal(from_mlflow(uri, "isoflop"), from_runs(study))
    with pytest.raises(ValueError, match="no such experiment"):
        from_mlflow(uri, "isoflip")


def test_a_study_run_again_under_its_name_is_not_mixed_with_the_old_one(study: Path, tmp_path: Path) -> None:
    from mlflow.entities import Param
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("isoflop", artifact_location=str(tmp_path / "artifacts"))
    point = json.loads((study / "points.jsonl").read_text().splitlines()[0])
    text = (study / point["key"] / "outcome.json").read_text()
    for number, name in enumerate(("old", "new"), start=1):
        client.create_run(experiment, number, tags={"role": "study", "study_id": name, "points": str(number)})
        tags = {"role": "run", "study_id": name, "point_key": point["key"], "outcome": text}
        run = client.create_run(experiment, number, tags=tags)
        client.log_batch(run.info.run_id, params=[Param(k, v) for k, v in flat(point["config"]).items()])
    found = from_mlflow(uri, "isoflop")
    assert (len(found), found.attrs["not_started"]) == (1, 1)


def test_a_missing_database_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no database"):
        from_mlflow(f"sqlite:///{tmp_path / 'mlflow.db'}", "isoflop")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_is_said_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as taken:  # bound, never listening: refuses every connection
        taken.bind(("127.0.0.1", 0))
        uri = f"http://me:hunter22@127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match="cannot be read") as error:
            from_mlflow(uri, "isoflop")
    assert "hunter22" not in str(error.value)


def test_points_are_counted_once_and_torn_lines_wait(study: Path) -> None:
    path = study / "points.jsonl"
    first = path.read_text().splitlines(keepends=True)[0]
    before = from_runs(study)
    path.write_text(path.read_text() + first + first[:40])
    pd.testing.assert_frame_equal(from_runs(study), before)
    path.write_text("{broken\n" + first)
    with pytest.raises(ValueError, match="line 1 is not a point"):
        from_runs(study)


def test_only_what_the_latest_command_asked_for(study: Path) -> None:
    with pytest.raises(ValueError, match=r"latest.json is missing"):
        from_runs(study, which="latest")
    every = from_runs(study)
    keys = sorted(every["key"])[:15]
    (study / "latest.json").write_text(json.dumps({"keys": keys}))
    assert sorted(from_runs(study, which="latest")["key"]) == keys
    assert len(from_runs(study)) == len(every)
    with pytest.raises(ValueError, match="points=newest is not allowed: all, or latest"):
        from_runs(study, which="newest")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flop_rule": "6ND"}, "FLOP rules"),
        ({"fingerprint": "other"}, "validation sets differ"),
        ({"tokenizer": "bytes257"}, "tokenizers"),
        ({"sequence_length": 256.0}, "sequence lengths"),
        ({"params_kind": "total"}, "counts of parameters"),
        ({"loss_unit": "bits per byte"}, "units of loss"),
    ],
)
def test_kinds_are_not_mixed(study: Path, change: dict[str, Any], message: str) -> None:
    found = from_runs(study)
    for column, value in change.items():
        found.loc[3, column] = value
    with pytest.raises(ValueError, match=message):
        frame.used(found)
    found.loc[3, "used"] = False
    assert len(frame.used(found)) == 19


def test_mid_schedule_and_unreadable_rows_are_listed(tmp_path: Path) -> None:
    table = studies.isoflop(0).assign(schedule_complete=True)
    table.loc[0, "schedule_complete"] = False
    table.loc[1, "loss"] = np.nan
    table.loc[2, "tokens"] = -1.0
    table.to_csv(tmp_path / "a.csv", index=False)
    found = from_csv(tmp_path / "a.csv").set_index("key")
    codes = found.loc[["row1", "row2", "row3", "row4"], "drop_code"].tolist()
    assert codes == ["mid_schedule", "missing", "not_positive", ""]
    assert "loss" in str(found.loc["row2", "drop_reason"])
    assert "tokens" in str(found.loc["row3", "drop_reason"])


def test_a_foreign_file_is_mapped_by_name(tmp_path: Path) -> None:
    table = studies.isoflop(0).rename(columns={"params": "N", "tokens": "D", "loss": "val"})
    table = table.drop(columns=["flops", "flops_budget"]).assign(split="a")
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet")
    columns = {"params": "N", "tokens": "D", "loss": "val"}
    with pytest.raises(ValueError, match=r"no column 'flops'.*flop_rule=6ND"):
        from_csv(tmp_path / "a.csv", columns=columns)
    with pytest.raises(ValueError, match=r"no column 'M'.*it has N, D, val"):
        from_csv(tmp_path / "a.csv", columns={"params": "M"})
    with pytest.raises(ValueError, match="no finished run"):
        frame.used(from_csv(tmp_path / "a.csv", columns=columns, flop_rule="6ND", where={"split": "b"}))
    found = [from_csv(tmp_path / n, columns=columns, flop_rule="6ND") for n in ("a.csv", "a.parquet")]
    pd.testing.assert_frame_equal(found[0], found[1])
    rows = frame.used(found[0])
    np.testing.assert_allclose(rows.flops, 6 * rows.params * rows.tokens)
    assert len(rows.labels) == 4


def test_text_in_a_number_column_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("params,tokens,flops,loss\n1,2,3,abc\n")
    with pytest.raises(ValueError, match="column 'loss' holds what is not a number"):
        from_csv(tmp_path / "a.csv")


def test_every_number_column_is_named_and_every_row_keeps_its_own_key(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("key,params,tokens,flops,loss,state,seed\na,1,2,3,4,completed,0\na,1,2,3,4,,1\n")
    found = from_csv(path)
    assert found["key"].tolist() == ["a", "a#2"]
    assert found["drop_code"].tolist() == ["", "unknown"]
    path.write_text("params,tokens,flops,loss,seed\n1,2,3,4,first\n")
    with pytest.raises(ValueError, match="column 'seed' holds what is not a number"):
        from_csv(path)


def test_wrong_sources_say_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no study"):
        from_runs(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "points.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"runs=mine is no study .*did you mean runs=runs/mine\?"):
        from_runs(Path("mine"))
    with pytest.raises(ValueError, match="does not exist"):
        from_csv(tmp_path / "none.csv")


def test_groups_follow_exact_values_and_do_not_chain() -> None:
    assert clusters(np.array([1e18, 1.004e18, 2.15e18, 0.998e18]), 1e-2).tolist() == [0, 0, 1, 0]
    dense = clusters(np.geomspace(1e18, 1e19, 1000), 1e-2)
    assert dense.max() > 80


def test_the_validations_of_a_studys_runs_are_their_learning_curves(tmp_path: Path) -> None:
    studies.write_study(tmp_path / "s", studies.isoflop(budgets=studies.BUDGETS[:2]))
    bare = from_runs(tmp_path / "s")
    assert len(frame.checkpoints(bare)) == len(frame.used(bare)), "no run has written a validation"
    finished = bare[bare["used"]].to_dict("records")
    for record in finished:
        every = [share * record["tokens"] for share in (0.25, 0.5, 1.0)]
        losses = studies.loss(studies.LAW, np.full(3, record["params"]), np.array(every))
        # The second one was written twice, as after a restart: the last one counts.
        lines = [(every[0], losses[0]), (every[1], 9.0), (every[1], losses[1]), (every[2], losses[2])]
        said = [{"kind": "validation", "tokens": at, "metrics": {"loss": value}} for at, value in lines]
        text = "".join(json.dumps(line) + "\n" for line in said) + '{"kind": "validation", "tok'
        (tmp_path / "s" / record["key"] / "metrics.jsonl").write_text(text)
    curves = frame.checkpoints(bare)
    assert curves.run is not None
    assert len(curves) == 3 * len(finished)
    assert set(np.bincount(curves.run)) == {3}
    assert curves.loss.max() < 9.0
    # Sizes and tokens of the outcomes are whole numbers: they miss C = 6 N D by 1e-5.
    assert np.allclose(curves.flops / (curves.params * curves.tokens), 6.0, rtol=1e-4)
    found, laws = evidence.envelope(bare, {"resamples": 0, "seed": 0})
    assert (found.status, set(laws)) == ("ok", {"params", "tokens"})
    assert 0.3 < found.params["a"] < 0.7
    asked = {**parametric.PLAIN, "resamples": 0}
    first = next(line for line in evidence.approaches(bare, frame.used(bare), 1e14, asked, {"chinchilla": None}))
    assert (first["approach"], first["reason"], first["note"]) == (
        "1 envelope",
        "",
        "losses before the schedules ended",
    )
    del bare.attrs["folder"]
    assert "columns=run:COLUMN" in evidence.no_curves(bare)
    bare.attrs["experiment"] = "s"
    assert "runs=runs/STUDY" in evidence.no_curves(bare)
