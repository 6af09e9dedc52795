"""Distributed checkpoints: sharded, written in the background, atomic, checksummed, loaded on any mesh.

`Saver` writes what `collect` names; `newest` finds the newest whole checkpoint; `restore` reads it.
"""

from train.checkpoint.identity import check_identity
from train.checkpoint.layout import Checkpoint, Retention, abandon_from, mark_torn, newest, pin, recover, single
from train.checkpoint.load import random_state, read_all, restore
from train.checkpoint.rng import random_states, set_random_states
from train.checkpoint.save import WRITE_SECONDS, SaveError, Saver
from train.checkpoint.state import collect

__all__ = [
    "WRITE_SECONDS",
    "Checkpoint",
    "Retention",
    "SaveError",
    "Saver",
    "abandon_from",
    "check_identity",
    "collect",
    "mark_torn",
    "newest",
    "pin",
    "random_state",
    "random_states",
    "read_all",
    "recover",
    "restore",
    "set_random_states",
    "single",
]
