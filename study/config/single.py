"""One config from the words of a command line, as python -m study.sweep composes a single point."""

from __future__ import annotations

from collections.abc import Sequence

from study.config.compose import check, conf_folder
from study.config.errors import check_nothing_removed, from_hydra
from study.config.schema import StudyConfig


def composed(words: Sequence[str]) -> StudyConfig:
    """Return the checked config of overrides (KEY=VALUE, GROUP=OPTION); ValueError says what is wrong with a word."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    try:
        parsed = OverridesParser.create().parse_overrides(list(words))
        check_nothing_removed(parsed)
        several = [o.input_line for o in parsed if o.is_sweep_override()]
        if several:
            raise ValueError(f"{several[0]} stands for several values: give one, as this is about one run")
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            plain = OmegaConf.to_container(compose("config", list(words)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(from_hydra(error)) from None
    assert isinstance(plain, dict)
    return check({str(name): value for name, value in plain.items()})
