"""`python -m study optuna STUDY`."""

from __future__ import annotations

import argparse

from study.commands import add_json, add_study, emit
from study.records.settings import find_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Fill the Optuna storage of a search from its log, as often as wanted, and say how to look at it."""
    from study.search.optuna_export import fill, url

    folder = find_study(options.study, options.runs)
    count = fill(folder)
    if options.json:
        emit("optuna", folder, {"storage": url(folder), "name": folder.name, "trials": count})
        return 0
    print(f"{folder.name}: {count} trials in {folder.optuna}")
    print(f"  optuna-dashboard {url(folder)}")
    print(f'  optuna.load_study(study_name="{folder.name}", storage="{url(folder)}")')
    return 0
