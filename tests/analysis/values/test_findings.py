"""The table of findings holds what is found, and nothing else."""

import ast
from pathlib import Path

import pytest

import analysis
from analysis.values import findings
from analysis.values.findings import FINDINGS, LEVELS, finding

assert analysis.__file__ is not None
SOURCES = [p for p in sorted(Path(analysis.__file__).parent.rglob("*.py")) if p != Path(findings.__file__)]


def test_every_finding_of_the_table_is_found_somewhere() -> None:
    words = {
        node.value
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert len(SOURCES) > 50
    assert set(FINDINGS) - words == set()


def test_a_finding_has_the_level_of_its_code_unless_another_is_given() -> None:
    assert {one.level for one in FINDINGS.values()} == set(LEVELS)
    assert finding("copies", "text", "advice").level == "warning"
    assert finding("seed_noise", "text", "advice").level == "note"
    assert finding("copies", "text", "advice", "note").level == "note"
    with pytest.raises(KeyError, match="unheard_of"):
        finding("unheard_of", "text", "advice", "note")


def test_advice_is_a_sentence_that_leaves_options_as_they_are_typed() -> None:
    assert finding("copies", "text", "add runs; or seeds.").to_do == "Add runs; or seeds."
    assert finding("copies", "text", "window= sets it: quote it").to_do == "window= sets it: quote it."
    assert finding("copies", "text", "").to_do == ""
    assert (
        str(finding("copies", "text", "train=RUN|RUN fits some")) == "warning  copies: text. train=RUN|RUN fits some."
    )
