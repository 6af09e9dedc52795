"""What optimizer, schedule, batch ramp and the watching of a run may say: checks, and values that are derived."""

from __future__ import annotations

from dataclasses import replace

from train.spec import mup, scaling_rules
from train.spec.config import OptimConfig, RunConfig
from train.spec.counts import Params
from train.spec.optimizers import OPTIMIZERS


def optimizer(config: RunConfig, counts: Params, tokens: int) -> OptimConfig:
    """Return the optimizer's section with its learning rate and decays filled; ValueError where it cannot be.

    A learning rate that is given has no rule any more: two ways of saying the same run are one run.
    """
    optim = config.optim
    _check_optimizer(optim)
    lr = optim.lr if optim.lr is not None else _rule(config, counts, tokens)
    if lr <= 0:
        raise ValueError(f"optim.lr={lr} is not allowed: it must be positive")
    head = optim.weight_decay if optim.head_decay is None else optim.head_decay
    return replace(optim, lr=lr * optim.lr_scale, lr_rule=None, lr_scale=1.0, head_decay=head)


def _rule(config: RunConfig, counts: Params, tokens: int) -> float:
    optim = config.optim
    why = None
    if not OPTIMIZERS[optim.name].has_peak_lr_rule:
        why = f"the rule holds for AdamW, not for optim.name={optim.name}"
    elif optim.name == "muon" and optim.muon_scale != "match_rms":
        why = "the rule holds for AdamW and for muon with optim.muon_scale=match_rms"
    elif config.model.mup_base_width is not None:
        why = "muP transfers the learning rate tuned at model.mup_base_width: the rule would scale it again"
    if why is not None:
        raise ValueError(f"optim.lr=null has no rule here ({why}): give optim.lr")
    return scaling_rules.peak_lr_of(counts, tokens, optim.lr_rule)


def _check_optimizer(optim: OptimConfig) -> None:
    for name in ("lr_scale", "embedding_lr_scale", "head_lr_scale", "norm_lr_scale", "eps"):
        _positive(f"optim.{name}", getattr(optim, name))
    for name in ("weight_decay", "head_decay", "embedding_decay", "norm_decay", "z_loss", "grad_clip"):
        value = getattr(optim, name)
        if value is not None and value < 0:
            raise ValueError(f"optim.{name}={value} is not allowed: it is 0 (off) or positive")
    for name in ("beta1", "beta2", "momentum", "label_smoothing"):
        value = getattr(optim, name)
        if not 0 <= value < 1:
            raise ValueError(f"optim.{name}={value} is not allowed: it is at least 0 and below 1")
    _positive("optim.muon_iterations", optim.muon_iterations)
    _positive("optim.nonfinite_limit", optim.nonfinite_limit)


def check_schedule(config: RunConfig) -> None:
    """Raise ValueError where the phases of the schedule do not fit."""
    schedule = config.schedule
    for name in ("warmup_fraction", "decay_fraction", "final_lr_fraction"):
        _share(f"schedule.{name}", getattr(schedule, name))
    if schedule.name == "wsd" and schedule.warmup_fraction + schedule.decay_fraction > 1:
        raise ValueError(
            f"schedule.warmup_fraction={schedule.warmup_fraction:g} and schedule.decay_fraction="
            f"{schedule.decay_fraction:g} add up to more than 1: the phases overlap: lower one of them"
        )


def check_checkpoints(config: RunConfig) -> None:
    """Raise ValueError where a run would keep no checkpoint to go on from."""
    runtime = config.runtime
    _positive("runtime.checkpoint_keep", runtime.checkpoint_keep)
    if runtime.checkpoint_keep_steps < 0:
        raise ValueError(
            f"runtime.checkpoint_keep_steps={runtime.checkpoint_keep_steps} is not allowed: it is 0 (none) or positive"
        )


def check_running(config: RunConfig) -> None:
    """Raise ValueError for evaluation or process settings out of range, which a job would find only later."""
    runtime, evaluation = config.runtime, config.eval
    for name in ("threads", "log_steps", "timeout_seconds", "start_seconds"):
        _positive(f"runtime.{name}", getattr(runtime, name))
    _positive("eval.sequences", evaluation.sequences)
    _positive("eval.count", evaluation.count)
    for name, value in (
        ("runtime.checkpoint_seconds", runtime.checkpoint_seconds),
        ("runtime.prefetch_batches", runtime.prefetch_batches),
        ("runtime.system_seconds", runtime.system_seconds),
        ("eval.by_position", evaluation.by_position),
    ):
        if value is not None and value < 0:
            raise ValueError(f"{name}={value} is not allowed: it is 0 or positive")


