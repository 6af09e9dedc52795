"""What can be said of an export or an import before torch is there: it takes seconds to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from train.hub import architecture
from train.spec.config import ModelConfig
from train.spec.decoder import resolve_model

DTYPES = ("float32", "bfloat16", "float16")
"""Formats that weights are exported in, by torch's names."""


@dataclass(frozen=True)
class Source:
    """What config.json of a Hugging Face folder describes, with our keys; length: of its sequences [tokens]."""

    model: ModelConfig
    length: int
    vocab_size: int


def check_dtype(dtype: str) -> None:
    """Raise ValueError for a format that weights are not exported in."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype} is not allowed: choose one of {', '.join(DTYPES)}")


def check_new(out: Path) -> None:
    """Raise ValueError where the folder to write is there already."""
    if out.exists():
        raise ValueError(f"out={out} exists: name a folder that does not")


def read_source(source: Path) -> Source:
    """Return what a Hugging Face folder holds. Raises ValueError where we have no key for what the model is."""
    try:
        config = json.loads((source / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"source={source} has no config.json: name the folder of a Hugging Face model") from None
    except OSError as error:
        raise ValueError(f"{source / 'config.json'} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{source / 'config.json'} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{source / 'config.json'} is not an object of keys and values: name a Hugging Face model")
    model = architecture.from_hub(config)
    said = config.get("max_position_embeddings")
    length = 2048 if said is None else architecture.count(config, "max_position_embeddings")
    resolve_model(model, length)
    return Source(model, length, architecture.count(config, "vocab_size"))
