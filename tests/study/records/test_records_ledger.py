from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.records import ledger
from study.storage.layout import StudyFolder


def intent(name: str, *keys: str) -> dict[str, Any]:
    return {"event": "intent", "time": 1.0, "name": name, "executor": "slurm", "keys": list(keys)}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "time": 2.0, **fields}


def test_a_key_belongs_to_its_latest_batch_that_was_not_abandoned() -> None:
    state = ledger.fold(
        [
            intent("one", "a", "b"),
            event("submitted", name="one", job_id=7),
            intent("two", "b", "c"),
            event("abandoned", name="two", why="never arrived"),
        ]
    )
    assert state.current == {"a": "one"}
    assert state.batches["one"].job_id == "7"
    assert not state.batches["one"].ambiguous
    assert state.batches["two"].abandoned == "never arrived"


def test_an_intent_without_a_word_on_its_end_is_ambiguous() -> None:
    state = ledger.fold([intent("one", "a")])
    assert state.batches["one"].ambiguous
    assert state.batch("a") is state.batches["one"]


def test_abandoning_an_old_batch_does_not_touch_a_newer_one() -> None:
    state = ledger.fold([intent("one", "a"), intent("two", "a"), event("abandoned", name="one", why="-")])
    assert state.current == {"a": "two"}


def test_cancel_retry_and_a_new_intent() -> None:
    events = [intent("one", "a", "b"), event("cancelled", keys=["a", "b"])]
    assert ledger.fold(events).cancelled == {"a", "b"}
    retried = ledger.fold([*events, event("retry", keys=["a"])])
    assert retried.cancelled == {"b"}
    assert "a" not in retried.current
    late = ledger.fold([*events, event("waiting", keys=["a"]), intent("two", "b")])
    assert late.cancelled == {"a", "b"}, "by somebody who did not know that they were cancelled"
    assert (late.waiting, late.current) == ({}, {"a": "one", "b": "two"})
    assert ledger.fold([*events, event("retry", keys=["b"]), intent("two", "b")]).cancelled == {"a"}


@pytest.mark.parametrize(
    "after",
    [intent("two", "a"), event("waiting", keys=["a"]), event("retry", keys=["a"]), event("cancelled", keys=["a"])],
)
def test_a_key_is_refused_until_it_is_wanted_anew(after: dict[str, Any]) -> None:
    refused = [
        intent("one", "a"),
        event("waiting", keys=["b"]),
        event("abandoned", name="one", why="no such option", final=True),
        event("refused", keys=["b"], why="no such option"),
    ]
    assert ledger.fold(refused).refused == {"a": "no such option", "b": "no such option"}
    assert ledger.fold([*refused, after]).refused == {"b": "no such option"}
    assert ledger.fold([intent("one", "a"), event("abandoned", name="one", why="timed out")]).refused == {}
    later = [intent("one", "a"), intent("two", "a"), event("abandoned", name="one", why="no", final=True)]
    assert ledger.fold(later).refused == {}, "of a batch that it belongs to no more"


def test_events_of_a_later_version_are_passed_over() -> None:
    assert ledger.fold([intent("one", "a"), event("packed", name="one")]) == ledger.fold([intent("one", "a")])


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 4), cut=st.integers(0, 200), text=st.text(max_size=8))
def test_a_torn_last_line_costs_that_line_only(count: int, cut: int, text: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        study = StudyFolder(Path(scratch) / "s")
        for number in range(count):
            ledger.append(study, "retry", keys=[f"{text}{number}"])
        data = study.ledger.read_bytes() if count else b""
        kept = data[: max(0, len(data) - cut)]
        study.path.mkdir(exist_ok=True)
        study.ledger.write_bytes(kept)
        whole = kept.count(b"\n")
        assert len(ledger.read_events(study.ledger)) == whole
        ledger.append(study, "cancelled", keys=[text])
        events = ledger.read_events(study.ledger)
        assert [e["event"] for e in events] == ["retry"] * whole + ["cancelled"]
        assert events[-1]["keys"] == [text]
        assert study.ledger.read_bytes().endswith(b"\n")


def test_damage_in_the_middle_names_the_line(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    ledger.append(study, "retry", keys=["a"])
    study.ledger.write_bytes(b"}nonsense\n" + study.ledger.read_bytes())
    with pytest.raises(ValueError, match=r"ledger\.jsonl:1: .*nonsense"):
        ledger.read(study)
