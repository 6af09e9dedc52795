"""The points of `study=isoflop_gpu` as `python -m study.sweep` would freeze them, for the ways that do not use it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from benchmarks.peers.rows import Shape
from study.config.compose import Composer, HydraSource, conf_folder
from study.planning.designs import expand
from study.records.points import resolve_run
from train.spec.config import RunConfig
from train.spec.counts import params
from train.spec.manifest import folder, read_manifest

COLUMNS = ("name", "budget", "params", "tokens", "loss")


@dataclass(frozen=True)
class StudyPoint:
    """One run of an isoFLOP design, its config resolved."""

    config: RunConfig

    @property
    def budget(self) -> float:
        """Nominal compute of its group [FLOPs]."""
        assert self.config.budget.flops is not None, "an isoFLOP point"
        return self.config.budget.flops

    @property
    def name(self) -> str:
        """What its files are called: budget and shape."""
        return f"{self.budget:.3g}-{self.config.model.width}x{self.config.model.layers}".replace("+", "")

    @property
    def params(self) -> int:
        """Matmul parameters N."""
        return params(self.config.model, self.config.data.vocab_size).matmul

    @property
    def batch(self) -> int:
        """Rows of one step."""
        assert self.config.batch.tokens is not None, "the config is resolved"
        return self.config.batch.tokens // self.config.data.sequence_length

    @property
    def steps(self) -> int:
        """Whole steps nearest to the token budget."""
        assert self.config.budget.tokens is not None, "the config is resolved"
        return max(1, round(self.config.budget.tokens / (self.batch * self.config.data.sequence_length)))

    @property
    def tokens(self) -> int:
        """Tokens of these steps."""
        return self.steps * self.batch * self.config.data.sequence_length

    @property
    def shape(self) -> Shape:
        """Model, vocabulary and length of rows."""
        return Shape(self.config.model, self.config.data.vocab_size, self.config.data.sequence_length)

    def row(self, tokens: float, loss: float) -> dict[str, Any]:
        """Return the point's line in a table for the fit; loss [nats/token]."""
        return dict(zip(COLUMNS, (self.name, self.budget, self.params, tokens, loss), strict=True))


def design(words: Sequence[str]) -> list[StudyPoint]:
    """Return the points that these words of a `study.sweep` command make, by budget and size."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        master = compose("config", return_hydra_config=True)
        composer = Composer(HydraSource(GlobalHydra.instance().config_loader(), master))
        jobs = expand([list(words)], composer)
        points = [StudyPoint(resolve_run(composer.compose(job).config, job)) for job in jobs]
    for point in points:
        check(point.config)
    return points


def check(config: RunConfig) -> None:
    """Raise ValueError for a setting that the other ways do not know."""
    model, optim = config.model, config.optim
    wanted = {
        "model.kv_heads": (model.kv_heads, model.width // (model.head_dim or 1)),
        "model.tied_embeddings": (model.tied_embeddings, False),
        "model.position": (model.position, "rope"),
        "optim.name": (optim.name, "adamw"),
        "optim.grad_clip": (optim.grad_clip, 1.0),
        "schedule.name": (config.schedule.name, "cosine"),
        "schedule.final_lr_fraction": (config.schedule.final_lr_fraction, 0.0),
        "batch.ramp_from": (config.batch.ramp_from, None),
        "data.sources": (config.data.sources, ()),
    }
    for name, (value, known) in wanted.items():
        if value != known:
            raise ValueError(f"{name}={value} is not allowed here: the other ways train with {name}={known} only")
    if config.precision.name not in ("fp32", "bf16"):
        raise ValueError(f"precision={config.precision.name} is not allowed here: bf16 or fp32")


def shards(config: RunConfig, split: str) -> list[Path]:
    """Return the files of tokens of a split of the prepared corpus; ValueError where it is not prepared."""
    where = folder(config.data, config.runtime.data_root)
    return [where / shard.file for shard in read_manifest(where).splits[split].shards]


def script_settings(point: StudyPoint) -> dict[str, Any]:
    """Return the point in the words of `benchmarks.peers.script`."""
    config, shape = point.config, point.shape
    model = shape.model
    return {
        "name": point.name,
        "seed": config.seed,
        "steps": point.steps,
        "batch": point.batch,
        "lr": config.optim.lr,
        "warmup": config.schedule.warmup_fraction,
        "betas": [config.optim.beta1, config.optim.beta2],
        "weight_decay": config.optim.weight_decay,
        "init_std": model.init_std,
        "bf16": config.precision.name == "bf16",
        "evaluations": config.eval.count,
        "validation_rows": config.eval.sequences,
        "model": {
            "vocabulary": shape.vocabulary,
            "length": shape.length,
            "width": model.width,
            "layers": model.layers,
            "head": model.head_dim,
            "hidden": model.mlp_width,
            "theta": model.rope_theta,
            "eps": model.norm_eps,
            "qk_norm": model.qk_norm,
        },
    }


def titan_settings(point: StudyPoint, out: Path) -> dict[str, Any]:
    """Return the point in the words of `benchmarks.peers.titan_point`; `out`: its folder."""
    config, script = point.config, script_settings(point)
    return {
        **{name: value for name, value in script.items() if name not in ("model", "bf16", "evaluations", "init_std")},
        "model": asdict(config.model),
        "vocabulary": config.data.vocab_size,
        "length": config.data.sequence_length,
        "train": [str(file) for file in shards(config, "train")],
        "validation": [str(file) for file in shards(config, "validation")],
        "out": str(out),
    }


def write_table(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write what `benchmarks.peers.parabolas` reads."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
