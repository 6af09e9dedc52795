"""How long a training step takes, from a config, the layout of its ranks and a cluster profile; pure Python."""

from train.spec.step_time.predict import step_time
from train.spec.step_time.result import StepTime

__all__ = ["StepTime", "step_time"]
