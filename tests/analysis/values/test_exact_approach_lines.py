"""One rule says which approaches are compared: who computes their disagreement and who says it follow it alike."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.planning import recommend
from analysis.report import sentences
from analysis.values import approach_lines
from analysis.values.study_result import Proposal, Recommendation

LINES: list[dict[str, Any]] = [
    {"approach": "1 hull", "params": 8e6, "note": "losses before the schedules ended"},
    {"approach": "2 parabola", "params": 4e6, "note": ""},
    {"approach": "2 akima", "params": 3e6},
    {"approach": "3 surface", "params": None, "note": None},
]


def test_a_line_with_a_note_is_not_compared() -> None:
    assert [approach_lines.compared(line) for line in LINES] == [False, True, True, True]


@pytest.mark.parametrize("others", [False, True])
def test_who_computes_and_who_says_how_far_approaches_differ_ask_the_rule(
    others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if others:  # the other way around: the answers follow
        monkeypatch.setattr(approach_lines, "compared", lambda line: bool(line.get("note")))
    own = Proposal(2e6, 1e8, 50.0, None, {})
    plan = Recommendation("surface", 1e18, 2e6, 1e8, 50.0, None, {}, 2.0, {"surface": own})
    found = recommend.compared(plan, recommend.sizes(plan, LINES))
    assert found is not None
    told = {"recommendation": {"by_approach": {"surface": {"params": 2e6}}}, "record": {"approaches": LINES}}
    assert sentences.apart(told) == (found.disagreement, 2 if others else 3)
    assert found.disagreement == (4.0 if others else 2.0)
    assert sentences.noted(told) == ("without approach 2 and 3" if others else "without approach 1")
