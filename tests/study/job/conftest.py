"""The trainer's tiny corpus and config, for the tests whose jobs train with it."""

from tests.train.conftest import corpus, tiny

__all__ = ["corpus", "tiny"]
