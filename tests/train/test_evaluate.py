"""Validation by source and position: the plain mean of every token's loss, on every layout of ranks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.forked import run_ranks
from tests.once import folder_once
from tests.train.data.conftest import write_texts
from tests.train.evaluate_ranks import LAYOUTS, found
from tests.train.runs import values, write_config
from train import evaluate as evaluation
from train import run
from train.data.batch import Batch
from train.data.corpus.prepare import prepare
from train.evaluate import alike, evaluate, range_starts
from train.parallel.parallel_model import ParallelModel
from train.runtime.distributed import World
from train.runtime.signals import StopFlag
from train.spec.config import BatchConfig, DataConfig, ModelConfig, RunConfig, SourceConfig
from train.spec.labels import IGNORED
from train.spec.manifest import read_manifest
from train.spec.resolve import resolve
from train.trainer import Trainer

Found = dict[str, Any]
Compared = list[tuple[Found, dict[str, Found]]]
"""By config: what one process finds, and four ranks on each layout."""
LENGTH = 64
MODEL = ModelConfig(
    width=32,
    layers=2,
    head_dim=8,
    kv_heads=2,
    position="alibi",
    attention_softcap=3.0,
    logit_softcap=5.0,
    window=30,
    global_every=2,
    tied_embeddings=True,
)


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, tiny: RunConfig) -> RunConfig:
    """Two sources, 3 to 1, whole documents fitted into rows; 10 validation sequences, 5 of each."""
    root = tmp_path_factory.mktemp("mixed")
    sources = tuple(
        SourceConfig(name, weight, str(write_texts(root / name, 60, seed)))
        for name, weight, seed in (("a", 3.0, 1), ("b", 1.0, 2))
    )
    data = DataConfig(
        name="both",
        tokenizer="bpe",
        vocab_size=300,
        sources=sources,
        validation_fraction=0.2,
        packing="fit",
        sequence_length=LENGTH,
    )
    prepare(data, root, workers=1)
    return resolve(
        replace(
            tiny,
            model=MODEL,
            data=data,
            batch=BatchConfig(tokens=4 * LENGTH),
            eval=replace(tiny.eval, sequences=10, by_position=3),
            runtime=replace(tiny.runtime, data_root=str(root)),
            parallel=replace(tiny.parallel, micro_batch_sequences=4),
        )
    )


def test_losses_are_the_means_of_their_tokens(mixed: RunConfig, tmp_path: Path) -> None:
    trainer = Trainer(mixed, tmp_path, World(), torch.device("cpu"))
    result = evaluate(trainer.model, trainer.data.validation, trainer.config.eval.by_position, lambda: False)
    assert result is not None
    rows = trainer.data.validation.rows
    assert (rows.targets == IGNORED).any()
    assert rows.positions is not None
    assert rows.documents is not None
    inputs, targets, positions, documents = map(
        torch.from_numpy, (rows.inputs, rows.targets, rows.positions, rows.documents)
    )
    with torch.no_grad():
        model = trainer.model.whole
        assert model.output is not None
        capped, model.output.softcap = model(inputs, None, positions, documents), 0.0
        logits = 5.0 * torch.tanh(model(inputs, None, positions, documents) / 5.0)
        torch.testing.assert_close(capped, logits)
    losses = F.cross_entropy(logits.flatten(0, 1).double(), targets.flatten(), ignore_index=IGNORED, reduction="none")
    losses, valid = losses.view(10, LENGTH), targets != IGNORED
    source = torch.tensor(trainer.data.validation.source)
    means = [float(losses[(source == n)[:, None] & valid].mean()) for n in (0, 1)]
    assert result.sources == pytest.approx({"a": means[0], "b": means[1]}, rel=1e-6)
    assert result.loss == pytest.approx(0.75 * means[0] + 0.25 * means[1], rel=1e-6)
    for first, last in ((0, 16), (16, 32), (32, LENGTH)):
        inside = (positions >= first) & (positions < last) & valid
        each = [(w, losses[(source == n)[:, None] & inside]) for n, w in ((0, 0.75), (1, 0.25))]
        there = [(w, float(values.mean())) for w, values in each if len(values)]
        wanted = sum(w * mean for w, mean in there) / sum(w for w, _ in there)
        assert result.positions[first] == pytest.approx(wanted, rel=1e-6)
    sizes = [read_manifest(Path(mixed.runtime.data_root) / f"{n}-bpe300").bytes_per_token for n in "ab"]
    metrics = result.metrics()
    assert metrics["bits_per_byte/b"] == pytest.approx(means[1] / math.log(2) / sizes[1], rel=1e-6)
    assert metrics["bits_per_byte"] == pytest.approx(
        result.loss / math.log(2) / (0.75 * sizes[0] + 0.25 * sizes[1]), rel=1e-6
    )
    assert set(metrics) == {
        "loss", "bits_per_byte", "loss/a", "loss/b", "bits_per_byte/a", "bits_per_byte/b",
        "loss/position_0", "loss/position_16", "loss/position_32",
    }  # fmt: skip


def test_one_source_without_ranges_has_two_numbers(tiny: RunConfig, tmp_path: Path) -> None:
    trainer = Trainer(tiny, tmp_path, World(), torch.device("cpu"))
    result = evaluate(trainer.model, trainer.data.validation, trainer.config.eval.by_position, lambda: False)
    assert result is not None
    assert set(result.metrics()) == {"loss", "bits_per_byte"}
    assert evaluate(trainer.model, trainer.data.validation, trainer.config.eval.by_position, lambda: True) is None
    rows = trainer.data.validation.rows
    loss = trainer.model.whole(*map(torch.from_numpy, (rows.inputs[:2], rows.targets[:2])))

    assert loss.shape == ()  # afterwards the model sums again


def test_a_stop_within_a_validation_loses_nothing(
    tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    halves = replace(tiny, parallel=replace(tiny.parallel, micro_batch_sequences=5))  # of 10 validation sequences
    whole, stopped = (write_config(tmp_path / name, halves) for name in ("whole", "stopped"))
    assert run.main(["--config", str(whole)]) == run.REACHED
    asked = [0]

    def stop_within_the_second(trainer: Trainer) -> bool:
        asked[0] += 1
        return asked[0] == 4

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_asked_to_stop", stop_within_the_second)
        assert run.main(["--config", str(stopped)]) == run.INTERRUPTED
    recorded = [row[1] for row in values(stopped.parent) if row[0] == "validation"]
    assert recorded == [8], "that of step 15 has not been seen to its end"
    assert run.main(["--config", str(stopped)]) == run.REACHED
    assert values(stopped.parent) == values(whole.parent)


def test_parts_of_one_size_find_the_same(mixed: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 sequences in parts of 4: on a GPU with compiled blocks three of 4, of which two sequences are empty."""
    assert [alike(10, most) for most in (4, 5, 10, 99, 1)] == [(12, 4), (10, 5), (10, 10), (10, 10), (10, 1)]
    few = replace(
        mixed, parallel=replace(mixed.parallel, micro_batch_sequences=4), batch=BatchConfig(tokens=8 * LENGTH)
    )
    trainer = Trainer(few, tmp_path, World(), torch.device("cpu"))
    sizes: list[int] = []
    forward = ParallelModel.forward

    def counted(model: ParallelModel, batch: Batch) -> torch.Tensor:
        sizes.append(len(batch))
        return forward(model, batch)

    monkeypatch.setattr(ParallelModel, "forward", counted)
    plain = evaluate(trainer.model, trainer.data.validation, 3, lambda: False)
    monkeypatch.setattr(evaluation, "_has_one_shape", lambda model: True)
    padded = evaluate(trainer.model, trainer.data.validation, 3, lambda: False)
    assert sizes == [4, 4, 2, 4, 4, 4]
    assert plain is not None and padded is not None
    assert padded.loss == pytest.approx(plain.loss, abs=1e-7)
    assert padded.sources == pytest.approx(plain.sources, abs=1e-7)
    assert padded.positions == pytest.approx(plain.positions, abs=1e-7)


