"""A trained model in a notebook: its weights are the checkpoint's, its text its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import train
from tests.train.data.conftest import small, write_texts
from tests.train.runs import write_config
from train.checkpoint.save import Saver
from train.checkpoint.state import collect
from train.data.corpus.prepare import prepare
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.config import RunConfig
from train.trained import TrainedModel


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, tiny: RunConfig) -> tuple[Path, Transformer]:
    """A run with one checkpoint, of step 7, and the model that it is of."""
    place = tmp_path_factory.mktemp("trained")
    data = small(write_texts(place / "texts", 30), name="text")
    prepare(data, place / "data", workers=1)
    config = replace(tiny, data=data, runtime=replace(tiny.runtime, data_root=str(place / "data")))
    write_config(place / "run", config)
    model = Transformer(config.model, data.vocab_size, data.sequence_length)
    initialise(model, 0)
    saver = Saver(place / "run" / "checkpoints", 0, 1)
    saver.save(7, collect([model], []), {"progress": {"step": 7, "tokens": 700}, "identity": {}})
    saver.wait()
    return place / "run", model


@pytest.fixture(scope="session")
def loaded(run: tuple[Path, Transformer]) -> TrainedModel:
    found = train.load_checkpoint(run[0])
    assert isinstance(found, TrainedModel)
    return found


def test_the_weights_are_those_of_the_checkpoint(run: tuple[Path, Transformer], loaded: TrainedModel) -> None:
    assert {"load_checkpoint", "TrainedModel"} <= set(dir(train))
    assert (loaded.step, loaded.tokens) == (7, 700)
    count = sum(weight.numel() for weight in run[1].parameters())
    assert repr(loaded) == f"TrainedModel(run: {count:,} parameters, 2 layers x 16, step 7, 700 tokens)"
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(tokens), run[1](tokens), rtol=0, atol=0)
    assert not any(weight.requires_grad for weight in loaded.model.parameters())


def test_text_becomes_tokens_and_text_again(loaded: TrainedModel) -> None:
    text = "The quick brown fox:\n  jumps 12 times"
    assert loaded.decode(loaded.encode(text)) == text
    assert all(0 <= token < loaded.config.data.vocab_size - 1 for token in loaded.encode(text))


def test_the_loss_of_a_text_is_that_of_its_tokens_after_the_separator(loaded: TrainedModel) -> None:
    ids = loaded.encode("a fox")
    separator = loaded.config.data.vocab_size - 1
    with torch.no_grad():
        logits = loaded.model(torch.tensor([[separator, *ids[:-1]]]))[0].float().log_softmax(-1)
    wanted = -sum(float(logits[i, token]) for i, token in enumerate(ids)) / len(ids)
    assert loaded.loss("a fox") == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(ValueError, match="the text has 0 tokens"):
        loaded.loss("")


def test_the_likeliest_text_is_that_of_the_whole_forward_pass(loaded: TrainedModel) -> None:
    """With caches as without: a token at a time."""
    ids = [loaded.config.data.vocab_size - 1, *loaded.encode("a")]
    made: list[int] = []
    for _ in range(5):
        with torch.no_grad():
            made.append(int(loaded.model(torch.tensor([[*ids, *made]]))[0, -1].argmax()))
    if ids[0] in made:
        made = made[: made.index(ids[0])]
    assert loaded.sample("a", tokens=5, temperature=0) == loaded.decode(made)
    assert loaded.sample("a", tokens=5, temperature=1e-300) == loaded.decode(made)
    assert loaded.sample("a", tokens=5, temperature=1e-37) == loaded.decode(made)


def test_a_seed_gives_the_same_text_again(loaded: TrainedModel) -> None:
    texts = [loaded.sample("a", tokens=8, seed=seed, top_k=40) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1
    length = loaded.config.data.sequence_length
    assert loaded.sample(tokens=10 * length), "it ends where the sequences do"
    with pytest.raises(ValueError, match="leave room"):
        loaded.sample("word " * length)
    with pytest.raises(ValueError, match="temperature=-1"):
        loaded.sample(temperature=-1.0)
    for wrong in (math.nan, math.inf, "hot"):
        with pytest.raises(ValueError, match=f"temperature={wrong!r}: a number, 0 or more"):
            loaded.sample("a", tokens=5, temperature=wrong, top_k=2)  # type: ignore[arg-type]
    calls: tuple[Callable[[str], object], ...] = (loaded.loss, loaded.sample, loaded.encode)
    for call in calls:
        with pytest.raises(ValueError, match=r"character 4 is '\\ud83d', half of a surrogate pair"):
            call("def \ud83d main")
    with pytest.raises(ValueError, match="tokens=0: a whole number, 1 or more"):
        loaded.sample(tokens=0)


def test_what_is_not_there_is_named(run: tuple[Path, Transformer], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no run \(no config.yaml\)"):
        train.load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="has no complete checkpoint of step 8"):
        train.load_checkpoint(run[0], step=8)
    with pytest.raises(ValueError, match="device='gpu' is not allowed: cpu, cuda or cuda:NUMBER"):
        train.load_checkpoint(run[0], device="gpu")
    with pytest.raises(ValueError, match="run=3: a path is needed, such as 'runs/STUDY/KEY'"):
        train.load_checkpoint(3)  # type: ignore[arg-type]
