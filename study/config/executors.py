"""Which executors there are: their names in a config and in a ledger, and the module of each."""

EXECUTORS: dict[str, str] = {
    "local": "study.executors.local",
    "slurm": "study.executors.slurm.executor",
}
"""Each module has `executor(runner)`, which returns a :class:`study.executors.base.Executor`; loaded when asked for."""
