"""What a test is told of ranks that ended badly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import of_the_failure, run_ranks

SCHEDULE = "[rank2]:E1130 00:29:52.516000 376 torch/distributed/pipelining/schedules.py:2645]"


def test_an_abort_says_where_each_thread_was(tmp_path: Path) -> None:
    module = tmp_path / "aborts.py"
    module.write_text("import os\n\ndef here():\n    os.abort()\n\nif os.environ['RANK'] == '0':\n    here()\n")
    with pytest.raises(AssertionError, match="rank 0 was ended by SIGABRT") as caught:
        run_ranks(2, str(module))
    assert "Fatal Python error: Aborted" in str(caught.value)
    assert 'aborts.py", line 4 in here' in str(caught.value)


def test_lists_of_schedules_are_left_out() -> None:
    lines = ["free(): invalid pointer\n", f"{SCHEDULE} Step 35: 3I3          2RECV_B3\n", f"{SCHEDULE} \n", "the end\n"]
    assert of_the_failure("".join(lines)) == "free(): invalid pointer\nthe end\n"
