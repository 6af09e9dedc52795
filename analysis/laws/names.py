"""Names by which people call the laws: ours, the papers', or the law's own text."""

from __future__ import annotations

import difflib

ALIASES = {
    "surface": "chinchilla", "hoffmann": "chinchilla", "besiroglu": "chinchilla", "approach3": "chinchilla",
    "tied": "chinchilla_tied", "interaction": "chinchilla_interaction", "power_law": "compute", "powerlaw": "compute",
    "lc": "compute", "l(c)": "compute", "kaplan_e": "kaplan_floor", "gadre": "overtraining",
    "over_training": "overtraining", "over-training": "overtraining", "muennighoff": "repeats", "repeat": "repeats",
    "data_constrained": "repeats", "data-constrained": "repeats", "repeated": "repeats", "kumar": "precision",
    "bnsl": "broken", "caballero": "broken", "experts": "moe", "lr": "learning_rate",
    "learning-rate": "learning_rate", "batch_size": "batch", "steplaw": "learning_rate", "step_law": "learning_rate",
    "mccandlish": "critical_batch",
}  # fmt: skip


CURVES = "multi_power"
"""The law of learning curves: it is not in FORMS, since it takes the curves' schedules."""


def resolve(text: str, curves: bool = False, key: str = "form") -> str:
    """Return the name in analysis.laws.registry.FORMS of what a person wrote; ValueError lists the laws.

    With `curves`, the law of learning curves is a law too. `key` is the argument that errors name.

    >>> resolve("Muennighoff"), resolve("E + A/N^alpha + B/D^beta")
    ('repeats', 'chinchilla')
    """
    from analysis.laws.registry import FORMS, GONE

    plain = text.strip().lower()
    squeezed = plain.replace(" ", "")
    for name, form in FORMS.items():
        if plain == name or squeezed == form.text.lower().replace(" ", ""):
            return name
    if plain in ALIASES and ALIASES[plain] in FORMS:
        return ALIASES[plain]
    if plain in ("multi_power", "multipower", "mpl", "multi-power"):
        if curves:
            return CURVES
        raise ValueError(f"form={text} is a law of learning curves: python -m analysis.fit form=multi_power fits it")
    if plain in GONE:
        raise ValueError(f"{key}={text} is not known: {GONE[plain]}")
    near = difflib.get_close_matches(plain, [*FORMS, *ALIASES], n=1, cutoff=0.6)
    hint = f"; did you mean {key}={ALIASES.get(near[0], near[0])}?" if near else "."
    laws = "; ".join(f"{name}: {form.text}" for name, form in FORMS.items())
    raise ValueError(f"{key}={text} is not known{hint} The laws are {laws}")
