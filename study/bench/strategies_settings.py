"""What `study bench strategies` is asked for, checked before anything starts, and the run of each strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.text import commandline
from analysis.text.commandline import Key
from study.bench import made_up
from study.bench.comm_settings import BACKENDS, backend_of, check_ranks
from study.config.schema import StudyConfig
from study.planning import own_words
from train.spec import mesh
from train.spec.accounting.step import sheet
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    CompileConfig,
    EvalConfig,
    ModelConfig,
    ParallelConfig,
    ProfileConfig,
    RunConfig,
)
from train.spec.counts import params
from train.spec.mesh import Axes
from train.spec.resolve import resolve

Compose = Callable[[Sequence[str]], StudyConfig]

WARM, TRACED = 3, 3
"""Steps before those that are timed, and steps that are traced after them; the profiler warms up for one between."""
FEWEST_STEPS = 8
SEQUENCES = 4
"""Sequences of a rank and step, where the words say nothing else."""
SMALL = ("model.width=256", "model.layers=4")
"""The model on a CPU, where the words name none."""
LARGE = ("model=400m", "precision=bf16", "data.sequence_length=2048")
"""The model on GPUs, where the words name none."""
PATIENT = {"cpu": (256, 4), "cuda": (1024, 4)}
"""Width and layers of the model in which failures are caused, by device type: ranks end alike in larger ones.

On a GPU its memory is many times what torch's allocator rounds to, so that half of it is too little.
"""
PATIENT_VOCABULARY, PATIENT_LENGTH = 512, 128
STEADY = ("schedule.warmup_fraction=0.5",)
"""The schedule, where the words name none. The learning rate is the trainer's rule for so few tokens.

