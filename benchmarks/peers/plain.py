"""One row through what people write themselves: a plain PyTorch model, torch.compile of all of it, fused AdamW.

In the manner of nanoGPT, with a Llama's parts: fp32 weights under bf16 autocast, torch's attention, logits as a whole,
gradients clipped to 1, random tokens drawn on the GPU, so that no loader holds it up. Run under torchrun on one GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.rows import SHAPES, Row, Shape, find
from train.spec.counts import head_dim, mlp_width


class Attention(nn.Module):
    """Causal self-attention with rotary embeddings."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return attention's output for x (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, -1, self.size).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys (batch, heads, length, size) turned by their positions."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, size: int, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width, size)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream after this block."""
        x = x + self.attention(self.norms[0](x), cos, sin)
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        out: Tensor = x + self.down(F.silu(gate) * up)
        return out


class Plain(nn.Module):
    """Tokens and targets to the mean cross-entropy."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        model = shape.model
        width, size = model.width, head_dim(model)
        self.embedding = nn.Embedding(shape.vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, size, mlp_width(model)) for _ in range(model.layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, shape.vocabulary, bias=False)
        angles = torch.outer(torch.arange(shape.length), model.rope_theta ** -(torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss [nats/token]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def measure(row: Row, device: str) -> dict[str, float]:
    """Return the row's figures from its steps after the warm-up."""
    shape = SHAPES[row.shape]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Plain(shape).to(device)
    compute = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    began, first = time.perf_counter(), 0.0
    for number in range(row.steps):
        if number == row.warmup:
            _wait(device)
            first, began = time.perf_counter() - began, time.perf_counter()
        tokens = torch.randint(shape.vocabulary, (row.sequences, shape.length + 1), device=device)
        with torch.autocast(device, torch.bfloat16):
            loss = compute(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    _wait(device)
    seconds = (time.perf_counter() - began) / (row.steps - row.warmup)
    memory = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0
    return {
        "step_seconds": seconds,
        **row.figures(seconds),
        "gib": memory,
        "warmup_seconds": first,
        "loss": float(loss.detach()),
        "grad_norm": float(norm),
    }


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description="run one row of benchmarks.trainer_peers through a plain model")
    parser.add_argument("row")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    row = find(options.row)
    row = replace(row, steps=options.steps or row.steps)
    figures = measure(row, "cuda" if torch.cuda.is_available() else "cpu")
    Path(os.environ["PEERS_RESULT"]).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
