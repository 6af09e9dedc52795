import json
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.config.schema import StudyConfig
from study.records.corpus import corpus_of
from study.records.frozen_config import key_of
from study.records.point import Point
from study.records.points import append_points, known_keys, load_points, one_budget, resolve_run, to_point
from study.storage.layout import StudyFolder
from train.spec.config import BudgetConfig, DataConfig, ModelConfig, RuntimeConfig


def config(**changes: object) -> StudyConfig:
    return replace(StudyConfig(budget=BudgetConfig(tokens=12800)), **changes)  # type: ignore[arg-type]


def point(**changes: object) -> Point:
    return to_point(resolve_run(config(**changes)), {})


def points(count: int) -> list[Point]:
    return [to_point(resolve_run(config(seed=seed)), {}, (f"seed={seed}",)) for seed in range(count)]


def test_frozen_config_has_no_derived_value_left_and_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = DataConfig(source="text")
    run = point(data=data, runtime=RuntimeConfig(data_root="prepared")).config
    assert run.optim.lr and run.batch.tokens and run.model.kv_heads and run.model.mlp_width
    assert run.data.source == str(tmp_path / "text")
    assert run.runtime.data_root == str(tmp_path / "prepared")


def test_key_is_the_science_not_where_it_runs() -> None:
    one = point()
    other = point(runtime=RuntimeConfig(threads=7, data_root="/elsewhere"), wait=True)
    assert one.key == other.key == key_of(asdict(one.config))
    assert point(seed=1).key != one.key


def test_fingerprint_of_the_corpus_is_part_of_the_key() -> None:
    run = resolve_run(config())
    prepared = to_point(run, {corpus_of(run): "0123456789ab"})
    assert prepared.config.data.fingerprint == "0123456789ab"
    assert prepared.key != point().key


def test_the_sequence_length_does_not_make_another_corpus() -> None:
    longer = config(data=DataConfig(sequence_length=256), budget=BudgetConfig(tokens=25600))
    assert corpus_of(resolve_run(longer)) == corpus_of(resolve_run(config()))


def test_another_fingerprint_than_asked_for_is_refused() -> None:
    asked = config(data=DataConfig(fingerprint="aaaaaaaaaaaa"))
    with pytest.raises(ValueError, match=r"data\.fingerprint=aaaaaaaaaaaa was asked for"):
        to_point(resolve_run(asked), {corpus_of(resolve_run(config())): "bbbbbbbbbbbb"})


def test_the_budget_on_the_command_line_replaces_the_presets() -> None:
    preset = BudgetConfig(tokens_per_param=20.0, flops=1e11)
    assert one_budget(preset, ["model.width=64", "budget.flops=1e11"]) == BudgetConfig(flops=1e11)
    assert one_budget(preset, ["model.width=64"]) == preset
    both = ["+budget.flops=1e11", "budget.tokens_per_param=20"]
    assert one_budget(preset, both) == preset


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.width=63"):
        resolve_run(config(model=ModelConfig(width=63)))
    with pytest.raises(ValueError, match=r"data\.source has no value yet"):
        resolve_run(config(data=DataConfig(source="")))


def test_points_come_back_as_they_were(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    made = points(5)
    assert append_points(folder, made) == made
    assert list(load_points(folder).values()) == made
    assert known_keys(folder) == [p.key for p in made]


def test_a_point_is_appended_once(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    made = points(3)
    append_points(folder, made[:2])
    before = folder.points.read_bytes()
    assert append_points(folder, made[:2]) == []
    assert folder.points.read_bytes() == before
    assert append_points(folder, [*made, *made]) == made[2:]
    assert folder.points.read_bytes().startswith(before)


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 200))
def test_a_torn_last_line_is_cut_off_and_written_again(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = StudyFolder(tmp_path_factory.mktemp("torn") / "s")
    made = points(2)
    append_points(folder, made)
    whole = folder.points.read_bytes()
    folder.points.write_bytes(whole[:-cut])
    assert list(load_points(folder)) == [made[0].key]
    assert append_points(folder, made) == [made[1]]
    assert folder.points.read_bytes() == whole


def _append(path: Path, first: int) -> None:
    append_points(StudyFolder(path), points(12)[first:])


def test_processes_that_append_at_once_duplicate_and_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append, args=(tmp_path / "s", first)) for first in (0, 6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    keys = [json.loads(line)["key"] for line in (tmp_path / "s" / "points.jsonl").read_text().splitlines()]
    assert sorted(keys) == sorted(p.key for p in points(12))


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    append_points(folder, points(2))
    lines = folder.points.read_text().splitlines(keepends=True)
    folder.points.write_text("{}\n" + lines[1])
    with pytest.raises(ValueError, match=r"points\.jsonl:1"):
        load_points(folder)


def test_a_study_that_is_not_there_has_no_points(tmp_path: Path) -> None:
    assert load_points(StudyFolder(tmp_path / "none")) == {}
