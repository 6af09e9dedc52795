"""A point's key is a hash of what its losses depend on, and of nothing else."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from study.records.frozen_config import canonical, key_of
from study.records.point import Point, has_branches, line_of, one_of_each, point, stored
from study.records.points import append_points
from study.storage.layout import StudyFolder
from train.spec import counts
from train.spec.config import BudgetConfig, DataConfig, ParallelConfig, RunConfig, RuntimeConfig, SourceConfig
from train.spec.counts import flops_per_token
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


@pytest.mark.parametrize("sources", [(), (SourceConfig("a", 2.0), SourceConfig("b", 1.0))])
@pytest.mark.parametrize("parent", [None, "0123456789ab@4096"])
def test_a_line_says_what_its_config_says(sources: tuple[SourceConfig, ...], parent: str | None) -> None:
    """Also where a section holds others, whose text is not read by itself."""
    base = resolved(data=DataConfig(sources=sources))
    config = replace(base, schedule=replace(base.schedule, parent=parent))
    made = point(config, ("seed=1",))
    read = stored(line_of(made))
    assert (read, hash(read), repr(read)) == (made, hash(made), f"Point({made.key!r}, overrides=('seed=1',))")
    for one in (made, read):
        assert (one.tokens, one.parent) == (2**20, parent)
        assert one.flops_per_token == flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
    assert read.config.data.sources == sources
    others = (point(config), point(replace(config, seed=7), ("seed=1",)), made.key)
    assert [read == one for one in others] == [False, False, False]
    assert Point.__eq__(read, made.key) is NotImplemented


def test_a_line_that_is_not_as_ours_is_read_too() -> None:
    made = point(resolved())
    entry = {"overrides": ["seed=1"], "config": asdict(made.config), "key": made.key}
    assert stored(json.dumps(entry)).overrides == ("seed=1",)
    assert stored(json.dumps({**entry, "overrides": None})) == made


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ('{"model":{"width":8},"data":{}}', '{"width":8}'),
        ('"model":{"width":8}', '{"width":8}'),  # also at the very beginning
        ('{"model":{}}', "{}"),
        ('{"data":{"width":8}}', None),
        ('{"model":{"width":8},"was":{"model":{"width":4}}}', None),  # which of them it is cannot be told
        ('{"model":{"moe":{"experts":8}}}', None),  # another reads it by itself
        ('{"model":"nano"}', None),
    ],
)
def test_a_section_is_read_from_a_line_where_it_stands_alone(text: str, section: str | None) -> None:
    assert Point("k", text)._section("model") == section


def test_parameters_are_those_of_the_config_however_they_are_read() -> None:
    config = resolved()
    wanted = counts.params(config.model, config.data.vocab_size).matmul
    nested = replace(config, data=DataConfig(sources=(SourceConfig("a", 2.0), SourceConfig("b", 1.0))))
    for one in (point(config), stored(line_of(point(config)))):
        assert one.params == wanted
    assert stored(line_of(point(nested))).params == counts.params(nested.model, nested.data.vocab_size).matmul


def test_a_point_has_branches_where_another_goes_on_from_it(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    trunk = point(resolved())
    branch = point(replace(resolved(seed=2), schedule=replace(resolved().schedule, parent=f"{trunk.key}@4096")))
    append_points(study, [trunk, branch])
    assert (has_branches(study, trunk.key), has_branches(study, branch.key)) == (True, False)


@pytest.mark.parametrize("asked", ["config", "params", "flops_per_token"])
def test_a_point_frozen_by_other_code_says_so(asked: str) -> None:
    raw = asdict(resolved())
    raw["model"]["norm"] = "layer"
    later = Point("0" * 12, json.dumps(raw, separators=(",", ":")))
    with pytest.raises(
        ValueError, match=r"frozen by other code \(unknown key 'model.norm': .*: use the code that made it"
    ):
        getattr(later, asked)


def test_points_that_say_the_same_in_some_sections_are_told_without_a_config() -> None:
    configs = [resolved(seed=seed) for seed in range(3)]
    configs += [resolved(seed=3, runtime=RuntimeConfig(threads=7)), resolved(seed=4, parallel=ParallelConfig(tp=2))]
    points = [stored(line_of(point(config))) for config in configs]
    found = one_of_each(points, "runtime", "parallel")
    assert [one.key for one in found] == [points[index].key for index in (0, 3, 4)]
    assert not any("config" in vars(one) for one in points)
    odd = [stored(line_of(point(config)).replace('"runtime":{', '"runtime": {')) for config in configs[:2]]
    assert [one.key for one in one_of_each(odd, "runtime")] == [one.key for one in odd], "not as we write it"
