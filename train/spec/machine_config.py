"""The sections of a run's config that are not part of a point's key: layout, memory, compiling, process, checks."""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.config_fields import key


@dataclass(frozen=True)
class ParallelConfig:
    """Mesh axes and micro-batch. Not part of a point's key: the losses do not depend on it."""

    dp_replicate: int | None = key(None, "replicas of the (sharded) model; null: the ranks that the other axes leave")
    dp_shard: int | None = key(1, "ranks that shard the weights of one replica; null: the ranks that the others leave")
    cp: int = key(1, "context parallelism: ranks that share each sequence and gather keys and values")
    tp: int = key(1, "tensor parallelism: ranks that share each layer's matrices and the vocabulary")
    pp: int = key(1, "pipeline parallelism: ranks that share the layers")
    ep: int = key(
        1, "expert parallelism: of the ranks of dp_shard x cp, neighbours that share each layer's experts", former=1
    )
    strategy: str = key(
        "auto",
        "how data-parallel ranks hold the model; ddp: whole, fsdp: FSDP2, fsdp1: FSDP1, for comparison; auto: ddp "
        "if only dp_replicate is above 1, else fsdp",
        ("auto", "ddp", "fsdp", "fsdp1"),
    )
    zero: int = key(
        3,
        "ZeRO stage; 3: weights are gathered for each pass of a block, 2: once per step, 1: as 2, and gradients "
        "are reduced once per step",
    )
    ddp_bucket_mib: float | None = key(
        None,
        "ddp: gradients that fill one message [MiB]; null: 1 for the first that are ready, then 25, as torch has it",
        former=None,
    )
    fsdp_prefetch: int = key(
        1, "fsdp: blocks whose weights are gathered ahead of the one that computes; more of them takes memory", former=1
    )
    context: str = key(
        "gather",
        "context parallelism; gather: each rank gathers all keys and values, ring: torch's ring attention (refused)",
        ("gather", "ring"),
    )
    async_tp: bool = key(False, "tensor parallelism: overlap matrix products with their communication (CUDA, compiled)")
    pp_schedule: str = key(
        "1f1b",
        "pipeline schedule; gpipe: all forward, then all backward; 1f1b: alternating; interleaved: 1f1b over "
        "several stages per rank; zb1p: interleaved, weight gradients fill the bubble; zbv: the same, stages in a V",
        ("gpipe", "1f1b", "interleaved", "zb1p", "zbv"),
    )
    pp_stages: int | None = key(
        None,
        "interleaved, zb1p: stages of one rank (gpipe and 1f1b have one, zbv two); null: from pp_layers, else "
        "2, or 1 if the model has too few layers",
    )
    pp_layers: tuple[int, ...] = key((), "layers of each stage in the model's order; empty: as even as the head allows")
    pp_micro_batches: int | None = key(
        None, "micro-batches per pipeline pass, the others are accumulated in turn; null: all of a step"
    )
    micro_batch_sequences: int | None = key(
        None, "sequences per forward pass and rank; null: all that a GPU's memory holds, or 1 GiB of it on a CPU"
    )
    layout: str = key(
        "given",
        "given: the keys of this section say it; auto: chosen for each point as plan parallel predicts on "
        "cluster.profile, before it is submitted; chosen: it was, and these are its keys",
        ("given", "auto", "chosen"),
    )


@dataclass(frozen=True)
class MemoryConfig:
    """What is kept for the backward pass and what waits on the CPU. Not part of a point's key."""

    checkpointing: str = key(
        "none",
        "activations recomputed in the backward pass; full: every block; every: one block in `every`; selective: "
        "all but matrix products and attention; budget: as few as the device's memory allows",
        ("none", "full", "every", "selective", "budget"),
    )
    every: int = key(2, "checkpointing=every: one block in this many")
    budget_gib: float | None = key(None, "checkpointing=budget: memory to fill [GiB]; null: 92 % of the device's")
    offload: str = key(
        "none",
        "what is kept in host memory; optimizer: moments, fetched for the update; parameters: sharded weights, "
        "gradients and moments, updated there; no effect without a GPU",
        ("none", "optimizer", "parameters"),
    )


@dataclass(frozen=True)
class CompileConfig:
    """torch.compile and CUDA graphs. Not part of a point's key: the arithmetic is the same up to its order."""

    blocks: bool | None = key(
        None, "compile every block, as one shared graph; null: on a GPU, if the run is long and the model wide enough"
    )
    cache: str | None = key(
        None, "folder of compiled code shared by jobs; null: TORCHINDUCTOR_CACHE_DIR, else one in your cache folder"
    )
    cuda_graphs: bool = key(False, "replay each block as a CUDA graph (shapes are static)")
    step_graph: bool | None = key(None, "replay each step as one CUDA graph; null: on one GPU, if possible")
    warmup_steps: int = key(2, "steps in which graphs may be compiled; compiling later is an error; -1: never an error")


@dataclass(frozen=True)
class RuntimeConfig:
    """Where and how the process runs. Not part of a point's key."""

    device: str = key("auto", "device type", ("auto", "cpu", "cuda"))
    threads: int = key(1, "CPU threads of one process")
    data_root: str = key("data", "folder of prepared corpora")
    checkpoint_seconds: float = key(30.0, "time between checkpoints [s]; 0: after every step")
    checkpoint_keep: int = key(2, "newest checkpoints kept during the run; afterwards only the last one is kept")
    checkpoint_keep_steps: int = key(0, "steps between checkpoints that are kept for good; 0: none")
    prefetch_batches: int | None = key(None, "batches read ahead in a thread; null: 2 on a GPU, 0 on a CPU")
    log_steps: int = key(10, "steps between training metrics [steps]")
    timeout_seconds: float = key(
        600.0, "several ranks: if one makes no progress for this long, all write their stacks and the run fails [s]"
    )
    start_seconds: float = key(1800.0, "the same until the first step is done: rendezvous, reading, compiling [s]")
    deterministic: bool = key(False, "bitwise reproducible on one device and across restarts; other operations fail")
    measure_peak: bool = key(False, "measure the device's matmul rate at the start, for mfu_measured")
    system_seconds: float = key(10.0, "shortest time between samples of CPU, memory and GPUs [s]; 0: none", former=10.0)


@dataclass(frozen=True)
class HealthConfig:
    """Looking inside a run at an interval, changing nothing. Not part of a point's key."""

    statistics_steps: int = key(0, "steps between statistics of each layer's gradients, weights, updates; 0: never")
    activations: bool = key(False, "also statistics of each block's output: an extra forward pass of one micro-batch")
    desync_steps: int = key(0, "steps between comparisons of the ranks' replicas by hash; 0: never")
    probe_steps: int = key(0, "steps between bitwise checks of recomputed gradients; 0: never")


@dataclass(frozen=True)
class ProfileConfig:
    """Profiler and memory history. Not part of a point's key."""

    start: int | None = key(None, "first step that torch.profiler records, after one of warmup; null: off")
    steps: int = key(3, "steps recorded")
    every: int | None = key(None, "record again after this many steps [steps]; null: once")
    ranks: str = key("first", "which ranks record", ("first", "all"))
    shapes: bool = key(
        False, "also record the shapes of operations' inputs: FLOP/s and bytes/s of kernels", former=False
    )
    memory: bool = key(False, "also record allocations: memory over time, and who holds it at the peak", former=False)
    nvtx: bool = key(False, "mark the phases of a step as NVTX ranges (Nsight Systems)")
    memory_history: bool = key(False, "record the stack of each allocation, for the snapshot at an out-of-memory error")
