"""Small presets trained to their end: the final loss is the recorded one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.convergence import Point, curve, recorded, table
from benchmarks.convergence_text import invented
from train.data.corpus.prepare import prepare
from train.runtime.distributed import World
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.resolve import resolve
from train.trainer import End, Trainer

RECORDED = {
    "plain": (ModelConfig(width=48, layers=2, head_dim=12), "concatenate", 1.379),
    "family": (
        ModelConfig(
            width=48,
            layers=2,
            head_dim=12,
            kv_heads=2,
            position="alibi",
            attention_softcap=20.0,
            logit_softcap=20.0,
            window=24,
            global_every=2,
            tied_embeddings=True,
        ),
        "fit",
        1.013,
    ),
}
"""Model, packing and final validation loss [nats per token], recorded on an x86 CPU with torch 2.13.

Random guessing is ln 257 = 5.55. Other kernels round otherwise, and 120 steps let that grow: the tolerance is 0.02.
"""


@pytest.mark.parametrize("name", RECORDED)
def test_a_preset_converges_to_its_recorded_loss(tmp_path: Path, name: str) -> None:
    model, packing, wanted = RECORDED[name]
    text = tmp_path / "text"
    text.mkdir()
    for number, document in enumerate(invented(400)):
        (text / f"{number}.txt").write_text(document)
    data = DataConfig(
        name="invented",
        source=str(text),
        tokenizer="bytes",
        vocab_size=257,
        validation_fraction=0.1,
        sequence_length=64,
        packing=packing,
    )
    prepare(data, tmp_path, workers=1)
    config = resolve(
        RunConfig(
            model=model,
            data=data,
            batch=BatchConfig(tokens=16 * 64),
            budget=BudgetConfig(tokens=120 * 16 * 64),
            optim=OptimConfig(lr=6e-3),
            eval=EvalConfig(sequences=64, count=1),
            runtime=RuntimeConfig(device="cpu", data_root=str(tmp_path), checkpoint_seconds=1e9),
        )
    )
    folder = tmp_path / "run"
    folder.mkdir()
    trainer = Trainer(config, folder, World(), torch.device("cpu"))
    trainer.restore()
    assert trainer.fit(120 * 16 * 64) is End.REACHED
    trainer.close()
    assert trainer.state.validation_loss == pytest.approx(wanted, abs=0.02)


def test_a_curve_is_read_from_a_killed_run_and_compared_with_a_written_one(tmp_path: Path) -> None:
    events = [
        ("train", 10, 5.0),
        ("train", 20, 4.0),
        ("validation", 20, 4.4),
        ("validation", 25, 4.1),
        ("train", 30, 3.0),
    ]
    lines = [
        json.dumps({"kind": kind, "tokens": 1000 * step, "metrics": {"loss": loss, "bits_per_byte": loss / 2}}) + "\n"
        for kind, step, loss in events
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + lines[2][:30])
    found = curve(tmp_path)
    assert found == [Point(20_000, 4.4, 2.2, 4.5), Point(25_000, 4.1, 2.05, None)]
    written = tmp_path / "curve.txt"
    written.write_text("\n".join(["2026-11-21, of text (fingerprint 0123456789ab of the corpus)", *table(found, {})]))
    assert recorded(written) == ("0123456789ab", {20_000: 4.4, 25_000: 4.1})
    again = table([Point(20_000, 4.41, 2.2, None), Point(25_000, 4.2, 2.1, None)], recorded(written)[1])
    assert again[-2].endswith("recorded 4.4000, +0.0100")
    assert again[-1].endswith("recorded 4.1000, +0.1000 DIFFERS")
    assert recorded(tmp_path / "none.txt") == ("", {})
