"""A Hugging Face folder as a folder that MLflow loads as a model of its flavour `transformers`.

Written by MLflow's file format, without the weights in memory: `mlflow.transformers.save_model` reads them all and
imports torch. `mlflow.transformers.load_model` and `mlflow.pyfunc.load_model` read it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

MODEL, TOKENIZER = "model", "components/tokenizer"
TASK, PIPELINE = "text-generation", "TextGenerationPipeline"
REQUIREMENTS = ("mlflow", "torch", "transformers>=5")


def write(hub: Path, out: Path, about: Mapping[str, str]) -> None:
    """Move the files of a Hugging Face folder into a new MLflow folder `out`; `about` becomes the model's metadata."""
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    described = json.loads((hub / "config.json").read_text("utf-8"))
    (out / TOKENIZER).mkdir(parents=True)
    hub.rename(out / MODEL)
    for file in (out / MODEL).glob("tokenizer*.json"):
        shutil.copyfile(file, out / TOKENIZER / file.name)
    (out / "requirements.txt").write_text("".join(f"{one}\n" for one in REQUIREMENTS), "utf-8")
    text = Schema([ColSpec("string")])
    model = Model(signature=ModelSignature(text, text), metadata=dict(about))
    model.add_flavor(
        "transformers",
        task=TASK,
        instance_type=PIPELINE,
        pipeline_model_type=described["architectures"][0],
        torch_dtype=f"torch.{described['torch_dtype']}",
        source_model_name=about.get("study", "") or MODEL,
        model_binary=MODEL,
        components=["tokenizer"],
        tokenizer_type="PreTrainedTokenizerFast",
        code=None,
    )
    pyfunc.add_to_model(model, loader_module="mlflow.transformers", model_path="", pip_env="requirements.txt")
    model.save(str(out / "MLmodel"))
