"""Keys that came later, in a schema of our own: left out where they say what was so before, filled in where absent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pytest

from train.spec.config import RunConfig, key, section
from train.spec.later import filled, is_frozen, keys, read_run, without


@dataclass(frozen=True)
class Item:
    """An entry of a list, with a later key."""

    name: str = key("a", "of the first schema")
    colour: str = key("red", "later", former="grey")


@dataclass(frozen=True)
class Added:
    """A section that came later as a whole."""

    depth: int = key(3, "later", former=0)
    marks: tuple[int, ...] = key((1,), "later", former=())


@dataclass(frozen=True)
class Old:
    """A section of the first schema, with a later key and a later section within."""

    width: int = key(4, "of the first schema")
    rule: str | None = key("new", "later", former=None)
    added: Added = section(Added, "later as a whole")


@dataclass(frozen=True)
class Whole:
    """A run of this schema."""

    seed: int = key(0, "of the first schema")
    old: Old = section(Old, "of the first schema")
    items: tuple[Item, ...] = key((), "of the first schema")
    added: Added = section(Added, "later as a whole")
    limits: Any = key(None, "later", former={"a": [1, (2, 3)], "b": "text"})


FIRST: dict[str, Any] = {"seed": 7, "old": {"width": 9}, "items": [{"name": "x"}, {"name": "y"}]}
"""As it was frozen when there was none of the later keys."""
FILLED: dict[str, Any] = {
    "seed": 7,
    "old": {"width": 9, "rule": None, "added": {"depth": 0, "marks": ()}},
    "items": [{"name": "x", "colour": "grey"}, {"name": "y", "colour": "grey"}],
    "added": {"depth": 0, "marks": ()},
    "limits": {"a": [1, (2, 3)], "b": "text"},
}


def test_what_is_absent_gets_its_former_value_at_every_depth() -> None:
    assert filled(FIRST, Whole) == FILLED
    assert filled(FILLED, Whole) == FILLED
    kept = {**FIRST, "old": {"width": 9, "rule": "new"}, "items": [{"name": "x", "colour": "blue"}]}
    found = filled(kept, Whole)
    assert found["old"] == {"width": 9, "rule": "new", "added": {"depth": 0, "marks": ()}}
    assert found["items"] == [{"name": "x", "colour": "blue"}]
    assert FIRST["old"] == {"width": 9}, "the config itself stays as it is"


def test_an_absent_section_of_the_first_schema_stays_absent_and_odd_values_stay_as_they_are() -> None:
    assert filled({"seed": 1}, Whole) == {"seed": 1, "added": FILLED["added"], "limits": FILLED["limits"]}
    odd = {"old": 5, "items": "none", "added": None}
    found = filled(odd, Whole)
    assert {name: found[name] for name in odd} == odd
    mixed = filled({"items": [{"name": "x"}, 3]}, Whole)
    assert mixed["items"] == [{"name": "x", "colour": "grey"}, 3]


def test_what_has_its_former_value_is_left_out_at_every_depth() -> None:
    assert without(FILLED, Whole) == FIRST
    assert without(FIRST, Whole) == FIRST
    said = {**FILLED, "old": {"width": 9, "rule": "new", "added": {"depth": 1, "marks": []}}, "added": {"depth": 2}}
    assert without(said, Whole) == {
        **FIRST,
        "old": {"width": 9, "rule": "new", "added": {"depth": 1}},
        "added": {"depth": 2},
    }


@pytest.mark.parametrize(
    ("limits", "same"),
    [
        ({"a": [1, (2, 3)], "b": "text"}, True),
        ({"a": (1, [2, 3]), "b": "text"}, True),  # as JSON gives it back
        ({"a": [1, [2, 4]], "b": "text"}, False),
        ({"a": [1, [2, 3]], "b": ["t", "e", "x", "t"]}, False),  # a text is no list
        ({"a": [1, [2, 3]]}, False),
        (None, False),
    ],
)
def test_values_are_equal_as_json_knows_them(limits: Any, same: bool) -> None:
    kept = {} if same else {"limits": limits}
    assert without({"limits": limits}, Whole) == kept


def test_a_section_that_was_empty_stays_and_one_that_is_left_empty_goes() -> None:
    assert without({"seed": 1, "old": {}, "added": {}}, Whole) == {"seed": 1, "old": {}, "added": {}}
    assert without({"seed": 1, "old": {"rule": None}, "added": {"depth": 0}}, Whole) == {"seed": 1}
    assert without({"seed": 0, "items": []}, Whole) == {"seed": 0, "items": []}


def test_the_list_of_later_keys() -> None:
    assert keys(Whole) == {
        "limits": {"a": [1, (2, 3)], "b": "text"},
        "old.rule": None,
        "old.added.depth": 0,
        "old.added.marks": (),
        "items.colour": "grey",
        "added.depth": 0,
        "added.marks": (),
    }
    assert keys(Added, "here.") == {"here.depth": 0, "here.marks": ()}


@pytest.mark.parametrize(
    ("changed", "frozen"),
    [
        ({}, True),
        ({"added": {}}, True),
        ({"limits": 3}, True),
        ({"old": 5}, True),  # no section: what reads it says so
        ({"seed": None}, True),
        ({"old": {}}, False),
        ({"old": {"rule": None, "added": {}}}, False),
    ],
)
def test_frozen_is_what_has_every_key_of_the_first_schema(changed: dict[str, Any], frozen: bool) -> None:
    assert is_frozen({**FIRST, **changed}, Whole) is frozen
    assert is_frozen({**FILLED, **changed}, Whole) is frozen


@pytest.mark.parametrize("name", ["seed", "old", "items"])
def test_without_one_of_these_it_is_not_frozen(name: str) -> None:
    assert not is_frozen({key: value for key, value in FILLED.items() if key != name}, Whole)


def test_a_frozen_run_is_read_as_it_was_and_a_written_one_by_todays_defaults() -> None:
    today = asdict(RunConfig())
    assert read_run(today) == RunConfig()
    assert read_run({}) == RunConfig()
    first = without({**today, "optim": {**today["optim"], "lr_rule": None}})
    assert "lr_rule" not in first["optim"]
    assert is_frozen(first)
    assert read_run(first).optim.lr_rule is None
    assert read_run({"optim": {}}).optim.lr_rule == "step_law"
    with pytest.raises(ValueError, match=r"unknown key 'here\.optin'"):
        read_run({"optin": {}}, "here")
