"""`python -m analysis.compare`: several laws on the same runs, side by side.

In Python, `analysis.compare(runs, forms)` is the function :func:`compare`.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.compare")

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.estimation.losses import LOSSES
from analysis.results import law_comparison, load
from analysis.results.law_comparison import KEYS, main, text
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.law_result import LawFit
    from analysis.results.load import Runs

__all__ = ["KEYS", "compare", "main", "text"]


def _of_fit_law() -> list[str]:
    """Return the arguments that `compare` passes on to `fit_law`."""
    from analysis.inference.fit_law import fit_law

    return calls.names_of(fit_law, "runs", "form", "loss")


@calls.answered(_of_fit_law, loss=calls.one_of(*LOSSES), resamples=calls.resamples)
def compare(
    runs: Runs | Sequence[LawFit], forms: Sequence[str] | str | None = None, *, loss: str = "squared", **given: Any
) -> pd.DataFrame:
    """Return several laws of the same runs as a table by name, the lowest AICc first.

    Parameters
    ----------
    runs : str, Path, DataFrame, StudyFit, or list of LawFit
        The runs, as `fit` takes them, or what `load` or `fit` returned; or fits of the same rows by `fit_law`.
    forms : sequence of str, optional
        Laws by name, paper or formula (`FORMS` has all); by default those of `python -m analysis.compare`.
    loss : str
        Loss function on log residuals, as in `fit`. With "squared" all laws have the same likelihood.
    **given
        Further arguments of `fit_law`: delta, fix, tie, cluster, interval, resamples (0 unless given), seed,
        confidence, starts, workers, kinds, plain.

    Returns
    -------
    DataFrame
        rank, aicc (AIC for small samples: laws rank by it), delta_aicc (behind the best), weight (Akaike's, of AICc),
        aic, bic, k (fitted constants), nobs, objective, error (mean absolute relative error of the largest fifth of
        the runs, predicted from the others), warning (codes of the fit's findings, or why it was not fitted). The
        advice of each code is in `attrs["findings"]`.

    Raises
    ------
    ValueError
        There are no such runs, a law is not known, none can be fitted, or fits are of different rows.

    Examples
    --------
    >>> import analysis as sa
    >>> sa.compare("docs/example-runs.csv", ["chinchilla", "kaplan"])["rank"].to_dict()
    {'chinchilla': 0, 'kaplan': 1}
    """
    if isinstance(runs, (list, tuple)):
        from analysis.inference.selection import compare as of_fits

        if forms is not None or given:
            raise ValueError("compare takes a list of fits alone, or runs with the names of laws: compare(runs, forms)")
        return of_fits(runs)
    names = law_comparison.DEFAULT.split(",") if forms is None else [forms] if isinstance(forms, str) else forms
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"forms={calls.shown(forms)}: names of laws are needed, such as forms=['chinchilla', 'kaplan']"
        )
    return law_comparison.compare(load.tidy(runs), names, loss=loss, **{"resamples": 0, **given})  # type: ignore[arg-type]
