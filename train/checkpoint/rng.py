"""Random number generators of a rank: the CPU's and its GPU's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

RandomState = Mapping[str, Tensor]
"""Device type to its generator's state, uint8."""


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of this process's generators."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: RandomState, device: torch.device) -> None:
    """Set the generators of this process; those without a state stay as they are."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
