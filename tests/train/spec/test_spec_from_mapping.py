"""Reading mappings into dataclasses: every key, type and choice is checked, and the error says what to do."""

from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.spec.config import RunConfig, key
from train.spec.from_mapping import read


@dataclass(frozen=True)
class Part:
    """An entry of a list."""

    size: int


@dataclass(frozen=True)
class Kinds:
    """Every kind of value that a schema may hold, one of them without a default."""

    needed: int
    whole: int | None = None
    share: float = 0.5
    word: str | None = "x"
    truth: bool | None = None
    numbers: tuple[int, ...] = ()
    words: list[str] = field(default_factory=list)
    parts: tuple[Part, ...] = ()
    either: float | str = 0.0
    table: dict[str, int] = field(default_factory=dict)
    anything: Any = None
    shape: str | None = key(None, "one of two", ("round", "square"))
    part: Part | None = None


def test_defaults_survive_a_round_trip() -> None:
    config = RunConfig()
    assert read(RunConfig, asdict(config)) == config


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"model": {"widht": 3}}, ["'model.widht'", "did you mean 'model.width'?"]),
        ({"modle": {}}, ["'modle'", "did you mean 'model'?"]),
        ({"zzz": 1}, ["'zzz'", "budget", "schedule"]),
        ({"model": {"width": "wide"}}, ["model.width='wide'", "a whole number"]),
        ({"model": {"width": 1.5}}, ["model.width=1.5", "a whole number"]),
        ({"model": {"width": None}}, ["model.width=null", "a whole number"]),
        ({"model": {"width": True}}, ["model.width=True", "a whole number"]),
        ({"model": {"qk_norm": 1}}, ["model.qk_norm=1", "true or false"]),
        ({"optim": {"eps": float("nan")}}, ["optim.eps=nan", "a finite number"]),
        ({"schedule": {"name": "cosin"}}, ["schedule.name='cosin'", "cosine, wsd, linear, constant"]),
        ({"model": {"width": "64.5"}}, ["model.width='64.5'", "a whole number"]),
        ({"optim": {"eps": "nan"}}, ["optim.eps='nan'", "a finite number"]),
        ({"model": 3}, ["model=3", "a section with keys of its own, such as model.width"]),
    ],
)
def test_bad_values_are_named(mapping: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        read(RunConfig, mapping)
    for word in words:
        assert word in str(caught.value)


@given(st.integers(1, 10**9))
def test_whole_floats_are_ints_and_ints_are_floats(value: int) -> None:
    config = read(RunConfig, {"budget": {"tokens": float(value), "flops": value}})
    assert config.budget.tokens == value
    assert isinstance(config.budget.tokens, int)
    assert isinstance(config.budget.flops, float)


def test_text_that_says_a_number_is_one() -> None:
    config = read(
        RunConfig, {"budget": {"tokens": "4e7", "flops": "1e12"}, "model": {"qk_norm": "False", "width": "64"}}
    )
    assert (config.budget.tokens, config.budget.flops, config.model.width) == (40_000_000, 1e12, 64)
    assert config.model.qk_norm is False
    assert read(RunConfig, {"data": {"name": "64"}}).data.name == "64"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("whole", None, None), ("whole", 3, 3), ("whole", 3.0, 3), ("whole", "3", 3), ("whole", "-3", -3),
        ("whole", "+3", 3), ("whole", "3e2", 300), ("share", 2, 2.0), ("share", "2", 2.0), ("share", "-.5", -0.5),
        ("word", "3", "3"), ("word", None, None), ("word", "", ""), ("truth", True, True), ("truth", False, False),
        ("truth", "TRUE", True), ("truth", "false", False), ("truth", None, None),
        ("numbers", [1, "2", 3.0], (1, 2, 3)), ("numbers", (), ()), ("words", ("a", "b"), ["a", "b"]),
        ("parts", [{"size": 1}], (Part(1),)), ("parts", [], ()), ("words", ("a", "b"), ["a", "b"]),
        ("either", "text", "text"), ("either", 3, 3.0), ("either", "4", 4.0),
        ("table", {"a": 1}, {"a": 1}), ("anything", {"a": [1]}, {"a": [1]}), ("anything", 3, 3),
        ("anything", "3", "3"), ("shape", "round", "round"), ("shape", None, None), ("part", {"size": 2}, Part(2)),
        ("part", None, None),
    ],
)  # fmt: skip
def test_values_of_every_kind(name: str, value: Any, wanted: Any) -> None:
    found = getattr(read(Kinds, {"needed": 0, name: value}), name)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("needed", None, "here.needed=null is not allowed: it takes a whole number"),
        ("whole", 3.5, "here.whole=3.5 is not allowed: it takes a whole number or null"),
        ("whole", "three", "here.whole='three' is not allowed: it takes a whole number or null"),
        ("whole", "--3", "here.whole='--3' is not allowed: it takes a whole number or null"),
        ("whole", "inf", "here.whole='inf' is not allowed: it takes a whole number or null"),
        ("whole", True, "here.whole=True is not allowed: it takes a whole number or null"),
        ("whole", [1], "here.whole=[1] is not allowed: it takes a whole number or null"),
        ("share", float("inf"), "here.share=inf is not allowed: it takes a finite number"),
        ("share", True, "here.share=True is not allowed: it takes a finite number"),
        ("share", None, "here.share=null is not allowed: it takes a finite number"),
        (
            "word",
            3,
            "here.word=3 is not allowed: it takes text or null: put it in quotes, as 'here.word=\"3\"'",
        ),
        (
            "word",
            True,
            "here.word=True is not allowed: it takes text or null: put it in quotes, as 'here.word=\"true\"'",
        ),
        ("word", [3], "here.word=[3] is not allowed: it takes text or null"),
        ("truth", 1, "here.truth=1 is not allowed: it takes true or false or null"),
        ("truth", "yes", "here.truth='yes' is not allowed: it takes true or false or null"),
        ("numbers", 3, "here.numbers=3 is not allowed: it takes a list in [ ]"),
        ("numbers", "12", "here.numbers='12' is not allowed: it takes a list in [ ]"),
        ("numbers", [1, 2.5], "here.numbers[1]=2.5 is not allowed: it takes a whole number"),
        ("parts", [{"size": "x"}], "here.parts[0].size='x' is not allowed: it takes a whole number"),
        ("parts", [{}], "here.parts[0].size is missing"),
        (
            "parts",
            [3],
            "here.parts[0]=3 is not allowed: it is a section with keys of its own, such as here.parts[0].size",
        ),
        ("table", [1], "here.table=[1] is not allowed: it takes keys with values in { }"),
        ("table", 3, "here.table=3 is not allowed: it takes keys with values in { }"),
        ("words", {"a": 1}, "here.words={'a': 1} is not allowed: it takes a list in [ ]"),
        ("shape", "oval", "here.shape='oval' is not allowed: choose one of round, square"),
        ("part", 3, "here.part=3 is not allowed: it is a section with keys of its own, such as here.part.size"),
        ("wrods", 3, "unknown key 'here.wrods': did you mean 'here.words'?"),
        (
            "zzz",
            3,
            "unknown key 'here.zzz': the keys here are here.anything, here.either, here.needed, here.numbers, "
            "here.part, here.parts, here.shape, here.share, here.table, here.truth, here.whole, here.word, here.words",
        ),
    ],
)
def test_values_of_another_kind(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as caught:
        read(Kinds, {"needed": 0, name: value}, "here")
    assert str(caught.value) == message


def test_what_has_no_default_is_asked_for_and_what_has_one_is_not() -> None:
    assert read(Kinds, {"needed": 4}) == Kinds(4)
    with pytest.raises(ValueError, match=r"^needed is missing$"):
        read(Kinds, {})
    with pytest.raises(ValueError, match=r"^in\.here\.needed is missing$"):
        read(Kinds, {"whole": 3}, "in.here")


def test_the_nearest_key_is_that_of_its_own_section() -> None:
    with pytest.raises(ValueError, match=r"^unknown key 'a\.b\.shap': did you mean 'a\.b\.shape'\?$"):
        read(Kinds, {"shap": 1}, "a.b")
