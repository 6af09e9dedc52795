"""Dataclasses from plain JSON values: every kind of field, what is missing, and the work for many of one class."""

import math
import typing
from dataclasses import dataclass, field
from typing import Any

import pytest

from analysis.values.json_values import from_json, to_json


@dataclass(frozen=True)
class Row:
    key: str
    loss: float
    count: int = 3


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]
    ends: tuple[float, float] | None
    named: dict[str, Row] = field(default_factory=dict)
    good: bool = True


def test_every_kind_of_field_comes_back() -> None:
    value = {
        "rows": [{"key": "a", "loss": 2, "count": 7}, {"key": "b", "loss": 2.5, "later": "of a newer version"}],
        "ends": [1, 2.5],
        "named": {"c": {"key": "c", "loss": 3.0}},
        "good": False,
    }
    found = from_json(Table, value)
    assert found == Table((Row("a", 2.0, 7), Row("b", 2.5)), (1.0, 2.5), {"c": Row("c", 3.0)}, good=False)
    assert type(found.rows[0].loss) is float and type(found.rows[0].count) is int
    assert from_json(Table, {"rows": [], "ends": None}) == Table((), None)


def test_what_is_no_number_is_null_and_back() -> None:
    written = to_json(Row("a", math.nan))
    assert written == {"key": "a", "loss": None, "count": 3}
    assert math.isnan(from_json(Row, written).loss)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"ends": None}, r"^fit\.json has no key 'rows'"),
        ({"rows": [{"key": "a", "loss": 1.0}, {"key": "b"}], "ends": None}, r"^fit\.json\.rows\[1\] has no key 'loss'"),
        ({"rows": [], "ends": None, "named": {"c": {"loss": 1.0}}}, r"^fit\.json\.named\.c has no key 'key'"),
    ],
)
def test_a_missing_key_is_named_with_its_place(value: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        from_json(Table, value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, "fit.json is 3, not an object"),
        ({"rows": {}, "ends": None}, "fit.json.rows is {}, not a list"),
        ({"rows": [], "ends": [1]}, "fit.json.ends is [1], not a list of 2"),
        ({"rows": [], "ends": [1, True]}, "fit.json.ends[1] is True, not a number"),
        ({"rows": [], "ends": [1, "2"]}, "fit.json.ends[1] is '2', not a number"),
        ({"rows": [], "ends": [1, 10**400]}, "fit.json.ends[1] is <int>, not a number below 1e308"),
        ({"rows": [], "ends": None, "good": 1}, "fit.json.good is 1, not true or false"),
        ({"rows": [], "ends": None, "named": []}, "fit.json.named is [], not an object"),
        ({"rows": [{"key": 3, "loss": 1}], "ends": None}, "fit.json.rows[0].key is 3, not a text"),
        (
            {"rows": [{"key": "a", "loss": 1, "count": 1.5}], "ends": None},
            "fit.json.rows[0].count is 1.5, not a whole number",
        ),
    ],
)
def test_what_is_of_another_type_is_named_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        from_json(Table, value)
    assert str(refused.value) == f"{said}; was it written by another version? run analysis.fit again"


def test_types_are_resolved_once_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Own:
        key: str

    resolved: list[object] = []
    hints = typing.get_type_hints

    def counted(kind: Any) -> dict[str, Any]:
        resolved.append(kind)
        return hints(kind)

    monkeypatch.setattr(typing, "get_type_hints", counted)
    for _ in range(3):
        assert from_json(Own, {"key": "a"}) == Own("a")
    assert resolved == [Own]
