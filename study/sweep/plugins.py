"""The sweeper and the launcher that Hydra drives under -m. `hydra_plugins` re-exports them, because Hydra looks there.

The sweeper turns the lists after -m, multiplied with the search's design, into one override list a point. The launcher
composes, freezes and submits them, and returns: jobs live on without this process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from study.config.compose import Composer, HydraSource, is_simple
from study.config.errors import check_listed
from study.config.schema import defaults
from study.planning.designs import expand
from study.sweep import former_rules
from study.sweep.submit import submit
from sweeps.schedulers import SCHEDULERS

NAMESPACE = "hydra_plugins.scaling_study"
DECIDE = ("search", "study", "search.name")
"""Keys and groups that say whether a command is a search."""
MOST = 100_000
"""Most points of one command: more are a mistake in the lists, and would take hours to make."""


def register() -> None:
    """Give Hydra the schema and the two plugins' configs; called once, when Hydra finds the plugins."""
    store = ConfigStore.instance()
    store.store(name="schema", node=defaults(), provider="scaling-study")
    store.store(
        group="hydra/sweeper",
        name="study",
        node={"_target_": f"{NAMESPACE}.StudySweeper", "params": None},
        provider="scaling-study",
    )
    store.store(
        group="hydra/launcher", name="study", node={"_target_": f"{NAMESPACE}.StudyLauncher"}, provider="scaling-study"
    )


def check_launcher(config: DictConfig) -> None:
    """Raise ValueError where Hydra was told to use another launcher than ours."""
    if not _is_ours(config, "launcher"):
        raise ValueError(
            f"hydra/launcher={_choice(config, 'launcher')} cannot be used here, leave it out: "
            "cluster=local runs points on this machine, cluster=slurm as jobs"
        )


def check_sweeper(config: DictConfig) -> None:
    """Raise ValueError for a sweeper that cannot drive our launcher, which returns before there are results.

    Hydra's own, `basic`, multiplies lists and asks for no results; it knows nothing of the designs of `search`.
    """
    if _is_ours(config, "sweeper"):
        return
    chosen, search = _choice(config, "sweeper"), (config.get("search") or {}).get("name")
    if chosen != "basic":
        words = "points run as jobs that outlive this command; search=random, asha, hyperband, pbt choose by results"
    elif search != "grid":
        words = f"it does not know the design search={search}; lists after -m multiply without it"
    elif config.get("dry_run"):
        words = "it writes multirun.yaml, and dry_run=true writes nothing; lists after -m multiply without it"
    else:
        return
    raise ValueError(f"hydra/sweeper={chosen} cannot be used here, leave it out: {words}")


def _is_ours(config: DictConfig, group: str) -> bool:
    return str(config.hydra[group].get("_target_", "")).startswith(f"{NAMESPACE}.")


def _choice(config: DictConfig, group: str) -> str:
    return str(config.hydra.runtime.choices.get(f"hydra/{group}"))


