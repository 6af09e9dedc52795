"""Keys of `search` that the chosen search does not read."""

from __future__ import annotations

import dataclasses

import pytest

from study.config.schema import SEARCHES, SearchConfig
from study.config.search_keys import ALLOCATING, READ_BY, check


def test_every_key_is_of_some_searches_or_of_all() -> None:
    everyones = {"search.name", "search.seed"}  # a design that draws nothing needs no seed, and is no worse for one
    keys = {f"search.{field.name}" for field in dataclasses.fields(SearchConfig)}
    assert keys == {*READ_BY, *everyones}
    assert {name for names in READ_BY.values() for name in names} < set(SEARCHES)


@pytest.mark.parametrize(
    ("search", "key", "readers"),
    [
        ("grid", "search.quantile", "search=pbt"),
        ("isoflop", "search.points", "search=random_nd"),
        ("ladder", "search.budgets", "search=isoflop or search=trunk_and_branch"),
        ("pbt", "search.params", "search=ladder, search=random_nd or search=trunk_and_branch"),
    ],
)
def test_a_key_without_effect_is_refused_with_who_reads_it(search: str, key: str, readers: str) -> None:
    with pytest.raises(ValueError, match="^" + key) as refused:
        check(search, ["model.width", key])
    said = f"{key} has no effect with search={search}: it is read by {readers}; take one, or leave it out"
    assert str(refused.value) == said


@pytest.mark.parametrize("search", SEARCHES)
def test_what_a_search_reads_is_taken(search: str) -> None:
    check(search, ["search.seed", "optim.lr", *(key for key, names in READ_BY.items() if search in names)])


@pytest.mark.parametrize("search", ALLOCATING)
def test_searches_that_allocate_budget_take_each_others_keys(search: str) -> None:
    """A command changes from one to the other by one word."""
    check(search, [key for key, names in READ_BY.items() if names[0] in ALLOCATING])