A run of 20 steps whose first ones are at its peak goes up and down, so that any difference of rounding grows.
"""


@dataclass(frozen=True)
class Strategy:
    """One way to hold a model on data-parallel ranks. saves: whether the trainer can write its checkpoints.

    bucket: parallel.ddp_bucket_mib, prefetch: parallel.fsdp_prefetch, for strategies that have them.
    """

    name: str
    strategy: str
    zero: int = 3
    saves: bool = True
    bucket: float | None = None
    prefetch: int = 1

    def layout(self, ranks: int, micro_batch: int | None) -> ParallelConfig:
        """Return its layout on so many ranks."""
        whole = self.strategy == "ddp"
        return ParallelConfig(
            dp_replicate=ranks if whole else 1,
            dp_shard=1 if whole else ranks,
            strategy=self.strategy,
            zero=self.zero,
            micro_batch_sequences=micro_batch,
            ddp_bucket_mib=self.bucket,
            fsdp_prefetch=self.prefetch,
        )


STRATEGIES = {
    one.name: one
    for one in (
        Strategy("ddp", "ddp"),
        Strategy("fsdp1", "fsdp1", saves=False),
        Strategy("fsdp1_zero2", "fsdp1", zero=2, saves=False),
        Strategy("fsdp2", "fsdp"),
        Strategy("zero2", "fsdp", zero=2),
        Strategy("zero1", "fsdp", zero=1),
    )
}


def _strategies(key: Key, text: str) -> tuple[str, ...]:
    one = Key(key.name, "what is compared", choices=tuple(STRATEGIES))
    return tuple(dict.fromkeys(one.value(part) for part in text.strip("[]").split(",")))


def _buckets(key: Key, text: str) -> tuple[float, ...]:
    return tuple(dict.fromkeys(commandline.number(key, part) for part in text.strip("[]").split(",")))


def _depths(key: Key, text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(commandline.count(key, part) for part in text.strip("[]").split(",")))


KEYS = (
    Key("strategies", f"which, with commas between, of {', '.join(STRATEGIES)}", ("ddp", "fsdp1", "fsdp2"),
        _strategies),
    Key("buckets", "ddp: parallel.ddp_bucket_mib to compare [MiB], with commas between; default: torch's sizes alone",
        (), _buckets),
    Key("prefetch", "fsdp2: parallel.fsdp_prefetch to compare, with commas between; default: 1", (1,), _depths),
    Key("ranks", "processes of this machine, a GPU each with nccl; default: all GPUs, or 2 without", None,
        commandline.count),
    Key("backend", "gloo: on the CPU, nccl: on GPUs; default: nccl where there are two GPUs", None,
        choices=BACKENDS),
    Key("steps", f"steps that are timed, at least {FEWEST_STEPS}; {WARM} come before, {TRACED} are traced after", 20,
        commandline.count),
    Key("failures", "yes: also kill a rank, take its memory and damage a checkpoint, and say what happened", False,
        commandline.switch),
    Key("limit", "of failures: seconds for each with the start after it; what takes longer is ended", 60.0,
        commandline.number),
    Key("hang", "of failures: seconds after which a rank that outlives a failed one is ended, and told to hang", 8.0,
        commandline.number),
    Key("out", "folder of strategies.md, .csv, .json, .png and a folder for each strategy with its traces",
        "reports/bench/strategies"),
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What is asked for. base: the run without a layout, of `steps` timed steps and those around them.

    limit, hang: of failures [s].
    """

    strategies: tuple[Strategy, ...]
    ranks: int
    backend: str
    steps: int
    failures: bool
    out: Path
    base: RunConfig
    limit: float = 60.0
    hang: float = 8.0

    @property
    def device(self) -> str:
        """The type of the ranks' devices."""
        return "cuda" if self.backend == "nccl" else "cpu"

    @property
    def all_steps(self) -> int:
        """How many steps a run has: warm, timed, the profiler's own, traced."""
        return self.steps + WARM + 1 + TRACED

    @property
    def batch(self) -> int:
        """Tokens of a step."""
        assert self.base.batch.tokens is not None
        return self.base.batch.tokens

    def axes(self, strategy: Strategy) -> Axes:
        """Return the mesh of a strategy's run."""
        return mesh.axes(self.config(strategy).parallel, self.ranks)

    def config(self, strategy: Strategy) -> RunConfig:
        """Return a strategy's run: the base with its layout. ValueError where the trainer refuses it."""
        layout = strategy.layout(self.ranks, self.base.parallel.micro_batch_sequences)
        config = replace(self.base, parallel=layout)
        mesh.check(config, self.ranks, saves=strategy.saves)
        return config

    def patient(self) -> Asked:
        """Return the same with the run in which failures are caused: a small model, or the asked one if it is smaller.

        Its steps are as many, its format, optimizer and seed are the same.
        """
        base, (width, layers) = self.base, PATIENT[self.device]
        model = ModelConfig(width=width, layers=layers)
        if params(base.model, base.data.vocab_size).total <= params(model, PATIENT_VOCABULARY).total:
            return self
        tokens = self.ranks * SEQUENCES * PATIENT_LENGTH
        small = replace(
            base,
            model=model,
            data=replace(base.data, vocab_size=PATIENT_VOCABULARY, sequence_length=PATIENT_LENGTH),
            batch=BatchConfig(tokens=tokens),
            budget=BudgetConfig(tokens=tokens * self.all_steps),
            parallel=replace(base.parallel, micro_batch_sequences=SEQUENCES),
            compile=CompileConfig(blocks=False),
        )
        return replace(self, base=resolve(small))


def asked_of(words: Sequence[str], gpus: int, compose: Compose) -> Asked:
    """Return what words ask for on a machine with so many GPUs; ValueError names key, value and what is allowed.

    Words beside KEYS are keys and groups of a study: model=1b, precision=bf16, batch.tokens=65536.
    """
    given, rest = own_words.split(words, {key.name: key.help for key in KEYS})
    own = {key.name: key.value(given[key.name]) if key.name in given else key.default for key in KEYS}
    backend = backend_of(own["backend"], gpus, least=2)
    ranks = own["ranks"] if own["ranks"] is not None else max(gpus, 2) if backend == "nccl" else 2
    check_ranks(ranks, backend, gpus, least=2)
    if own["steps"] < FEWEST_STEPS:
        raise ValueError(f"steps={own['steps']} is not allowed: at least {FEWEST_STEPS}")
    _check_compared(own["strategies"], own["buckets"], own["prefetch"])
    own_words.folder({"out": own["out"]}, {key.name: key.help for key in KEYS})
    _check_words(rest)
    named = any(word.startswith(("model", "+reference")) for word in rest)
    scheduled = any(word.startswith("schedule") for word in rest)
    usual = (*(() if named else LARGE if backend == "nccl" else SMALL), *(() if scheduled else STEADY))
    composed = compose([*usual, *rest])
    device = "cuda" if backend == "nccl" else "cpu"
    base = _base(composed.run(), device, ranks, own["steps"] + WARM + 1 + TRACED, own["steps"])
    chosen = tuple(
        one for name in own["strategies"] for one in _variants(STRATEGIES[name], own["buckets"], own["prefetch"])
    )
    asked = Asked(
        chosen, ranks, backend, own["steps"], own["failures"], Path(own["out"]), base, own["limit"], own["hang"]
    )
    for strategy in chosen:
        asked.config(strategy)
    return asked


