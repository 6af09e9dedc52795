"""What a run does on the device that it finds, where its config leaves that open. None of it is part of a point.

`compile.blocks` null is decided here, once, when the device is known; what stays null beyond is the affair of who reads
it: the micro-batch (train.memory.micro_batch), batches read ahead (train.data.dataloader).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from train.spec import mesh
from train.spec.config import RunConfig
from train.spec.counts import flops_per_token
from train.spec.step_graph import obstacle

SHORTEST = 5e14
"""Training FLOPs of a GPU below which compiling costs more than it gains.

On an H200 (384 x 6, 40,960 tokens a step) compiling takes 12 s, or a few where compiled code is found, and a step of
3.6e12 FLOPs is milliseconds shorter: it pays after hundreds of steps.
"""
OLDEST = (7, 0)
"""The compute capability from which on Triton, and so torch.compile, has code for a GPU."""
BF16 = (8, 0)
"""The same for matrix products in bf16."""
NARROW = 384
"""Widest model whose blocks our kernels run as fast as compiled ones do, once a step is one CUDA graph.

On an H200, 40,960 tokens a step in bf16, compiled and not: width 256, 5.47 and 5.30 ms; 352 in rows of 1,024, 15.0 and
13.8; 384, 11.09 and 11.08; 768, 54.7 and 56.8. Without compiling, a run is ready two to five seconds sooner.
"""


@dataclass(frozen=True)
class Gpu:
    """What is to be known of a GPU: its name, its compute capability, and why nothing can be compiled for it, if so."""

    name: str
    capability: tuple[int, int]
    obstacle: str | None = None


def choose(config: RunConfig, gpu: Gpu | None, ranks: int) -> RunConfig:
    """Return the config with `compile.blocks` decided: true on a GPU where that is possible and makes steps shorter.

    gpu: None: the device is a CPU. ranks: of the run, one a GPU.
    """
    if config.compile.blocks is not None:
        return config
    return _with_blocks(config, gpu is not None and _why_not(config, gpu, ranks) is None)


def advice(config: RunConfig, chosen: RunConfig, gpu: Gpu, ranks: int) -> str | None:
    """Return a sentence that names the keys by which the run would be faster on this GPU; None: there are none.

    chosen: what `choose` made of the config. A run too short for compiling is too short for advice.
    """
    if is_short(config, ranks):
        return None
    found = []
    if config.precision.name == "fp32" and gpu.capability >= BF16:
        found.append("in fp32: precision=bf16 is faster (it is part of a point, so it makes other points)")
    if not chosen.compile.blocks and not _is_graphed(config, ranks):
        found.append(f"without compiled blocks: {_remedy(config, gpu, ranks)}")
    return f"this run trains on {gpu.name} {', and '.join(found)}" if found else None


def in_words(config: RunConfig, gpu: Gpu, micro: int, share: int, ranks: int) -> str:
    """Return how a run trains here. micro: sequences of a micro-batch; share: those of a step on one rank."""
    compiled = "compiled blocks" if config.compile.blocks else "blocks not compiled"
    if config.compile.step_graph is not False and obstacle(config, "cuda", ranks) is None:
        compiled += ", steps as CUDA graphs"
    whole = f"all {share} sequences of a step at once" if micro >= share else f"{micro} of {share} sequences at a time"
    return f"on {gpu.name}: {config.precision.name}, {compiled}, {whole}"


def is_short(config: RunConfig, ranks: int = 1) -> bool:
    """Whether a resolved run is over before it matters how its GPUs train."""
    assert config.budget.tokens is not None, "the config is resolved"
    each = flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
    return float(each) * config.budget.tokens / ranks < SHORTEST


def _why_not(config: RunConfig, gpu: Gpu, ranks: int) -> str | None:
    """Return why blocks are not compiled, None: they are."""
    capability = ".".join(str(part) for part in gpu.capability)
    reasons = (
        (gpu.obstacle is not None, gpu.obstacle),
        (gpu.capability < OLDEST, f"torch.compile has no code for compute capability {capability}"),
        (config.runtime.deterministic, "runtime.deterministic=true asks for the same kernels every time"),
        (is_short(config, ranks), "the run is too short"),
        (_is_graphed(config, ranks), "the step is one CUDA graph of our kernels"),
    )
    found = next((reason for holds, reason in reasons if holds), None)
    if found is not None:
        return found
    try:
        mesh.check(_with_blocks(config, True), ranks, saves=False, begun=True)
    except ValueError as error:
        return str(error)
    return None


def _is_graphed(config: RunConfig, ranks: int) -> bool:
    """Whether the step becomes one CUDA graph of a narrow model, for whose blocks compiling gains nothing."""
    model = config.model
    has_kernels = model.width <= NARROW and config.precision.name == "bf16"
    plain = model.position == "rope" and model.window is None and not model.attention_softcap
    graph = config.compile.step_graph is not False and obstacle(config, "cuda", ranks) is None
    return has_kernels and plain and graph and config.memory.checkpointing == "none"


def _remedy(config: RunConfig, gpu: Gpu, ranks: int) -> str:
    why = _why_not(config, gpu, ranks)
    if why is not None:
        return why
    return "compile.blocks=null or true is faster"


def _with_blocks(config: RunConfig, compiled: bool) -> RunConfig:
    return replace(config, compile=replace(config.compile, blocks=compiled))
