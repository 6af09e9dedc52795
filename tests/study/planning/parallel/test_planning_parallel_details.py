"""What a search of layouts, its space and its bounds do in single cases, number by number."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from study.planning.parallel import auto, within
from study.planning.parallel.pace import Pace
from study.planning.parallel.room import Room, least_states
from study.planning.parallel.search import Bounds, Prices, search
from study.planning.parallel.space import Candidate, _parallels, _sizes
from tests.study.planning.parallel.questions import question
from tests.study.planning.parallel.test_planning_parallel_by_hand import LONG, NUMBERS, SHORT, laid_out
from train.spec.config import MemoryConfig, ParallelConfig, RunConfig
from train.spec.mesh import Axes


@dataclass(frozen=True)
class Step:
    seconds: float


def priced(seconds: list[float], memory: int = 1) -> tuple[list[int], list[tuple[str, int]]]:
    """Return the fastest of candidates by bounds that are exact, and what was told of progress."""
    told: list[tuple[str, int]] = []
    found = search(
        [Candidate(number, None, 1) for number in range(len(seconds))],  # type: ignore[arg-type]
        Bounds(lambda one: 1, lambda one: seconds[one.number], lambda one: seconds[one.number]),
        Prices(lambda one: 1, lambda one: Step(seconds[one.number])),
        memory,
        1,
        told=lambda what, done, of=None: told.append((what, done)),
    )
    return [one.candidate.number for one in found.best], told


def test_the_fastest_is_found_wherever_it_stands() -> None:
    assert priced([4.0, 6.0, 5.0, 1.0, 7.0])[0] == [3]


def test_progress_is_told_every_1024_candidates() -> None:
    told = priced([1.0] * 2049, memory=0)[1]
    assert [done for what, done in told if what == "least memory and time of layouts"] == [0, 1024, 2048]


def test_a_mesh_that_cuts_nothing_has_one_layout() -> None:
    found = list(_parallels(question("gpus=1"), Axes()))
    assert [(one.zero, one.pp_schedule) for one in found] == [(3, "1f1b")]


def test_micro_batches_are_those_of_the_config_only_where_it_has_some_that_stay() -> None:
    asked = question("gpus=1")
    sized = replace(asked.config, parallel=replace(asked.config.parallel, micro_batch_sequences=3))
    stays = frozenset({"parallel.micro_batch_sequences"})
    assert _sizes(asked, 6) == _sizes(replace(asked, config=sized), 6) == _sizes(replace(asked, fixed=stays), 6)
    assert _sizes(asked, 6) == (1, 2, 3, 6)
    assert _sizes(replace(asked, config=sized, fixed=stays), 6) == (3,)


def test_states_cut_evenly_over_all_are_weights_and_two_moments_of_four_bytes() -> None:
    assert least_states(question("gpus=2", "precision=bf16", **SHORT)) == 12 * NUMBERS / 2


def test_a_schedule_of_pipelines_changes_nothing_where_there_is_none() -> None:
    asked = question("gpus=1", "precision=bf16", **LONG)
    plain, piped = (laid_out(asked, 8, {"pp_schedule": name}) for name in ("1f1b", "gpipe"))
    assert Room(asked).memory(plain) == Room(asked).memory(piped)


def test_a_block_that_is_made_again_sends_its_messages_again() -> None:
    asked = question("gpus=2", "precision=bf16", **SHORT)
    one = laid_out(asked, 1, {"tp": 2}, memory=MemoryConfig(checkpointing="every", every=2))
    counts = {
        mode: sum(sent.count for sent in within.messages(one.config, one.axes, 1, mode, "cuda"))
        for mode in ("full", "none")
    }
    assert counts == {"full": 11, "none": 8}, "all but the last of four forward again"


def test_messages_are_asked_anew_for_another_checkpointing() -> None:
    asked = question("gpus=2", "precision=bf16", **SHORT)
    pace = Pace(asked)
    kept, again = (laid_out(asked, 1, {"tp": 2}, memory=MemoryConfig(checkpointing=c)) for c in ("none", "full"))
    assert pace._sent_by(kept, 0) == Pace(asked)._sent_by(kept, 0)
    assert pace._sent_by(again, 0) == Pace(asked)._sent_by(again, 0) != pace._sent_by(kept, 0)


@pytest.mark.parametrize(("layout", "chosen"), [("auto", True), ("", False)])
def test_a_layout_is_chosen_where_it_is_auto(layout: str, chosen: bool) -> None:
    assert auto.is_auto(RunConfig(parallel=ParallelConfig(layout=layout))) is chosen
