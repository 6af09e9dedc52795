"""Where Hydra finds this project's sweeper and launcher: it accepts plugin classes only of this namespace."""

from study.sweep import plugins


class StudySweeper(plugins.StudySweeper):
    """See study.sweep.plugins."""


class StudyLauncher(plugins.StudyLauncher):
    """See study.sweep.plugins."""


plugins.register()
