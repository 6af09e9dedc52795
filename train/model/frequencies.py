"""Rotary frequencies, and how they are stretched so that a model reads longer texts than it was trained on.

linear: positions are divided by the factor (Chen et al. 2023, "Extending Context Window of Large Language Models via
Positional Interpolation"). ntk: the base grows so that the longest wavelength is stretched by the factor and the
shortest not at all (bloc97 2023). yarn: wavelengths that fit often into the original length stay, those that do not fit
once are stretched, a ramp between; scores are sharpened (Peng et al. 2023, section 3). llama3: the same idea with
another ramp and no sharpening (Dubey et al. 2024, "The Llama 3 Herd of Models", as published with version 3.1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from train.spec.config import ModelConfig
from train.spec.counts import head_dim

YARN_FAST, YARN_SLOW = 32.0, 1.0
"""Turns within the original length above which a wavelength stays, and below which it is stretched in full."""
LLAMA3_LOW, LLAMA3_HIGH = 1.0, 4.0
"""The same for llama3: below low turns stretched in full, above high not at all."""


def frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Return the angle per position of each channel pair, (head_dim / 2,) fp64 on the CPU, and a factor on q and k."""
    dim, theta, factor = head_dim(config), config.rope_theta, config.rope_factor
    if config.rope_scaling == "ntk":
        theta *= factor ** (dim / (dim - 2))
    pairs = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")
    plain = theta ** (-pairs / dim)
    if config.rope_scaling == "linear":
        return plain / factor, 1.0
    if config.rope_scaling == "yarn":
        stretched = _yarn_share(config, dim)
        return plain / factor * stretched + plain * (1 - stretched), 1.0 + 0.1 * math.log(factor)
    if config.rope_scaling == "llama3":
        turns = _original(config) * plain / (2 * math.pi)
        kept = ((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)).clamp(0, 1)
        return plain / factor * (1 - kept) + plain * kept, 1.0
    return plain, 1.0


def _yarn_share(config: ModelConfig, dim: int) -> Tensor:
    """Return how far each pair is stretched, 0 to 1: a ramp over pairs between those that turn often and seldom."""

    def pair_that_turns(times: float) -> float:
        return dim * math.log(_original(config) / (times * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low = max(math.floor(pair_that_turns(YARN_FAST)), 0)
    high = min(math.ceil(pair_that_turns(YARN_SLOW)), dim - 1)
    width = high - low if high != low else 0.001
    return ((torch.arange(dim // 2, dtype=torch.float64, device="cpu") - low) / width).clamp(0, 1)


def _original(config: ModelConfig) -> int:
    assert config.rope_original_length is not None
    return config.rope_original_length
