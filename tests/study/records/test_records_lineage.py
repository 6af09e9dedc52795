"""Points that go on from other points: made together, named by keys, billed once, started when their parent is done."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from analysis.text import numbers
from study.cleanup.checkpoints import needs
from study.config.compose import Composer, HydraSource, conf_folder
from study.planning.designs import expand
from study.planning.estimate import Speed, rows
from study.planning.plan import StudyPlan, make_plan
from study.planning.ranks import estimated_flops
from study.records import frozen_config, lineage
from study.records.point import Point, line_of, point, stored
from study.records.points import resolve_run
from study.storage.layout import StudyFolder
from study.sweep.table import table
from train.spec.lineage import Parent, parse

COMMAND = ("data=bytes", "model.width=32", "model.layers=1", "batch.tokens=1024", "data.sequence_length=64")


@pytest.fixture(scope="module")
def source() -> Iterator[HydraSource]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        master = compose("config", return_hydra_config=True)
        yield HydraSource(GlobalHydra.instance().config_loader(), master)


def planned(source: HydraSource, *jobs: tuple[str, ...]) -> StudyPlan:
    composer = Composer(source)
    composed = [composer.compose(overrides) for overrides in expand(jobs, composer)]
    return make_plan(composed, [resolve_run(one.config, one.overrides) for one in composed], {})


@pytest.fixture(scope="module")
def branched(source: HydraSource) -> StudyPlan:
    command = (*COMMAND, "search=trunk_and_branch", "search.tokens=[16384,65536]")
    return planned(source, (*command, "seed=0"), (*command, "seed=1"))


def tokens(one: Point) -> int:
    assert one.config.budget.tokens is not None
    return one.config.budget.tokens


def test_branches_name_their_parent_by_its_key_and_tokens(branched: StudyPlan) -> None:
    assert len(branched.points) == 8
    by_key = {one.key: one for one in branched.points}
    for seed in (0, 1):
        first, second, small, large = [one for one in branched.points if one.config.seed == seed]
        assert [one.config.schedule.name for one in (first, second, small, large)] == ["constant"] * 2 + ["wsd"] * 2
        assert [tokens(one) for one in (first, second, small, large)] == [12_288, 52_224, 16_384, 65_536]
        found = [lineage.parent_of(one.config) for one in (first, second, small, large)]
        assert found == [None, Parent(first.key, 12_288), Parent(first.key, 12_288), Parent(second.key, 52_224)]
        # One learning rate and one warm-up in tokens for all that share the trunk.
        assert len({one.config.optim.lr for one in (first, second, small, large)}) == 1
        warmups = {round(one.config.schedule.warmup_fraction * tokens(one)) for one in (first, second, small, large)}
        assert warmups == {819}
    lineage.check(branched.points, {})
    assert lineage.parents(branched.points) < set(by_key)


def test_the_key_depends_on_the_parent(branched: StudyPlan) -> None:
    branch = branched.points[2]
    other = replace(branch.config, schedule=replace(branch.config.schedule, parent="0123456789ab@12288"))
    assert point(other).key != branch.key
    assert parse("0123456789ab@12288") == Parent("0123456789ab", 12_288)
    assert parse("/runs/a/step-000000012") is None and parse(None) is None


def test_the_table_bills_the_trunk_once_and_says_what_that_saves(branched: StudyPlan) -> None:
    made = rows(branched.points[:4], {})
    each = made[0].flops / 12_288
    assert [row.own / each for row in made] == pytest.approx([12_288, 39_936, 4_096, 13_312])
    assert [row.flops / each for row in made] == pytest.approx([12_288, 52_224, 16_384, 65_536])
    speed = Speed((), 1.0, "assumed")
    assert speed.seconds(made[3]) == made[3].own
    out = io.StringIO()
    Console(file=out, width=200).print(table(made, speed, 1, "title"))
    said = " ".join(out.getvalue().split())
    shared, apart = (numbers.scientific(tokens * each, 3) for tokens in (69_632, 81_920))
    assert f"{shared} FLOPs, 15 % less than the {apart} of 2 separate runs" in said


def test_a_branch_waits_for_its_parent_and_is_stranded_with_it(branched: StudyPlan) -> None:
    points = {one.key: one for one in branched.points[:4]}
    first, second, small, large = points
    assert lineage.waiting(points, set()) == {second: first, small: first, large: second}
    assert lineage.waiting(points, {first}) == {large: second}
    assert lineage.stranded(points, {second}) == {large}
    assert lineage.stranded(points, {first}) == {second, small, large}
    assert lineage.stranded(points, {large}) == set()


def test_who_goes_on_from_whom_is_read_without_building_configs(
    branched: StudyPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, small, _ = (one.key for one in branched.points[:4])
    own = {one.key: lineage.own_flops(one.config) for one in branched.points}
    roots = {one.config.runtime.data_root for one in branched.points}
    points = {one.key: stored(line_of(one)) for one in branched.points}
    monkeypatch.setattr(frozen_config, "run_config", lambda config: pytest.fail("thousands of points have thousands"))
    assert lineage.branches(points.values(), first) == [second, small]
    assert needs(StudyFolder(tmp_path / "s"), points).tokens[first] == {12_288}
    assert {one.data_root for one in points.values()} == roots
    assert {key: estimated_flops(one) for key, one in points.items()} == own


def test_a_parent_that_is_elsewhere_or_ends_elsewhere_is_refused(branched: StudyPlan) -> None:
    branch = branched.points[2]
    with pytest.raises(ValueError, match="the study has no point"):
        lineage.check([branch], {})
    lineage.check([branch], {branched.points[0].key: branched.points[0]})
    parent = f"{branched.points[0].key}@1024"
    early = point(replace(branch.config, schedule=replace(branch.config.schedule, parent=parent)))
    with pytest.raises(ValueError, match="ends at 12288 tokens"):
        lineage.check([branched.points[0], early], {})


def test_budgets_in_flops_keep_their_label(source: HydraSource) -> None:
    plan = planned(source, (*COMMAND, "search=trunk_and_branch", "search.ratios=[]", "search.budgets=[2e9,8e9]"))
    assert [one.config.budget.flops for one in plan.points] == [None, None, 2e9, 8e9]


def test_ladder_and_random_nd_make_points(source: HydraSource) -> None:
    ladder = planned(source, ("search=ladder", "search.params=[1e5,4e5]", "search.ratios=[5,10]", "data=bytes"))
    assert len(ladder.points) == 4
    spread = planned(source, ("search=random_nd", "search.params=[1e5,4e5]", "search.points=6", "data=bytes"))
    assert len(spread.points) == 6


def test_what_a_trunk_cannot_do_is_named(source: HydraSource) -> None:
    with pytest.raises(ValueError, match=r"batch\.ramp_from"):
        planned(source, (*COMMAND, "search=trunk_and_branch", "batch.ramp_from=256"))
    with pytest.raises(ValueError, match="has no budgets"):
        planned(source, (*COMMAND, "search=trunk_and_branch", "search.ratios=[]"))
