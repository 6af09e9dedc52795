"""A run's checkpoint to a Hugging Face folder, and such a folder to initial weights of our runs."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.checkpoint.layout import Checkpoint, newest
from train.checkpoint.load import read, stored
from train.data.corpus.end_of_text import SAID_IN, said_beside
from train.data.corpus.tokenizer import separator_of, vocabulary_of
from train.hub import architecture, weights
from train.hub.checks import check_dtype, check_new, read_source
from train.hub.init_from import SHAPE
from train.hub.safetensors import Shards, write_shards
from train.hub.tokenizer import write_tokenizer
from train.spec.config import ModelConfig
from train.spec.frozen_run import load
from train.spec.manifest import folder, read_manifest
from train.spec.yamlfile import dump

TOKENIZER = "tokenizer.json"


def export(run: Path, out: Path, dtype: str = "bfloat16", step: int | None = None) -> str:
    """Write the newest checkpoint of a run (or that of `step`) as a Hugging Face folder; return what was written.

    Raises ValueError where the model has no such form, the run no such checkpoint, or `out` exists.
    """
    check_dtype(dtype)
    config = load(run / "config.yaml")
    data, model = config.data, config.model
    corpus = folder(data, config.runtime.data_root)
    manifest = read_manifest(corpus)
    described = architecture.to_hub(model, data.vocab_size, data.sequence_length, manifest.separator_token, dtype)
    found = _checkpoint(run, step)
    with _new_folder(out) as target:
        size = write_shards(target, _converted(found, model, data.vocab_size, getattr(torch, dtype)))
        (target / "config.json").write_text(json.dumps(described, indent=1) + "\n", "utf-8")
        file = manifest.tokenizer.file
        content = None if file is None else (corpus / file).read_text("utf-8")
        write_tokenizer(target, content, manifest.separator_token, data.sequence_length)
    kind = described["architectures"][0]
    return f"{out}: {kind}, {size / 2**20:,.1f} MiB in {dtype}, step {found.progress['step']} of {run}"


def import_model(source: Path, out: Path) -> str:
    """Write a Hugging Face folder as initial weights: tensors by our names, and config.yaml to start runs with.

    Raises ValueError where we have no key for what the model is, or `out` exists.
    """
    found = read_source(source)
    shards = Shards(source)
    with _new_folder(out) as target:
        write_shards(target, _ours(shards, found.model, found.vocab_size))
        tokenizer = source / TOKENIZER
        sections: dict[str, dict[str, Any]] = {
            "model": {**_given(found.model), "init_from": str(out.absolute())},
            "data": {"vocab_size": found.vocab_size, "sequence_length": found.length},
        }
        if tokenizer.exists():
            shutil.copyfile(tokenizer, target / TOKENIZER)
            end = _end_of_text(source, tokenizer.read_text("utf-8"), found.vocab_size)
            (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}) + "\n", "utf-8")
            sections["data"] |= {"tokenizer": "bpe", "tokenizer_from": str((out / TOKENIZER).absolute())}
        (target / "config.yaml").write_text(dump(sections), "utf-8")
    return f"{out}: start a run from it with the model and data sections of {out / 'config.yaml'}"


def _end_of_text(source: Path, tokenizer: str, vocab_size: int) -> str | None:
    """Return the name of the token that ends a text; None where none does and the vocabulary has room for another.

    Raises ValueError where it has none.
    """
    vocabulary = vocabulary_of(tokenizer)
    if max(vocabulary.values(), default=-1) >= vocab_size:
        raise ValueError(
            f"{source / 'config.json'}: vocab_size={vocab_size}, but {TOKENIZER} has tokens up to "
            f"{max(vocabulary.values())}, of which the weights have no rows"
        )
    try:
        end = separator_of(tokenizer, vocab_size, said_beside(source))
    except ValueError:
        files = ", ".join(f"{key} in {file}" for file, key in SAID_IN)
        raise ValueError(
            f"source={source}: no file says which token ends a text, and all {vocab_size} numbers are taken: give one "
            f"of {files}"
        ) from None
    return next((name for name, number in vocabulary.items() if number == end), None)


def _given(model: ModelConfig) -> dict[str, object]:
    """Return the keys that differ from the schema's defaults, and those without which a model is another."""
    default = asdict(ModelConfig())
    return {key: value for key, value in asdict(model).items() if key in SHAPE or value != default[key]}


def _checkpoint(run: Path, step: int | None) -> Checkpoint:
    found = newest(run / "checkpoints", before=None if step is None else step + 1)
    if found is None or (step is not None and int(found.progress["step"]) != step):
        raise ValueError(
            f"{run / 'checkpoints'} has no complete checkpoint" + ("" if step is None else f" of step {step}")
        )
    return found


def _converted(
    found: Checkpoint, model: ModelConfig, vocab_size: int, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Yield their tensors, reading a block at a time."""
    about = stored(found)
    for specs in weights.specs_by_layer(model, vocab_size):
        ours = {name: torch.empty(spec.shape, dtype=about[f"model.{name}"][1]) for name, spec in specs.items()}
        read(found, {f"model.{name}": value for name, value in ours.items()})
        for name, value in weights.to_hub(ours, specs):
            yield name, value.to(dtype)


def _ours(shards: Shards, model: ModelConfig, vocab_size: int) -> Iterator[tuple[str, Tensor]]:
    """Yield our tensors, reading a block at a time."""
    for specs in weights.specs_by_layer(model, vocab_size):
        for name, spec in specs.items():
            yield name, weights.from_hub(name, [shards.read(theirs) for theirs in weights.names_of(name, spec)], spec)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that becomes `out` when all went well and is removed when not."""
    check_new(out)
    target = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    target.mkdir(parents=True)
    try:
        yield target
        target.rename(out)
    finally:
        shutil.rmtree(target, ignore_errors=True)
