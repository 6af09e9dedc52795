"""A training script as people write it: one model in one file, Hydra for its settings. In the manner of nanoGPT.

    python script.py --config-dir conf --config-name config -m hydra/launcher=submitit_slurm 'point=glob(*)'

A Llama's parts, fp32 weights under bf16 autocast, torch.compile of the whole model, fused AdamW, gradients clipped to
1, linear warm-up and cosine to zero, random rows of memory-mapped tokens, a CSV file as log. It imports nothing of this
project: `benchmarks.study_peers` writes its configs and launches it with hydra-submitit's launcher, and
`benchmarks.peers.plain` times its model.
"""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention with rotary embeddings, and norms of queries and keys if they are asked for."""

    def __init__(self, width: int, size: int, eps: float, qk_norm: bool) -> None:
        super().__init__()
        self.size = size
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(size, eps) if qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return attention's output for x (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, -1, self.size).permute(2, 0, 3, 1, 4).unbind()
        q, k = rotated(self.norms[0](q), cos, sin), rotated(self.norms[1](k), cos, sin)
        mixed = F.scaled_dot_product_attention(q.type_as(v), k.type_as(v), v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys (batch, heads, length, size) turned by their positions."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, size: int, hidden: int, eps: float, qk_norm: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps) for _ in range(2))
        self.attention = Attention(width, size, eps, qk_norm)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream after this block."""
        x = x + self.attention(self.norms[0](x), cos, sin)
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        out: Tensor = x + self.down(F.silu(gate) * up)
        return out


class Transformer(nn.Module):
    """Tokens and targets to the mean cross-entropy."""

    def __init__(
        self,
        *,
        vocabulary: int,
        length: int,
        width: int,
        layers: int,
        head: int,
        hidden: int,
        theta: float,
        eps: float,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, head, hidden, eps, qk_norm) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps)
        self.head = nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(length), theta ** -(torch.arange(0, head, 2) / head))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss [nats/token]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def initialise(model: Transformer, std: float) -> None:
    """Draw the weights: matrices with this std, what writes into the residual stream with less by depth, as GPT-2."""
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            writes = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(weight, 0.0, std / (2 * len(model.blocks)) ** 0.5 if writes else std)
    nn.init.normal_(model.embedding.weight)


class Tokens:
    """Memory-mapped shards of one split; a row is `length` + 1 tokens."""

    def __init__(self, files: list[str], length: int) -> None:
        self.maps = [np.memmap(file, np.uint16, "r") for file in files]
        self.length = length
        self.shares = torch.tensor([max(0, len(part) - length) for part in self.maps], dtype=torch.float64)

    def random(self, count: int) -> Tensor:
        """Return (count, length + 1) rows from random places."""
        shards = torch.multinomial(self.shares, count, replacement=True).tolist()
        starts = (torch.rand(count, dtype=torch.float64) * self.shares[shards]).long().tolist()
        return self._rows(list(zip(shards, starts, strict=True)))

    def spread(self, count: int) -> Tensor:
        """Return (count, length + 1) rows evenly spread over the text, always the same ones."""
        places = [(n, at) for n, part in enumerate(self.maps) for at in range(0, len(part) - self.length, self.length)]
        return self._rows([places[number * len(places) // count] for number in range(count)])

    def _rows(self, places: list[tuple[int, int]]) -> Tensor:
        rows = [self.maps[shard][start : start + self.length + 1].astype(np.int64) for shard, start in places]
        return torch.from_numpy(np.stack(rows))


def factor(step: int, steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate in a step, counted from 0."""
    progress = (step + 1) / steps
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def held_out_loss(model: nn.Module, rows: Tensor, device: str, context: Any) -> float:
    """Return the mean loss of rows [nats/token]."""
    total = 0.0
    with torch.no_grad(), context:
        for part in torch.split(rows, 32):
            tokens = part.to(device)
            total += float(model(tokens[:, :-1], tokens[:, 1:].contiguous())) * len(part)
    return total / len(rows)


def optimizer_of(model: Transformer, point: Any, fused: bool) -> torch.optim.AdamW:
    """Return AdamW with weight decay for matrices, but not for the embedding and the norms."""
    matrices = [weight for weight in model.blocks.parameters() if weight.dim() > 1] + [model.head.weight]
    kept = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in kept]
    groups = [{"params": matrices, "weight_decay": point.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=point.lr, betas=tuple(point.betas), fused=fused)


def train(config: Any) -> float:
    """Train one point; write `log.csv`, `weights.pt` and `result.json` into its folder; return the held-out loss."""
    point, folder = config.point, Path(config.out) / config.point.name
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(point.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    context = torch.autocast(device, torch.bfloat16, enabled=point.bf16)
    model = Transformer(**point.model).to(device)
    initialise(model, point.init_std)
    compute = torch.compile(model) if config.compile else model
    optimizer = optimizer_of(model, point, fused=device == "cuda")
    data, held_out = Tokens(list(config.train), point.model.length), Tokens(list(config.validation), point.model.length)
    rows, evaluating, found = held_out.spread(point.validation_rows), 0.0, math.nan
    began = time.time()
    with (folder / "log.csv").open("w", newline="", encoding="utf-8") as file:
        log = csv.writer(file)
        log.writerow(["step", "tokens", "loss", "held_out", "seconds"])
        for step in range(point.steps):
            for group in optimizer.param_groups:
                group["lr"] = point.lr * factor(step, point.steps, point.warmup)
            tokens = data.random(point.batch)
            tokens = tokens.pin_memory().to(device, non_blocking=True) if device == "cuda" else tokens
            with context:
                loss = compute(tokens[:, :-1], tokens[:, 1:].contiguous())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            due = (step + 1) * point.evaluations // point.steps > step * point.evaluations // point.steps
            if due or step % 10 == 0:
                now, last = loss.item(), time.time()
                found = held_out_loss(model, rows, device, context) if due else found
                evaluating += time.time() - last
                log.writerow([step, (step + 1) * tokens[:, 1:].numel(), now, found, time.time() - began])
                file.flush()
    result = {"loss": found, "tokens": point.steps * point.batch * point.model.length}
    result["seconds"] = time.time() - began - evaluating
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return found


if __name__ == "__main__":
    import hydra

    hydra.main(version_base="1.3", config_path=None)(train)()
