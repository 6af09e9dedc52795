"""The set-ups in which trainers are compared: the same shapes, tokens and layout for both, each in its own words."""

from __future__ import annotations

from dataclasses import dataclass, replace

from train.spec.config import ModelConfig
from train.spec.counts import flops_per_token

PEAK = 989.5e12
"""Dense bf16 FLOP/s of an H100 or H200 (SXM) by its datasheet: what MFU is a share of, for bf16 and fp8 alike."""


@dataclass(frozen=True)
class Shape:
    """A model, its vocabulary and the length of its sequences [tokens]."""

    model: ModelConfig
    vocabulary: int
    length: int

    @property
    def flops(self) -> int:
        """Training FLOPs a token: 6 for each weight of a matrix product, and attention over the full square."""
        return flops_per_token(self.model, self.vocabulary, self.length)


def _llama(width: int, layers: int, heads: int, kv_heads: int, hidden: int) -> ModelConfig:
    return ModelConfig(
        width=width,
        layers=layers,
        head_dim=width // heads,
        kv_heads=kv_heads,
        mlp_width=hidden,
        qk_norm=False,
        rope_theta=500000.0,
        norm_eps=1e-5,
    )


SHAPES = {
    "tiny": Shape(_llama(64, 8, 4, 4, 192), 512, 64),
    "150m": Shape(_llama(768, 12, 12, 12, 2048), 50304, 1024),
    "1b": Shape(_llama(2048, 16, 16, 16, 5632), 50304, 4096),
    "8b": Shape(_llama(4096, 32, 32, 8, 14336), 128256, 8192),
    **{
        f"{width}x{layers}": Shape(_llama(width, layers, width // 64, width // 64, hidden), 8192, 512)
        for width, layers, hidden in ((256, 4, 704), (384, 6, 1024), (512, 8, 1408), (768, 12, 2048))
    },
}

SMALL = {"256x4": (1.35, 1.35), "384x6": (1.6, 1.35), "512x8": (1.4, 1.35), "768x12": (1.3, 1.35)}
"""Shapes that scaling studies are made of: how many times as fast we mean to be as the plain model, as torchtitan."""


@dataclass(frozen=True)
class Row:
    """One trainer in one set-up: `sequences` of each data-parallel rank a step, settings in the trainer's own words."""

    name: str
    trainer: str
    shape: str
    gpus: int
    sequences: int
    data_ranks: int
    settings: tuple[str, ...] = ()
    goal: float | None = None
    against: str | None = None
    steps: int = 20
    warmup: int = 6

    @property
    def tokens(self) -> int:
        """Tokens of one step over all GPUs."""
        return self.sequences * self.data_ranks * SHAPES[self.shape].length

    def figures(self, seconds: float) -> dict[str, float]:
        """Return tokens/s/GPU and MFU of a step that takes this long [s]."""
        rate = self.tokens / seconds / self.gpus
        return {"tokens_per_second_per_gpu": rate, "mfu": rate * SHAPES[self.shape].flops / PEAK}


_TITAN = ("--compile.enable", "--activation-checkpoint.mode", "none")
_SELECTIVE = (
    "--compile.enable",
    "--activation-checkpoint.mode",
    "selective",
    "--activation-checkpoint.selective-ac-option",
    "op",
)
_OURS = ("precision.name=bf16", "compile.blocks=true")


def _titan(name: str, shape: str, gpus: int, sequences: int, data: int, *settings: str) -> Row:
    return Row(f"titan-{name}", "titan", shape, gpus, sequences, data, settings)


def _ours(
    name: str, shape: str, gpus: int, sequences: int, data: int, *settings: str, goal: float, against: str
) -> Row:
    return Row(f"ours-{name}", "ours", shape, gpus, sequences, data, (*_OURS, *settings), goal, against)


def _fp8(row: Row) -> Row:
    settings = tuple(s for s in row.settings if not s.startswith("precision.name"))
    return Row(
        f"{row.name}-fp8", "ours", row.shape, row.gpus, row.sequences, row.data_ranks,
        ("precision.name=fp8", *settings), 1.25, row.name,
    )  # fmt: skip


def rows() -> list[Row]:
    """Return all rows, peers before ours."""
    titan = [
        _titan("150m", "150m", 1, 64, 1, *_TITAN),
        _titan("1b", "1b", 1, 8, 1, *_TITAN),
        _titan("1b-fsdp", "1b", 4, 8, 4, *_TITAN),
        _titan("8b-fsdp", "8b", 4, 2, 4, *_SELECTIVE),
        _titan("8b-fsdp-tp", "8b", 4, 4, 2, *_SELECTIVE, "--parallelism.tensor-parallel-degree", "2"),
        _titan(
            "8b-fsdp-pp", "8b", 4, 4, 2, *_SELECTIVE, "--parallelism.pipeline-parallel-degree", "2",
            "--parallelism.pipeline-parallel-schedule", "Interleaved1F1B",
        ),
    ]  # fmt: skip
    shard2, shard4 = (("parallel.dp_replicate=1", f"parallel.dp_shard={n}") for n in (2, 4))
    single, budget = "parallel.dp_replicate=1", "memory.checkpointing=budget"
    one = "parallel.micro_batch_sequences=1"  # of a pipeline's micro-batches, as torchtitan's default
    ours = [
        _ours("150m", "150m", 1, 64, 1, goal=1.20, against="titan-150m"),
        _ours("1b", "1b", 1, 8, 1, goal=1.08, against="titan-1b"),
        _ours("1b-fsdp", "1b", 4, 8, 4, *shard4, goal=1.08, against="titan-1b-fsdp"),
        _ours("8b-fsdp", "8b", 4, 2, 4, *shard4, budget, goal=1.10, against="titan-8b-fsdp"),
        _ours("8b-fsdp-tp", "8b", 4, 4, 2, *shard2, "parallel.tp=2", budget, goal=1.08, against="titan-8b-fsdp-tp"),
        _ours(
            "8b-fsdp-pp", "8b", 4, 4, 2, *shard2, "parallel.pp=2", "parallel.pp_schedule=interleaved", one,
            goal=1.10, against="titan-8b-fsdp-pp",
        ),
        _ours("8b-tp", "8b", 4, 4, 1, single, "parallel.tp=4", budget, goal=1.0, against="titan-8b-tp"),
    ]  # fmt: skip
    pairs = [  # on two GPUs, where there are no four
        _titan("1b-fsdp-x2", "1b", 2, 8, 2, *_TITAN),
        _ours("1b-fsdp-x2", "1b", 2, 8, 2, *shard2, goal=1.08, against="titan-1b-fsdp-x2"),
        _titan("8b-fsdp-x2", "8b", 2, 2, 2, *_SELECTIVE),
        _ours("8b-fsdp-x2", "8b", 2, 2, 2, *shard2, budget, goal=1.10, against="titan-8b-fsdp-x2"),
        _ours("8b-tp-x2", "8b", 2, 1, 1, single, "parallel.tp=2", budget, goal=1.0, against="none"),
    ]
    alone = [_ours("8b-x1", "8b", 1, 2, 1, "memory.checkpointing=full", goal=1.0, against="none")]
    by_name = {row.name: row for row in ours}
    tiny = [
        _ours("tiny", "tiny", 1, 4, 1, goal=1.0, against="titan-tiny"),
        _ours("tiny-fsdp", "tiny", 4, 4, 4, *shard4, goal=1.0, against="none"),
        _ours("tiny-fsdp-tp", "tiny", 4, 4, 2, *shard2, "parallel.tp=2", goal=1.0, against="none"),
        _ours(
            "tiny-fsdp-pp",
            "tiny",
            4,
            4,
            2,
            *shard2,
            "parallel.pp=2",
            "parallel.pp_schedule=interleaved",
            one,
            goal=1.0,
            against="none",
        ),
        _ours("tiny-tp", "tiny", 4, 4, 1, "parallel.dp_replicate=1", "parallel.tp=4", goal=1.0, against="none"),
    ]
    return [*titan, *ours, *pairs, *alone, *tiny, *(_fp8(by_name[name]) for name in ("ours-1b", "ours-8b-fsdp"))]


def small_rows() -> list[Row]:
    """Return the rows of small models, 40,960 tokens a step.

    Peers; our step, with its kernels launched singly and as one graph; and `train.run` as it comes.
    """
    found = []
    for shape, (goal, _) in SMALL.items():
        ours = _ours(shape, shape, 1, 80, 1, goal=goal, against=f"plain-{shape}")
        launched = replace(ours, name=f"{ours.name}-launched", settings=(*_OURS, "compile.step_graph=false"), goal=None)
        peers = [Row(f"plain-{shape}", "plain", shape, 1, 80, 1), _titan(shape, shape, 1, 80, 1, *_TITAN)]
        found += [replace(row, steps=150, warmup=30) for row in (*peers, launched, ours)]
        found += [replace(ours, name=f"run-{shape}", trainer="run", steps=600, goal=None)]
    return found


def find(name: str) -> Row:
    """Return the row of this name; NAME+SETTING+SETTING is that row with further settings. ValueError for no row."""
    base, *settings = name.split("+")
    known = {row.name: row for row in (*rows(), *small_rows())}
    if base not in known:
        raise ValueError(f"no row {base!r}: there are {', '.join(known)}")
    return replace(known[base], name=name, settings=(*known[base].settings, *settings))