class StudySweeper(Sweeper):
    """All combinations of the lists on the command line, times the design of `search`."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self._params = dict(params or {})
        self._launcher: Launcher | None = None
        self._composer: Composer | None = None
        self._loader: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra hands to every sweeper."""
        check_launcher(config)
        self._loader = hydra_context.config_loader
        source = HydraSource(self._loader, config)
        self._composer = Composer(source, source.begun())
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        assert isinstance(self._launcher, StudyLauncher)
        self._launcher.composer = self._composer  # what was composed for one is not composed again for the other

    def sweep(self, arguments: list[str]) -> Any:
        """Make the override lists of all points and launch them as one batch."""
        assert self._launcher is not None and self._composer is not None, "Hydra calls setup before sweep"
        lines = [f"{key}={value}" for key, value in self._params.items()] + arguments
        parsed = OverridesParser.create(config_loader=self._loader).parse_overrides(lines)
        search = self._search(parsed)
        if search is not None:
            return search
        jobs = combinations(parsed)
        kept = self._rules_of_the_study(jobs)
        jobs = expand([(*job, *kept) for job in jobs], self._composer)
        return [self._launcher.launch(jobs, initial_job_idx=0)]

    def _search(self, parsed: Sequence[Override]) -> list[list[JobReturn]] | None:
        """Start the search that the command asks for, if it is one whose points follow from results."""
        assert self._composer is not None
        for override in parsed:
            if override.key_or_group in DECIDE and override.is_sweep_override():
                raise ValueError(
                    f"{_line(override)}: all points of a command are of one study and one search or design; run the "
                    "command once for each, with a study.name of its own"
                )
        # What is the same in every point is included: it is composed already.
        named = [_line(o) for o in parsed if o.key_or_group in DECIDE or _is_same_everywhere(o)]
        if (self._composer.plain(named).get("search") or {}).get("name") not in SCHEDULERS:
            return None
        # With what only searches need: it takes a while to import.
        from study.search.from_overrides import domains
        from study.workers.pool import start

        space, conditions, fixed = domains(parsed)
        always = [k for k, d in space.items() if k not in conditions and None not in getattr(d, "values", ())]
        fixed += self._rules_of_the_study([fixed], (always, tuple(space)))
        code = start(self._composer.compose(fixed), space, conditions)
        if code != 0:
            raise SystemExit(code)
        return [[]]

    def _rules_of_the_study(
        self, jobs: Sequence[Sequence[str]], drawn: Sequence[Sequence[str]] = ((),)
    ) -> tuple[str, ...]:
        """Return the overrides that keep a study of an earlier version as it began, and print what they keep.

        jobs: the override list of each point; drawn: keys that have a value in all trials of a search, and in some. A
        rule is printed only where it changes a point.
        """
        assert self._composer is not None
        plain = self._composer.plain(jobs[0])
        kept = former_rules.carried_on(plain, jobs[0])
        composed = [self._composer.plain(job) for job in jobs] if kept else []
        configs = [former_rules.with_values(config, keys) for config in composed for keys in drawn]
        for rule in kept:
            if rule.says_something(configs):
                print(former_rules.in_words(str(plain["study"]["name"]), rule))
        return tuple(rule.override for rule in kept)


class StudyLauncher(Launcher):
    """Freezes and submits points; a job that was submitted counts as completed for Hydra, its value is None."""

    def __init__(self) -> None:
        self.composer: Composer | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra hands to every launcher; the task function is not called here, but in the jobs."""
        del task_function
        check_sweeper(config)
        self.composer = Composer(HydraSource(hydra_context.config_loader, config))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit one point per override list. Raises SystemExit with the study's exit code where that is not 0."""
        assert self.composer is not None, "Hydra calls setup before launch"
        del initial_job_idx
        code = submit([self.composer.compose(overrides) for overrides in job_overrides])
        if code != 0:
            raise SystemExit(code)
        return [JobReturn(overrides=list(o), status=JobStatus.COMPLETED) for o in job_overrides]


def combinations(overrides: Sequence[Override]) -> list[tuple[str, ...]]:
    """Return the override list of each combination of the lists; of a key given twice, the last counts.

    ValueError for a continuous range, whose values a grid cannot list, for a list of no values, and for more than MOST.
    """
    lists: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            lists[key] = [f"{key}={override.get_value_element_as_str()}" if "=" in _line(override) else key]
        elif override.is_discrete_sweep():
            check_listed(override)
            values = itertools.islice(override.sweep_string_iterator(), MOST + 1)
            lists[key] = [f"{key}={value}" for value in values]
            if not lists[key]:
                raise ValueError(
                    f"{_line(override)} lists no value: in range(start,stop) the stop must be the larger one"
                )
        else:
            raise ValueError(
                f"{_line(override)} is a continuous range, whose values a grid cannot list: "
                f"give {key}=a,b,c or {key}=range(start,stop,step), or let a search draw from it (search=random)"
            )
    count = math.prod(len(values) for values in lists.values())
    if count > MOST:
        longest = max(lists, key=lambda key: len(lists[key]))
        values_of = len(lists[longest])
        said = f"more than {MOST:,}" if values_of > MOST else f"{values_of:,}"
        raise ValueError(
            f"-m lists more than {MOST:,} points ({longest} alone has {said} values): "
            "shorten the lists, or let a search draw from them (search=random search.trials=N)"
        )
    return list(dict.fromkeys(itertools.product(*lists.values())))


def _is_same_everywhere(override: Override) -> bool:
    """Return whether an override chooses one option of a group, or sets what is there to one value."""
    if override.type is not OverrideType.CHANGE or override.is_sweep_override():
        return False
    return "." not in override.key_or_group or is_simple(override)


def _line(override: Override) -> str:
    return override.input_line or ""
