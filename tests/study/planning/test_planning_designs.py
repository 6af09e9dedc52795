"""From a search section to override lists, by hand: sizes counted with a ruler, budgets as whole sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from study.config.schema import SearchConfig, StudyConfig
from study.planning import designs
from sweeps.designs.isoflop import Shape
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, OptimConfig, ScheduleConfig
from train.spec.manifest import BYTES_VOCABULARY

LENGTH, VOCABULARY, MLP = 256, 512, 96


def config(search: SearchConfig, **changes: Any) -> StudyConfig:
    model = ModelConfig(width=64, layers=3, head_dim=32, kv_heads=2, mlp_width=MLP)
    data = DataConfig(tokenizer="any", vocab_size=VOCABULARY, sequence_length=LENGTH)
    return replace(StudyConfig(), search=search, model=model, data=data, **changes)


def matmul(width: int, layers: int) -> int:
    """Parameters of matrix products: queries and output, two heads of keys and values, the gated MLP, the head."""
    return layers * (2 * width * width + 2 * width * 64 + 3 * width * MLP) + VOCABULARY * width


def per_token(width: int, layers: int) -> int:
    return 6 * matmul(width, layers) + 12 * layers * width * LENGTH


def shape(width: int, layers: int) -> Shape:
    return Shape(width, layers, matmul(width, layers), per_token(width, layers))


SEARCH = SearchConfig(width_step=32, width_max=160, aspect_ratio=32.0)
FAMILY = [shape(32 * n, n) for n in range(1, 6)]


def test_the_family_is_every_multiple_of_the_step_up_to_the_widest() -> None:
    assert designs.family(config(SEARCH)) == FAMILY
    assert designs.family(config(replace(SEARCH, width_max=159))) == FAMILY[:4]
    assert designs.family(config(replace(SEARCH, width_max=32))) == FAMILY[:1]
    assert designs.family(config(SEARCH), layers=2) == [shape(32 * n, 2) for n in range(1, 6)]
    deep = designs.family(config(replace(SEARCH, min_layers=3)))
    assert [one.layers for one in deep] == [3, 3, 3, 4, 5]
    flat = designs.family(config(replace(SEARCH, aspect_ratio=100.0)))
    assert [one.layers for one in flat] == [1, 1, 1, 1, 2], "round(0.32), 0.64, 0.96, 1.28, 1.6; at least one"


@pytest.mark.parametrize(
    ("largest", "count", "widths"),
    [
        (None, 1, 5),
        (matmul(32, 1), 1, 1),
        (matmul(96, 3), 1, 3),
        (matmul(96, 3) + 1, 1, 4),
        (matmul(96, 3), 2, 4),
        (matmul(32, 1), 2, 2),
        (0, 3, 3),
        (1e12, 1, 5),
    ],
)
def test_no_more_of_the_family_are_made_than_are_wanted(largest: float | None, count: int, widths: int) -> None:
    assert designs.family(config(SEARCH), None, largest, count) == FAMILY[:widths]


def test_a_step_that_heads_do_not_divide_is_refused_with_the_nearest_that_they_do() -> None:
    with pytest.raises(ValueError) as refused:
        designs.family(config(replace(SEARCH, width_step=80)))
    assert str(refused.value) == (
        "search.width_step=80 is not a multiple of model.head_dim=32: take search.width_step=64 or another "
        "model.head_dim"
    )
    with pytest.raises(ValueError, match=r"take search\.width_step=32 or"):
        designs.family(config(replace(SEARCH, width_step=0)))
    with pytest.raises(ValueError, match=r"take search\.width_step=32 or"):
        designs.family(config(replace(SEARCH, width_step=-32)))
    with pytest.raises(ValueError, match=r"search\.width_max=31 is below search\.width_step=32"):
        designs.family(config(replace(SEARCH, width_max=31)))
    derived = replace(config(SEARCH), model=ModelConfig(width=64, layers=3, head_dim=None))
    with pytest.raises(ValueError, match=r"width_step=3 is not a multiple of model\.head_dim=2: take .*width_step=2 "):
        designs.family(replace(derived, search=replace(SEARCH, width_step=3)))
    assert len(designs.family(replace(derived, search=replace(SEARCH, width_step=2, width_max=10)))) == 5
    with pytest.raises(ValueError, match=r"search\.aspect_ratio=0\.0 is not allowed"):
        designs.family(config(replace(SEARCH, aspect_ratio=0.0)))


def test_bytes_have_a_vocabulary_of_their_own() -> None:
    of_bytes = replace(config(SEARCH), data=DataConfig(tokenizer="bytes", vocab_size=99_999, sequence_length=LENGTH))
    found = designs.family(of_bytes)[0]
    assert found.params == matmul(32, 1) - VOCABULARY * 32 + BYTES_VOCABULARY * 32 != matmul(32, 1)


def isoflop(search: SearchConfig, given: Sequence[str] = (), **changes: Any) -> list[tuple[str, ...]]:
    return designs.isoflop(config(search, **changes), given)


def test_each_budget_takes_the_shape_nearest_to_each_ratio() -> None:
    budgets = [20.0 * FAMILY[n].params * FAMILY[n].flops_per_token for n in (1, 3)]
    found = isoflop(replace(SEARCH, name="isoflop", budgets=tuple(reversed(budgets)), ratios=(20.0,)))
    assert [line[:2] for line in found] == [
        ("model.width=64", "model.layers=2"),
        ("model.width=128", "model.layers=4"),
    ]
    assert [float(line[2].removeprefix("budget.flops=")) for line in found] == pytest.approx(budgets, rel=1e-3)


def test_what_is_given_stays_as_it_is_given() -> None:
    search = replace(SEARCH, budgets=(1e12, 3e12), ratios=(20.0,))
    assert isoflop(search, ["model.width=64", "++model.layers=3"]) == [
        ("model.width=64", "model.layers=3", "budget.flops=1e+12"),
        ("model.width=64", "model.layers=3", "budget.flops=3e+12"),
    ]
    assert isoflop(search, ["model.width=64"])[0][:2] == ("model.width=64", "model.layers=2"), "depth by the ratio"
    (one,) = isoflop(search, ["model.width=64", "budget.flops=2e12"], budget=BudgetConfig(flops=2e12))
    assert one[2] == "budget.flops=2e+12"
    assert len(isoflop(search, ["model.width=64"], budget=BudgetConfig(flops=2e12))) == 2, "it was not given there"
    fixed = isoflop(replace(search, ratios=(5.0, 20.0)), ["model.layers=3"])
    assert {line[1] for line in fixed} == {"model.layers=3"}


def test_explicit_shapes_are_crossed_with_the_budgets() -> None:
    sizes = ({"width": 96}, {"width": 32, "layers": 4})
    assert isoflop(replace(SEARCH, shapes=sizes, budgets=(1e12,))) == [
        ("model.width=32", "model.layers=4", "budget.flops=1e+12"),
        ("model.width=96", "model.layers=3", "budget.flops=1e+12"),
    ]
    for wrong in ({"width": 32, "depth": 1}, {"layers": 4}):
        with pytest.raises(ValueError, match=r"search\.shapes holds .*: each one is \{width: …, layers: …\}"):
            isoflop(replace(SEARCH, shapes=(wrong,), budgets=(1e12,)))


@pytest.mark.parametrize("name", ["budgets", "ratios"])
def test_a_design_without_budgets_or_ratios_names_what_is_empty(name: str) -> None:
    search = replace(SEARCH, budgets=(1e12,), ratios=(20.0,))
    with pytest.raises(ValueError, match=f"search.{name} is empty"):
        isoflop(replace(search, **{name: ()}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"search.{name} holds -1.0, which is not a positive number"):
        isoflop(replace(search, **{name: (-1.0,)}))  # type: ignore[arg-type]


def test_the_smallest_ratio_finds_its_shape_in_a_family_without_end() -> None:
    wide = replace(SEARCH, width_max=1_000_000, budgets=(4e11,), ratios=(1.0, 2.0, 4.0))
    bounded = replace(wide, width_max=640)
    assert isoflop(wide) == isoflop(bounded), "no size beyond the smallest ratio's was missed or taken"


def ladder(search: SearchConfig, given: Sequence[str] = ()) -> list[tuple[str, ...]]:
    return designs.ladder_points(config(search), given)


def test_a_ladder_has_the_sizes_that_are_given_first() -> None:
    search = replace(SEARCH, ratios=(20.0, 5.0))
    own = [(f"model.width={w}", f"model.layers={n}") for w, n in ((64, 3), (64, 2), (64, 5))]
    assert ladder(search) == [(*own[0], "budget.tokens_per_param=5.0"), (*own[0], "budget.tokens_per_param=20.0")]
    assert {line[:2] for line in ladder(search, ["model.width=64"])} == {own[1]}
    both = designs.ladder_points(
        replace(config(search), model=replace(config(search).model, layers=5)), ["model.layers=5"]
    )
    assert {line[:2] for line in both} == {own[2]}
    wanted = replace(search, params=(matmul(96, 3) * 1.01, matmul(32, 1) * 0.5), ratios=(7.5,))
    assert ladder(wanted) == [
        ("model.width=32", "model.layers=1", "budget.tokens_per_param=7.5"),
        ("model.width=96", "model.layers=3", "budget.tokens_per_param=7.5"),
    ]
    explicit = replace(wanted, shapes=({"width": 160, "layers": 1}, {"width": 32}, {"width": 32, "layers": 1}))
    assert [line[:2] for line in ladder(explicit)] == [
        ("model.width=32", "model.layers=1"),
        ("model.width=160", "model.layers=1"),
    ]
    assert {line[:2] for line in ladder(explicit, ["model.width=64"])} == {own[1]}


def test_random_points_lie_between_the_sizes_and_ratios_that_are_given() -> None:
    search = replace(SEARCH, params=(matmul(64, 2), matmul(128, 4)), ratios=(5.0, 80.0), points=8, seed=3)
    found = designs.random_points(config(search), ())
    assert len(found) == 8
    assert {line[0] for line in found} <= {"model.width=64", "model.width=96", "model.width=128"}
    assert all(5.0 <= float(line[2].removeprefix("budget.tokens_per_param=")) <= 80.0 for line in found)
    with pytest.raises(ValueError, match=r"search\.params is empty"):
        designs.random_points(config(replace(search, params=())), ())


def trunk(search: SearchConfig, given: Sequence[str] = (), first: int = 0, **changes: Any) -> list[list[str]]:
    schedule = changes.pop("schedule", ScheduleConfig(name="wsd", warmup_fraction=0.01, decay_fraction=0.25))
    made = replace(config(search), schedule=schedule, **changes)
    return [list(line) for line in designs.trunk_points(made, given, first)]


STEP = BatchConfig(tokens=1024)
LR = OptimConfig(lr=0.002)


def test_a_trunk_and_its_branches_by_hand() -> None:
    search = replace(SEARCH, name="trunk_and_branch", tokens=(409_600, 204_800))
    schedule = ScheduleConfig(
        name="wsd", warmup_fraction=0.01, decay_fraction=0.25, final_lr_fraction=0.1, decay_shape="sqrt"
    )
    fixed = ["model.width=64", "model.layers=3", "batch.tokens=1024", "optim.lr=0.002"]
    branch = ["schedule.decay_fraction=0.25", "schedule.final_lr_fraction=0.1", "schedule.decay_shape=sqrt"]
    found = trunk(search, first=7, schedule=schedule, batch=STEP, optim=LR)
    assert found == [
        [*fixed, "budget.tokens=153600", "schedule.name=constant", f"schedule.warmup_fraction={2048 / 153600!r}"],
        [*fixed, "budget.tokens=307200", "schedule.name=constant", f"schedule.warmup_fraction={2048 / 307200!r}",
         "schedule.parent=point:7@153600"],
        [*fixed, "budget.tokens=204800", "schedule.name=wsd", "schedule.warmup_fraction=0.01", *branch,
         "schedule.parent=point:7@153600"],
        [*fixed, "budget.tokens=409600", "schedule.name=wsd", "schedule.warmup_fraction=0.005", *branch,
         "schedule.parent=point:8@307200"],
    ]  # fmt: skip


def test_a_schedule_that_cannot_branch_becomes_one_that_ends_at_zero() -> None:
    search = replace(SEARCH, tokens=(204_800,))
    cosine = ScheduleConfig(name="cosine", warmup_fraction=0.01, decay_fraction=0.5, final_lr_fraction=0.3)
    found = trunk(search, schedule=cosine, batch=STEP, optim=LR)
    usual = ScheduleConfig(name="wsd")
    assert f"schedule.decay_fraction={usual.decay_fraction!r}" in found[-1]
    assert "schedule.final_lr_fraction=0.0" in found[-1] and f"schedule.decay_shape={usual.decay_shape}" in found[-1]


@pytest.mark.parametrize(
    ("said", "budgets"),
    [
        ({"tokens": (204_900, 100)}, {204_800: "budget.tokens=204800", 256: "budget.tokens=256"}),
        ({"tokens": (384,)}, {512: "budget.tokens=512"}),
        ({"tokens": (383,)}, {256: "budget.tokens=256"}),
        ({"budgets": (1e12, 3e11)}, {round(1e12 / per_token(64, 3) / 256) * 256: "budget.flops=1e+12",
                                     round(3e11 / per_token(64, 3) / 256) * 256: "budget.flops=3e+11"}),
        ({"ratios": (20.0,)}, {round(20 * matmul(64, 3) / 256) * 256:
                               f"budget.tokens={round(20 * matmul(64, 3) / 256) * 256}"}),
        ({"tokens": (2560,), "budgets": (1e12,), "ratios": (5.0,)}, {2560: "budget.tokens=2560"}),
    ],
)  # fmt: skip
def test_budgets_are_whole_sequences_each_with_what_says_it(said: dict[str, Any], budgets: dict[int, str]) -> None:
    assert designs._token_budgets(config(replace(SEARCH, **said)), shape(64, 3)) == budgets


def test_a_trunk_without_budgets_says_which_keys_give_them() -> None:
    with pytest.raises(ValueError, match=r"has no budgets: give search\.tokens, search\.ratios .* or search\.budgets"):
        trunk(SEARCH, batch=STEP, optim=LR)


def test_batch_and_learning_rate_follow_the_geometric_mean_of_the_budgets() -> None:
    search = replace(SEARCH, tokens=(409_600 * 16, 409_600))
    middle = 409_600 * 4
    found = trunk(search)[0]
    sequences = max(4, round(0.58 * middle**0.571 / LENGTH))
    assert f"batch.tokens={sequences * LENGTH}" in found
    norms = 3 * (2 * 64 + 2 * 32) + 64
    count = matmul(64, 3) - VOCABULARY * 64 + norms
    assert f"optim.lr={float(f'{min(0.05, 1.79 * count**-0.713 * middle**0.307):.4g}')!r}" in found
    asked = trunk(search, batch=STEP, optim=LR)[0]
    assert "batch.tokens=1024" in asked and "optim.lr=0.002" in asked


def test_a_batch_that_grows_has_no_trunk() -> None:
    with pytest.raises(ValueError, match=r"batch\.ramp_from=512 is not allowed with search=trunk_and_branch"):
        trunk(replace(SEARCH, tokens=(204_800,)), batch=BatchConfig(tokens=1024, ramp_from=512), optim=LR)


def test_points_are_numbered_across_sizes() -> None:
    search = replace(SEARCH, tokens=(204_800,), shapes=({"width": 64}, {"width": 32}))
    found = trunk(search, first=2, batch=STEP, optim=LR)
    assert [line[0] for line in found] == ["model.width=32", "model.width=32", "model.width=64", "model.width=64"]
    assert [found[1][-1], found[3][-1]] == [f"schedule.parent=point:{number}@153600" for number in (2, 4)]


def test_jobs_without_a_design_stay_and_others_are_multiplied() -> None:
    class Composer:
        """Composes from the name of a job's design alone."""

        def plain(self, overrides: Sequence[str]) -> dict[str, Any]:
            name = next((line.partition("=")[2] for line in overrides if line.startswith("search=")), None)
            return {} if name is None else {"search": {"name": name}}

        def compose(self, overrides: Sequence[str]) -> Any:
            class Composed:
                config = trunks if "search=trunk_and_branch" in overrides else ladders

            return Composed

    ladders = config(replace(SEARCH, ratios=(5.0, 20.0)))
    trunks = replace(
        config(replace(SEARCH, tokens=(204_800,))), batch=STEP, optim=LR, schedule=ScheduleConfig(name="wsd")
    )
    jobs = [
        ["seed=1"],
        ["search=grid", "seed=2"],
        ["search=asha"],
        ["search=ladder", "a=1"],
        ["search=trunk_and_branch"],
    ]
    found = designs.expand(jobs, Composer())
    assert found[:3] == [("seed=1",), ("search=grid", "seed=2"), ("search=asha",)]
    assert found[3] == ("search=ladder", "a=1", "model.width=64", "model.layers=3", "budget.tokens_per_param=5.0")
    assert [line[0] for line in found[3:5]] == ["search=ladder"] * 2 and len(found) == 7
    assert found[6][-1].startswith("schedule.parent=point:5@"), "its trunk is the sixth point"
