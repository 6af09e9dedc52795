"""Places that a config gives from the home folder on (~) are looked for there, as a study does when it submits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.runs import read_outcome, write_config
from train import run
from train.build import first_values
from train.data.corpus.prepare import prepare
from train.hub.safetensors import write_shards
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.config import DataConfig, RunConfig, ScheduleConfig


def test_corpus_and_parent_may_lie_in_the_home_folder(
    tmp_path: Path, corpus: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").symlink_to(corpus)
    at_home = replace(tiny.runtime, data_root="~/data")
    first = replace(tiny, runtime=at_home, schedule=ScheduleConfig(name="constant"))
    assert run.main(["--config", str(write_config(tmp_path / "first", first)), "--until", "1024"]) == 0
    later = replace(first, schedule=replace(first.schedule, parent="~/first"))
    assert run.main(["--config", str(write_config(tmp_path / "later", later))]) == 0
    assert read_outcome(tmp_path / "later")["tokens"] == first.budget.tokens


def test_weights_may_lie_in_the_home_folder(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "weights").mkdir()
    given, model = (Transformer(tiny.model, tiny.data.vocab_size, tiny.data.sequence_length) for _ in range(2))
    initialise(given, 1)
    write_shards(tmp_path / "weights", ((name, weight.detach()) for name, weight in given.named_parameters()))
    first_values(replace(tiny, model=replace(tiny.model, init_from="~/weights")))(model)
    for one, other in zip(given.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_is_prepared_for_the_home_folder_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home" / "texts").mkdir(parents=True)
    for number in range(60):
        (tmp_path / "home" / "texts" / f"{number}.txt").write_text(f"text number {number} of sixty\n")
    data = DataConfig(
        name="x", source="~/texts", tokenizer="bytes", vocab_size=257, validation_fraction=0.3, sequence_length=16
    )
    assert prepare(data, "~/data", workers=1) == tmp_path / "home" / "data" / "x-bytes257"
    assert not (tmp_path / "~").exists()