@pytest.fixture(scope="session")
def alone_and_together(mixed: RunConfig, session_folder: Path) -> Compared:
    """What one process finds, and four ranks on every layout: of 10 validation sequences, and of 3."""
    configs = [replace(mixed, eval=replace(mixed.eval, sequences=sequences)) for sequences in (10, 3)]

    def fill(folder: Path) -> None:
        paths = [write_config(folder / str(number), config) for number, config in enumerate(configs)]
        run_ranks(4, "tests.train.evaluate_ranks", folder / "out", *paths)

    folder = folder_once(session_folder / "evaluated-layouts", fill)
    results: list[dict[str, Found]] = json.loads((folder / "out").read_text())
    assert all(set(layouts) == set(LAYOUTS) for layouts in results)
    alone = [found(config, World(), number == 0) for number, config in enumerate(configs)]
    return list(zip(alone, results, strict=True))


def test_four_ranks_find_the_same_on_every_layout(alone_and_together: Compared) -> None:
    """10 sequences over 4 ranks are uneven; and of 3 one rank has none: nobody may wait for it for ever."""
    for wanted, layouts in alone_and_together:
        for layout, result in layouts.items():
            for name in ("loss", "sources", "train"):
                assert result[name] == pytest.approx(wanted[name], abs=1e-6), (layout, name)
            assert result["norm"] == pytest.approx(wanted["norm"], rel=1e-5), layout
            positions = {int(first): loss for first, loss in result["positions"].items()}
            assert positions == pytest.approx(wanted["positions"], abs=1e-6), layout


