"""`python -m train.run --config runs/<study>/<key>/config.yaml`: train one run to its budget, or to `--until` tokens.

Exit codes: 0 reached, 1 failed, 2 refused (config, data or device), 3 diverged, 75 stopped by a signal after saving
(start it again to go on).
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: a signal to stop counts from here on
    from importlib import import_module

    from train.runtime.signals import StopFlag

    flag = StopFlag()
    flag.install()
    end = import_module("train.runtime.exit").Exit()
    end.code = import_module("train.run").main(flag=flag)
    raise SystemExit(end.code)

import argparse
import faulthandler
import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from train.runtime.console import say, warn
from train.runtime.files import check_writable
from train.runtime.signals import StopFlag
from train.spec.command_line import Parser, whole_number
from train.spec.config import RunConfig
from train.spec.deprecated import complaints
from train.spec.device_choices import Gpu, advice, choose, in_words
from train.spec.frozen_run import begun, load
from train.spec.mesh import axes, check, copies
from train.spec.not_installed import not_installed

if TYPE_CHECKING:
    from train.trainer import Trainer

REACHED, FAILED, REFUSED, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 75


def main(arguments: list[str] | None = None, flag: StopFlag | None = None, started: float | None = None) -> int:
    """Run the command line; return its exit code.

    flag: of one who catches stop signals already. started: when this run was begun, by time.perf_counter [s].
    """
    started = time.perf_counter() if started is None else started
    options = _parser().parse_args(arguments)
    if flag is None:
        flag = StopFlag()
        flag.install()
    # Whoever takes this process to hang asks it where it stands: also within a call that never returns to Python.
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGQUIT, file=sys.__stderr__, all_threads=True)
    try:
        ended = _ended(options.config.parent / "outcome.json")
        if ended is not None:
            return ended
        config = load(options.config)
        gc.disable()  # what is imported and built now stays: to look for garbage in it takes a sixth of the time
        trainer = _prepared(config, options, flag, started)
        gc.freeze()
    except ValueError as error:  # what a user can put right; anything later is a traceback
        print(f"error: {error}", file=sys.stderr)
        return _failed(REFUSED)
    except ModuleNotFoundError as error:
        said = not_installed(error)
        print(f"error: {said}", file=sys.stderr) if said else traceback.print_exc()
        return _failed(REFUSED if said else FAILED)
    except Exception as error:
        _report(error, options.config.parent)
        return _failed()
    finally:
        gc.enable()
    return _train(trainer, options.until, saves=not options.unsaved)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m train.run",
        description="Train one run to its token budget. Checkpoints, metrics.jsonl and outcome.json are written "
        "to the folder of the config. If started again, it resumes from its newest checkpoint.",
        epilog="Exit codes: 0 reached, 1 failed, 2 refused, 3 diverged, 75 stopped by a signal, with a checkpoint.",
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml")
    parser.add_argument("--until", type=whole_number, help="stop at the first step boundary at or past this [tokens]")
    parser.add_argument(
        "--unsaved",
        action="store_true",
        help="save no checkpoints, for measurements: started again, the run begins anew (parallel.strategy=fsdp1 needs "
        "this)",
    )
    parser.add_argument(
        "--device-weights",
        action="store_true",
        help="for measurements: draw the first weights on the device, in seconds instead of minutes for billions; on a "
        "GPU they are other numbers than without this option",
    )
    return parser


def _ended(path: Path) -> int | None:
    """Return the exit code of a run that has ended already, saying so; None if it has not, or left no whole outcome."""
    if not path.exists():
        return None
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
        state, tokens = outcome["state"], outcome["tokens"]
        if state not in ("completed", "diverged") or type(tokens) is not int:
            raise ValueError(f"state is {state!r}, tokens is {tokens!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        warn(f"{path} is incomplete ({error}): the run continues from its newest checkpoint")
        return None
    print(f"already {state} at {tokens:,} tokens: {path}")
    return DIVERGED if state == "diverged" else REACHED


def _prepared(config: RunConfig, options: argparse.Namespace, flag: StopFlag, started: float) -> Trainer:
    """Return the run's trainer, restored from its newest checkpoint."""
    folder, saves = options.config.parent, not options.unsaved
    check_writable(folder, "metrics.jsonl")
    if saves:
        check_writable(folder / "checkpoints")
    elif (folder / "checkpoints").exists():
        raise ValueError(f"--unsaved begins anew, but {folder / 'checkpoints'} is there: leave the option out to go on")
    import torch

    from train.build import device_of, first_values
    from train.runtime import distributed, gpu_share
    from train.runtime.determinism import make_deterministic
    from train.runtime.gpu import gpu_of
    from train.runtime.malloc import keep_freed_memory
    from train.trainer import Trainer

    torch.set_num_threads(config.runtime.threads)
    keep_freed_memory()
    world = distributed.world_of()
    under_way = begun(folder)
    check(config, world.size, saves=saves, begun=under_way)  # before any rank waits for another
    if under_way and world.writes:
        for why in complaints(config, copies(config.parallel, axes(config.parallel, world.size))):
            warn(f"a new run would be refused: {why}. This one began with it and continues unchanged")
    device = device_of(config, world)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        gpu_share.keep_to_it(device)
    distributed.join(world, device, max(config.runtime.start_seconds, config.runtime.timeout_seconds + 60.0))
    if config.runtime.deterministic:
        make_deterministic(device, compiles=device.type == "cuda" or bool(config.compile.blocks))
    elif config.health.probe_steps and device.type == "cuda":
        raise ValueError("health.probe_steps compares bits: on a GPU set runtime.deterministic=true")
    gpu = gpu_of(device)
    fill = first_values(config, on_device=options.device_weights)
    trainer = Trainer(choose(config, gpu, world.size), folder, world, device, flag=flag, started=started, fill=fill)
    if gpu is not None and world.writes:
        _tell(config, gpu, trainer)
    trainer.restore(saves)
    return trainer


