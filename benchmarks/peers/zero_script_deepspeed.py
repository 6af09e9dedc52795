"""Training with DeepSpeed's ZeRO-3 as a user writes it: torchrun zero_script_deepspeed.py STEPS FOLDER."""

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from benchmarks.peers.zero_script_data import SEQUENCES, batch, model

CONFIG = {
    "train_micro_batch_size_per_gpu": SEQUENCES,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": torch.cuda.is_available()},
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
}


def main(steps: int, folder: Path) -> None:
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    rank, cuda = dist.get_rank(), torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=CONFIG)
    begun = 0
    if folder.exists():
        _, state = engine.load_checkpoint(str(folder))
        begun = state["step"]
    for step in range(begun, steps):
        tokens, targets = batch(step, rank, device)
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if rank == 0:
            norm = float(engine.get_global_grad_norm())
            print(json.dumps({"step": step, "loss": mean.item(), "norm": norm}), flush=True)
    engine.save_checkpoint(str(folder), client_state={"step": steps})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
