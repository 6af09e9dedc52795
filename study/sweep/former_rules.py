"""Rules for defaults that an earlier version had, kept for studies that were begun with them.

A frozen config holds the value that a rule gave, or the rule's name. A command that is run again derives the value
anew, and by a changed rule it would make other points beside the study's. So a study keeps the rules that it was begun
with, unless the command names one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.records.settings import load_section
from study.storage.layout import StudyFolder


@dataclass(frozen=True)
class FormerRule:
    """A rule that was changed: the key that names it, and the value that stands for the former rule.

    concerns: whether the rule affects a config, by the section that holds the key. words: the rule before and now.
    """

    section: str
    key: str
    former: str | None
    concerns: Callable[[Mapping[str, Any]], bool]
    words: str

    @property
    def name(self) -> str:
        """The key as a command names it."""
        return f"{self.section}.{self.key}"

    @property
    def override(self) -> str:
        """The override that keeps the former rule."""
        return f"{self.name}={'null' if self.former is None else self.former}"

    def began(self, defaults: Mapping[str, Any]) -> bool:
        """Return whether a study with these defaults was begun under the former rule, also if that changes nothing."""
        section = defaults.get(self.section) or {}
        return bool(section) and section.get(self.key, self.former) == self.former

    def says_something(self, configs: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether the rule changes one of these composed configs."""
        return any(self.concerns(config.get(self.section) or {}) for config in configs)


RULES = (
    FormerRule(
        "optim",
        "lr_rule",
        None,
        lambda optim: optim.get("lr") is None,
        "whose rule for optim.lr=null took N with the output head. It keeps this rule, so its points stay the same. "
        "The rule as published has N without the head: a new study uses it, and optim.lr_rule=step_law makes other "
        "points beside those of this one.",
    ),
    FormerRule(
        "model",
        "init_std_at",
        "width",
        lambda model: model.get("mup_base_width") is not None and model.get("init_std") is not None,
        "that took model.init_std for the std at every width. It keeps this rule, so its points stay the same. "
        "Under muP it is that of the base width: a new study uses it so, and model.init_std_at=base makes other points "
        "beside those of this one.",
    ),
)


def with_values(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return a composed config in which these keys have some value, as those that a search draws have in its trials."""
    found = dict(config)
    for key in keys:
        section, _, name = key.partition(".")
        found[section] = {**(found.get(section) or {}), name: True}
    return found


def carried_on(plain: Mapping[str, Any], lines: Sequence[str]) -> tuple[FormerRule, ...]:
    """Return the former rules that the study of a composed config keeps and that the command does not name itself.

    lines: the overrides of the command. All its configs take the rules, so that the study remembers them even where
    they do not affect the first config.
    """
    named = {line.lstrip("+").partition("=")[0] for line in lines}
    asked = [rule for rule in RULES if rule.name not in named]
    folder = _folder(plain)
    if not asked or folder is None or not folder.points.exists():
        return ()
    defaults = load_section(folder, "run_defaults")
    return tuple(rule for rule in asked if rule.began(defaults))


def _folder(plain: Mapping[str, Any]) -> StudyFolder | None:
    """Return the study's folder; None where what is not checked yet names none."""
    paths, study = plain.get("paths"), plain.get("study")
    runs, name = (part.get(key) if isinstance(part, dict) else None for part, key in ((paths, "runs"), (study, "name")))
    return StudyFolder(Path(runs).expanduser().absolute() / str(name)) if isinstance(runs, str) and name else None


def in_words(study: str, rule: FormerRule) -> str:
    """Return what a person is told of it."""
    return f"Study {study} was begun by a version {rule.words}"
