"""One training step of a single long sequence on a GPU: a sliding window, documents, capped scores and ALiBi.

    python -m benchmarks.long_attention [--length 131072] [--width 1024] [--layers 4] [--window 4096] [--steps 3]

Prints, for each kind of decoder, the bytes of the largest tensor that making the masks allocates, peak memory and the
time of a step (forward and backward passes). A dense mask of 131,072 positions would have 16 GiB as booleans, and 128
GiB as indices. With `--device cpu --masks-only` the masks alone are made, without a GPU.
"""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from train.model.attention.masks import block_mask
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.command_line import Parser
from train.spec.config import ModelConfig
from train.spec.decoder import resolve_model

VOCABULARY = 32_768
GIB = 2**30


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the bytes of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and look at what it gives."""
        out = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.size = max([self.size, *sizes])
        return out


def documents_of(length: int, device: torch.device) -> Tensor:
    """Return document numbers (1, length) of documents of 100 to 20,000 tokens or so."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.exp(torch.rand(length, generator=generator) * 5.3 + 4.6).long()
    ends = sizes.cumsum(0)
    return torch.searchsorted(ends, torch.arange(length), right=True)[None].to(device)


def mask_line(length: int, window: int, documents: Tensor) -> str:
    """Make the two masks and say what that took."""
    started = time.perf_counter()
    with Largest() as seen:
        for one in (window, None):
            block_mask(length, length, one, documents, documents.device)
    if documents.device.type == "cuda":
        torch.cuda.synchronize()
    return (
        f"masks of {length:,} tokens: largest tensor {seen.size / 2**20:.1f} MiB, "
        f"{time.perf_counter() - started:.3f} s for two"
    )


def measured(model: ModelConfig, length: int, documents: Tensor, steps: int) -> str:
    """Train on one sequence and say what it took."""
    device = documents.device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    net = Transformer(resolve_model(model, length), VOCABULARY, length)
    net.materialise(device)
    initialise(net, 0)
    tokens = torch.randint(0, VOCABULARY, (1, length + 1), generator=torch.Generator().manual_seed(1)).to(device)
    here = torch.arange(length, device=device)
    begins = torch.cat((documents.new_ones(1, 1), documents.diff(dim=1)), 1) != 0
    positions = here - torch.where(begins, here, 0).cummax(1).values
    times = []
    loss = torch.zeros(())
    for _ in range(steps + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        net.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(tokens[:, :-1], tokens[:, 1:], positions, documents) / length
        torch.autograd.backward(loss)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    wrong = [name for name, w in net.named_parameters() if w.grad is None or not bool(w.grad.isfinite().all())]
    peak = torch.cuda.max_memory_allocated() / GIB
    state = "all gradients finite" if not wrong else f"NOT FINITE: {wrong[:3]}"
    return (
        f"loss {float(loss.detach()):.3f}, {state}, peak {peak:.1f} GiB, step {min(times[1:]):.2f} s "
        f"(first, compiled: {times[0]:.0f} s)"
    )


def main() -> None:
    """Measure every kind of decoder."""
    parser = Parser(description=__doc__)
    parser.add_argument("--length", type=int, default=131_072)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--masks-only", action="store_true")
    given = parser.parse_args()
    device = torch.device(given.device)
    documents = documents_of(given.length, device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    print(f"{name}, torch {torch.__version__}; {int(documents.max()) + 1} documents", flush=True)
    print(mask_line(given.length, given.window, documents), flush=True)
    if given.masks_only:
        return
    base = ModelConfig(width=given.width, layers=given.layers, head_dim=128, kv_heads=given.width // 256)
    kinds = {
        "window + documents": replace(base, window=given.window, global_every=2),
        "window + documents + caps": replace(base, window=given.window, global_every=2, attention_softcap=50.0),
        "window + documents + caps + ALiBi": replace(
            base, window=given.window, global_every=2, attention_softcap=50.0, position="alibi"
        ),
    }
    for kind, model in kinds.items():
        print(f"{kind}: {measured(model, given.length, documents, given.steps)}", flush=True)


if __name__ == "__main__":
    main()
