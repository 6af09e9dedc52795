"""Every law as its paper writes it, in plain numbers and natural units: what the fitted forms are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log
from typing import Any

Numbers = Mapping[str, Any]


def repeats(c: Numbers, i: Numbers) -> Any:
    """Muennighoff et al. 2023, eq. 5 and 6."""
    unique = min(i["unique_tokens"], i["tokens"])
    g = (c["alpha"] * c["A"] / (c["beta"] * c["B"])) ** (1 / (c["alpha"] + c["beta"]))
    best = (unique * g) ** (c["beta"] / c["alpha"]) * g
    useful = min(i["params"], best)
    size = useful + useful * c["R_N"] * (1 - exp(-(i["params"] / useful - 1) / c["R_N"]))
    data = unique + unique * c["R_D"] * (1 - exp(-(i["tokens"] / unique - 1) / c["R_D"]))
    return c["E"] + c["A"] / size ** c["alpha"] + c["B"] / data ** c["beta"]


def effective(c: Numbers, i: Numbers) -> Any:
    """Kumar et al. 2024, eq. 4."""
    out = i["params"]
    for gamma, bits in (("gamma_w", "bits_weights"), ("gamma_a", "bits_activations"), ("gamma_kv", "bits_cache")):
        out *= 1 - exp(-i[bits] / c[gamma])
    return out


def precision(c: Numbers, i: Numbers) -> Any:
    return c["E"] + c["A"] / effective(c, i) ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"]


def precision_after(c: Numbers, i: Numbers) -> Any:
    after = c["G"] * i["tokens"] ** c["g_D"] / effective(c, i) ** c["g_N"] * exp(-i["bits_after"] / c["gamma_post"])
    for rate, bits in (("C_w", "bits_weights"), ("C_a", "bits_activations"), ("C_kv", "bits_cache")):
        after *= 1 - exp(-c[rate] * max(i[bits] - i["bits_after"], 1e-12))
    return precision(c, i) + after


def kaplan(c: Numbers, i: Numbers) -> Any:
    """Kaplan et al. 2020, eq. 1.5."""
    size = (c["N_c"] / i["params"]) ** (c["alpha_N"] / c["alpha_D"])
    return (size + c["D_c"] / i["tokens"]) ** c["alpha_D"]


def overtraining(c: Numbers, i: Numbers) -> Any:
    """Gadre et al. 2024, eq. 4."""
    many = i["tokens"] / i["params"]
    return c["E"] + (c["a"] * many ** c["eta"] + c["b"] * many ** -c["eta"]) * i["flops"] ** -c["eta"]


def broken(c: Numbers, i: Numbers) -> Any:
    """Caballero et al. 2022, eq. 1."""
    at = i["flops"]
    return c["a"] + c["b"] * at ** -c["c0"] * (1 + (at / c["d"]) ** (1 / c["f"])) ** (-c["c1"] * c["f"])


def experts(c: Numbers, i: Numbers) -> Any:
    """Ludziejewski et al. 2025, eq. 5."""
    n, d, many = i["params_active"], i["tokens"], i["experts"]
    size = c["A"] * many ** c["delta"] * n ** -(c["alpha"] + c["gamma"] * log(many))
    return c["E"] + size + c["B"] * many ** c["omega"] * d ** -(c["beta"] + c["zeta"] * log(many))


FORMULAS: dict[str, Callable[[Any, Any], float]] = {
    "chinchilla": lambda c, i: c["E"] + c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"],
    "chinchilla_tied": lambda c, i: c["E"] + c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["alpha"],
    "chinchilla_no_floor": lambda c, i: c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"],
    "chinchilla_interaction": lambda c, i: (
        c["E"] + c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"]
        + c["G"] / (i["params"] ** c["gamma"] * i["tokens"] ** c["delta"])
    ),
    "compute": lambda c, i: c["L_inf"] + c["a"] * i["flops"] ** -c["alpha"],
    "frontier": lambda c, i: c["L_inf"] + c["a"] * i["flops"] ** -c["alpha"],
    "frontier_no_floor": lambda c, i: c["a"] * i["flops"] ** -c["alpha"],
    "kaplan": kaplan,
    "kaplan_floor": lambda c, i: c["E"] + kaplan(c, i),
    "farseer": lambda c, i: (
        exp(c["s"] * i["params"] ** c["q"] + c["S"])
        + exp(c["B"] * i["params"] ** c["b"] + c["Q"]) * i["tokens"] ** -exp(c["A"] * i["params"] ** c["a"] + c["F"])
    ),
    "overtraining": overtraining,
    "repeats": repeats,
    "broken": broken,
    "learning_rate": lambda c, i: c["c"] * i["params"] ** c["p"] * i["tokens"] ** c["q"],
    "learning_rate_compute": lambda c, i: c["c"] * i["flops"] ** c["p"],
    "batch": lambda c, i: c["c"] * i["tokens"] ** c["r"],
    "batch_compute": lambda c, i: c["c"] * i["flops"] ** c["r"],
    "critical_batch_of_loss": lambda c, i: c["B_star"] * i["loss"] ** c["r"],
    "critical_batch": lambda c, i: c["S_min"] * (1 + c["B_crit"] / i["batch_tokens"]),
    "precision": precision,
    "precision_after": precision_after,
    "moe": experts,
    "downstream": lambda c, i: c["eps"] - c["k"] * exp(-c["gamma"] * i["loss"]),
}  # fmt: skip


RANGES = {
    "params": (1e7, 1e10), "tokens": (1e9, 1e12), "flops": (1e17, 1e22), "unique_tokens": (1e9, 1e11),
    "batch_tokens": (1e4, 1e7), "bits_weights": (2, 16), "bits_activations": (2, 16), "bits_cache": (2, 16),
    "bits_after": (2, 8),
    "params_active": (1e7, 1e10), "experts": (1, 64), "loss": (1.8, 4.5),
}  # fmt: skip
SURFACE = {"E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.33, "beta": 0.31}
BITS = {"gamma_w": 2.5, "gamma_a": 2.0, "gamma_kv": 1.0}
HARD = {"C_w": 0.5, "C_a": 0.4, "C_kv": 0.6}
LAWS: dict[str, dict[str, float]] = {
    "chinchilla": SURFACE,
    "chinchilla_tied": {"E": 1.7, "A": 400.0, "B": 1200.0, "alpha": 0.33},
    "chinchilla_no_floor": {"A": 8.0, "B": 2600.0, "alpha": 0.06, "beta": 0.37},
    "chinchilla_interaction": {**SURFACE, "G": 1e6, "gamma": 0.2, "delta": 0.5},
    "compute": {"L_inf": 1.7, "a": 30.0, "alpha": 0.08},
    "frontier": {"L_inf": 1.7, "a": 30.0, "alpha": 0.08},
    "frontier_no_floor": {"a": 30.0, "alpha": 0.05},
    "kaplan": {"N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": 0.076, "alpha_D": 0.095},
    "kaplan_floor": {"E": 1.2, "N_c": 8.8e12, "D_c": 5.4e12, "alpha_N": 0.15, "alpha_D": 0.2},
    "farseer": {"s": -0.021, "q": 0.17, "S": 1.1, "B": 88.0, "b": -0.1, "Q": -5.9, "A": -0.09, "a": 0.12, "F": -0.1},
    "overtraining": {"E": 1.8, "a": 212.0, "b": 367.0, "eta": 0.136},
    "repeats": {**SURFACE, "R_D": 15.0, "R_N": 5.0},
    "broken": {"a": 1.5, "b": 300.0, "c0": 0.12, "c1": -0.06, "d": 3e19, "f": 1.0},
    "learning_rate": {"c": 1.79, "p": -0.713, "q": 0.307},
    "learning_rate_compute": {"c": 0.3118, "p": -0.125},
    "batch": {"c": 0.58, "r": 0.571},
    "batch_compute": {"c": 0.292, "r": 0.327},
    "critical_batch_of_loss": {"B_star": 2e8, "r": -4.76},
    "critical_batch": {"S_min": 5e3, "B_crit": 1e6},
    "precision": {**SURFACE, **BITS},
    "precision_after": {**SURFACE, **BITS, "G": 0.05, "g_D": 0.5, "g_N": 0.5, "gamma_post": 0.8, **HARD},
    "moe": {**SURFACE, "delta": -0.3, "gamma": -0.01, "omega": 0.05, "zeta": 0.002},
    "downstream": {"eps": 0.857, "k": 2.21, "gamma": 0.715},
}  # fmt: skip
