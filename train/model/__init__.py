"""The decoder-only transformer, one building block a file."""

from train.model.transformer import Transformer

__all__ = ["Transformer"]
