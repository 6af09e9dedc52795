"""The decoder-only transformer, one building block per file."""

from train.model.transformer import Transformer

__all__ = ["Transformer"]
