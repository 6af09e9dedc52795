"""The layout of a search's trials where it is to be chosen (parallel=auto): one for all, which the search keeps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from study.config.compose import Composed, check
from study.planning.parallel.auto import Chooser, is_auto, with_ranks
from study.records.points import resolve_run
from study.search.settings import Settings
from train.spec.later import filled

SIZES = ("model", "data", "batch", "precision", "parallel", "memory", "compile")
"""Sections whose keys make trials for which one layout may not do."""


def lay_out(composed: Composed, space: Collection[str], begun: Settings | None) -> tuple[Composed, str]:
    """Return a search's config with the layout of its trials, and why it is that, in a line; "" where it is given.

    space: the keys that differ between trials. begun: the search, if the study has it. ValueError where one layout may
    not do for all, or none fits.
    """
    run = resolve_run(composed.config, composed.overrides)
    if not is_auto(run):
        return composed, ""
    sized = [key for key in space if key.partition(".")[0] in SIZES or key == "optim.name"]
    if sized:
        raise ValueError(
            f"parallel=auto chooses one layout for all trials of a search, but {sized[0]} differs between them: give "
            "the layout by its keys, as python -m study plan parallel finds it for the largest trial"
        )
    config = replace(composed.config, cluster=with_ranks(composed.config.cluster))
    if begun is not None:
        said, chosen = "The trials keep the layout of before.", check(filled(begun.base)).run()
    else:
        choice = Chooser().choose(run, config, composed.overrides)
        said, chosen = f"Layout of all trials: {choice.why}", choice.run
    runtime = replace(config.runtime, device=chosen.runtime.device)
    config = replace(config, parallel=chosen.parallel, memory=chosen.memory, compile=chosen.compile, runtime=runtime)
    return replace(composed, config=config), said
