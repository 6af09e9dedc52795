"""The measured examples of the tuning playbook: its commands are the page's, and what its table says of runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from benchmarks import packing
from benchmarks.tuning import QUIET, SECTIONS, Section, Trained, main, sweep, table, trained

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"
RATES = SECTIONS[0]


def test_the_page_has_the_commands_that_were_measured() -> None:
    lines = re.findall(r"^python -m study\.sweep (.*)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    shown = [[word for word in shlex.split(line) if word != "dry_run=true"] for line in lines]
    measured = [
        [word for word in sweep(one, command) if word not in QUIET] for one in SECTIONS for command in one.commands
    ]
    assert shown == measured


def test_a_section_that_there_is_not_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["99"])
    said = capsys.readouterr()
    assert said.err.startswith("benchmarks.tuning: there is no section 99: choose among rates, batches, ")
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_packing_says_that_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(packing, "has_gpu", lambda: False)
    with pytest.raises(SystemExit):
        packing.main([])
    assert "--device cuda needs an NVIDIA GPU, and torch finds none here: give --device cpu" in capsys.readouterr().err


def run(setting: Sequence[str], seed: int, loss: float, first: float | None = None) -> Trained:
    return Trained(tuple(setting), seed, 0.05, 640, 313, loss, 0.25, first)


def test_differences_are_by_seed_with_their_interval() -> None:
    here, there = [2.40, 2.50, 2.35], [2.30, 2.42, 2.21]
    runs = [run(("16", "2"), seed, loss) for seed, loss in enumerate(here)]
    runs += [run(("16", "1"), seed, loss) for seed, loss in enumerate(there)]
    head, first, reference = table(RATES, runs)
    assert head[:2] == ["model.width", "optim.lr_scale"]
    low, high = stats.ttest_rel(here, there).confidence_interval(0.95)
    said = dict(zip(head, first, strict=True))
    assert (said["loss"], said["difference"]) == ("2.417", "+0.107")
    assert said["interval"] == f"{low:+.3f} to {high:+.3f}"
    assert said["sd"] == f"{stats.tstd(here):.3f}" and said["clipped"] == "25%"
    assert dict(zip(head, reference, strict=True))["interval"] == "-"


def test_a_setting_is_as_it_was_swept(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "model": {"width": 16},
        "data": {"sequence_length": 128},
        "optim": {"lr": 0.1, "lr_scale": 1.0, "grad_clip": 1.0},
        "batch": {"tokens": 640},
        "eval": {"by_position": 2},
        "seed": 3,
    }
    point = {"key": "k", "config": config, "overrides": ["optim.lr_scale=2", "seed=3"]}
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(point | {"key": key}) + "\n" for key in ("k", "waits")))
    (tmp_path / "k").mkdir()
    outcome = {"step": 20, "loss": {"validation_nats_per_token": 2.5}}
    (tmp_path / "k" / "outcome.json").write_text(json.dumps(outcome))
    records = [{"kind": "train", "metrics": {"grad_norm": norm}} for norm in (0.5, 2.0, 3.0, 0.9)]
    records.append({"kind": "validation", "metrics": {"loss": 2.5, "loss/position_0": 2.8, "loss/position_64": 2.2}})
    (tmp_path / "k" / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (found,) = trained(RATES, tmp_path)
    assert found == Trained(("16", "2"), 3, 0.1, 640, 20, 2.5, 0.5, 2.8)


@pytest.mark.parametrize("section", SECTIONS, ids=[one.name for one in SECTIONS])
def test_the_reference_is_one_of_the_settings(section: Section) -> None:
    for name, value in section.reference.items():
        swept = [dict(w.split("=", 1) for w in shlex.split(c) if "=" in w).get(name, "") for c in section.commands]
        assert value in ",".join(swept).split(","), name


def test_all_lengths_have_the_same_batch_and_therefore_steps() -> None:
    (lengths,) = (one for one in SECTIONS if one.name == "lengths")
    settings = [dict(w.split("=", 1) for w in sweep(lengths, c) if "=" in w) for c in lengths.commands]
    (batch,) = {int(one["batch.tokens"]) for one in settings}
    assert [batch % int(one["data.sequence_length"]) for one in settings] == [0, 0, 0]
    assert len({int(one["eval.sequences"]) * int(one["data.sequence_length"]) for one in settings}) == 1
