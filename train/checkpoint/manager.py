"""A run's checkpoints: when one is due, what it holds, and loading one: to resume, to roll back, or to branch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from train.checkpoint.identity import check_identity
from train.checkpoint.layout import Checkpoint, Retention, abandon_from, mark_torn, newest, recover, single
from train.checkpoint.load import random_state, restore
from train.checkpoint.rng import random_states, set_random_states
from train.checkpoint.save import SaveError, Saver
from train.checkpoint.state import collect
from train.health.monitor import remembered
from train.runtime.console import say
from train.runtime.distributed import World
from train.spec.config import RunConfig
from train.spec.lineage import parse
from train.spec.schedule import check_branch
from train.state import TrainState

PartStates = Mapping[str, Any]
"""State in a checkpoint's manifest beside tensors and progress; it can be written as JSON."""

CODE_VERSION = "CODE_VERSION"
"""Environment variable that names the code of this process; a study's jobs set it as in the study's ledger."""

UNSAVED_SECONDS, UNSAVED_INTERVALS = 300.0, 3
"""A run ends if no checkpoint could be saved for this long [s], and for this many checkpoint intervals."""

_INHERITED = ("model", "data")
"""Sections that a branch shares with its parent, as they define the weights and the data."""
_PRECISION = ("scaler", "fp8")
"""Parts whose state a branch takes over if it has its parent's precision."""


class Stateful(Protocol):
    """A part of a run with a state of its own beside tensors."""

    def state_dict(self) -> Any:
        """Return the state, which can be written as JSON and is the same on every rank."""

    def load_state_dict(self, state: Any, /) -> None:
        """Load a state; None: the checkpoint has none of this part."""