def check_host(asked: Asked, memory: int) -> None:
    """Raise ValueError for a strategy whose ranks together need more than a host's memory [bytes]."""
    for strategy in asked.strategies:
        needed = asked.ranks * sheet(asked.config(strategy), asked.axes(strategy), asked.device).peak.total
        if needed > memory:
            raise ValueError(
                f"strategies={strategy.name} needs {needed / 1e9:,.1f} GB on ranks={asked.ranks}, and this machine has "
                f"{memory / 1e9:,.1f}: take a smaller model (model=, model.width=, model.layers=), shorter sequences "
                "(data.sequence_length=) or fewer tokens a step (batch.tokens=)"
            )


def _variants(strategy: Strategy, buckets: Sequence[float], depths: Sequence[int]) -> Iterator[Strategy]:
    """Yield a strategy as often as it is to be compared with itself, each time by its own name."""
    if strategy.strategy == "ddp" and buckets:
        for size in buckets:
            yield replace(strategy, name=f"{strategy.name}_{size:g}mib", bucket=size)
    elif strategy.strategy == "fsdp":
        for depth in depths:
            yield strategy if depth == 1 else replace(strategy, name=f"{strategy.name}_ahead{depth}", prefetch=depth)
    else:
        yield strategy


def _check_compared(names: Sequence[str], buckets: Sequence[float], depths: Sequence[int]) -> None:
    for key, values, how, default in (("buckets", buckets, "ddp", ()), ("prefetch", depths, "fsdp", (1,))):
        if tuple(values) != default and all(STRATEGIES[name].strategy != how for name in names):
            meant = ", ".join(name for name, one in STRATEGIES.items() if one.strategy == how)
            said = ",".join(f"{value:g}" for value in values)
            raise ValueError(f"{key}={said} changes nothing of strategies={','.join(names)}: add one of {meant}")


def _check_words(words: Sequence[str]) -> None:
    for word in words:
        name = word.lstrip("+~").partition("=")[0]
        if name.startswith("parallel") and name != "parallel.micro_batch_sequences":
            raise ValueError(
                f"{word} is not allowed: layouts are what is compared, choose them with "
                f"strategies={','.join(STRATEGIES)}, buckets= and prefetch=; only parallel.micro_batch_sequences is "
                "common to all"
            )
        if name.startswith(("budget", "profile", "eval")) or (name.startswith("data") and name not in _DATA):
            raise ValueError(
                f"{word} is not allowed: the run is of steps=N steps of made-up tokens and traces itself; of data "
                "there are data.vocab_size and data.sequence_length"
            )


_DATA = ("data.vocab_size", "data.sequence_length")


def _base(run: RunConfig, device: str, ranks: int, all_steps: int, steps: int) -> RunConfig:
    length = run.data.sequence_length
    micro = run.parallel.micro_batch_sequences
    tokens = run.batch.tokens or ranks * (micro or SEQUENCES) * length
    if tokens % length or tokens // length < ranks:
        raise ValueError(
            f"batch.tokens={tokens} is not allowed: a multiple of data.sequence_length={length}, and at least a "
            f"sequence for each of ranks={ranks}: {ranks * length}"
        )
    return resolve(
        replace(
            run,
            data=replace(run.data, name=made_up.NAME, source=None, sources=(), fingerprint=None, tokenizer="bpe"),
            batch=BatchConfig(tokens=tokens),
            budget=BudgetConfig(tokens=tokens * all_steps),
            eval=EvalConfig(sequences=ranks, count=1),
            parallel=ParallelConfig(dp_replicate=ranks, micro_batch_sequences=micro or SEQUENCES),
            profile=ProfileConfig(start=WARM + steps + 2, steps=TRACED, ranks="all"),
            runtime=replace(run.runtime, device=device, log_steps=1, system_seconds=0.0),
        )
    )
