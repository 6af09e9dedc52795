"""Planted faults: what is replaced is there, and a fault dies of the test that fails, or survives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._swap import ROOT
from benchmarks.planted_faults import Fault, faults, tried


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.what)
def test_a_fault_is_python_that_differs_and_its_tests_are_there(fault: Fault) -> None:
    source = (ROOT / fault.file).read_text("utf-8")
    compile(fault.planted(source), fault.file, "exec")
    assert [test for test in fault.tests if not (ROOT / test).exists()] == []


def test_what_a_fault_replaces_stands_once() -> None:
    fault = Fault("doubles", "pure.py", "2 *", "3 *", ())
    assert fault.planted("y = 2 * x\n") == "y = 3 * x\n"
    for source in ("y = 4 * x\n", "y = 2 * x\nz = 2 * x\n"):
        with pytest.raises(ValueError, match="not one: doubles"):
            fault.planted(source)


def test_a_fault_dies_of_the_test_that_fails_and_survives_where_none_does(tmp_path: Path) -> None:
    source = "def double(x):\n    return 2 * x\n"
    (tmp_path / "pure.py").write_text(source)
    (tmp_path / "test_pure.py").write_text(
        "from pure import double\n\n\ndef test_zero():\n    assert double(0) == 0\n\n\n"
        "def test_three():\n    assert double(3) == 6\n"
    )
    fault = Fault("triples", "pure.py", "2 *", "3 *", ("test_pure.py",))
    assert tried(fault, tmp_path) == "test_pure.py::test_three"
    assert (tmp_path / "pure.py").read_text() == source
    assert tried(replace(fault, tests=("test_pure.py::test_zero",)), tmp_path) is None
    with pytest.raises(RuntimeError, match="test_none"):
        tried(replace(fault, tests=("test_none.py",)), tmp_path)
