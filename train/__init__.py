"""One run: model, parallelism, data, optimizer, checkpoint, health, metrics.

In a notebook: `train.load_checkpoint("runs/STUDY/KEY").sample("def main(")` continues a text with a trained model. It
is in :mod:`train.trained`, imported at first use: `import train` imports no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.trained import TrainedModel, load_checkpoint

__all__ = ["TrainedModel", "load_checkpoint"]


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)


if not TYPE_CHECKING:  # which would take any name for one of this module's

    def __getattr__(name: str) -> Any:
        """Return a public name, importing its module."""
        if name in __all__:
            from importlib import import_module

            from train.spec.not_installed import not_installed

            try:
                return getattr(import_module("train.trained"), name)
            except ModuleNotFoundError as error:
                if said := not_installed(error):
                    raise ModuleNotFoundError(f"train.{name}: {said}", name=error.name) from None
                raise
        raise AttributeError(f"module 'train' has no attribute {name!r}")
