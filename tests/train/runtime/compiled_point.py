"""A compiled run that says what its compiler did: `python -m tests.train.runtime.compiled_point --config …`.

Everything of torch's compiler but its last step runs, which for a CPU is half a minute of g++: operators of the graph
are called one by one instead of being written as loops.
"""

from __future__ import annotations

import json
import sys

from train.run import main


def did() -> dict[str, int]:
    """Return how many graphs were compiled anew, and how many were found, by the names that torch counts them under."""
    from torch._dynamo.utils import counters

    found = {**counters["aot_autograd"], **counters["inductor"]}
    return {name: count for name, count in found.items() if "_cache_" in name}


if __name__ == "__main__":
    import torch._inductor.config as inductor

    inductor.fallback_by_default = True
    code = main(sys.argv[1:])
    print(json.dumps(did()))
    sys.exit(code)
