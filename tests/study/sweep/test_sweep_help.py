from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from study.config.compose import conf_folder
from study.config.errors import unknown_key, valid_keys
from study.config.schema import StudyConfig, defaults, sections
from study.sweep.__main__ import main as sweep
from study.sweep.help import about, options, text
from study.sweep.show_config import document
from train.spec.from_mapping import read


def test_the_defaults_are_valid() -> None:
    assert read(StudyConfig, defaults()) == StudyConfig()


def test_every_key_has_a_line_of_help() -> None:
    for part in sections():
        for key in part.keys:
            assert key.help, key.path
            assert "\n" not in key.help


def test_help_names_every_key_group_and_option() -> None:
    shown = text([conf_folder()])
    for key in valid_keys():
        assert f"    {key}=" in shown
    for path in conf_folder().glob("*/*.yaml"):
        assert path.stem in shown
    assert "[FLOPs]" in shown


def test_every_option_says_what_it_is() -> None:
    for group, found in options([conf_folder()]).items():
        for name, description in found.items():
            assert description, f"{group}/{name}.yaml needs a first comment line"


def test_the_default_option_comes_first_and_own_groups_are_listed(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "alpha.yaml").write_text("# Our machine\nexecutor: slurm\n")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "x.yaml").write_text("a: 1\n")
    found = options([conf_folder(), tmp_path])
    assert next(iter(found["model"])) == "tiny"
    assert found["cluster"]["alpha"] == "Our machine"
    assert list(found)[-1] == "extra"


def test_models_are_listed_by_size() -> None:
    names = list(options([conf_folder()])["model"])
    assert names[-3:] == ["70b", "405b", "1t"]
    assert names.index("1b") < names.index("7b") < names.index("30b") < names.index("70b")


def test_the_document_is_the_config_with_comments() -> None:
    config = OmegaConf.create(defaults())
    shown = document(config)
    assert yaml.safe_load(shown) == defaults()
    for line in shown.splitlines():
        assert "#" in line, line


def test_a_part_of_the_document() -> None:
    config = OmegaConf.create(defaults())
    assert yaml.safe_load(document(config, package="model")) == defaults()["model"]
    with pytest.raises(ValueError, match="--package modell"):
        document(config, package="modell")


def test_interpolations_are_shown_or_resolved() -> None:
    plain = defaults()
    plain["study"]["name"] = "w${model.width}"
    config = OmegaConf.create(plain)
    assert yaml.safe_load(document(config))["study"]["name"] == "w${model.width}"
    assert yaml.safe_load(document(config, resolve=True))["study"]["name"] == "w64"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("model.widht", "did you mean model.width?"),
        ("width", "did you mean model.width?"),
        ("optim.learning", "the keys of optim are name, lr, lr_scale"),
        ("modle.width", "did you mean model.width?"),
        ("dryrun", "did you mean dry_run?"),
        ("reference", "reference= is a group that is added to a config: write +reference=OPTION"),
        ("qqqqqqqq", "--help lists every key"),
    ],
)
def test_unknown_keys_name_the_nearest(path: str, message: str) -> None:
    assert message in unknown_key(path)


def test_help_is_a_table_in_a_readers_words() -> None:
    """Every line about a key fits, its words begin in one column, and defaults and types are as one types them."""
    lines = text([conf_folder()]).splitlines()
    keys = lines[next(i for i, line in enumerate(lines) if line.startswith("Keys (")) :]
    assert max(map(len, keys)) <= 118
    assert not [line for line in lines if "typing." in line or "('" in line]
    for name, found in options([conf_folder()]).items():
        shown = [line for line in lines if any(line[13:].startswith(f"{one} ") for one in found)]
        assert len(shown) >= len(found), f"an option of {name} runs into its description"


def test_help_on_one_group_has_its_options_and_keys_alone() -> None:
    shown = about([conf_folder()], ["schedule"])
    assert "  wsd       Warm-up" in shown and "    schedule.name=cosine" in shown
    assert "model." not in shown and "optim" not in shown
    both = about([conf_folder()], ["model", "study"])
    assert "    model.width=64" in both and "isoflop_gpu" in both and "    study.name=" in both
    with pytest.raises(ValueError, match="--help modle: there is no such group or section: did you mean model"):
        about([conf_folder()], ["modle"])


def test_the_command_alone_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep([]) == 2
    said = capsys.readouterr()
    assert not said.out and "Usage: python -m study.sweep" in said.err
    assert said.err.splitlines()[-1].startswith("study.sweep: name what is to be trained")
    assert sweep(["--help", "model"]) == 0 and "model.width=64" in capsys.readouterr().out
    assert sweep(["--help", "nothing"]) == 2


def test_help_breaks_no_word_and_names_no_class() -> None:
    shown = text([conf_folder()])
    assert "SourceConfig" not in shown and "typing" not in shown
    assert "[core-hours]" in shown and not any(line.endswith("-") for line in shown.splitlines())
