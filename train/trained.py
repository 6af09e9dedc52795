"""A trained model for a notebook: `train.load_checkpoint(run)` reads the weights, `sample` continues a text."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports, which take their time
    from train.spec.interrupts import no_command

    no_command("train.trained", "in Python, train.load_checkpoint('runs/STUDY/KEY') loads a trained model")

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train.checkpoint.layout import Checkpoint, newest
from train.checkpoint.load import read, stored
from train.data.corpus.tokenizer import encode_bytes, encoder
from train.model.attention.kv_cache import KVCache
from train.model.regions import parts_of
from train.model.transformer import Transformer
from train.spec import calls
from train.spec.config import RunConfig
from train.spec.frozen_run import load
from train.spec.manifest import folder, read_manifest

WIDTH = 4
"""Bytes of a token while text is encoded: enough for any vocabulary."""


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model with the weights of a checkpoint, in fp32 on one device, and the tokenizer of its corpus.

    `model` takes int64 tokens (batch, length) and returns logits (batch, length, vocab_size).
    """

    model: Transformer
    config: RunConfig
    step: int
    tokens: int
    run: Path

    def __repr__(self) -> str:
        """Return the model in one line."""
        count = sum(weight.numel() for weight in self.model.parameters())
        shape = f"{self.config.model.layers} layers x {self.config.model.width}"
        return f"TrainedModel({self.run.name}: {count:,} parameters, {shape}, step {self.step}, {self.tokens:,} tokens)"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @calls.answered(text=calls.unicode)
    def encode(self, text: str) -> list[int]:
        """Return a text's tokens; ValueError where the run's corpus is not there, with its tokenizer."""
        content = self._tokenizer[0]
        if content is None:
            return list(map(int, np.frombuffer(encode_bytes(text.encode()), dtype="<u2")))
        return list(map(int, np.frombuffer(encoder(content, WIDTH)(text.encode()), dtype=f"<u{WIDTH}")))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; the separator of documents is left out."""
        content, separator = self._tokenizer
        kept = [token for token in tokens if token != separator]
        if content is None:
            return bytes(token for token in kept if token < 256).decode("utf-8", errors="replace")
        from tokenizers import Tokenizer

        loaded: Any = Tokenizer.from_str(content)
        return str(loaded.decode(kept, skip_special_tokens=True))

    @torch.no_grad()
    @calls.answered(text=calls.unicode)
    def loss(self, text: str) -> float:
        """Return the mean loss of a text [nats per token], given that a document begins with it.

        ValueError for one that is empty or longer than the sequences that were trained on.
        """
        tokens = self._begun(text)
        if not 1 < len(tokens) <= self.model.length + 1:
            raise ValueError(f"the text has {len(tokens) - 1} tokens: 1 to {self.model.length} are possible")
        inputs = torch.tensor([tokens[:-1]], device=self.device)
        logits = self.model(inputs)[0].float()
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:], device=self.device)))

    @torch.no_grad()
    @calls.answered(
        prompt=calls.unicode, tokens=calls.whole(1), temperature=calls.not_negative, top_k=calls.whole(1),
        seed=calls.whole(),
    )  # fmt: skip
    def sample(
        self, prompt: str = "", tokens: int = 100, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
    ) -> str:
        """Return how the model continues a prompt, without it: until the document ends, at most so many tokens.

        `temperature` 0 takes the likeliest token every time; `top_k` draws from so many likeliest ones. The same seed
        gives the same text on the same machine. It ends where the sequences that were trained on end. ValueError for a
        prompt as long as that, a temperature below 0, or no token to make.
        """
        begun = self._begun(prompt)
        room = self.model.length - len(begun)
        if room < 1:
            raise ValueError(f"the prompt has {len(begun) - 1} tokens: at most {self.model.length - 2} leave room")
        separator = self._tokenizer[1]
        generator = torch.Generator().manual_seed(seed)
        caches = {name: KVCache(self.model.length) for name in self.model.blocks}
        made: list[int] = []
        new = begun
        while len(made) < min(tokens, room):
            logits = self.model(torch.tensor([new], device=self.device), caches=caches)[0, -1]
            token = _drawn(logits.float().cpu(), temperature, top_k, generator)
            if token == separator:
                break
            made.append(token)
            new = [token]
        return self.decode(made)

    def _begun(self, text: str) -> list[int]:
        """Return a text's tokens after the separator, which begins every document."""
        return [self._tokenizer[1], *self.encode(text)]

    @cached_property
    def _tokenizer(self) -> tuple[str | None, int]:
        """The tokenizer's JSON (None: bytes) and the separator's number."""
        corpus = folder(self.config.data, self.config.runtime.data_root)
        manifest = read_manifest(corpus)
        file = manifest.tokenizer.file
        return (None if file is None else (corpus / file).read_text("utf-8")), manifest.separator_token


@calls.answered(run=calls.path("runs/STUDY/KEY"), step=calls.whole(), device=calls.text)
def load_checkpoint(run: str | Path, step: int | None = None, device: str = "cpu") -> TrainedModel:
    """Return the model of a run's newest whole checkpoint, or of that of `step`.

    Parameters
    ----------
    run : str or Path
        A run's folder: "runs/STUDY/KEY".
    step : int, optional
        The checkpoint's step.
    device : str
        Where to put the weights: "cpu", "cuda".

    Returns
    -------
    TrainedModel
        The model with its tokenizer: `sample(text)` continues a text, `loss(text)` is its loss, `model` the module.

    Raises
    ------
    ValueError
        There is no such run, it has no such checkpoint, or there is no such device.

    Examples
    --------
    >>> import train
    >>> model = train.load_checkpoint("runs/isoflop/KEY")  # doctest: +SKIP
    >>> model.sample("def main(", tokens=100, temperature=0.8, top_k=50)  # doctest: +SKIP
    """
    if str(device).partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device={str(device)!r} is not allowed: cpu, cuda or cuda:NUMBER")
    if str(device) != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device={str(device)!r}: torch sees no GPU here: use cpu")
    place = Path(run)
    if not (place / "config.yaml").is_file():
        raise ValueError(f"{place} is no run (no config.yaml): give runs/STUDY/KEY")
    config = load(place / "config.yaml")
    found = newest(place / "checkpoints", before=None if step is None else step + 1)
    if found is None or (step is not None and int(found.progress["step"]) != step):
        raise ValueError(f"{place} has no complete checkpoint" + ("" if step is None else f" of step {step}"))
    model = Transformer(config.model, config.data.vocab_size, config.data.sequence_length)
    fill(model, found)
    model.rope = None if model.rope is None else model.rope.to(device)
    model = model.to(device).eval().requires_grad_(False)
    progress = found.progress
    return TrainedModel(model, config, int(progress["step"]), int(progress["tokens"]), place.absolute())


def fill(model: Transformer, found: Checkpoint) -> None:
    """Give a model's weights the values of a checkpoint, a tensor at a time."""
    about = stored(found)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            shape = model.specs[name].shape
            value = torch.empty(tuple(shape), dtype=about[f"model.{name}"][1])
            read(found, {f"model.{name}": value})
            for region, part in parts_of(weight, shape):
                part.copy_(value[region])


def _drawn(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Return a token drawn from logits (vocab_size,)."""
    if temperature < torch.finfo(logits.dtype).tiny:  # 0, or 0 in this format
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        lowest = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    # The largest is taken off first: divided by a temperature near 0, it would overflow.
    return int(torch.multinomial(((logits - logits.max()) / temperature).softmax(-1), 1, generator=generator))
