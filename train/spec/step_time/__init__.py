"""Predicted time of a training step, from a config, the layout and a cluster profile. Pure Python."""

from train.spec.step_time.predict import step_time
from train.spec.step_time.result import StepTime

__all__ = ["StepTime", "step_time"]
