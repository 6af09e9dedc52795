"""Where Hydra finds this project's sweeper and launcher: it accepts plugin classes only of this namespace."""

from study import plugins


class StudySweeper(plugins.StudySweeper):
    """See study.plugins."""


class StudyLauncher(plugins.StudyLauncher):
    """See study.plugins."""


plugins.register()
