"""Compiled code that later processes find: by default of all runs of a user, wherever their jobs run.

Torch keys what it keeps by the graph, its inputs, the device, its own version and settings. This adds what it leaves
out: which instructions this processor has (code for CPUs is compiled for all of them), and what the code of our own
operators is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import kernels
from train.spec.config import CompileConfig

INDUCTOR, TRITON, TAG = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_COMPILE_CACHE_KEY_TAG"
OURS = Path("scaling-study", "compiled")


def use_cache(config: CompileConfig) -> None:
    """Keep compiled graphs and kernels where the config says, for this process and later ones.

    Call before the first compilation. Several jobs may use one folder at a time: entries are keyed by what they were
    compiled from and appear by renaming.
    """
    os.environ.update(folders(config, os.environ))
    if not config.blocks:
        return
    import torch._functorch.config as functorch
    import torch.compiler.config as compiler

    # Our operators' gradients are autograd functions, which the compiler sees through: the key has their code.
    functorch.autograd_cache_allow_custom_autograd_functions = True
    compiler.cache_key_tag = os.environ.get(TAG) or code_of_operators()


def folders(config: CompileConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which torch and Triton find their folders; none where they keep to what they have.

    Those of `compile.cache`; without it, for compiled blocks, folders in the user's cache, unless the environment names
    one or nothing can be kept and locked there.
    """
    if config.cache is not None:
        path = Path(config.cache).expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
        return {INDUCTOR: str(path / "inductor"), TRITON: str(path / "triton")}
    if not config.blocks or environment.get(INDUCTOR):
        return {}
    try:
        home = environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:  # neither HOME nor this user's entry says where
        return {}
    path = Path(home, OURS, processor()).absolute()
    if not _is_usable(path):
        return {}
    return {INDUCTOR: str(path / "inductor"), TRITON: environment.get(TRITON) or str(path / "triton")}


@cache
def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return a name for processors that run the same instructions."""
    try:
        lines = info.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    said = next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.node())
    return f"{platform.machine()}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


@cache
def code_of_operators() -> str:
    """Return a hash of the package that registers our operators with torch, whose graphs only name them."""
    root = Path(kernels.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _is_usable(folder: Path) -> bool:
    """Whether files can be made and locked in a folder, which is made for its user alone where it is missing."""
    probe = folder / f".probe-{platform.node()}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with probe.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        probe.unlink()
    except OSError:
        return False
    return True
