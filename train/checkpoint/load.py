"""Loading: each rank reads the parts that it needs, from a checkpoint of any mesh."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from train.checkpoint.layout import Checkpoint
from train.checkpoint.rng import RandomState
from train.checkpoint.state import Optimizers, put_back, wanted


def stored(found: Checkpoint) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of every tensor in a checkpoint; ValueError where its index is not one of ours."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from train.checkpoint.metadata import read_index

    metadata = read_index(found.folder).state_dict_metadata
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read(found: Checkpoint, state: Mapping[str, Tensor]) -> None:
    """Read the tensors of these names in place; DTensors get their part. ValueError for what is no tensor."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    from train.checkpoint.metadata import Reader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it tells a single process that it is one
        try:
            # no_dist: a rank needs nobody else to find its parts, and the files were hashed before
            load(dict(state), storage_reader=Reader(found.folder), no_dist=True)
        except CheckpointException as error:  # no Exception, and its text is a traceback
            failure = next((failure for failure, _ in error.failures.values()), None)
            if isinstance(failure, pickle.UnpicklingError):
                raise ValueError(
                    f"{found.folder} contains something other than tensors, so it is not read: remove it, and the one "
                    "before it is used"
                ) from None
            raise


def restore(found: Checkpoint, parts: Sequence[nn.Module], optimizers: Optimizers) -> None:
    """Bring the model parts of this rank and their optimizers to the checkpoint's state.

    ValueError where the checkpoint is one of another model.
    """
    state = wanted(parts, optimizers, stored(found))
    read(found, state)
    put_back(parts, optimizers, state)


def random_state(found: Checkpoint, rank: int) -> RandomState:
    """Return the random states that a rank had; empty where the checkpoint's mesh had no such rank."""
    prefix = f"random.{rank}."
    there = {name: about for name, about in stored(found).items() if name.startswith(prefix)}
    state = {name: torch.zeros(*about[0], dtype=about[1]) for name, about in there.items()}
    if state:
        read(found, state)
    return {name.removeprefix(prefix): value for name, value in state.items()}


def read_all(found: Checkpoint) -> dict[str, Tensor]:
    """Return every tensor of a checkpoint, whole, on the CPU."""
    state = {name: torch.zeros(tuple(shape), dtype=dtype) for name, (shape, dtype) in stored(found).items()}
    read(found, state)
    return state
