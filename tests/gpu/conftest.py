"""The trainer's tiny corpus and config, for the tests that need a GPU."""

from tests.train.conftest import corpus, tiny

__all__ = ["corpus", "tiny"]
