"""The config of one run, as frozen dataclasses.

Every field carries its one-line help (with its unit) in ``metadata["help"]`` and, where the values are few,
``metadata["choices"]``. ``None`` means "derive it": :func:`train.spec.resolve.resolve` fills every ``None`` by a
documented rule, so that a frozen config holds numbers only and two ways of saying the same run are one run.
"""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.config_fields import key, section
from train.spec.machine_config import (
    CompileConfig,
    HealthConfig,
    MemoryConfig,
    ParallelConfig,
    ProfileConfig,
    RuntimeConfig,
)
from train.spec.optimizers import OPTIMIZERS

__all__ = [
    "SCIENTIFIC",
    "BatchConfig",
    "BudgetConfig",
    "CompileConfig",
    "DataConfig",
    "EvalConfig",
    "HealthConfig",
    "MemoryConfig",
    "ModelConfig",
    "OptimConfig",
    "ParallelConfig",
    "PrecisionConfig",
    "ProfileConfig",
    "RunConfig",
    "RuntimeConfig",
    "ScheduleConfig",
    "SourceConfig",
    "SpikesConfig",
    "key",
    "section",
]


@dataclass(frozen=True)
class ModelConfig:
    """Decoder-only transformer: pre-norm RMSNorm, grouped-query attention, rotary or ALiBi positions, SwiGLU."""

    width: int = key(64, "residual stream width [channels], a multiple of head_dim")
    layers: int = key(2, "number of transformer blocks")
    head_dim: int | None = key(32, "width of one attention head [channels]; null: an eighth of width, 12 to 64")
    kv_heads: int | None = key(None, "key/value heads for grouped-query attention; null: one per query head")
    mlp_width: int | None = key(
        None, "SwiGLU hidden width, of one expert where there are experts [channels]; null: 8/3 width, rounded up to 16"
    )
    qk_norm: bool = key(True, "RMSNorm on queries and keys, per head")
    tied_embeddings: bool = key(False, "share the input embedding with the output head")
    position: str = key("rope", "position encoding of attention", ("rope", "alibi", "none"))
    rope_theta: float = key(10000.0, "base of the rotary embedding's wavelengths")
    rope_scaling: str = key(
        "none",
        "scaling of rotary wavelengths for sequences longer than rope_original_length",
        ("none", "linear", "ntk", "yarn", "llama3"),
    )
    rope_factor: float = key(1.0, "rope_scaling: factor by which sequences are longer")
    rope_original_length: int | None = key(
        None, "yarn, llama3: sequence length before stretching [tokens]; null: data.sequence_length / rope_factor"
    )
    attention_softcap: float = key(0.0, "soft-cap c of attention scores, c·tanh(score / c); 0: none")
    logit_softcap: float = key(0.0, "soft-cap c of the output logits, c·tanh(logit / c); 0: none")
    window: int | None = key(None, "sliding window: keys that a query attends to, also its own [tokens]; null: all")
    global_every: int = key(0, "with a window: every n-th block attends to all keys; 0: none")
    norm_eps: float = key(1e-6, "epsilon inside every RMSNorm")
    init_from: str | None = key(None, "folder of weights to start from, made by train.hub import; null: random ones")
    init_std: float | None = key(None, "std of matrix initialisation; null: 1/sqrt(width)")
    init_std_at: str = key(
        "base",
        "muP: the width to which init_std applies; base: mup_base_width, hidden matrices are scaled by "
        "sqrt(base / width); width: this model's width, and the head gets a larger std",
        ("base", "width"),
        former="width",
    )
    mup_base_width: int | None = key(None, "width at which lr was tuned, for muP transfer to this width; null: no muP")
    mup_base_head_dim: int | None = key(None, "muP: head_dim at that width; null: derived by the same rule as head_dim")
    experts: int = key(
        0, "experts of every feed-forward layer, of which a router chooses; 0: one dense layer", former=0
    )
    experts_per_token: int | None = key(None, "experts that a token goes through; null: 2, or none", former=None)
    shared_experts: int = key(0, "further experts that every token goes through", former=0)
    router_score: str = key(
        "softmax",
        "scores by which experts are chosen and weighted; softmax over experts, or sigmoid of each",
        ("softmax", "sigmoid"),
        former="softmax",
    )
    balance_weight: float = key(
        0.01, "weight of the loss that balances the load of experts, in each sequence; 0: off", former=0.01
    )
    router_bias_speed: float = key(
        0.0,
        "step by which each expert's bias, which chooses and does not weight, moves to an even load; 0: no bias",
        former=0.0,
    )


@dataclass(frozen=True)
class SourceConfig:
    """One corpus of a mixture."""

    name: str = key("code", "name of the corpus; its shards lie beside the mixture's folder")
    weight: float = key(1.0, "share of the training rows, relative to the other sources")
    source: str | None = key(None, "folder of its raw text; null: the Python sources of this environment")
    text_column: str = key("text", "column (parquet) or field (jsonl) that holds the text")
    max_bytes: int | None = key(None, "stop after this much text [bytes]; null: all of it")
    prompt_column: str | None = key(None, "column or field of the prompt, which the loss leaves out", former=None)
    extensions: tuple[str, ...] = key((), "files of the folder that are text, as data.extensions", former=())


