"""What a checkpoint notes of the precision's state: plain numbers, the same on every rank and for every mesh.

The loss scale moves by whether a step was skipped, which all ranks know alike, and the history of fp8 by the largest
magnitudes of all ranks; so what the first rank notes is what any rank of any mesh goes on from, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from train.precision.history import History
from train.precision.loss_scaler import LossScaler

NAMES = ("scaler", "fp8")


def noted(scaler: LossScaler, history: History) -> dict[str, Any]:
    """Return the state as JSON keeps it; waits for the device."""
    return {
        "scaler": {name: value.item() for name, value in scaler.state_dict().items()},
        "fp8": history.state(),
    }


def go_on(scaler: LossScaler, history: History, notes: Mapping[str, Any]) -> None:
    """Go on from a checkpoint's notes; what it has none of starts anew."""
    if notes.get("scaler"):
        scaler.load_state_dict({name: torch.tensor(value) for name, value in notes["scaler"].items()})
    if notes.get("fp8"):
        history.load(notes["fp8"])
