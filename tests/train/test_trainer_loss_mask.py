"""Training on records with a loss mask: as with a mask made by hand, across a restart, and where little counts."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.data.loss_masks import LOWER, bytes_config, dialogues, remask
from tests.train.runs import values, write_config
from train import run
from train.data.batch import Rows
from train.data.corpus.prepare import prepare
from train.data.dataset import TokenSequences
from train.evaluate import evaluate
from train.runtime.distributed import World
from train.runtime.signals import StopFlag
from train.spec.config import BatchConfig, BudgetConfig, RunConfig
from train.spec.labels import IGNORED
from train.spec.manifest import folder, read_manifest
from train.spec.resolve import resolve
from train.trainer import Trainer

LENGTH = 16
STEPS = 12


@pytest.fixture(scope="session")
def talk(tmp_path_factory: pytest.TempPathFactory, tiny: RunConfig) -> RunConfig:
    """A run of 12 steps of 8 sequences on prompts and completions, a token a byte."""
    root = tmp_path_factory.mktemp("talk")
    (root / "raw").mkdir()
    records = [{"prompt": prompt, "completion": completion} for prompt, completion in dialogues(0, 80)]
    (root / "raw" / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return _run(tiny, root, root / "raw")


def _run(tiny: RunConfig, root: Path, source: Path, **changes: object) -> RunConfig:
    """Return a run on a folder of records, which it prepares."""
    data = bytes_config(source, **changes)
    prepare(data, root, workers=1)
    return resolve(
        replace(
            tiny,
            data=data,
            batch=BatchConfig(tokens=8 * LENGTH),
            budget=BudgetConfig(tokens=STEPS * 8 * LENGTH),
            runtime=replace(tiny.runtime, data_root=str(root)),
            parallel=replace(tiny.parallel, micro_batch_sequences=3),
        )
    )


class _ByHand:
    """Rows of the same tokens, of which those that no completion has are not trained on."""

    def __init__(self, rows: TokenSequences) -> None:
        self._rows = rows

    def rows(self, start: int, count: int) -> Rows:
        rows = self._rows.rows(start, count)
        hidden = np.isin(rows.targets, sorted(LOWER))
        return replace(rows, targets=np.where(hidden, IGNORED, rows.targets))


def _course(trainer: Trainer) -> Iterator[tuple[float, float]]:
    for _ in range(STEPS):
        loss, norm = trainer.train_step()
        yield float(loss), float(norm)


@pytest.mark.parametrize("packing", ["concatenate", "mask", "fit"])
def test_losses_are_those_of_a_mask_made_by_hand(talk: RunConfig, tmp_path: Path, packing: str) -> None:
    config = replace(talk, data=replace(talk.data, packing=packing))
    place = folder(config.data, config.runtime.data_root)
    bare = remask(Path(shutil.copytree(place, tmp_path / place.name)), None)
    by_hand = _ByHand(TokenSequences(bare, "train", LENGTH, config.seed, packing))
    found, wanted = (
        list(_course(Trainer(config, tmp_path, World(), torch.device("cpu"), rows=rows))) for rows in (None, by_hand)
    )
    assert found == wanted
    plain = TokenSequences(bare, "train", LENGTH, config.seed, packing)
    assert found != list(_course(Trainer(config, tmp_path, World(), torch.device("cpu"), rows=plain)))


def test_validation_is_of_the_tokens_that_count(talk: RunConfig, tmp_path: Path) -> None:
    trainer = Trainer(talk, tmp_path, World(), torch.device("cpu"))
    found = evaluate(trainer.model, trainer.data.validation, 0, lambda: False)
    assert found is not None
    rows = trainer.data.validation.rows
    counts = rows.targets != IGNORED
    lower = np.isin(rows.inputs[:, 1:], sorted(LOWER))
    np.testing.assert_array_equal(counts[:, :-1], ~lower)
    with torch.no_grad():
        logits = trainer.model.whole(torch.from_numpy(np.ascontiguousarray(rows.inputs)), None)
    chosen = torch.from_numpy(counts)
    each = torch.nn.functional.cross_entropy(logits[chosen].double(), torch.from_numpy(rows.targets)[chosen])
    assert found.loss == pytest.approx(float(each), rel=1e-6)
    manifest = read_manifest(folder(talk.data, talk.runtime.data_root))
    bits = found.loss / math.log(2) / manifest.splits["validation"].bytes_per_token
    assert found.metrics()["bits_per_byte"] == pytest.approx(bits, rel=1e-12)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run the command line on a config within this process, to its end or to a number of tokens."""
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)

    def call(config: Path, *arguments: str) -> None:
        assert run.main(["--config", str(config), *arguments]) == run.REACHED

    return call


def test_a_run_that_resumes_at_a_step_in_the_middle_is_the_same(
    talk: RunConfig, tmp_path: Path, main: Callable[..., None]
) -> None:
    whole, halves = (write_config(tmp_path / name, talk) for name in ("whole", "halves"))
    main(whole)
    main(halves, "--until", str(5 * 8 * LENGTH))
    main(halves)
    wanted, found = values(whole.parent), values(halves.parent)
    assert [one for one in found if one[1] == 5 and one[0] == "validation"]  # where it paused
    assert [one for one in found if one[0] == "train" or one[1] != 5] == wanted
    assert len([one for one in wanted if one[0] == "train"]) == STEPS


def test_a_record_of_which_nothing_counts_is_read_and_not_trained_on(
    tiny: RunConfig, tmp_path: Path, main: Callable[..., None]
) -> None:
    (tmp_path / "raw").mkdir()
    silent = [{"text": [{"label": False, "text": prompt * 6}]} for prompt, _ in dialogues(1, 30)]
    spoken = [{"text": [{"label": True, "text": completion}]} for _, completion in dialogues(2, 30)]
    lines = "".join(json.dumps(one) + "\n" for one in [*silent, *spoken])
    (tmp_path / "raw" / "a.jsonl").write_text(lines, "utf-8")
    config = _run(tiny, tmp_path, tmp_path / "raw", prompt_column=None, text_column="text", packing="fit")
    rows = TokenSequences(folder(config.data, tmp_path), "train", LENGTH, config.seed, "fit")
    counted = (rows.rows(0, rows.windows).targets != IGNORED).sum(axis=1)
    assert (counted == 0).any()
    assert (counted > 0).any()
    path = write_config(tmp_path / "run", config)
    main(path)
    outcome = json.loads((path.parent / "outcome.json").read_text())
    assert outcome["state"] == "completed"
    assert outcome["tokens"] == STEPS * 8 * LENGTH
    assert outcome["health"].get("skipped_steps", 0) == 0
