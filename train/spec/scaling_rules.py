"""How peak learning rate and batch size scale with size, where the config does not say.

Both are the Step Law (Li et al. 2025, "Predictable Scale: Part I", equation 1), fitted there to 2,800 runs from 60M to
1B parameters: lr = 1.79 N^-0.713 D^0.307 and batch = 0.58 D^0.571 tokens. Its N has neither the embedding nor the
output head. A study that wants to trust an exponent should still sweep ``optim.lr_scale`` at its smallest and largest
size.

Earlier versions took N with the head, which gave learning rates of 0.45 (256 wide, 50k tokens of vocabulary) to 0.98
times (4096 wide) the rule's. A study that was begun so goes on so: `rule` null.
"""

from __future__ import annotations

import math

from train.spec.counts import Params

MIN_BATCH_SEQUENCES = 4
MAX_LR = 0.05


def peak_lr(params_non_embedding: int, tokens: int) -> float:
    """Return the peak learning rate of AdamW for N non-embedding parameters and a budget of D tokens, to 4 digits."""
    lr = 1.79 * math.pow(params_non_embedding, -0.713) * math.pow(tokens, 0.307)
    return float(f"{min(MAX_LR, lr):.4g}")


def peak_lr_of(counts: Params, tokens: int, rule: str | None) -> float:
    """Return the peak learning rate of a model by `optim.lr_rule`: null is the law on N with the output head."""
    return peak_lr(counts.matmul if rule is None else counts.non_embedding, tokens)


def batch_tokens(tokens: int, sequence_length: int) -> int:
    """Return the global batch [tokens] for a budget of D tokens: whole sequences, at least 4 of them."""
    sequences = max(MIN_BATCH_SEQUENCES, round(0.58 * math.pow(tokens, 0.571) / sequence_length))
    return min(sequences * sequence_length, max(sequence_length, tokens))
