"""Settings that earlier versions took: refused for a new run, told and kept for one that has begun with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.runs import read_outcome, write_config
from train import run
from train.branch import branch
from train.checkpoint.layout import newest
from train.runtime.signals import StopFlag
from train.spec import deprecated, mesh
from train.spec.config import RunConfig
from train.spec.resolve import resolve

OLD: list[tuple[dict[str, dict[str, Any]], str]] = [
    ({"model": {"norm_eps": 0.0}}, "model.norm_eps=0 is refused"),
    (
        {"model": {"init_from": "/weights", "mup_base_width": 8, "mup_base_head_dim": 8}},
        r"model\.init_from with model\.mup_base_width=8 is refused: muP divides logits",
    ),
    ({"precision": {"reduce": "bf16"}}, "precision.reduce=bf16 with precision.name=fp32 is refused"),
    (
        {"parallel": {"strategy": "ddp", "dp_shard": 1, "dp_replicate": 1, "zero": 1}},
        "parallel.zero=1 .*parallel.zero=3",
    ),
]


def changed(config: RunConfig, sections: dict[str, dict[str, Any]]) -> RunConfig:
    return replace(config, **{name: replace(getattr(config, name), **keys) for name, keys in sections.items()})


@pytest.mark.parametrize(("sections", "words"), OLD)
def test_a_new_run_is_refused_and_one_that_has_begun_goes_on(
    tiny: RunConfig, sections: dict[str, dict[str, Any]], words: str
) -> None:
    old = changed(tiny, sections)
    with pytest.raises(ValueError, match=words):
        resolve(old)
    assert resolve(old, begun=True) == old


def test_at_the_width_of_the_weights_mup_changes_nothing_and_is_allowed(tiny: RunConfig) -> None:
    model = {"init_from": "/weights", "mup_base_width": tiny.model.width, "mup_base_head_dim": tiny.model.head_dim}
    same = changed(tiny, {"model": model})
    assert resolve(same) == same


def test_whole_copies_are_known_once_the_ranks_are(tiny: RunConfig) -> None:
    old = changed(tiny, {"parallel": {"dp_replicate": None, "zero": 2}})
    assert resolve(old) == old
    with pytest.raises(ValueError, match=r"parallel\.zero=2 .*ddp"):
        mesh.check(old, world_size=2)
    mesh.check(old, world_size=2, begun=True)


def test_an_old_run_says_so_and_ends_as_it_would_have(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    old = changed(changed(tiny, OLD[0][0]), OLD[2][0])
    config = write_config(tmp_path / "run", old)
    assert run.main(["--config", str(config)]) == run.REFUSED
    assert "error: model.norm_eps=0 is refused" in capsys.readouterr().err
    with monkeypatch.context() as earlier:
        earlier.setattr(deprecated, "complaints", lambda *_: [])
        assert run.main(["--config", str(config), "--until", "1000"]) == run.REACHED
    found = newest(config.parent / "checkpoints")
    assert found is not None
    with pytest.raises(ValueError, match=r"precision\.reduce=bf16"):
        branch(old, found, 1000)  # a branch is a new run, but for its model
    assert branch(changed(old, {"precision": {"reduce": "fp32"}}), found, 1024).model.norm_eps == 0
    capsys.readouterr()
    assert run.main(["--config", str(config)]) == run.REACHED
    said = capsys.readouterr()
    assert said.err.count("a new run would be refused: ") == 2 and "continues unchanged" in said.err
    assert "resumed from" in said.out
    assert read_outcome(config.parent)["state"] == "completed"
