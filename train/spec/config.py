"""The config of one run, as frozen dataclasses.

Every field carries its one-line help (with its unit) in ``metadata["help"]`` and, where the values are few,
``metadata["choices"]``. ``None`` means "derive it": :func:`train.spec.resolve.resolve` fills every ``None`` by a
documented rule, so that a frozen config holds numbers only and two ways of saying the same run are one run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def key(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    """Return a dataclass field with its default, its one-line help and its allowed values."""
    return field(default=default, metadata={"help": help, "choices": choices})


def section(kind: type, help: str) -> Any:
    """Return a dataclass field that holds another section, made from its defaults."""
    return field(default_factory=kind, metadata={"help": help})


@dataclass(frozen=True)
class ModelConfig:
    """Decoder-only transformer: pre-norm RMSNorm, RoPE, grouped-query attention, SwiGLU."""

    width: int = key(64, "residual stream width [channels], a multiple of head_dim")
    layers: int = key(2, "number of transformer blocks")
    head_dim: int | None = key(32, "width of one attention head [channels]; null: an eighth of width, 12 to 64")
    kv_heads: int | None = key(None, "key/value heads for grouped-query attention; null: one per query head")
    mlp_width: int | None = key(None, "SwiGLU hidden width [channels]; null: 8/3 width, rounded up to 16")
    qk_norm: bool = key(True, "RMSNorm on queries and keys, per head")
    tied_embeddings: bool = key(False, "share the input embedding with the output head")
    rope_theta: float = key(10000.0, "base of the rotary embedding's wavelengths")
    norm_eps: float = key(1e-6, "epsilon inside every RMSNorm")
    init_std: float | None = key(None, "std of matrix initialisation; null: 1/sqrt(width)")


@dataclass(frozen=True)
class DataConfig:
    """Which prepared corpus is read, and how it is cut into sequences."""

    name: str = key("code", "corpus name; its shards lie in <runtime.data_root>/<name>-<tokenizer><vocab_size>")
    source: str | None = key(None, "folder of the raw text; null: the Python sources of this environment")
    text_column: str = key("text", "column (parquet) or field (jsonl) that holds the text")
    tokenizer: str = key("bpe", "how text becomes tokens", ("bpe", "bytes"))
    vocab_size: int = key(4096, "vocabulary size [tokens], the document separator included; bytes: 257")
    validation_fraction: float = key(0.02, "share of documents held out, chosen by content hash")
    max_bytes: int | None = key(None, "stop after this much text [bytes]; null: all of it")
    sequence_length: int = key(128, "training sequence length [tokens]")
    fingerprint: str | None = key(None, "first 12 hex digits of the manifest's hash; null: read when frozen")


@dataclass(frozen=True)
class BatchConfig:
    """The global batch."""

    tokens: int | None = key(None, "global batch [tokens per step]; null: by train.spec.rules.batch_tokens")


@dataclass(frozen=True)
class OptimConfig:
    """AdamW with decoupled weight decay on matrices only."""

    lr: float | None = key(None, "peak learning rate; null: by train.spec.rules.peak_lr")
    lr_scale: float = key(1.0, "factor on the rule's learning rate; 1 once lr is given")
    beta1: float = key(0.9, "decay of the first moment")
    beta2: float = key(0.95, "decay of the second moment")
    eps: float = key(1e-8, "epsilon of AdamW")
    weight_decay: float = key(0.1, "decoupled weight decay, times the learning rate")
    grad_clip: float = key(1.0, "clip the global gradient norm to this; 0: off")


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning-rate schedule; its horizon is the token budget."""

    name: str = key("cosine", "shape after warm-up", ("cosine", "wsd", "constant"))
    warmup_fraction: float = key(0.05, "linear warm-up, as a share of the token budget")
    decay_fraction: float = key(0.2, "wsd: linear cooldown, as a share of the token budget")
    final_lr_fraction: float = key(0.1, "learning rate at the end, as a share of the peak")


@dataclass(frozen=True)
class PrecisionConfig:
    """Number formats."""

    name: str = key("fp32", "format of matrix products; weights and moments stay fp32", ("fp32", "bf16"))


@dataclass(frozen=True)
class BudgetConfig:
    """How long the run trains: exactly one of the three is given, resolving fills `tokens`."""

    tokens: int | None = key(None, "training tokens D [tokens]")
    flops: float | None = key(None, "training compute C [FLOPs], by train.spec.counts.flops_per_token")
    tokens_per_param: float | None = key(None, "D/N [tokens per matmul parameter]")


@dataclass(frozen=True)
class EvalConfig:
    """Validation on a fixed set of sequences at fixed token counts."""

    sequences: int = key(512, "validation sequences, the same ones at every evaluation")
    count: int = key(10, "evaluations per run, evenly spaced in tokens; the last is at the budget")


@dataclass(frozen=True)
class ParallelConfig:
    """Mesh axes and micro-batch. Not part of a point's key: the losses do not depend on it."""

    dp_replicate: int | None = key(None, "data-parallel replicas; null: the world size")
    micro_batch_sequences: int | None = key(None, "sequences per forward pass and rank; null: by memory")


@dataclass(frozen=True)
class RuntimeConfig:
    """Where and how the process runs. Not part of a point's key."""

    device: str = key("auto", "device type", ("auto", "cpu", "cuda"))
    threads: int = key(1, "CPU threads of one process")
    data_root: str = key("data", "folder of prepared corpora")
    checkpoint_seconds: float = key(30.0, "time between checkpoints [s]; 0: after every step")
    log_steps: int = key(10, "steps between training metrics [steps]")


@dataclass(frozen=True)
class RunConfig:
    """Everything that `python -m train.run` needs to know of one run."""

    model: ModelConfig = section(ModelConfig, "the transformer")
    data: DataConfig = section(DataConfig, "the corpus")
    batch: BatchConfig = section(BatchConfig, "the global batch")
    optim: OptimConfig = section(OptimConfig, "the optimizer")
    schedule: ScheduleConfig = section(ScheduleConfig, "the learning-rate schedule")
    precision: PrecisionConfig = section(PrecisionConfig, "number formats")
    budget: BudgetConfig = section(BudgetConfig, "how long it trains")
    eval: EvalConfig = section(EvalConfig, "validation")
    seed: int = key(0, "seed of initialisation and of the data order")
    parallel: ParallelConfig = section(ParallelConfig, "mesh axes (not part of the key)")
    runtime: RuntimeConfig = section(RuntimeConfig, "device, threads, folders (not part of the key)")


SCIENTIFIC: tuple[str, ...] = (
    "model",
    "data",
    "batch",
    "optim",
    "schedule",
    "precision",
    "budget",
    "eval",
    "seed",
)
"""The sections that make a point: what its losses depend on."""
