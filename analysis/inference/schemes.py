"""What a bootstrap draws, by the name that `cluster=` takes. Names and texts alone, for help texts as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Scheme:
    """One way to resample: its description, in which {} is how many units there are; a unit; whether it is a group."""

    text: str
    unit: str = "row"
    groups: bool = False


SCHEMES: Mapping[str, Scheme] = {
    "sizes": Scheme("percentile bootstrap over the {}", "model size", groups=True),
    "runs": Scheme("percentile bootstrap over the {}", "run", groups=True),
    "rows": Scheme("percentile bootstrap over the {}"),
    "seeds": Scheme("bootstrap of the differences between seeds of one setting"),
    "residuals": Scheme("residual bootstrap of {}, residuals scaled up to the variance of the errors"),
}
GROUPS = tuple(name for name, scheme in SCHEMES.items() if scheme.groups)