class CheckpointManager:
    """Checkpoints of one attempt; every rank calls the same methods."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        world: World,
        device: torch.device,
        *,
        modules: Sequence[nn.Module],
        optimizer: torch.optim.Optimizer,
        identity: Mapping[str, Any],
        state: TrainState,
        parts: Mapping[str, Stateful],
    ) -> None:
        """folder: the run's. identity: what a checkpoint belongs to (train.checkpoint.identity).

        state: the run's progress. parts: what else has a state, by its name in a checkpoint. Loading a checkpoint sets
        both.
        """
        self._folder, self._root = folder, folder / "checkpoints"
        self._config, self._world, self._device = config, world, device
        self._modules, self._optimizer, self._identity = modules, optimizer, identity
        self._state, self._parts = state, parts
        retention = Retention(config.runtime.checkpoint_keep, config.runtime.checkpoint_keep_steps)
        self._saver = Saver(self._root, world.rank, world.size, retention=retention)
        self._at = time.perf_counter()
        self._saved = (-1, -1)
        self._failing_since: float | None = None

    @property
    def before_update(self) -> Callable[[], None]:
        """A function to call before weights change: it waits until those being saved have been copied."""
        return self._saver.before_update

    def due(self) -> bool:
        """Return whether a checkpoint is due, by the clock or by the step; on the writing rank only, else False."""
        step = self._state.step
        if not self._world.writes or step == self._saved[0]:
            return False
        self._give_up()
        every = self._config.runtime.checkpoint_keep_steps
        if every and step and step % every == 0:
            return True
        if self._saver.busy:
            return False
        return time.perf_counter() - self._at >= self._config.runtime.checkpoint_seconds

    def _give_up(self) -> None:
        """Raise SaveError where saves have failed for longer than :func:`given_up` allows."""
        why, now = self._saver.failure, time.perf_counter()
        if why is None:
            self._failing_since = None
            return
        self._failing_since = self._failing_since or now
        unsaved = now - self._failing_since
        if given_up(unsaved, self._config.runtime.checkpoint_seconds):
            raise SaveError(f"no checkpoint could be saved for {unsaved:.0f} s: {why}")

    def there(self) -> bool:
        """Return whether the present state has been saved; waits for writes under way. The same on every rank."""
        if self._saved != (self._state.step, self._state.evaluated):
            return False
        self._saver.join()
        return self._saver.failure is None

    def save(self, *, keep: int | None = None, wait: bool = True, obstacle: Exception | None = None) -> None:
        """Save a checkpoint of this step. With `wait` it is complete when this returns, or SaveError is raised.

        obstacle: an error by which this rank knows that the save must fail; the save reports it as its own.
        """
        state = self._state
        tensors = collect(self._modules, [self._optimizer])
        random = random_states(self._device)
        tensors |= {f"random.{self._world.rank}.{name}": value for name, value in random.items()}
        manifest = {
            "progress": state.state_dict(),
            "identity": self._identity,
            "notes": {name: part.state_dict() for name, part in self._parts.items()},
            "code": os.environ.get(CODE_VERSION),
        }
        retention = None if keep is None else replace(self._saver.retention, newest=keep)
        self._saver.save(state.step, tensors, manifest, retention, obstacle=obstacle)
        if wait:
            self._saver.wait()
        self._at, self._saved = time.perf_counter(), (state.step, state.evaluated)

    def join(self) -> None:
        """Wait until nothing is being written, whether it succeeded or not."""
        self._saver.join()

    def restore(self) -> bool:
        """Load the run's newest complete checkpoint, else its parent's; False: it starts from scratch.

        ValueError where that checkpoint is of another config.
        """
        writes = self._world.writes
        if writes:
            recover(self._root)
        found = self._newest(self._root)
        if writes:
            mark_torn(self._root, found)
        if found is None:
            return self._branch()
        check_identity(found, self._identity)
        reached, part_states = self._load(found)
        self._saved = (reached.step, reached.evaluated)
        if writes:
            say(f"resumed from {found.folder.name} at {reached.tokens:,} tokens")
        return self._stand_at(reached, part_states)

    def back_to(self, before: int) -> bool:
        """Load the newest checkpoint of a step before `before`; False: there is none.

        Later ones are removed, except those that are kept for good, which are marked as abandoned. A branch without a
        checkpoint of its own goes back to its parent's.
        """
        self._saver.join()
        own = self._newest(self._root, before)
        found = self._origin(before) if own is None else own
        if found is None:
            return False
        if self._world.writes:
            first = int(found.progress["step"]) + (own is not None)
            abandon_from(self._root, first, self._saver.retention)
        self._world.gather(None)  # no rank saves before they are gone
        self._saved = (-1, -1)  # a checkpoint of the same step will differ, as batches are skipped
        return self._stand_at(*(self._load(found) if own is not None else self._begin(found)))

    def _origin(self, before: int) -> Checkpoint | None:
        """Return the checkpoint that this run branched from, if it exists and is of a step before `before`."""
        parent = self._config.schedule.parent
        try:
            found = None if parent is None else self._parent(parent)
        except ValueError:
            return None
        return None if found is None or int(found.progress["step"]) >= before else found

    def _stand_at(self, reached: TrainState, part_states: PartStates) -> bool:
        """Set state and parts as in a checkpoint, whose tensors have been read already."""
        self._state.load_state_dict(reached.state_dict())
        for name, part in self._parts.items():
            part.load_state_dict(part_states.get(name))
        return True

    def _branch(self) -> bool:
        config, schedule = self._config, self._config.schedule
        if schedule.parent is None:
            return False
        found = self._parent(schedule.parent)
        _check_parent(found, self._identity, config)
        began, part_states = self._begin(found)
        assert config.budget.tokens is not None
        if not _same_plan(found, config):
            check_branch(schedule, began.tokens, config.budget.tokens)
        if self._world.writes:
            say(f"branches from {found.folder} at {began.tokens:,} tokens")
        return self._stand_at(began, part_states)

    def _begin(self, found: Checkpoint) -> tuple[TrainState, PartStates]:
        """Load the parent's checkpoint as this run's beginning; return the progress and the part states it inherits."""
        parent, part_states = self._load(found)
        fresh = TrainState(
            parent.step,
            parent.tokens,
            parent.sequences,
            evaluated=parent.tokens,
            inherited=parent.tokens,
            inherited_steps=parent.step,
            inherited_sequences=parent.sequences,
        )
        inherited: dict[str, Any] = {}
        if found.identity["config"]["precision"] == self._identity["config"]["precision"]:
            inherited = {name: part_states.get(name) for name in _PRECISION}
        if _same_plan(found, self._config):
            inherited["monitor"] = remembered(part_states.get("monitor", {}))
        return fresh, inherited

    def _parent(self, named: str) -> Checkpoint:
        """Return the checkpoint that `schedule.parent` names: by a run's key and tokens, or by a folder."""
        parent = parse(named)
        if parent is None:
            folder, world = Path(named).expanduser(), self._world
            found = self._newest(folder / "checkpoints")
            found = found or single(folder, world.rank, world.size, world.gather)
            if found is None:
                raise ValueError(
                    f"schedule.parent={named} has no complete checkpoint: name a run's folder or one of its "
                    "checkpoints/step-… folders"
                )
            return found
        root = self._folder.absolute().parent / parent.key / "checkpoints"
        found = self._newest(root, at_tokens=parent.tokens)
        if found is None:
            raise ValueError(
                f"schedule.parent={named}: {root} has no complete checkpoint at {parent.tokens} tokens: the parent "
                "must have been trained that far in the same study"
            )
        return found

    def _newest(self, root: Path, before: int | None = None, at_tokens: int | None = None) -> Checkpoint | None:
        world = self._world
        return newest(root, world.rank, world.size, world.gather, before=before, at_tokens=at_tokens)

    def _load(self, found: Checkpoint) -> tuple[TrainState, PartStates]:
        restore(found, self._modules, [self._optimizer])
        set_random_states(random_state(found, self._world.rank), self._device)
        return TrainState(**found.progress), found.manifest.get("notes", {})


def _same_plan(found: Checkpoint, config: RunConfig) -> bool:
    """Return whether schedule and budget are the parent's, so that the learning rate continues as it would have."""
    science = found.identity["config"]
    ours = {"schedule": {**asdict(config.schedule), "parent": None}, "budget": {"tokens": config.budget.tokens}}
    theirs = {"schedule": {**science["schedule"], "parent": None}, "budget": {"tokens": science["budget"]["tokens"]}}
    return ours == theirs


def given_up(unsaved: float, interval: float) -> bool:
    """Return whether a run ends whose saves have failed for `unsaved` seconds; interval: between checkpoints [s]."""
    return unsaved >= max(UNSAVED_SECONDS, UNSAVED_INTERVALS * interval)


def _check_parent(found: Checkpoint, identity: Mapping[str, Any], config: RunConfig) -> None:
    """Raise ValueError where a run cannot start from another's checkpoint: other weights, data or optimizer."""

    def kept(whole: Mapping[str, Any]) -> dict[str, Any]:
        science = whole["config"]
        sections = {name: science[name] for name in _INHERITED}
        return {**sections, "optim": {"name": science["optim"]["name"]}, "fingerprint": whole["fingerprint"]}

    try:
        check_identity(replace(found, manifest={"identity": kept(found.identity)}), kept(identity))
    except ValueError as error:
        raise ValueError(f"schedule.parent={config.schedule.parent}: {error}") from None
