"""Whether a training step can be one CUDA graph: it must do the same work on the same addresses every time."""

from __future__ import annotations

from train.spec.config import RunConfig


def obstacle(config: RunConfig, device: str, ranks: int) -> str | None:
    """Return why a run's steps cannot be replayed as one CUDA graph, a clause that names the key; None: they can.

    device: its type, cpu or cuda.
    """
    precision, memory, compiled = config.precision, config.memory, config.compile
    reasons = (
        (device != "cuda", "it needs a CUDA device"),
        (config.model.experts > 0, f"model.experts={config.model.experts} have other numbers of tokens in every step"),
        (ranks > 1, f"{ranks} ranks send messages within a step, from addresses that change"),
        (compiled.cuda_graphs, "compile.cuda_graphs=true replays each block as a graph of its own"),
        (
            precision.optimizer_state == "bf16",
            "precision.optimizer_state=bf16 draws the seeds of its stochastic rounding on the CPU",
        ),
        (memory.checkpointing == "budget", "memory.checkpointing=budget changes what is kept while it runs"),
        (memory.offload != "none", f"memory.offload={memory.offload} moves state to the CPU within a step"),
    )
    return next((reason for holds, reason in reasons if holds), None)