@dataclass(frozen=True)
class DataConfig:
    """Which prepared corpus is read, and how it is cut into sequences."""

    name: str = key("code", "corpus name; its shards lie in <runtime.data_root>/<name>-<tokenizer><vocab_size>")
    source: str | None = key(None, "folder of the raw text; null: the Python sources of this environment")
    text_column: str = key("text", "column (parquet) or field (jsonl) that holds the text")
    tokenizer: str = key("bpe", "tokenizer: byte-level BPE, or one token per byte", ("bpe", "bytes"))
    vocab_size: int = key(4096, "vocabulary size [tokens], including the document separator; bytes: 257")
    validation_fraction: float = key(0.02, "share of documents held out, chosen by content hash")
    max_bytes: int | None = key(None, "stop after this much text [bytes]; null: all of it")
    tokenizer_from: str | None = key(None, "bpe: use the tokenizer of this corpus, or this tokenizer.json; null: train")
    sources: tuple[SourceConfig, ...] = key((), "corpora mixed by weight [{name, weight, source}]; empty: `source`")
    packing: str = key(
        "concatenate",
        "concatenate: rows of running text; mask: the same, attention within documents; fit: whole documents, padded",
        ("concatenate", "mask", "fit"),
    )
    sequence_length: int = key(128, "training sequence length [tokens]")
    fingerprint: str | None = key(None, "first 12 hex digits of the manifest's hash; null: read when frozen")
    prompt_column: str | None = key(None, "column or field of the prompt, which the loss leaves out", former=None)
    extensions: tuple[str, ...] = key(
        (),
        "files of the folder that are text, as [.c,.h,.rs]; empty: .txt, .md, .py, .rst, .jsonl (.gz, .zst), .parquet",
        former=(),
    )


@dataclass(frozen=True)
class BatchConfig:
    """The global batch."""

    tokens: int | None = key(None, "global batch [tokens per step]; null: by train.spec.scaling_rules.batch_tokens")
    ramp_from: int | None = key(None, "first batch of a ramp up to `tokens`, which is a multiple of it; null: no ramp")
    ramp_fraction: float = key(0.1, "length of the ramp, as a share of the token budget")


