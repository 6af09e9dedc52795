"""Proposed runs as a folder of configs, file by file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from analysis.planning.study_config import _yaml, inherited, write


def proposed(*widths: int | None) -> Any:
    runs = [SimpleNamespace(width=width, layers=4, params=1.2e6 * n, tokens=3.4e8) for n, width in enumerate(widths, 1)]
    return SimpleNamespace(runs=runs, target=3e18)


def head(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "next.yaml").read_text())
    return found


def test_each_run_is_a_file_and_the_head_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "next"
    write(proposed(64, 128), folder, "mine", {"optim": {"lr": 1e-4}, "budget": {"tokens": 5}})
    assert (folder / "point" / "01.yaml").read_text() == (
        "# @package _global_\n# 1.2M parameters on 340M tokens\nmodel:\n  width: 64\n  layers: 4\nbudget:\n"
        "  tokens: 340000000\n  flops: null\n  tokens_per_param: null\n"
    )
    assert "# 2.4M parameters" in (folder / "point" / "02.yaml").read_text()
    assert (folder / "next.yaml").read_text().splitlines()[:5] == [
        "# Next runs for the loss at 3e18 FLOPs: each file of point/ is one.",
        f"# python -m study.sweep --config-dir {folder} --config-name next",
        "defaults:",
        "  - config",
        "  - _self_",
    ]
    found = head(folder)
    assert found["study"] == {"name": "mine"} and found["search"] == {"name": "grid"}
    assert found["hydra"] == {"sweeper": {"params": {"+point": "01,02"}}}
    assert found["optim"] == {"lr": 1e-4} and found["budget"] == {"tokens": 5}


def test_fewer_runs_leave_no_file_of_earlier_ones(tmp_path: Path) -> None:
    write(proposed(64, 64, 64), tmp_path, "mine", {})
    (tmp_path / "point" / "notes.txt").write_text("mine")
    write(proposed(32, 32), tmp_path, "mine", {})
    assert sorted(path.name for path in (tmp_path / "point").iterdir()) == ["01.yaml", "02.yaml", "notes.txt"]
    assert yaml.safe_load((tmp_path / "point" / "01.yaml").read_text())["model"]["width"] == 32
    assert head(tmp_path)["budget"] == {"tokens": None, "flops": None, "tokens_per_param": None}


@pytest.mark.parametrize(
    ("widths", "model", "kept"),
    [
        ((64, 128), {"head_dim": 32, "kv_heads": 2, "mlp": 1}, {"head_dim": 32, "kv_heads": 2, "mlp": 1}),
        ((64, 100), {"head_dim": 32, "kv_heads": 2, "mlp": 1}, {"head_dim": None, "mlp": 1}),
        ((64,), {"kv_heads": 2, "mlp": 1}, {"head_dim": None, "mlp": 1}),
        ((None,), {"head_dim": 32, "kv_heads": 2}, {"head_dim": 32, "kv_heads": 2}),
        ((64,), {}, {"head_dim": None}),
    ],
)
def test_heads_stay_where_they_divide_every_width(
    tmp_path: Path, widths: tuple[int | None, ...], model: dict[str, Any], kept: dict[str, Any]
) -> None:
    write(proposed(*widths), tmp_path, "mine", {"model": model})
    assert head(tmp_path)["model"] == kept


def test_settings_that_all_points_share_are_taken_over(tmp_path: Path) -> None:
    one = {"model": {"width": 64, "layers": 2, "qk_norm": True}, "optim": {"lr": 1e-3, "beta1": 0.9}, "seed": {"a": 1},
           "data": {"fingerprint": "f", "source": "s"}}  # fmt: skip
    two = {"model": {"width": 64, "layers": 4, "qk_norm": True}, "optim": {"lr": 2e-3, "beta1": 0.9, "beta2": 0.95},
           "data": {"fingerprint": "f", "source": "t"}, "eval": {"every": 5}}  # fmt: skip
    lines = "\n".join(json.dumps({"config": config}) for config in (one, two)) + "\n\n"
    (tmp_path / "points.jsonl").write_text(lines)
    assert inherited(str(tmp_path)) == {"model": {"qk_norm": True}, "optim": {"beta1": 0.9}}
    assert inherited(str(tmp_path / "none")) == {}
    (tmp_path / "points.jsonl").write_text(json.dumps({"config": one}))
    assert inherited(str(tmp_path)) == {
        "model": {"qk_norm": True}, "data": {"source": "s"}, "optim": {"lr": 1e-3, "beta1": 0.9},
    }  # fmt: skip


def test_floats_are_floats_to_a_reader_of_yaml() -> None:
    values = {"a": 1e-5, "b": 2.5e-7, "c": 1e22, "d": 0.5, "e": "1e-5", "f": 3, "g": {}, "h": {"i": [1, None, True]}}
    text = _yaml(values)
    assert text.splitlines() == [
        "a: 1.0e-05", "b: 2.5e-07", "c: 1.0e+22", "d: 0.5", 'e: "1e-5"', "f: 3", "g: {}", "h:", "  i: [1, null, true]",
    ]  # fmt: skip
    assert yaml.safe_load(text) == values
