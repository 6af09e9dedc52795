"""How peak learning rate and batch size scale with size, where the config does not say.

Both are the Step Law (Li et al. 2025, "Predictable Scale: Part I", equation 1), fitted there to 2,800 runs from 60M to
1B parameters: lr = 1.79 N^-0.713 D^0.307 and batch = 0.58 D^0.571 tokens. A study that wants to trust an exponent
should still sweep ``optim.lr_scale`` at its smallest and largest size.
"""

from __future__ import annotations

import math

MIN_BATCH_SEQUENCES = 4
MAX_LR = 0.05


def peak_lr(params_matmul: int, tokens: int) -> float:
    """Return the peak learning rate of AdamW for N matmul parameters and a budget of D tokens, to 4 digits."""
    lr = 1.79 * math.pow(params_matmul, -0.713) * math.pow(tokens, 0.307)
    return float(f"{min(MAX_LR, lr):.4g}")


def batch_tokens(tokens: int, sequence_length: int) -> int:
    """Return the global batch [tokens] for a budget of D tokens: whole sequences, at least 4 of them."""
    sequences = max(MIN_BATCH_SEQUENCES, round(0.58 * math.pow(tokens, 0.571) / sequence_length))
    return min(sequences * sequence_length, max(sequence_length, tokens))
