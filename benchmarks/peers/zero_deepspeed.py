"""One row of benchmarks.deepspeed_zero3 through DeepSpeed (its wheel on the path). Run under torchrun.

`deepspeed.initialize` gets this project's module, filled as the trainer fills it, and torch's AdamW with the trainer's
groups; its ZeRO settings are DeepSpeed's own defaults. Batches are read by the trainer's loader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.peers.zero_step import first_weights, main
from train.build import build_data, build_mesh
from train.memory.activation_checkpointing import modes, wrap
from train.model.transformer import Transformer
from train.optim.build import make_optimizer
from train.runtime import sdpa_backends
from train.runtime.distributed import World
from train.spec.config import RunConfig
from train.spec.schedule import learning_rate
from train.state import TrainState


def settings(config: RunConfig, sequences: int) -> dict[str, Any]:
    """Return DeepSpeed's config of a run whose ranks take so many sequences a step; all else is at its defaults."""
    return {
        "train_micro_batch_size_per_gpu": sequences,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.grad_clip,
        "bf16": {"enabled": config.precision.name == "bf16"},
        "zero_optimization": {"stage": config.parallel.zero},
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
    }


class DeepSpeed:
    """DeepSpeed's engine around this project's module."""

    def __init__(self, config: RunConfig, folder: Path, world: World, device: torch.device, exact: bool) -> None:
        import deepspeed

        self.config, self.world, self.device, self.state = config, world, device, TrainState()
        self.mesh = build_mesh(config, world, device)
        self.data = build_data(config, self.state, self.mesh, device)
        sdpa_backends.prefer(device)
        module = _module(config, device)
        first_weights(config, exact=exact)(module)
        self.estimate = _estimate(module, world.size, config.parallel.zero)
        optimizer = _adamw(module, config, device)
        self.scales = [group["scale"] for group in optimizer.param_groups]
        sequences = self.mesh.most((config.batch.tokens or 0) // config.data.sequence_length)
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
        self.engine, *_ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=settings(config, sequences), dist_init_required=False
        )

    def step(self) -> tuple[Tensor, Tensor]:
        """Take one step; return its loss [nats/token] and gradient norm."""
        state, config = self.state, self.config
        sequences = self.data.loader.next_sequences()
        tokens = sequences * config.data.sequence_length
        batch = self.data.loader.next_batch().to(self.device)
        lr = learning_rate(config, state.tokens + tokens)
        for group, scale in zip(self.engine.optimizer.param_groups, self.scales, strict=True):
            group["lr"] = lr * scale
        # The module returns a sum and DeepSpeed divides gradients by the ranks: together, the mean over all tokens.
        loss = self.engine(*batch.arrays) / (tokens / self.world.size)
        self.engine.backward(loss)
        self.engine.step()
        state.step, state.sequences, state.tokens = state.step + 1, state.sequences + sequences, state.tokens + tokens
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / self.world.size, torch.as_tensor(self.engine.get_global_grad_norm())

    def about(self) -> dict[str, float]:
        """Return what DeepSpeed's own estimator says of the model's states."""
        return {"estimated_bytes": float(self.estimate)}


def _module(config: RunConfig, device: torch.device) -> Transformer:
    with torch.device("meta"):
        module = Transformer(config.model, config.data.vocab_size, config.data.sequence_length)
    module.penalise(config.optim)
    wrap(list(module.blocks.values()), modes(config.memory, config.model.layers))
    module.materialise(device)
    return module


def _adamw(module: Transformer, config: RunConfig, device: torch.device) -> torch.optim.AdamW:
    ours = make_optimizer(module.named_parameters(), module.specs, config.model, config.optim)
    groups = [
        {"params": group["params"], "weight_decay": group["weight_decay"], "scale": group["lr_scale"]}
        for group in ours.param_groups
    ]
    first = ours.param_groups[0]
    return torch.optim.AdamW(groups, lr=1.0, betas=first["betas"], eps=first["eps"], fused=device.type == "cuda")


def _estimate(module: Transformer, ranks: int, stage: int) -> int:
    """Return the bytes of a GPU that DeepSpeed's estimator finds; of the module while it is whole."""
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    known = {"num_gpus_per_node": ranks, "num_nodes": 1, "cpu_offload": False}
    total, largest = stage3.model_to_params(module)
    if stage == 3:
        more = {"cpu_offload_params": False, "zero_init": False}
        return int(stage3.estimate_zero3_model_states_mem_needs(total, largest, **known, **more)[1])
    return int(stage_1_and_2.estimate_zero2_model_states_mem_needs(total, **known)[1])


if __name__ == "__main__":
    main(DeepSpeed, "run one row of benchmarks.deepspeed_zero3 through DeepSpeed")
