"""Where compiled code is kept, and that a second process compiles nothing anew."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.runs import finish, started, write_config
from train.runtime.compile_cache import INDUCTOR, OURS, TRITON, code_of_operators, folders, processor, use_cache
from train.spec.config import CompileConfig, RunConfig

ON = CompileConfig(blocks=True)


def test_compiled_blocks_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    place = tmp_path / OURS / processor()
    found = folders(ON, {"XDG_CACHE_HOME": str(tmp_path)})
    assert found == {INDUCTOR: str(place / "inductor"), TRITON: str(place / "triton")}
    assert place.stat().st_mode & 0o077 == 0
    assert not list(place.iterdir())
    assert folders(ON, {"XDG_CACHE_HOME": str(tmp_path), TRITON: "elsewhere"})[TRITON] == "elsewhere"


def test_what_is_not_compiled_or_has_a_folder_is_left_alone(tmp_path: Path) -> None:
    assert folders(CompileConfig(), {"XDG_CACHE_HOME": str(tmp_path)}) == {}
    assert folders(ON, {"XDG_CACHE_HOME": str(tmp_path), INDUCTOR: "elsewhere"}) == {}
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_kept_torch_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert folders(ON, {"XDG_CACHE_HOME": str(tmp_path / "file")}) == {}
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])  # as in a container, of a number without a name
    assert folders(ON, {}) == {}


def test_the_configs_folder_is_told_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (INDUCTOR, TRITON):
        monkeypatch.setenv(name, "elsewhere")
    use_cache(CompileConfig())
    assert os.environ[TRITON] == "elsewhere"
    use_cache(CompileConfig(cache=str(tmp_path / "shared")))
    assert os.environ[INDUCTOR] == str(tmp_path / "shared" / "inductor")
    assert (tmp_path / "shared").is_dir()


def test_processors_with_other_instructions_share_nothing(tmp_path: Path) -> None:
    names = []
    for number, flags in enumerate(("fpu avx2", "fpu avx2 avx512f", "fpu avx2")):
        info = tmp_path / str(number)
        info.write_text(f"processor\t: 0\nflags\t\t: {flags}\ncpu MHz\t: {number}\n")
        names.append(processor(info))
    assert names[0] == names[2] != names[1]


def test_other_code_of_operators_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kernels

    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "__init__.py"))
    keys = []
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        (tmp_path / "operators.py").write_text(text)
        keys.append(code_of_operators.__wrapped__())
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.slow
def test_a_second_process_compiles_nothing_anew(tiny: RunConfig, tmp_path: Path) -> None:
    did = [_did(tmp_path / name, tiny, tmp_path / "cache") for name in ("first", "second")]
    graphs = did[0]["autograd_cache_saved"]
    assert graphs == did[0]["autograd_cache_miss"] > 0  # none of them is one that torch does not keep
    assert did[1] == {"autograd_cache_hit": graphs, "fxgraph_cache_hit": did[0]["fxgraph_cache_miss"]}


def _did(folder: Path, tiny: RunConfig, cache: Path) -> dict[str, Any]:
    """Return what the compiler did for one step of a small run."""
    config = replace(tiny, model=replace(tiny.model, layers=1), compile=ON)
    process = started(
        "tests.train.runtime.compiled_point",
        *("--config", str(write_config(folder, config)), "--until", "128"),
        env={"XDG_CACHE_HOME": str(cache), INDUCTOR: ""},
    )
    (said,) = (line for line in finish(process).splitlines() if line.startswith("{"))
    return dict(json.loads(said))
