"""Optimizers: one object for all weights of a rank, in groups with their own rule, learning rate and decay."""

from train.optim.build import make_optimizer
from train.optim.optimizer import Optimizer, set_lr

__all__ = ["Optimizer", "make_optimizer", "set_lr"]
