"""From the global order of rows to the batch of this rank, read ahead if asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from train.data.batch import Batch, Rows
from train.data.dataset import TrainingData
from train.data.prefetch import Prefetch
from train.spec.config import RunConfig
from train.spec.schedule import batch_sequences
from train.state import TrainState

AHEAD = {"cuda": 2}
"""Batches read ahead by default, by device type: on a CPU the thread would take from the cores that compute."""


class RowSource(Protocol):
    """Training rows by their number in the global order."""

    def rows(self, start: int, count: int) -> Rows:
        """Return rows number start to start + count."""


class Shares(Protocol):
    """Which sequences of a global batch are whose (train.parallel.mesh)."""

    def share(self, count: int) -> range:
        """Return which of `count` sequences are this rank's."""

    def most(self, count: int) -> int:
        """Return the largest share of `count` sequences."""


class DataLoader:
    """This rank's part of each global batch, on the CPU, padded to the largest rank's part; on a GPU in pinned memory.

    It stands where `state` says: the number of sequences consumed is the whole state of the data.
    """

    def __init__(
        self,
        rows: RowSource,
        config: RunConfig,
        state: TrainState,
        shares: Shares,
        *,
        cut: Callable[[Batch], Batch],
        device: torch.device,
    ) -> None:
        """`cut` returns this rank's part of each sequence (train.parallel.context)."""
        self._rows, self._config, self._state = rows, config, state
        self._shares, self._cut, self._pinned = shares, cut, device.type == "cuda"
        depth = config.runtime.prefetch_batches
        self._prefetch = Prefetch(self._read, AHEAD.get(device.type, 0) if depth is None else depth)

    def next_sequences(self, tokens: int | None = None) -> int:
        """Return how many sequences the step after `tokens` takes, of all ranks; None: the next step."""
        config, at = self._config, self._state.tokens if tokens is None else tokens
        assert config.budget.tokens is not None
        return batch_sequences(config.batch, config.budget.tokens, at, config.data.sequence_length)

    def next_batch(self) -> Batch:
        """Return the next step's batch; those of the steps after it are read ahead."""
        return self.batch(self._state.sequences, self.next_sequences(), self._upcoming())

    def peek(self) -> Batch:
        """Return the next step's batch without going on to those after it."""
        return self.batch(self._state.sequences, self.next_sequences())

    def batch(self, start: int, count: int, later: Iterable[tuple[int, int]] = ()) -> Batch:
        """Return this rank's part of sequences start to start + count; `later`: what will likely be asked for next."""
        return self._prefetch.take((start, count), later)

    def _upcoming(self) -> Iterator[tuple[int, int]]:
        """Yield what the steps after the next one will take: the first sequence's number, and how many."""
        sequences, tokens, length = self._state.sequences, self._state.tokens, self._config.data.sequence_length
        while (count := self.next_sequences(tokens)) > 0:
            if tokens > self._state.tokens:
                yield sequences, count
            sequences, tokens = sequences + count, tokens + count * length

    def _read(self, request: tuple[int, int]) -> Batch:
        start, count = request
        share = self._shares.share(count)
        rows = self._rows.rows(start + share.start, len(share))
        batch = self._cut(rows.each(torch.from_numpy).padded(self._shares.most(count)))
        return batch.each(lambda tensor: tensor.contiguous().pin_memory()) if self._pinned else batch

    def epochs(self) -> float | None:
        """Return how often the training text has been read (TrainingData.epochs); None for rows without sources."""
        return self._rows.epochs(self._state.sequences) if isinstance(self._rows, TrainingData) else None

    def state_dict(self) -> dict[str, dict[str, int]]:
        """Return where each source of the training rows stands; empty for rows that have no sources."""
        return self._rows.state(self._state.sequences) if isinstance(self._rows, TrainingData) else {}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Raise ValueError where the rows would not go on from where the checkpoint stood."""
        now = self.state_dict()
        if state and now and state != now:
            raise ValueError(
                f"the checkpoint stood at {state} in its data, this code reads the same rows as {now}: "
                "continue with the code that wrote it, or train again from the start"
            )

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._prefetch.close()
