"""The micro-batch of a run: what is chosen, what happens where memory runs out, what the next run knows."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from train.memory.micro_batch import MicroBatch, SizeRecord, Watched, chosen, folder, key_of, micro_batch_of
from train.runtime.distributed import World
from train.spec.config import RunConfig
from train.spec.footprint import micro_batch_sequences
from train.spec.mesh import Axes
from train.spec.micro_batch import Seen, need
from train.trainer import Trainer

CPU = torch.device("cpu")


@dataclass
class Stand:
    """A GPU's memory that is told what it has."""

    free: int = 1 << 40
    total: int = 1 << 40
    taken: int = 0
    name: str = "stand-in"
    captures: bool = False
    released: int = 0
    log: list[str] = field(default_factory=list)

    def room(self) -> int:
        return self.free

    def peak(self) -> int:
        return self.taken

    def recording(self) -> bool:
        return self.captures

    def release(self) -> None:
        self.released += 1

    @contextmanager
    def filled_to(self, states: int) -> Iterator[None]:
        self.log.append(f"filled to {states}")
        yield


def watched(tmp_path: Path, memory: Stand | None = None, share: int = 8, **how: Any) -> Watched:
    return Watched(memory or Stand(), SizeRecord(tmp_path / "record" / "shape.json"), share, **how)


def runs_out_above(most: int, sizes: list[int], micro: MicroBatch) -> Callable[[], str]:
    def attempt() -> str:
        sizes.append(micro.size)
        if micro.size > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "done"

    return attempt


def test_a_pass_that_runs_out_of_memory_is_begun_anew_with_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory, sizes, begun = Stand(), list[int](), list[int]()
    around = watched(tmp_path, memory)
    micro = MicroBatch(8, around)
    assert micro.fitted(runs_out_above(2, sizes, micro), lambda: begun.append(micro.size)) == "done"
    assert sizes == [8, 4, 2]
    assert begun == [4, 2] and memory.released == 2, "gradients are forgotten, and memory is given back"
    assert "micro-batches of 8 sequences do not fit the GPU: continuing with 4" in capsys.readouterr().out
    assert around.record.read() == Seen(0, None, 4, memory.free), "the next run knows"


@pytest.mark.parametrize(
    ("size", "how", "captures"),
    [(8, {"alone": False}, False), (8, {"replayed": True}, False), (1, {}, False), (8, {}, True)],
)
def test_where_nothing_can_be_begun_anew_the_error_stays(
    tmp_path: Path, size: int, how: dict[str, bool], captures: bool
) -> None:
    around, sizes = watched(tmp_path, Stand(captures=captures), **how), list[int]()
    micro = MicroBatch(size, around)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        micro.fitted(runs_out_above(0, sizes, micro), lambda: None)
    assert sizes == [size]
    known = around.record.read()
    assert (known is None) if captures else (known is not None and known.fails == size)
    noted = getattr(caught.value, "__notes__", [])
    assert any("the next job takes smaller ones" in note for note in noted) == bool(how)


class Ranks:
    """What the others of several ranks say, trial by trial."""

    def __init__(self, *others: bool) -> None:
        self.others = list(others)
        self.mine: list[bool] = []

    def any(self, flags: Sequence[bool]) -> list[bool]:
        (flag,) = flags
        self.mine.append(flag)
        return [flag or self.others.pop(0)]


def test_ranks_that_compute_apart_try_until_none_runs_out_of_memory(tmp_path: Path) -> None:
    """This rank has room for 4, another for 2."""
    around = watched(tmp_path, alone=False, apart=True, states=123)
    micro, sizes, forgotten = MicroBatch(8, around), list[int](), list[int]()
    ranks = Ranks(True, False)
    micro.shrink_to_fit(runs_out_above(4, sizes, micro), lambda: forgotten.append(micro.size), ranks.any)
    assert sizes == [8, 4, 2] == forgotten and micro.size == 2
    assert ranks.mine == [True, False, False]
    known = around.record.read()
    assert known is not None and known.fails == 8, "only what failed here"
    assert isinstance(around.memory, Stand) and around.memory.log == ["filled to 123"] * 3
    micro.after_step()
    micro.shrink_to_fit(runs_out_above(0, sizes, micro), lambda: None, ranks.any)
    assert len(sizes) == 3, "once, before the first step"


@pytest.mark.parametrize("mine", [True, False])
def test_ranks_end_together_where_one_sequence_is_too_many(tmp_path: Path, mine: bool) -> None:
    micro = MicroBatch(1, watched(tmp_path, alone=False, apart=True))
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory" if mine else "another rank"):
        micro.shrink_to_fit(runs_out_above(0 if mine else 1, [], micro), lambda: None, Ranks(not mine).any)


@pytest.mark.parametrize("how", [{"alone": True, "apart": False}, {"alone": False, "apart": False}])
def test_there_is_no_trial_where_it_says_nothing_or_would_wait(tmp_path: Path, how: dict[str, Any]) -> None:
    sizes: list[int] = []
    micro = MicroBatch(8, watched(tmp_path, **how))
    micro.shrink_to_fit(runs_out_above(0, sizes, micro), lambda: None, Ranks().any)
    MicroBatch(8).shrink_to_fit(runs_out_above(0, sizes, micro), lambda: None, Ranks().any)
    assert sizes == [] and micro.size == 8


def test_a_trial_leaves_the_run_as_it_is(tmp_path: Path, tiny: RunConfig) -> None:
    plain, tried = (Trainer(tiny, tmp_path, World(), CPU) for _ in range(2))
    around = watched(tmp_path, alone=False, apart=True)
    tried.model = replace(tried.model, micro_batch=MicroBatch(8, around))
    tried.model.micro_batch.shrink_to_fit(
        lambda: tried.model.trial(tried.data.loader.peek()), tried.optimizer.zero_grad, Ranks(False).any
    )
    assert all(weight.grad is None for _, weight in tried.model.named_parameters())
    assert losses(tried) == losses(plain)


