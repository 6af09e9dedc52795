"""The fully qualified name of a weight, the same however the model is wrapped."""

from __future__ import annotations

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def plain_name(name: str) -> str:
    """Return a weight's name without what wrappers around modules (compile, checkpointing, DDP) put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")