def test_four_ranks_see_inside_a_run_what_one_process_sees(alone_and_together: Compared) -> None:
    """Shards add up and copies count once. The bound is Adam's: it divides the smallest gradients by themselves."""
    wanted, layouts = alone_and_together[0]
    for layout, result in layouts.items():
        assert result["health"]["statistics"] == pytest.approx(wanted["health"]["statistics"], rel=1e-4), layout


def test_a_rank_that_goes_wrong_is_named_on_every_layout_and_a_sound_one_is_not(alone_and_together: Compared) -> None:
    named = {
        "ddp": ["embedding.weight on rank 3", "norm.weight on rank 3"],
        "hsdp": ["embedding.weight (fsdp=1) on ranks 1, 3", "norm.weight (fsdp=1) on ranks 1, 3"],  # two copies each
        "cp x tp": ["norm.weight (fsdp=1) on ranks 2, 3"],  # of the vocabulary every rank has its own part
        "pp x dp": ["embedding.weight (fsdp=0) on rank 3", "norm.weight (fsdp=0) on ranks 2, 3"],  # tied over stages
    }
    _, layouts = alone_and_together[0]
    for layout, result in layouts.items():
        sound, wrong = result["health"]["copies"]
        assert sound == "", layout
        told = wrong.partition("the same copies: ")[2].partition(". Go back")[0]
        assert sorted(told.split("; ")) == named[layout], layout
        sound, wrong = result["health"]["probes"]
        assert sound == "", layout
        assert "step 1 computed twice gave different bits (rank 3: loss)" in wrong, layout


@pytest.mark.parametrize(("ranges", "wanted"), [(0, [0]), (1, [0]), (2, [0, 64]), (4, [0, 16, 32, 64])])
def test_ranges_double(ranges: int, wanted: list[int]) -> None:
    assert range_starts(ranges, 128) == wanted


def test_too_few_sequences_for_the_sources(mixed: RunConfig, tmp_path: Path) -> None:
    config = replace(mixed, eval=replace(mixed.eval, sequences=1))
    with pytest.raises(ValueError, match=r"eval\.sequences=1 is too few: each of the 2 sources"):
        Trainer(config, tmp_path, World(), torch.device("cpu"))