def test_a_micro_batch_that_was_asked_for_stays(tiny: RunConfig) -> None:
    config = replace(tiny, parallel=replace(tiny.parallel, micro_batch_sequences=5))
    micro = micro_batch_of(config, Axes(), 8, CPU, lambda tensor: tensor)
    assert micro.size == 4, "two equal ones"
    with pytest.raises(torch.OutOfMemoryError):
        micro.fitted(runs_out_above(3, [], micro), lambda: None)


def test_a_cpu_has_what_is_planned(tiny: RunConfig) -> None:
    assert micro_batch_of(tiny, Axes(), 8, CPU, lambda tensor: tensor).size == 8
    deep = replace(tiny, model=replace(tiny.model, width=1024, layers=400))
    planned = micro_batch_sequences(deep, Axes(), "cpu")
    assert 1 <= planned < 8
    assert micro_batch_of(deep, Axes(), 8, CPU, lambda tensor: tensor).size == -(-8 // -(-8 // planned))


def test_ranks_take_what_the_fullest_has_room_for(tmp_path: Path, tiny: RunConfig) -> None:
    needed = need(tiny, Axes())
    for_four = int((needed.fixed + 4.5 * needed.sequence) / 0.9)
    asked: list[int] = []

    def least(tensor: Tensor) -> Tensor:
        asked.append(int(tensor))
        return tensor.clamp(max=3)

    assert chosen(tiny, Axes(), watched(tmp_path, Stand(for_four)), lambda tensor: tensor) == 4
    assert chosen(tiny, Axes(), watched(tmp_path, Stand(for_four)), least) == 3
    assert asked == [4]
    full = replace(tiny, memory=replace(tiny.memory, checkpointing="budget"))
    assert chosen(full, Axes(), watched(tmp_path, Stand(for_four)), least) == 3


def test_what_was_measured_counts_for_the_next_run(tmp_path: Path, tiny: RunConfig) -> None:
    needed = need(tiny, Axes())
    memory = Stand(int((needed.fixed + 4.5 * needed.sequence) / 0.9))
    around = watched(tmp_path, memory)
    micro = MicroBatch(chosen(tiny, Axes(), around, lambda tensor: tensor), around)
    memory.taken = 4 * needed.sequence // 3
    micro.after_step()
    assert around.record.read() is None, "the first step has no moments yet"
    micro.after_step()
    assert around.record.read() == Seen(4, needed.sequence // 3)
    assert chosen(tiny, Axes(), around, lambda tensor: tensor) == 8, "a third of the estimate: the step is not cut"
    whole = watched(tmp_path / "whole")
    uncut = MicroBatch(8, whole)
    for _ in range(3):
        uncut.after_step()
    assert whole.record.read() is None, "where a step is not cut there is nothing to learn"


def test_a_deterministic_run_has_the_same_size_whoever_else_uses_the_gpu(tmp_path: Path, tiny: RunConfig) -> None:
    needed = need(tiny, Axes())
    for_four = int((needed.fixed + 4.5 * needed.sequence) / 0.9)
    around = watched(tmp_path, Stand(free=needed.fixed, total=for_four))
    around.record.write(Seen(fits=1, per_sequence=1))
    same = replace(tiny, runtime=replace(tiny.runtime, deterministic=True))
    assert chosen(same, Axes(), around, lambda tensor: tensor) == 4
    assert chosen(tiny, Axes(), around, lambda tensor: tensor) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"fits": "many"}', "7"])
def test_notes_that_cannot_be_read_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "shape.json").write_text(text)
    assert SizeRecord(tmp_path / "shape.json").read() is None


def test_notes_that_cannot_be_written_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record = SizeRecord(tmp_path / "file" / "shape.json")
    record.write(Seen(3))
    assert record.read() is None


def test_notes_lie_with_the_compiled_code(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}) == tmp_path / "micro_batches"
    assert folder({}).parent.name.startswith("torchinductor_")

    def nobody() -> str:
        raise KeyError("a number that has no name")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert folder({}).parent.name == f"torchinductor_uid_{os.getuid()}"
    assert key_of(tiny, Axes(), "a") == key_of(replace(tiny, seed=5), Axes(), "a") != key_of(tiny, Axes(), "b")


def losses(trainer: Trainer, steps: int = 3) -> list[tuple[float, float]]:
    return [(float(loss), float(norm)) for loss, norm in (trainer.train_step() for _ in range(steps))]


def test_a_run_that_shrinks_is_the_one_that_began_small(tmp_path: Path, tiny: RunConfig) -> None:
    """Out of memory in the second pass of the first step, when the first one's gradients are there."""
    small = replace(tiny, parallel=replace(tiny.parallel, micro_batch_sequences=2))
    wanted = losses(Trainer(small, tmp_path, World(), CPU))
    trainer = Trainer(tiny, tmp_path, World(), CPU)
    around = watched(tmp_path)
    (part,) = trainer.model.parts
    calls: list[int] = []
    true = part.call

    def call(inputs: Tensor, *others: Any) -> Any:
        calls.append(len(inputs))
        if len(inputs) > 2 and len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return true(inputs, *others)

    trainer.model = replace(trainer.model, parts=(replace(part, call=call),), micro_batch=MicroBatch(4, around))
    assert losses(trainer) == wanted
    assert calls == [4, 4] + [2] * 12
    assert json.loads(around.record.path.read_text())["fails"] == 4
