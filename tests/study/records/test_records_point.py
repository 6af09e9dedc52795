"""A point's key is a hash of what its losses depend on, and of nothing else."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from study.records import frozen_config
from study.records.frozen_config import canonical, key_of, run_config
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


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no config be read key by key, and nothing be known from before of what keys may have."""
    frozen_config._types.cache_clear()
    frozen_config._choices.cache_clear()
    monkeypatch.setattr(frozen_config, "_read", lambda *_: pytest.fail("it is read key by key, which is slow"))


def as_written(**changes: object) -> dict[str, Any]:
    """Return a config as a line of ours has it."""
    config: dict[str, Any] = json.loads(json.dumps(asdict(resolved(**changes))))
    return config


@pytest.mark.usefixtures("unread")
def test_a_line_of_ours_is_a_config_at_once() -> None:
    whole = as_written()
    whole["optim"]["lr"] = 1
    config = resolved()
    assert run_config(whole) == replace(config, optim=replace(config.optim, lr=1))


@pytest.mark.parametrize(
    ("section", "name", "value", "said"),
    [
        ("model", "width", "wide", r"model\.width='wide' is not .*: use the code that made it"),
        ("model", "width", 512.5, r"model\.width=512\.5 is not .*: use the code that made it"),
        ("optim", "lr", "much", r"optim\.lr='much' is not .*: use the code that made it"),
        ("optim", "name", "adamx", r"optim\.name='adamx' is not allowed: choose one of .*: use the code that made it"),
    ],
)
def test_a_value_that_a_key_cannot_have_is_refused(section: str, name: str, value: object, said: str) -> None:
    frozen_config._types.cache_clear()
    frozen_config._choices.cache_clear()
    whole = as_written()
    whole[section][name] = value
    with pytest.raises(ValueError, match=said):
        run_config(whole)


def test_a_number_in_quotes_is_a_number() -> None:
    frozen_config._types.cache_clear()
    whole = as_written()
    whole["model"]["width"] = "512"
    assert run_config(whole) == run_config({**whole, "model": {**whole["model"], "width": 512}})


def test_sections_within_a_section_are_read_too() -> None:
    sources = (SourceConfig("a", 2.0), SourceConfig("b", 1.0))
    assert run_config(as_written(data=DataConfig(sources=sources))).data.sources == sources


def test_what_a_token_costs_is_known_without_the_whole_config() -> None:
    one = stored(line_of(point(resolved())))
    assert one.params > 0 and one.flops_per_token > 0 and "config" not in vars(one)


def test_points_that_say_the_same_in_some_sections_are_told_without_a_config() -> None:
    configs = [resolved(seed=seed) for seed in range(3)]
    configs += [resolved(seed=3, runtime=RuntimeConfig(threads=7)), resolved(seed=4, parallel=ParallelConfig(tp=2))]
    points = [stored(line_of(point(config))) for config in configs]
    found = one_of_each(points, "runtime", "parallel")
    assert [one.key for one in found] == [points[index].key for index in (0, 3, 4)]
    assert not any("config" in vars(one) for one in points)
    odd = [stored(line_of(point(config)).replace('"runtime":{', '"runtime": {')) for config in configs[:2]]
    assert [one.key for one in one_of_each(odd, "runtime")] == [one.key for one in odd], "not as we write it"
