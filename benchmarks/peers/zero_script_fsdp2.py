"""Training with torch's FSDP2 as a user writes it: torchrun zero_script_fsdp2.py STEPS FOLDER."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from benchmarks.peers.zero_script_data import batch, model


def main(steps: int, folder: Path) -> None:
    rank, cuda = int(os.environ["RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    net = model().to(device)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()
    for block in net.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    begun = 0
    if folder.exists():
        weights, moments = get_state_dict(net, optimizer)
        state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0}
        load(state, checkpoint_id=folder)
        set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        begun = state["step"]
    for step in range(begun, steps):
        tokens, targets = batch(step, rank, device)
        loss = net(tokens, targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if rank == 0:
            print(json.dumps({"step": step, "loss": mean.item(), "norm": norm.item()}), flush=True)
    weights, moments = get_state_dict(net, optimizer)
    save({"model": weights, "optimizer": moments, "step": steps}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