def _tell(config: RunConfig, gpu: Gpu, trainer: Trainer) -> None:
    """Say how a run trains on a GPU, and how it would be faster."""
    assert config.batch.tokens is not None
    share = trainer.mesh.most(config.batch.tokens // config.data.sequence_length)
    ranks = trainer.world.size
    say(in_words(trainer.config, gpu, trainer.model.micro, share, ranks))
    better = advice(config, trainer.config, gpu, ranks)
    if better is not None:
        warn(better)


def _train(trainer: Trainer, until: int | None, saves: bool) -> int:
    """Train and return the exit code."""
    from train.checkpoint.save import SaveError
    from train.runtime import distributed
    from train.runtime.pause import further
    from train.trainer import End

    budget = trainer.config.budget.tokens
    assert budget is not None
    try:
        goes_on: int | None = budget if until is None else until
        pauses = 0
        while goes_on is not None:
            end, goes_on, pauses = trainer.fit(goes_on), None, pauses + 1
            if end is End.REACHED and trainer.state.tokens < budget:
                goes_on = further(pauses, trainer.state.tokens, trainer.world, trainer.flag)
    except SaveError as error:
        if not _report_gone(trainer.folder):
            print(f"error: the run's state could not be saved: {error}", file=sys.stderr)
        return _failed()
    except Exception as error:
        _report(error, trainer.folder)
        return _failed()
    finally:
        trainer.close()
    distributed.leave(trainer.world)
    if end is End.INTERRUPTED and trainer.world.writes:
        by = trainer.flag.received.name if trainer.flag.received else "a signal to another rank"
        say(f"stopped by {by} at step {trainer.state.step}, {'checkpoint saved' if saves else 'nothing saved'}")
    return {End.REACHED: REACHED, End.DIVERGED: DIVERGED, End.INTERRUPTED: INTERRUPTED}[end]


def _report(error: Exception, folder: Path) -> None:
    """Print the error being handled: as a traceback, unless it follows from a run's folder that is gone."""
    if not (isinstance(error, OSError) and _report_gone(folder)):
        traceback.print_exc()


def _report_gone(folder: Path) -> bool:
    """Say so where a run's folder is no longer there; return whether that is so."""
    if folder.is_dir():
        return False
    print(
        f"error: {folder} is gone: it was moved or removed while the run used it. Started again where it is now, the "
        "run resumes",
        file=sys.stderr,
    )
    return True


def _failed(code: int = FAILED) -> int:
    """Return the exit code of a failure; where there are other ranks, exit with it at once.

    Threads that talk to them could hold up or abort an orderly exit.
    """
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code
