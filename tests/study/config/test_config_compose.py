"""Our fast composition gives what Hydra's own compose gives."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from study.config.compose import Composer, HydraSource, check, conf_folder
from study.planning.designs import expand, family, isoflop
from study.sweep.plugins import combinations

EXTRA = """\
# @package _global_
defaults:
  - override /model: small
  - _self_
study:
  name: w${model.width}-${schedule.name}
eval:
  sequences: ${model.width}
"""


@pytest.fixture(scope="module")
def extra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "study").mkdir()
    (folder / "study" / "interpolated.yaml").write_text(EXTRA)
    (folder / "study" / "unchosen.yaml").write_text("# @package _global_\ndefaults:\n  - /model@other: ???\n")
    return folder


@pytest.fixture(scope="module")
def source(extra: Path) -> Iterator[HydraSource]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        master = compose("config", overrides=[f"hydra.searchpath=[file://{extra}]"], return_hydra_config=True)
        yield HydraSource(GlobalHydra.instance().config_loader(), master)


def by_hydra(overrides: list[str], extra: Path) -> object:
    config = compose("config", overrides=[f"hydra.searchpath=[file://{extra}]", *overrides])
    return OmegaConf.to_container(config, resolve=True)


@pytest.fixture(scope="module")
def defaults(source: HydraSource, extra: Path) -> object:
    return by_hydra([], extra)


OVERRIDES = [
    "model=small",
    "model=150m",
    "schedule=wsd",
    "data=bytes",
    "study=isoflop",
    "study=interpolated",
    "cluster=slurm",
    "search=isoflop",
    "model.width=96",
    "model.width=128",
    "model.kv_heads=2",
    "model.tied_embeddings=true",
    "seed=3",
    "budget.tokens=1e6",
    "budget.tokens_per_param=null",
    "search.budgets=[1e12,2e12]",
    "search.shapes=[{width:32,layers:1}]",
    "+model.layers=9",
    "++model.layers=5",
    "~optim.lr",
    "study.name=x${seed}",
    "study.name='a,b c'",
    "eval.count=${model.layers}",
    "optim={beta1:0.8}",
    "cluster.setup=['module load cuda','export A=${seed}']",
]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(overrides=st.lists(st.sampled_from(OVERRIDES), max_size=5, unique=True))
def test_composes_what_hydra_composes(source: HydraSource, extra: Path, overrides: list[str]) -> None:
    ours: object
    try:
        theirs = by_hydra(overrides, extra)
    except Exception as error:
        with pytest.raises(type(error)):
            Composer(source).plain(overrides)
        return
    ours = Composer(source).plain(overrides)
    assert json.dumps(ours) == json.dumps(theirs)


def test_interpolations_see_the_values_of_each_point(source: HydraSource) -> None:
    made = Composer(source)
    first = made.compose(["study=interpolated", "model.width=96"]).config
    second = made.compose(["study=interpolated", "model.width=128", "schedule=wsd"]).config
    assert (first.study.name, first.eval.sequences) == ("w96-cosine", 96)
    assert (second.study.name, second.eval.sequences) == ("w128-wsd", 128)


def test_a_point_does_not_see_another_points_values(source: HydraSource) -> None:
    made = Composer(source)
    before = made.plain(["model=small"])
    made.plain(["model=small", "model.width=1024", "seed=7"])
    assert made.plain(["model=small"]) == before


class Counting:
    """Notes what it is asked to compose."""

    def __init__(self, source: HydraSource) -> None:
        self._source = source
        self.loads: list[tuple[str, ...]] = []

    def load(self, overrides: Sequence[str]) -> DictConfig:
        self.loads.append(tuple(overrides))
        return self._source.load(overrides)

    def is_group(self, name: str) -> bool:
        assert "." not in name, "Hydra takes long to say that a dotted key is no group"
        return self._source.is_group(name)


def multirun(extra: Path, words: Sequence[str]) -> HydraSource:
    """Return what Hydra hands to the sweeper of `python -m study.sweep -m words…`."""
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration("config", [f"hydra.searchpath=[file://{extra}]", *words], RunMode.MULTIRUN)
    return HydraSource(loader, master)


@pytest.mark.parametrize(
    ("words", "point", "loads"),
    [
        (["model=small", "model.width=96"], ["model=small", "model.width=96", "seed=3"], 0),
        (["model.width=96", "seed=1,2"], ["model.width=128", "seed=1"], 0),
        (["study=interpolated"], ["study=interpolated", "model.width=96"], 0),
        (["eval.count=${model.layers}"], ["eval.count=${model.layers}", "model.layers=3"], 0),
        (["model.width=96", "seed=3"], ["seed=3"], 1),
        (["model=small,150m", "seed=3"], ["model=150m", "seed=3"], 1),
        (["model=small"], [], 1),
        (["++model.layers=5"], ["++model.layers=5", "seed=3"], 2),
        (["cluster.sbatch={hint: compute_bound}"], ["seed=3"], 1),
    ],
)
def test_what_hydra_began_with_is_not_composed_again(
    source: HydraSource, extra: Path, defaults: object, *, words: list[str], point: list[str], loads: int
) -> None:
    counting = Counting(source)
    made = Composer(counting, multirun(extra, words).begun())
    assert json.dumps(made.plain(point)) == json.dumps(by_hydra(point, extra))
    assert len(counting.loads) == loads, counting.loads
    assert made.plain(point) == made.plain(point)
    assert made.plain([]) == defaults, "a point without a value does not have it"


def test_a_group_without_an_option_is_still_refused(source: HydraSource, extra: Path) -> None:
    master = multirun(extra, ["study=unchosen"])
    assert master.begun() is None
    with pytest.raises(ConfigCompositionException, match="You must specify 'model@other'"):
        Composer(source, master.begun()).plain(["study=unchosen"])


def test_hydra_composes_once_per_set_of_groups(source: HydraSource) -> None:
    counting = Counting(source)
    made = Composer(counting)
    for seed in range(20):
        for model in ("tiny", "small"):
            made.compose([f"model={model}", f"seed={seed}", "optim.lr=0.1"])
    assert sorted(counting.loads) == [("model=small",), ("model=tiny",)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+model.widht=3"], "unknown key 'model.widht': did you mean model.width?"),
        (["+whatever.it.is=3"], "unknown key 'whatever'"),
        (["model.width=wide"], "model.width='wide' is not allowed: it takes a whole number"),
        (["model.width=64.5"], "model.width=64.5 is not allowed: it takes a whole number"),
        (["seed=null"], "seed=null is not allowed"),
        (["schedule.name=cosin"], "schedule.name='cosin' is not allowed: choose one of cosine"),
        (["data.source=???"], "data.source has no value yet"),
        (["cluster.partition=''"], "cluster.partition= is empty: give a value, or cluster.partition=null"),
        (["search.budgets=[1e12,much]"], r"search.budgets\[1\]='much'"),
        (["paths.runs=''"], "paths.runs= is empty: name the folder of all studies"),
        (["paths.runs=null"], "paths.runs=null is not allowed: it takes text"),
        (
            ["study.name=2026"],
            "study.name=2026 is not allowed: it takes text: put it in quotes, as 'study.name=",
        ),
    ],
)
def test_a_wrong_config_is_refused(source: HydraSource, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Composer(source).compose(overrides)


def test_a_time_limit_on_the_command_line_stands_where_the_study_would_choose_one(source: HydraSource) -> None:
    words = ["study=isoflop_gpu", "cluster=slurm", "data.source=/folder"]
    chosen = Composer(source).compose(words).config.cluster
    given = Composer(source).compose([*words, "cluster.time_minutes=40"]).config.cluster
    assert (chosen.auto, given.auto) == (("time", "points_per_job", "pack"), ("points_per_job", "pack"))
    assert given.time_minutes == 40


def test_a_wrong_key_in_yaml_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'optim\.learning_rte'"):
        check({"optim": {"learning_rte": 1e-3}})


def parsed(*lines: str) -> list[tuple[str, ...]]:
    return combinations(OverridesParser.create().parse_overrides(list(lines)))


def test_lists_multiply() -> None:
    assert parsed("seed=range(2)", "model.width=64,96", "study=smoke") == [
        ("seed=0", "model.width=64", "study=smoke"),
        ("seed=0", "model.width=96", "study=smoke"),
        ("seed=1", "model.width=64", "study=smoke"),
        ("seed=1", "model.width=96", "study=smoke"),
    ]


def test_choice_and_repeated_keys() -> None:
    assert parsed("seed=1", "seed=choice(4,4,5)") == [("seed=4",), ("seed=5",)]
    assert parsed("~optim.lr", "+seed=1") == [("~optim.lr", "+seed=1")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seed=range(nan)", r"seed=range\(nan\): start, stop and step of a range must be finite numbers"),
        ("seed=range(0,9,0)", r"seed=range\(0,9,0\): the step of a range must not be 0"),
        ("seed=range(5,1)", "the stop must be the larger one"),
        ("seed=glob(*)", "a glob is over the options of a group, and seed has none: list its values"),
    ],
)
def test_a_list_without_values_says_why(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed(line)


def test_an_interval_is_refused_for_a_grid() -> None:
    with pytest.raises(ValueError, match=r"optim\.lr=interval\(0\.1,1\) is a continuous range"):
        parsed("optim.lr=interval(0.1,1)")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("seed=range(0,1000000000000)",), r"seed alone has more than 100,000 values"),
        (("seed=range(0,1001)", "optim.lr_scale=range(1,101)"), r"seed alone has 1,001 values"),
    ],
)
def test_more_points_than_anybody_means_are_refused_at_once(lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=rf"-m lists more than 100,000 points \({words}\): .*search=random"):
        parsed(*lines)
    assert len(parsed("seed=range(0,1000)", "optim.lr_scale=range(1,101)")) == 100_000


def test_the_design_multiplies_with_the_lists(source: HydraSource) -> None:
    base = ("study=smoke", "search.budgets=[1e10,1e11]", "search.ratios=[1,10]")
    points = expand([(*base, "seed=0"), (*base, "seed=1")], Composer(source))
    assert len(points) == 8
    assert [p[3] for p in points] == ["seed=0"] * 4 + ["seed=1"] * 4
    assert {p[-1] for p in points} == {"budget.flops=1e+10", "budget.flops=1e+11"}


def test_grid_leaves_the_jobs_alone(source: HydraSource) -> None:
    assert expand([["seed=0"], ["seed=1"]], Composer(source)) == [("seed=0",), ("seed=1",)]


def test_a_given_width_is_crossed_with_the_budgets(source: HydraSource) -> None:
    job = ["study=smoke", "search.budgets=[1e10,1e11]", "model.width=160"]
    design = isoflop(Composer(source).compose(job).config, job)
    assert [d[:2] for d in design] == [("model.width=160", "model.layers=5")] * 2


def test_a_given_depth_and_budget_stay(source: HydraSource) -> None:
    job = ["study=smoke", "model.layers=3", "budget.flops=5e10"]
    design = isoflop(Composer(source).compose(job).config, job)
    assert {d[1:] for d in design} == {("model.layers=3", "budget.flops=5e+10")}
    assert len(design) == 3


def test_explicit_shapes(source: HydraSource) -> None:
    job = ["study=smoke", "search.budgets=[1e10]", "search.shapes=[{width:32,layers:4},{width:64}]"]
    design = isoflop(Composer(source).compose(job).config, job)
    assert [d[:2] for d in design] == [("model.width=32", "model.layers=4"), ("model.width=64", "model.layers=2")]


def test_the_family_follows_the_aspect_ratio(source: HydraSource) -> None:
    job = ["search=isoflop", "search.width_step=64", "search.width_max=256", "search.aspect_ratio=64"]
    shapes = family(Composer(source).compose(job).config)
    assert [(s.width, s.layers) for s in shapes] == [(64, 1), (128, 2), (192, 3), (256, 4)]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("search.width_step=48", r"search\.width_step=48 is not a multiple of model\.head_dim=32"),
        ("search.width_max=16", r"search\.width_max=16"),
        ("search.aspect_ratio=0", r"search\.aspect_ratio"),
    ],
)
def test_a_family_that_cannot_be_is_refused(source: HydraSource, override: str, message: str) -> None:
    job = ["search=isoflop", override]
    config = Composer(source).compose(job).config
    with pytest.raises(ValueError, match=message):
        isoflop(config, job)
