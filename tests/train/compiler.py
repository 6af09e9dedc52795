"""For tests that compile for the CPU, which torch does with the machine's C++ compiler."""

from __future__ import annotations

import os
import shutil

import pytest

COMPILER = os.environ.get("CXX", "g++")
compiles = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C++ compiler here: {COMPILER} (g++, or CXX)")
