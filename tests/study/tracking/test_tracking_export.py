"""A point's weights as a registered model of MLflow: what is loaded from there is what was trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import train
from study.__main__ import main
from tests.study.support.recorded import unpack
from tests.study.support.studies import study_command
from train.trained import TrainedModel

KEY = "46f2ae765da8"


@pytest.fixture
def project(tmp_path: Path, database: Path) -> Path:
    """A project with a study of ten points, one of which has a checkpoint; it is tracked in the database."""
    place = unpack(tmp_path / "project")
    settings = place / "runs" / "recorded" / "study.yaml"
    text = settings.read_text("utf-8").replace("tracking:\n  enabled: false", "tracking:\n  enabled: true")
    settings.write_text(text, "utf-8")
    database.rename(place / "mlflow.db")
    return place


def test_an_exported_point_is_a_model_in_mlflow(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("export", "recorded", KEY[:5], "--dtype", "float32", "--name", "words", "--json")
    done = study_command(*words, "--out", project / "kept", cwd=project)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["point"], said["step"], said["model"], said["version"], said["new"]) == (KEY, 324, "words", "1", True)
    monkeypatch.chdir(project)
    assert main(list(words)) == 0  # here, where what it imports is used again below
    again = json.loads(capsys.readouterr().out)
    assert (again["version"], again["new"]) == ("1", False), "the same weights are not registered twice"
    assert not list((project / "runs" / "recorded" / KEY).glob(".export-*"))

    import mlflow
    from mlflow.transformers import load_model

    uri = f"sqlite:///{project / 'mlflow.db'}"
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        found = mlflow.MlflowClient(uri, uri).get_model_version("words", "1")
        loaded = load_model("models:/words/1")
        signature = mlflow.models.get_model_info("models:/words/1").signature
    finally:
        mlflow.set_tracking_uri(before)
    assert [str(one) for schema in (signature.inputs, signature.outputs) for one in schema] == ["string (required)"] * 2
    trained = train.load_checkpoint(project / "runs" / "recorded" / KEY)
    assert isinstance(trained, TrainedModel)
    count = sum(weight.numel() for weight in trained.model.parameters())
    tags = {"point_key": KEY, "step": "324", "study": "recorded", "params_total": str(count), "dtype": "float32"}
    assert tags.items() <= found.tags.items()
    assert found.tags["corpus"].startswith("words-bytes257 ")
    tokens = torch.arange(24)[None]
    with torch.no_grad():
        wanted, got = trained.model(tokens), loaded.model(tokens).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert (project / "kept" / "model.safetensors").is_file()


def test_what_cannot_be_exported_is_said(project: Path) -> None:
    none = study_command("export", "recorded", "1da8", cwd=project)
    assert none.returncode == 2
    assert "1da81040d375/checkpoints has no whole checkpoint: there is nothing to export" in none.stderr
    there = study_command("export", "recorded", KEY, "--out", project / "runs", cwd=project)
    assert there.returncode == 2
    assert "runs exists: name a folder that does not" in there.stderr
