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
from torch import nn

from benchmarks.peers.rows import SHAPES, Row, Shape, find
from benchmarks.peers.script import Transformer
from train.spec.counts import head_dim, mlp_width


def plain_model(shape: Shape) -> Transformer:
    """Return a plain model of this shape, weights as torch draws them."""
    model = shape.model
    return Transformer(
        vocabulary=shape.vocabulary,
        length=shape.length,
        width=model.width,
        layers=model.layers,
        head=head_dim(model),
        hidden=mlp_width(model),
        theta=model.rope_theta,
        eps=model.norm_eps,
        qk_norm=model.qk_norm,
    )


def measure(row: Row, device: str) -> dict[str, float]:
    """Return the row's figures from its steps after the warm-up."""
    shape = SHAPES[row.shape]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = plain_model(shape).to(device)
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