@dataclass(frozen=True)
class OptimConfig:
    """AdamW, Muon (matrices; AdamW for the rest) or SGD, with decoupled weight decay by group."""

    name: str = key("adamw", "optimizer; muon: Muon for matrices, AdamW for the rest", tuple(OPTIMIZERS))
    lr: float | None = key(
        None, "peak learning rate; null: by train.spec.scaling_rules.peak_lr (adamw, and muon by match_rms)"
    )
    lr_scale: float = key(1.0, "factor on the learning rate; folded into lr when the config is frozen")
    lr_rule: str | None = key(
        "step_law",
        "rule of lr=null; step_law: as published, N without embedding and head; null: as in earlier versions, with the "
        "head, or none, as lr is given",
        ("step_law",),
        former=None,
    )
    embedding_lr_scale: float = key(1.0, "factor on the learning rate of the input embedding")
    head_lr_scale: float = key(1.0, "factor on the learning rate of the output head (or tied embedding)")
    norm_lr_scale: float = key(1.0, "factor on the learning rate of norm weights")
    beta1: float = key(0.9, "adamw: decay of the first moment")
    beta2: float = key(0.95, "adamw: decay of the second moment")
    eps: float = key(1e-8, "adamw: epsilon")
    momentum: float = key(0.95, "muon, sgd: decay of the momentum; 0: none")
    nesterov: bool = key(True, "muon, sgd: Nesterov momentum")
    muon_scale: str = key(
        "match_rms",
        "muon: scale of an orthogonal update (rows, columns); match_rms: 0.2 sqrt(max), as for AdamW; "
        "spectral: sqrt(max(1, rows / columns))",
        ("match_rms", "spectral"),
    )
    muon_iterations: int = key(5, "muon: Newton-Schulz iterations")
    weight_decay: float = key(0.1, "decoupled weight decay of matrices, times the learning rate")
    head_decay: float | None = key(None, "weight decay of the output head, tied or not; null: weight_decay")
    embedding_decay: float = key(0.0, "weight decay of an untied input embedding")
    norm_decay: float = key(0.0, "weight decay of norm weights")
    independent_decay: bool = key(
        False, "weight decay is multiplied by the schedule's factor, not by the learning rate"
    )
    z_loss: float = key(0.0, "weight of the squared log-sum-exp of the logits in the objective; 0: off", former=0.0)
    label_smoothing: float = key(0.0, "share of each target spread evenly over the vocabulary; 0: off", former=0.0)
    grad_clip: float = key(1.0, "clip the global gradient norm to this; 0: off")
    nonfinite: str = key(
        "skip",
        "on a non-finite loss or gradient norm; skip: leave weights and moments unchanged and continue; "
        "stop: the run has diverged",
        ("skip", "stop"),
    )
    nonfinite_limit: int = key(5, "skip: the run has diverged after this many such steps in a row [steps]")


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning-rate schedule; its horizon is the token budget."""

    name: str = key("cosine", "shape after warmup", ("cosine", "wsd", "linear", "constant"))
    warmup_fraction: float = key(0.05, "linear warmup, as a share of the token budget")
    decay_fraction: float = key(0.2, "wsd: cooldown, as a share of the token budget")
    final_lr_fraction: float = key(0.1, "learning rate at the end, as a share of the peak")
    decay_shape: str = key("linear", "wsd: shape of the cooldown; sqrt: 1 - sqrt(share done)", ("linear", "sqrt"))
    parent: str | None = key(
        None,
        "checkpoint to branch from, as for a cooldown: <key>@<tokens> of a run of the same study, or a checkpoint "
        "folder (or a run folder: its newest); null: none",
    )


@dataclass(frozen=True)
class SpikesConfig:
    """Loss spikes: when loss or gradient norm counts as one, and what is done."""

    policy: str = key(
        "log",
        "action on a spike; log; rollback: go back to the checkpoint before it, skip its batches; stop: diverged",
        ("log", "rollback", "stop"),
    )
    threshold: float = key(6.0, "standard deviations above the window's mean at which a step is high; 0: never")
    window: int = key(128, "past steps with which loss and gradient norm are compared [steps]")
    warmup_steps: int = key(64, "steps in the window before any step can be high [steps]")
    persistence: int = key(3, "a spike is this many high steps in a row [steps]")
    limit: int = key(3, "rollback: the run has diverged after this many")


@dataclass(frozen=True)
class PrecisionConfig:
    """Number formats."""

    name: str = key(
        "fp32",
        "format of matrix products and of the residual stream; fp8: the blocks' products, the rest in bf16; "
        "weights and gradients stay fp32",
        ("fp32", "bf16", "fp16", "fp8"),
    )
    reduce: str = key("fp32", "format in which sharded gradients are summed over ranks", ("fp32", "bf16"))
    optimizer_state: str = key("fp32", "format of AdamW's moments; bf16: with stochastic rounding", ("fp32", "bf16"))
    loss_scale: float = key(65536.0, "fp16: initial loss scale, a power of two")
    loss_scale_steps: int = key(1000, "fp16: double the loss scale after this many steps without overflow [steps]")
    fp8_scaling: str = key("tensorwise", "fp8: a scale per tensor, or per row of operands", ("tensorwise", "rowwise"))
    fp8_keep_blocks: int = key(0, "fp8: blocks at each end that stay in bf16, as embedding and head always do")
    fp8_history: int = key(0, "fp8: delayed scaling by the largest of this many past steps; 0: by the tensor itself")
    fp8_gather: bool = key(False, "fp8: all-gather sharded weights in fp8 (parallel: fsdp)")


@dataclass(frozen=True)
class BudgetConfig:
    """How long the run trains: exactly one of the three is given, resolving fills `tokens`."""

    tokens: int | None = key(None, "training tokens D [tokens]")
    flops: float | None = key(None, "training compute C [FLOPs], by train.spec.counts.flops_per_token")
    tokens_per_param: float | None = key(None, "D/N [tokens per matmul parameter]")


@dataclass(frozen=True)
class EvalConfig:
    """Validation on a fixed set of sequences at fixed token counts."""

    sequences: int = key(512, "validation sequences, the same at every evaluation")
    count: int = key(10, "evaluations per run, evenly spaced in tokens; the last is at the budget")
    by_position: int = key(0, "position ranges with a loss of their own, each as long as all before it; 0: none")


@dataclass(frozen=True)
class RunConfig:
    """Everything that `python -m train.run` needs to know of one run."""

    model: ModelConfig = section(ModelConfig, "the transformer")
    data: DataConfig = section(DataConfig, "the corpus")
    batch: BatchConfig = section(BatchConfig, "the global batch")
    optim: OptimConfig = section(OptimConfig, "the optimizer")
    schedule: ScheduleConfig = section(ScheduleConfig, "the learning-rate schedule")
    precision: PrecisionConfig = section(PrecisionConfig, "number formats")
    spikes: SpikesConfig = section(SpikesConfig, "loss spikes")
    budget: BudgetConfig = section(BudgetConfig, "how long it trains")
    eval: EvalConfig = section(EvalConfig, "validation")
    seed: int = key(0, "seed of initialisation and of the data order")
    parallel: ParallelConfig = section(ParallelConfig, "mesh axes (not part of the key)")
    health: HealthConfig = section(HealthConfig, "statistics and checks at an interval (not part of the key)")
    profile: ProfileConfig = section(ProfileConfig, "profiler (not part of the key)")
    memory: MemoryConfig = section(MemoryConfig, "activations and offload (not part of the key)")
    compile: CompileConfig = section(CompileConfig, "torch.compile (not part of the key)")
    runtime: RuntimeConfig = section(RuntimeConfig, "device, threads, folders (not part of the key)")


SCIENTIFIC: tuple[str, ...] = (
    "model",
    "data",
    "batch",
    "optim",
    "schedule",
    "precision",
    "spikes",
    "budget",
    "eval",
    "seed",
)
"""The sections that make a point: what its losses depend on."""
