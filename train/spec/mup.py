"""Maximal-update parametrisation (muP): what has to change with the width so that the best learning rate does not.

Yang et al. 2022, "Tensor Programs V", table 8, relative to a base width at which the learning rate was tuned: with
m = width / base width, Adam's learning rate of hidden matrices is divided by m, the logits are divided by m while the
head is drawn and trained as at the base, and attention scores are divided by the head dimension instead of its root
(equal at the base). Hidden matrices are drawn with std 1/sqrt(fan in), which is 1/sqrt(m) of the base's, also where the
base's is given. At the base width nothing changes.
"""

from __future__ import annotations

from dataclasses import replace

from train.spec.config import ModelConfig
from train.spec.counts import head_dim


def ratio(model: ModelConfig) -> float:
    """Return m, the width over the base width; 1 without muP."""
    return 1.0 if model.mup_base_width is None else model.width / model.mup_base_width


def changes(model: ModelConfig) -> bool:
    """Say whether muP makes another function of the same weights: not at the base width with the base's heads."""
    return output_scale(model) != 1.0 or query_scale(model) != 1.0


def base_head_dim(model: ModelConfig) -> int:
    """Return the head dimension at the base width: given, or as it is derived from the base width."""
    if model.mup_base_head_dim is not None:
        return model.mup_base_head_dim
    if model.mup_base_width is None or model.head_dim is not None:
        return head_dim(model)
    return head_dim(replace(model, width=model.mup_base_width))


def query_scale(model: ModelConfig) -> float:
    """Return the factor on queries beside the usual 1/sqrt(head_dim) of scores, for sqrt(base head_dim) / head_dim."""
    return 1.0 if model.mup_base_width is None else float((base_head_dim(model) / head_dim(model)) ** 0.5)


def output_scale(model: ModelConfig) -> float:
    """Return the factor on the logits: 1 / m."""
    return 1.0 / ratio(model)


def matrix_std(model: ModelConfig) -> float:
    """Return the std of hidden matrices' initialisation: 1/sqrt(width), or `init_std`, under muP over sqrt(m)."""
    if model.init_std is None:
        return float(model.width**-0.5)
    return float(model.init_std / ratio(model) ** 0.5) if model.init_std_at == "base" else model.init_std


def residual_std(model: ModelConfig) -> float:
    """Return the std of matrices that write into the residual stream: that of hidden ones over sqrt(2 · layers).

    So the stream's variance does not grow with depth (Radford et al. 2019).
    """
    return float(matrix_std(model) / (2 * model.layers) ** 0.5)


def head_std(model: ModelConfig) -> float:
    """Return the std of the head's initialisation: that of hidden matrices; under muP as at the base width.

    A tied embedding is the head's matrix and is drawn like it.
    """
    if model.mup_base_width is None:
        return matrix_std(model)
    return float(matrix_std(model) * ratio(model) ** 0.5)


def lr_scale(model: ModelConfig, kind: str, algorithm: str) -> float:
    """Return muP's factor on the learning rate of a weight of `kind` (embedding, head, norm, matrix).

    algorithm: adamw (table 8, Adam); sgd (table 8, SGD: what has one finite side learns m times faster); spectral and
    match_rms (Muon: an orthogonal update of a hidden matrix moves activations by the same at every width under the
    spectral scale, and sqrt(m) times as much under the one that matches AdamW's RMS).
    """
    m = ratio(model)
    scales: dict[str, dict[str, float]] = {"adamw": {"matrix": 1 / m}, "match_rms": {"matrix": m**-0.5}, "spectral": {}}
    scales["sgd"] = {"embedding": m, "head": m, "norm": m}
    return scales[algorithm].get(kind, 1.0)
