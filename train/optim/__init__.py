"""Optimizers: one object over all of a rank's weights, in groups that say their rule, learning rate and decay."""

from train.optim.build import make_optimizer
from train.optim.optimizer import Optimizer, set_lr

__all__ = ["Optimizer", "make_optimizer", "set_lr"]
