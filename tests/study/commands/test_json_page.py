"""docs/json.md names every key that plans and measurements print, those of nested objects too."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.bench.comm_report import COLUMNS
from study.bench.pipeline_table import Found
from study.bench.strategies_failures import Failure
from study.planning.parallel.measured import Measured
from train.spec.communication.cluster import Compute

PAGE = (Path(__file__).parents[3] / "docs" / "json.md").read_text("utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
BY_NAME = {"stages", "checkpointing", "phases", "sent", "refused", "exposed", "limits", "most_by_length", "best",
           "full_from", "settings", "files"}  # fmt: skip
"""Fields whose keys are names of things: the page says "by" which."""
PARTS = "parts"
"""Bytes or seconds by component."""
OF_8B = ["model=8b", "data.vocab_size=1024", "data.sequence_length=1024", "precision=bf16", "batch.tokens=65536"]
COMMANDS = [
    ("`plan` memory", ["plan", "memory", *OF_8B, "gpus=8", "parallel=fsdp"]),
    ("`plan` memory", ["plan", "memory", *OF_8B, "gpus=1"]),
    ("`plan` memory with generate", ["plan", "memory", *OF_8B, "gpus=1", "generate=2"]),
    ("`plan` memory with roles", ["plan", "memory", "roles=rlhf", *OF_8B, "gpus=16", "parallel=fsdp"]),
    ("`plan` step", ["plan", "step", *OF_8B, "cluster=h200_x8_400g", "gpus=8", "parallel=fsdp"]),
    ("`plan` parallel", ["plan", "parallel", *OF_8B, "cluster=h200_x8_400g", "gpus=8", "parallel.pp=1", "top=2"]),
    ("`plan` parallel", ["plan", "parallel", *OF_8B, "cluster=h200_x1", "gpus=1", "parallel.pp=1", "top=2"]),
    ("`bench` pipeline", ["bench", "pipeline", "pp=2", "micro_batches=2", "schedules=1f1b"]),
]


def keys(said: Any, of: str = "") -> Iterator[str]:
    """Yield the keys of an object and of all that it holds, but for keys that are names of things."""
    if isinstance(said, dict):
        for key, value in said.items():
            if of not in (*BY_NAME, PARTS):
                yield "exposed_AXIS" if key.startswith("exposed_") and key != "exposed_ms" else key
            yield from keys(value, "" if of in BY_NAME else key)
    elif isinstance(said, list):
        for one in said:
            yield from keys(one, of)


def named(section: str) -> set[str]:
    """Return what a section of the page names as a field."""
    return set(re.findall(r"`(\w+)`", SECTIONS[section]))


def first_cells(section: str) -> set[str]:
    """Return the fields of a section's first table."""
    table = SECTIONS[section].partition("\n### ")[0]
    cells = re.findall(r"^\| (`.*?) \| ", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(("section", "words"), COMMANDS, ids=[" ".join(words[:3]) for _, words in COMMANDS])
def test_each_key_that_is_printed_is_on_the_page(
    section: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) in (0, 2)
    said = json.loads(capsys.readouterr().out)
    assert (said.pop("format"), said.pop("command")) == (1, words[0])
    assert not set(keys(said)) - named(section)
    assert said.keys() | {"error"} == first_cells(section) | {"error"}, "the page has no other fields"


def fields(kind: Any) -> set[str]:
    return {one.name for one in dataclasses.fields(kind)}


def test_keys_of_what_only_a_measurement_prints_are_on_the_page() -> None:
    """Where ranks have to run, the objects are those that the commands print with `asdict`."""
    assert {*COLUMNS, *fields(Compute)} <= named("`bench` comm")
    assert fields(Found) <= named("`bench` pipeline")
    assert fields(Failure) <= named("`bench` strategies")
    assert fields(Measured) <= named("`plan` parallel")
