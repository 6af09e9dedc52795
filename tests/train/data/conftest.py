"""A small folder of text, and a prepared corpus made from it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from train.data.corpus.prepare import prepare
from train.spec.config import DataConfig

WORDS = ["def", "return", "self", "for", "in", "value", "tokens", "width", "é", "日本", "x1", "==", "(", ")", "0.125"]


def write_texts(folder: Path, count: int, seed: int = 0) -> Path:
    """Write `count` different documents of a few hundred bytes into a folder and a subfolder."""
    draw = random.Random(seed)
    (folder / "deep" / "er").mkdir(parents=True)
    for number in range(count):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(draw.randint(3, 30))]
        place = folder / ("deep/er" if number % 3 == 0 else ".")
        (place / f"text{number}{'.py' if number % 2 else '.md'}").write_text("\n    ".join(lines) + "\n", "utf-8")
    return folder


def small(folder: Path | None, /, **changes: object) -> DataConfig:
    """Return settings that suit `write_texts`."""
    values: dict[str, object] = {
        "name": "small",
        "source": None if folder is None else str(folder),
        "vocab_size": 300,
        "validation_fraction": 0.2,
        "sequence_length": 16,
    }
    return DataConfig(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(name="small")
def small_fixture() -> Callable[..., DataConfig]:
    return small


@pytest.fixture(name="write_texts")
def write_texts_fixture() -> Callable[..., Path]:
    return write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 60 documents; tests only read it."""
    return write_texts(tmp_path_factory.mktemp("texts"), 60)


@pytest.fixture(scope="session")
def prepared(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder prepared from `texts`; tests only read it."""
    return prepare(small(texts), tmp_path_factory.mktemp("data"), workers=1)
