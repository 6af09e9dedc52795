"""What `benchmarks.packing` counts: tokens/s of runs side by side, of the time in which all of them train."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.packing import kinds, plan, records, together
from train.spec.scaling_rules import batch_tokens


def test_tokens_are_counted_from_when_the_last_run_is_warm() -> None:
    early = [(float(second), 100 * second) for second in range(20)]
    late = [(10.0, 0), (12.0, 80), (15.0, 230), (18.0, 320)]
    assert together([early], 4.0) == 100.0, "from its second record on"
    # The late one is warm at 12 s: until 16 s it trains 150 + 90 / 3 tokens, the early one 400.
    assert together([early, late], 4.0) == (400 + 180) / 4
    assert together([early, late], 6.5) is None, "the late one has not got there"
    assert together([early, late[:2]], 1.0) is None and together([early, []], 1.0) is None


def test_a_line_that_is_being_written_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert list(records(file)) == []
    file.write_text('{"kind": "train", "time": 2.5, "tokens": 8}\n{"kind": "validation"}\n{"kind": "tr')
    assert list(records(file)) == [(2.5, 8)]


def test_sizes_are_shapes_of_the_study_with_the_rules_batch(tmp_path: Path) -> None:
    made = kinds({"1M": 1e6, "14M": 14e6}, "cuda", tmp_path, None)
    assert [(kind.config.model.width, kind.config.model.layers) for kind in made] == [(96, 2), (384, 6)]
    for kind, params in zip(made, (1.0e6, 13.8e6), strict=True):
        assert kind.tokens == pytest.approx(batch_tokens(round(40 * params), 1024), rel=0.1)
        assert kind.flops == pytest.approx(6 * params * kind.tokens, rel=0.5) and kind.config.precision.name == "bf16"
    assert [(kind.name, way, count) for kind, way, count in plan(made[:1], (2, 1), ("slices", "mps"))] == [
        ("1M", "slices", 1), ("1M", "slices", 2), ("1M", "mps", 2),
    ]  # fmt: skip
