"""The presets of conf/reference: the memory that they claim, and one rank of each really built, sharded and stepped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from study.config.compose import conf_folder
from study.config.single import composed
from tests.train.parallel.fakes import built, stepped
from train.spec.accounting import held
from train.spec.accounting.step import sheet
from train.spec.config import ModelConfig, RunConfig
from train.spec.footprint import footprint
from train.spec.mesh import Axes, axes
from train.spec.pipeline_layout import share_of, stages_per_rank
from train.spec.resolve import resolve

RANKS = {
    "7b_x8": 0,
    "70b_x64": 63,
    "70b_x256": 0,
    "405b_x512": 0,
    "405b_x1024": 1023,
    "405b_x2048": 1024,
    "1t_x1024": 100,
}
"""Which rank is built of each: of the pipelines the first, the last, and one in the middle."""
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "reference.md"
LAYERS = 8
"""Of a model that is stepped, of which every stage of a pipeline has two: its blocks are alike."""


def preset(name: str) -> tuple[RunConfig, Axes, float]:
    """Return the run, the layout and a GPU's memory [bytes]."""
    config = composed([f"+reference={name}"])
    run, cluster = resolve(config.run()), config.cluster
    assert cluster.gpus_per_node == cluster.tasks_per_node == 8
    return run, axes(run.parallel, cluster.nodes * cluster.gpus_per_node), cluster.gpu_memory_gb * 1e9


def test_every_preset_is_tested() -> None:
    assert {path.stem for path in (conf_folder() / "reference").glob("*.yaml")} == set(RANKS)


@pytest.mark.parametrize("name", RANKS)
def test_a_preset_fits_as_its_comment_says(name: str) -> None:
    run, shape, memory = preset(name)
    assert name.endswith(f"_x{shape.size}")
    found = sheet(run, shape)
    assert found.needed < memory
    assert footprint(run, shape, "cuda").total >= found.peak.total
    parts = {**found.peak.parts, "margin": found.margin, "context": found.context, "NCCL": found.nccl}
    told = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in parts.items())
    comment = (conf_folder() / "reference" / f"{name}.yaml").read_text().replace("\n# ", " ")
    assert f"GB a GPU at its peak: {told}; needed {found.needed / 1e9:.2f}\n" in comment


def test_the_page_says_what_the_presets_need_and_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text()
    for name in RANKS:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        run, shape, _ = preset(name)
        assert row.endswith(f"| {sheet(run, shape).needed / 1e9:.1f} |")
    code, printed = re.findall(r"^```(?:python|text)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)[-2:]
    exec(code, {})
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(("name", "rank"), RANKS.items())
def test_a_rank_is_built_sharded_and_stepped(name: str, rank: int) -> None:
    """Its layers are all built; a step is of a model of fewer layers and with the fewest micro-batches that fill it."""
    run, shape, _ = preset(name)
    place = rank // (shape.size // shape.pp)
    part = held.part_of(run, shape, place)
    weights = built(run, rank, shape.size)
    assert sum(weights.values()) == 4 * part.shard
    assert len({weight.split(".")[1] for weight in weights if weight.startswith("blocks.")}) == part.blocks
    assert ("embedding.weight" in weights, "output.weight" in weights) == (part.first, part.last)

    small = _small(run, shape)
    part, found = held.part_of(small, shape, place), stepped(small, rank, shape.size)
    assert part.blocks == share_of(small, shape.pp, place)[0] > 0
    assert found.weights == found.gradients == 4 * part.shard
    assert found.moments == held.moments(small, part, shape.fsdp, shape.tp, shape.ep)
    assert found.loss.shape == ()


def _small(run: RunConfig, shape: Axes) -> RunConfig:
    layers = LAYERS if shape.pp == 1 else 2 * shape.pp
    model: ModelConfig = replace(run.model, layers=layers)
    count = shape.pp * stages_per_rank(run.parallel)
    sequences = shape.data * count * (run.parallel.micro_batch_sequences or 1)
    batch = replace(run.batch, tokens=sequences * run.data.sequence_length)
    return replace(run, model=model, batch=batch)
