"""Four gloo ranks step, measure and compare sharded weights as one process does, whatever cuts them."""

from __future__ import annotations

from pathlib import Path

from tests.forked import run_ranks

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.fsdp import fully_shard
from tests.train.optim.test_optim_rules import MODEL, SPECS, weights
from kernels.core.dtensor import local
from train.optim import make_optimizer
from train.optim.sharded import local_part
from train.runtime.gloo import use_one_worker
from train.spec.config import OptimConfig
torch.set_num_threads(1)
use_one_worker()
dist.init_process_group("gloo")

class Bare(nn.Module):
    # As the trainer's weights are: named parameters of one module.
    def __init__(self, named):
        super().__init__()
        for name, weight in named.items():
            self.register_parameter(name.replace(".", "/"), weight)

def plain(mesh, placements):
    return {n: nn.Parameter(distribute_tensor(w.detach(), mesh, placements)) for n, w in weights().items()}

def tensor_parallel(mesh):
    cut = {n: Replicate() if spec.tp_dim is None else Shard(spec.tp_dim) for n, spec in SPECS.items()}
    return {n: nn.Parameter(distribute_tensor(w.detach(), mesh, [cut[n]])) for n, w in weights().items()}

def fsdp(named, mesh):
    module = Bare(named)
    fully_shard(module, mesh=mesh)
    return {n.replace("/", "."): w for n, w in module.named_parameters()}

flat = init_device_mesh("cpu", (4,), mesh_dim_names=("dp_shard",))
grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
layouts = {
    "fsdp": lambda: fsdp(weights(), flat),
    "hsdp": lambda: fsdp(weights(), hybrid),
    "tp": lambda: tensor_parallel(grid["tp"]),
    "fsdp_tp": lambda: fsdp(tensor_parallel(grid["tp"]), grid["dp_shard"]),
    "shards": lambda: plain(flat, [Shard(0)]),
}
for algorithm in ("adamw", "muon", "sgd"):
    optim = OptimConfig(name=algorithm, lr=0.01)
    reference = weights()
    alone = make_optimizer(reference.items(), SPECS, MODEL, optim)
    for step in range(4):
        for weight, drawn in zip(reference.values(), weights(1000 + step).values(), strict=True):
            weight.grad = drawn.detach()
        if step != 2:
            alone.step()
    for layout, make in layouts.items():
        named = make()
        optimizer = make_optimizer(named.items(), SPECS, MODEL, optim)
        for step in range(4):
            for name, weight in named.items():
                full = weights(1000 + step)[name].detach()
                if step == 2:
                    full = full * float("nan")
                if isinstance(weight, DTensor):
                    part = local_part(full, weight).contiguous()
                    weight.grad = DTensor.from_local(part, weight.device_mesh, weight.placements, run_check=False,
                                                     shape=weight.shape, stride=weight.stride())
                else:
                    weight.grad = full
            optimizer.update(torch.tensor(float(step == 2)))
        worst = max(
            ((weight.full_tensor() if isinstance(weight, DTensor) else weight) - reference[name]).norm().item()
            / reference[name].norm().item()
            for name, weight in named.items()
        )
        if dist.get_rank() == 0:
            print(algorithm, layout, f"{worst:.1e}", "bitwise" if worst == 0 else "")
        assert worst < 1e-5, (algorithm, layout, worst)

def gathered(thing):
    things = [None] * 4
    dist.all_gather_object(things, thing)
    return things

from train.health import layer_statistics as statistics
from train.health import replica_hashes as desync
wanted = statistics.together([statistics.measure(weights().items())])
for layout, make in layouts.items():
    named = make()
    found = statistics.together(gathered(statistics.measure(named.items())))
    for name, measured in found.items():
        assert abs(measured.rms / wanted[name].rms - 1) < 1e-6, (layout, name)
        assert measured.largest == wanted[name].largest, (layout, name)
    before = statistics.copies(named.items())
    for weight in named.values():
        local(weight.detach()).mul_(1.5)
    changes = statistics.together(gathered(statistics.updates(named.items(), before)))
    assert abs(changes["norm.weight"].rms / (wanted["norm.weight"].rms / 2) - 1) < 1e-6, layout
    assert desync.compare(gathered(desync.fingerprints(named.items()))) == [], layout
    part = local(named["norm.weight" if layout in ("tp", "fsdp_tp") else "output.weight"].detach())
    if dist.get_rank() == 1 and part.numel():
        part.view(torch.int32).view(-1)[0] ^= 1
    wrong = desync.compare(gathered(desync.fingerprints(named.items())))
    ranks = {"fsdp": [], "shards": [], "hsdp": [(1, 3)], "tp": [(1,)], "fsdp_tp": [(0, 1)]}[layout]
    assert [one.ranks for one in wrong] == ranks, (layout, wrong)
    if dist.get_rank() == 0:
        print("measured", layout, *wrong)
dist.barrier()
dist.destroy_process_group()
"""


def test_every_layout_steps_as_one_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    said = run_ranks(4, str(script))
    print(said)
    assert len(said.splitlines()) == 15 + 5
