"""`study bench strategies` whose strategies are measured already: `python -m tests.study.bench.measured_at_once WORDS`.

MEASURED has their row as JSON. Failures are caused as ever, in what STUDY_TRAINER starts.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

from study.__main__ import main
from study.bench import strategies
from study.bench.strategies_runs import Row


def measured(asked: Any, strategy: Any, root: Any, out: Any, say: Any) -> Row:
    known = Row(**json.loads(os.environ["MEASURED"]))
    return replace(known, strategy=strategy.name, losses=tuple(known.losses), traces=())


if __name__ == "__main__":
    with mock.patch.object(strategies, "measure", measured):
        sys.exit(main(["bench", "strategies", *sys.argv[1:]]))
