"""What a token costs: training FLOPs per token as a function of the model's size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.inputs.dataset import Array, Rows


@dataclass(frozen=True)
class Cost:
    """FLOPs per token of a model with N parameters: 6 N ratio (1 + extra (N/reference)^-fall).

    Attention and other work beyond the matrix products of the N counted falls, relative to 6 N, with size; where the
    runs' own FLOPs do not say so, the ratio is a constant.
    """

    reference: float
    ratio: float
    extra: float
    fall: float

    @classmethod
    def six(cls) -> Cost:
        """Return the rule C = 6 N D.

        >>> f"{float(np.exp(Cost.six().log_per_token(np.log(1e9))[0])):.6g}"
        '6e+09'
        """
        return cls(1.0, 1.0, 0.0, 0.0)

    def log_per_token(self, log_params: Array) -> tuple[Array, Array]:
        """Return ln FLOPs per token and its derivative by ln N."""
        rest = self.extra * np.exp(-self.fall * (log_params - np.log(self.reference)))
        value = np.log(6.0 * self.ratio) + log_params + np.log1p(rest)
        return value, 1.0 - self.fall * rest / (1.0 + rest)


def cost(rows: Rows) -> Cost:
    """Return the FLOPs per token that the runs' exact FLOPs show."""
    logs, ratio = np.log(rows.params), rows.flops / (6.0 * rows.params * rows.tokens)
    middle = float(np.exp(logs.mean()))
    if (ratio > 1.001).all() and len(np.unique(rows.size)) >= 3:
        slope, intercept = np.polyfit(logs - np.log(middle), np.log(ratio - 1.0), 1)
        if 0.0 < -slope < 1.0:
            return Cost(middle, 1.0, float(np.exp(intercept)), float(-slope))
    return Cost(middle, float(np.exp(np.log(ratio).mean())), 0.0, 0.0)
