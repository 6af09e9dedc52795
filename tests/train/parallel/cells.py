"""What a parity test compares: one layout of four ranks against one process, on the same global batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from train.spec.config import CompileConfig, MemoryConfig, ModelConfig, ParallelConfig, PrecisionConfig

VOCABULARY = 64
LENGTH = 32
STEPS = 4
"""Wrong decay, rates, moments or weights show in a run of four, or not in one of twenty: results/suite_time.txt."""
MODEL = ModelConfig(width=32, layers=2, head_dim=4, kv_heads=4, mlp_width=48)
TIED = replace(MODEL, tied_embeddings=True)
EXPERTS = replace(MODEL, mlp_width=24, experts=6, experts_per_token=2, shared_experts=1, balance_weight=0.1)
SCORED = replace(EXPERTS, experts=8, experts_per_token=3, shared_experts=0, router_score="sigmoid")
BIASED = replace(EXPERTS, router_bias_speed=0.05, balance_weight=0.0)


@dataclass(frozen=True)
class Cell:
    """One layout and what has to hold for it over `steps` steps of up to `sequences` sequences; the last one is short.

    masked: a good part of the targets is not trained on, more of some sequences than of others. documents: attention
    stays within documents of a few tokens. penalised: z-loss and label smoothing are on. gradient: bound on the
    relative error of each weight's gradient in the first step, and of the gradient norm in every step. loss: bound on
    the absolute error of each step's loss [nats/token]. overflows: some steps are skipped, the same ones by all ranks
    and the reference. bitwise: losses and first gradients are the same bit for bit; then reference_micro is the
    reference's micro-batch [sequences] that adds up in the same order.
    """

    name: str
    parallel: ParallelConfig
    model: ModelConfig = MODEL
    sequences: int = 8
    masked: bool = False
    penalised: bool = False
    documents: bool = False
    clip: float = 1.0
    compile: CompileConfig = field(default_factory=CompileConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    gradient: float = 1e-5
    loss: float = 1e-6
    overflows: bool = False
    reference_micro: int | None = None
    bitwise: bool = False
    steps: int = STEPS


def parallel(**changes: object) -> ParallelConfig:
    """Return a layout whose data-parallel size is what the changes leave."""
    return ParallelConfig(**{"dp_replicate": 1, **changes})  # type: ignore[arg-type]


EAGER = (
    Cell("ddp 4", parallel(dp_replicate=4)),
    Cell("fsdp1 4", parallel(dp_shard=4, strategy="fsdp1")),
    Cell("fsdp 4, ZeRO-3", parallel(dp_shard=4)),
    Cell("fsdp 4, ZeRO-2, accumulated", parallel(dp_shard=4, zero=2, micro_batch_sequences=1), masked=True),
    Cell("fsdp 4, ZeRO-1, accumulated", parallel(dp_shard=4, zero=1, micro_batch_sequences=1), masked=True),
    Cell("hsdp 2 x 2", parallel(dp_replicate=2, dp_shard=2), masked=True),
    Cell("tp 4", parallel(tp=4)),
    Cell("tp 2 x fsdp 2", parallel(tp=2, dp_shard=2)),
    Cell("cp 4", parallel(cp=4), masked=True),
    Cell("cp 2 x tp 2", parallel(cp=2, tp=2), masked=True, clip=0.05),
    Cell("ddp 4, uneven targets, accumulated", parallel(dp_replicate=4, micro_batch_sequences=1), masked=True),
    Cell("ddp 4, clipped hard", parallel(dp_replicate=4), clip=0.05),
    Cell("ddp 4, a message for each weight", parallel(dp_replicate=4, ddp_bucket_mib=0.001), masked=True),
    Cell("fsdp 4, three blocks ahead", parallel(dp_shard=4, fsdp_prefetch=3), replace(MODEL, layers=5), masked=True),
    Cell("fsdp1 4, ZeRO-2, accumulated", parallel(dp_shard=4, strategy="fsdp1", zero=2, micro_batch_sequences=1)),
    Cell("fsdp1 2 x 2 copies", parallel(dp_replicate=2, dp_shard=2, strategy="fsdp1"), masked=True),
    Cell("fsdp 4, ZeRO-3, accumulated", parallel(dp_shard=4, micro_batch_sequences=1), masked=True, clip=0.05),
    Cell("fsdp 4, tied", parallel(dp_shard=4), TIED),
    Cell(
        "fsdp 4, gate and up in half rows",
        parallel(dp_shard=4, micro_batch_sequences=2),
        replace(MODEL, mlp_width=51),
    ),
    Cell("hsdp 2 x 2, accumulated", parallel(dp_replicate=2, dp_shard=2, micro_batch_sequences=1), masked=True),
    Cell("fsdp 4 copies", parallel(dp_replicate=4, strategy="fsdp")),
    Cell("tp 4, tied, accumulated", parallel(tp=4, micro_batch_sequences=4), TIED, masked=True, clip=0.05),
    Cell(
        "tp 2 x fsdp 2, ZeRO-1, tied, accumulated",
        parallel(tp=2, dp_shard=2, zero=1, micro_batch_sequences=2),
        TIED,
        masked=True,
    ),
    Cell("tp 2 x 2 copies", parallel(tp=2, dp_replicate=2), masked=True),
    Cell("cp 2 x fsdp 2", parallel(cp=2, dp_shard=2), masked=True),
    Cell("tp 2 x fsdp 2, tied, z-loss", parallel(tp=2, dp_shard=2), TIED, masked=True, penalised=True),
    Cell("cp 2 x ddp 2", parallel(cp=2, dp_replicate=2, strategy="ddp"), TIED),
    Cell("experts: ddp 4, accumulated", parallel(dp_replicate=4, micro_batch_sequences=1), BIASED, masked=True),
    Cell("experts: fsdp 4, uneven targets", parallel(dp_shard=4), EXPERTS, masked=True),
    Cell("experts: cp 2 x fsdp 2", parallel(cp=2, dp_shard=2), EXPERTS, masked=True, documents=True),
    Cell("experts: fsdp 4 x ep 2, biased", parallel(dp_shard=4, ep=2), BIASED, masked=True, clip=0.05),
    Cell(
        "experts: fsdp 2 x 2 copies x ep 2, accumulated, checkpointed",
        parallel(dp_shard=2, dp_replicate=2, ep=2, micro_batch_sequences=1),
        EXPERTS,
        masked=True,
        memory=MemoryConfig(checkpointing="full"),
    ),
    Cell("experts: cp 2 x fsdp 2 x ep 4, sigmoid", parallel(cp=2, dp_shard=2, ep=4), SCORED, masked=True),
    Cell("one process, accumulated", parallel(dp_replicate=1, micro_batch_sequences=3), masked=True),
)

RECOMPUTED = (
    Cell(
        "cp 2 x tp 2, ALiBi, windows, caps, documents, selective, parameters offloaded",
        parallel(cp=2, tp=2),
        replace(TIED, position="alibi", window=8, global_every=2, attention_softcap=5.0, logit_softcap=3.0),
        memory=MemoryConfig(checkpointing="selective", offload="parameters"),
        masked=True,
        documents=True,
    ),
)
"""Blocks computed again, shards offloaded, which on a CPU stay where they are, and a decoder of another kind."""

COMPILE = CompileConfig(blocks=True, warmup_steps=-1)

COMPILED = (Cell("compiled: fsdp 4", parallel(dp_shard=4), compile=COMPILE, masked=True),)
"""Compiling a block takes half a minute of two cores: this one, and of tensor parallelism that of a pipeline."""

MORE_COMPILED = (
    Cell("compiled: tp 2 x fsdp 2", parallel(tp=2, dp_shard=2), compile=COMPILE, masked=True),
    Cell("compiled: one process", parallel(), compile=COMPILE),
    Cell("compiled: ddp 4", parallel(dp_replicate=4), compile=COMPILE),
    Cell("compiled: cp 2 x fsdp 2", parallel(cp=2, dp_shard=2), compile=COMPILE),
    Cell("compiled: tp 4, tied", parallel(tp=4), TIED, compile=COMPILE),
)