def check_ramp(config: RunConfig, batch_tokens: int) -> None:
    """Raise ValueError where the batch cannot grow as asked."""
    first, length = config.batch.ramp_from, config.data.sequence_length
    if first is None:
        return
    _positive("batch.ramp_from", first)
    _share("batch.ramp_fraction", config.batch.ramp_fraction)
    if first % length:
        near = max(1, round(first / length)) * length
        raise ValueError(
            f"batch.ramp_from={first} is not a multiple of data.sequence_length={length}: the nearest is {near}"
        )
    if batch_tokens % first:
        raise ValueError(
            f"batch.tokens={batch_tokens} is not a multiple of batch.ramp_from={first}: the ramp grows in steps of its "
            f"first batch; for example batch.ramp_from={length}"
        )


def check_watching(config: RunConfig) -> None:
    """Raise ValueError where spikes, health or profile ask for what cannot be."""
    spikes, health, profile = config.spikes, config.health, config.profile
    for name in ("window", "persistence", "limit"):
        _positive(f"spikes.{name}", getattr(spikes, name))
    if spikes.threshold < 0:
        raise ValueError(f"spikes.threshold={spikes.threshold} is not allowed: it is 0 (never) or positive")
    if not 2 <= spikes.warmup_steps <= spikes.window:
        raise ValueError(
            f"spikes.warmup_steps={spikes.warmup_steps} is not allowed: 2 to spikes.window={spikes.window}"
        )
    for name in ("statistics_steps", "desync_steps", "probe_steps"):
        value = getattr(health, name)
        if value < 0:
            raise ValueError(f"health.{name}={value} is not allowed: it is 0 (never) or positive [steps]")
    _check_health_fits(config)
    if health.activations and not health.statistics_steps:
        raise ValueError("health.activations=true has no interval: give health.statistics_steps")
    _positive("profile.steps", profile.steps)
    if profile.start is not None and profile.start < 1:
        raise ValueError(f"profile.start={profile.start} is not allowed: the first step is 1")
    if profile.every is not None:
        if profile.start is None:
            raise ValueError(f"profile.every={profile.every} has no beginning: give profile.start")
        if profile.every <= profile.steps:
            raise ValueError(
                f"profile.every={profile.every} is not allowed: it must exceed profile.steps={profile.steps}, for the "
                "step of warmup"
            )


def _check_health_fits(config: RunConfig) -> None:
    """Raise ValueError where a check of health, or Muon, does not work with the rest of the config."""
    health = config.health
    if health.probe_steps and config.runtime.device == "cuda" and not config.runtime.deterministic:
        raise ValueError(
            f"health.probe_steps={health.probe_steps} compares bits, which a GPU repeats only with "
            "runtime.deterministic=true: set it"
        )
    if health.probe_steps and config.precision.fp8_history:
        raise ValueError(
            f"health.probe_steps={health.probe_steps} repeats a step, which precision.fp8_history="
            f"{config.precision.fp8_history} would remember: use fp8_history=0"
        )
    if config.parallel.strategy == "fsdp1":
        watched = ("health.desync_steps", health.desync_steps), ("health.statistics_steps", health.statistics_steps)
        for name, value in (*watched, ("optim.name", config.optim.name)):
            if value == "muon" or (isinstance(value, int) and value):
                raise ValueError(
                    f"{name}={value} with parallel.strategy=fsdp1 is refused: its flat shards do not say which part of "
                    "a weight they are; use parallel.strategy=fsdp"
                )


def check_mup(config: RunConfig) -> None:
    """Raise ValueError for a base of muP that is out of range."""
    base = config.model.mup_base_width
    if base is None:
        if config.model.mup_base_head_dim is not None:
            raise ValueError("model.mup_base_head_dim is given without model.mup_base_width: there is no muP then")
        return
    _positive("model.mup_base_width", base)
    if mup.base_head_dim(config.model) <= 0:
        raise ValueError(f"model.mup_base_head_dim={config.model.mup_base_head_dim} must be positive")


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} is not allowed: it is a share between 0 and 1")


def _positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"{name}={value} is not allowed: it must be positive")
