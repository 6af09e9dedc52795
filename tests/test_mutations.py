"""What the mutants of a module are."""

from __future__ import annotations

from benchmarks._mutations import mutants

SOURCE = '''"""Doc."""


def f(a: int = 2, b: bool = True) -> int | None:
    if a < 1 and not b:
        raise ValueError(f"a={a + 1}")
    total = (a) + 3
    total += b
    print(total)
    return total if a else None
'''


def test_each_change_is_one_of_what_a_test_should_notice() -> None:
    found = mutants(SOURCE)
    assert len({one.source for one in found}) == len(found)
    changes = {(one.line, one.after) for one in found}
    assert {
        (4, "def f(a: int = 3, b: bool = True) -> int | None:"),
        (4, "def f(a: int = 2, b: bool = False) -> int | None:"),
        (5, "if a <= 1 and not b:"),
        (5, "if a < 1 or not b:"),
        (5, "if a < 1 and b:"),
        (5, "if not (a < 1 and not b):"),
        (5, "if a < 0 and not b:"),
        (7, "total = (a) - 3"),
        (8, "pass"),
        (9, "pass"),
        (10, "return None"),
        (10, "return total if not (a) else None"),
    } <= changes
    assert not [one for one in found if one.line in (1, 6)], "neither documentation nor the words of errors"
    assert all(one.where == "f" for one in found)
    assert str(found[-1]).startswith("f:10: return total if a else None -> ")
