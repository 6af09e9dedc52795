"""A point's key is a hash of what its losses depend on, and of nothing else."""

import json
from dataclasses import asdict, replace

import pytest

from study.records.frozen_config import canonical, key_of
from study.records.point import Point, point
from train.spec.config import BudgetConfig, DataConfig, ParallelConfig, RunConfig, RuntimeConfig
from train.spec.resolve import resolve


def resolved(**changes: object) -> RunConfig:
    return resolve(replace(RunConfig(budget=BudgetConfig(tokens=2**20)), **changes))  # type: ignore[arg-type]


def test_the_key_ignores_where_it_runs() -> None:
    base = point(resolved()).key
    assert point(resolved(runtime=RuntimeConfig(threads=7, device="cpu", data_root="/elsewhere"))).key == base
    assert point(resolved(parallel=ParallelConfig(micro_batch_sequences=3))).key == base
    assert point(resolved(data=DataConfig(source="/a/folder"))).key == base


def test_the_key_sees_every_scientific_value() -> None:
    base = point(resolved()).key
    assert point(resolved(seed=1)).key != base
    assert point(resolved(data=DataConfig(fingerprint="0123456789ab"))).key != base


def test_the_key_survives_a_trip_through_json_in_any_order() -> None:
    config = asdict(resolved())
    shuffled = dict(reversed(list(json.loads(json.dumps(config)).items())))
    assert key_of(shuffled) == key_of(config)
    assert canonical(shuffled) == canonical(config)
    assert len(key_of(config)) == 12


def test_the_canonical_text_is_sorted_and_compact_and_says_nothing_of_where_texts_lie() -> None:
    text = canonical(
        {
            "seed": 1,
            "data": {"vocab_size": 7, "source": "/a", "sources": [{"weight": 2.0, "source": "/b", "name": "x"}]},
        }
    )
    assert text.startswith('{"data":{') and text.endswith(',"seed":1}')
    assert '"sources":[{"name":"x","weight":2.0}]' in text and "/a" not in text and "/b" not in text
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"seed": float("nan"), "data": {}})


def test_what_a_point_says_of_its_config() -> None:
    assert point(resolved()).tokens == 2**20
    assert Point("k", RunConfig()).tokens == 0
