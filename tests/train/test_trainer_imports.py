"""What a start costs: a run on one CPU loads neither compilers nor the classes of sharded tensors before it saves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.train.runs import REPOSITORY, write_config
from train.spec.config import RunConfig

WATCHED = """
import sys
from train.run import main
from train.saving import Saving

DEAR = {"triton", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "pandas", "scipy", "mlflow"}
save, found = Saving.save, []
def watched(*arguments, **options):
    found.append(sorted(DEAR & set(sys.modules)))
    return save(*arguments, **options)
Saving.save = watched
code = main(sys.argv[1:])
print(code, found)
"""


def test_a_run_on_one_cpu_loads_no_compiler_and_no_sharded_tensors(tiny: RunConfig, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run", tiny)
    arguments = [sys.executable, "-c", WATCHED, "--config", str(config), "--until", "256"]
    ended = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout.splitlines()[-1:] == ["0 [[]]"], ended.stderr
