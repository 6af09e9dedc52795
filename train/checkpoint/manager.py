"""A run's checkpoints: when one is due, what is in it, and going to one: after a stop or a spike, or to branch off."""

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
"""What a checkpoint keeps beside tensors and progress, as JSON takes it."""

CODE_VERSION = "CODE_VERSION"
"""Environment variable that names the code of this process; a study's jobs set it to what its ledger says."""

UNSAVED_SECONDS, UNSAVED_INTERVALS = 300.0, 3
"""A run that could save nothing for so long, and for so many times its checkpoint interval, ends."""

_INHERITED = ("model", "data")
"""Sections that a branch shares with its parent: they say what the weights and the data are."""
_PRECISION = ("scaler", "fp8")
"""Parts whose state a branch of the same precision goes on from."""


class Stateful(Protocol):
    """A part of a run with a state of its own beside tensors."""

    def state_dict(self) -> Any:
        """Return the state as JSON takes it, the same on every rank."""

    def load_state_dict(self, state: Any, /) -> None:
        """Go on from a state; None: of a checkpoint that has none of this part."""


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
        """`folder` is the run's; `identity` says what a checkpoint belongs to (train.checkpoint.identity).

        state, parts: where the run stands and what else has a state, by its name in a checkpoint; both are set anew
        where the run goes to one.
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
        """What is called before weights change: copies of them that are being saved are made first."""
        return self._saver.before_update

    def due(self) -> bool:
        """Say whether the clock of the writing rank, or a step whose checkpoint stays, asks for one here."""
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
        """Say whether this very state is saved, once nothing is being written; every rank says the same."""
        if self._saved != (self._state.step, self._state.evaluated):
            return False
        self._saver.join()
        return self._saver.failure is None

    def save(self, *, keep: int | None = None, wait: bool = True, obstacle: Exception | None = None) -> None:
        """Save a checkpoint of this step. With `wait` it is whole when this returns, or SaveError is raised.

        obstacle: why this rank already knows that it must not be saved; told as the failure of the save.
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
        """Wait until nothing is being written, whatever became of it."""
        self._saver.join()

    def restore(self) -> bool:
        """Go to the run's newest whole checkpoint, else to the one it branches from; False: it starts from scratch.

        ValueError where that checkpoint belongs to another config.
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
        """Go to the newest checkpoint of a step before `before`; False: there is none.

        Later ones are removed, but for those that stay for good: these are marked as of a path that was abandoned.
        A branch that has none of its own goes back to where it began.
        """
        self._saver.join()
        own = self._newest(self._root, before)
        found = self._origin(before) if own is None else own
        if found is None:
            return False
        if self._world.writes:
            first = int(found.progress["step"]) + (own is not None)
            abandon_from(self._root, first, self._saver.retention)
        self._world.gather(None)  # nobody saves before they are gone
        self._saved = (-1, -1)  # the next one differs from it: batches are skipped
        return self._stand_at(*(self._load(found) if own is not None else self._begin(found)))

    def _origin(self, before: int) -> Checkpoint | None:
        """Return the checkpoint that this run branched from if it is there and of a step before `before`."""
        parent = self._config.schedule.parent
        try:
            found = None if parent is None else self._parent(parent)
        except ValueError:
            return None
        return None if found is None or int(found.progress["step"]) >= before else found

    def _stand_at(self, reached: TrainState, part_states: PartStates) -> bool:
        """Set state and parts to what a checkpoint says; the tensors have been read."""
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
        """Go to the parent's checkpoint as to the beginning of this run; return its progress and what it inherits."""
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
    """Whether schedule and budget are the parent's, so that the learning rate goes on as it would have there."""
    science = found.identity["config"]
    ours = {"schedule": {**asdict(config.schedule), "parent": None}, "budget": {"tokens": config.budget.tokens}}
    theirs = {"schedule": {**science["schedule"], "parent": None}, "budget": {"tokens": science["budget"]["tokens"]}}
    return ours == theirs


def given_up(unsaved: float, interval: float) -> bool:
    """Return whether a run ends after its saves have failed for `unsaved` seconds, at one every `interval` seconds."""
    return unsaved >= max(UNSAVED_SECONDS, UNSAVED_INTERVALS * interval)


def _check_parent(found: Checkpoint, identity: Mapping[str, Any], config: RunConfig) -> None:
    """Raise ValueError where a run cannot go on from another's checkpoint: other weights, data or optimizer."""

    def kept(whole: Mapping[str, Any]) -> dict[str, Any]:
        science = whole["config"]
        sections = {name: science[name] for name in _INHERITED}
        return {**sections, "optim": {"name": science["optim"]["name"]}, "fingerprint": whole["fingerprint"]}

    try:
        check_identity(replace(found, manifest={"identity": kept(found.identity)}), kept(identity))
    except ValueError as error:
        raise ValueError(f"schedule.parent={config.schedule.parent}: {error}") from None
