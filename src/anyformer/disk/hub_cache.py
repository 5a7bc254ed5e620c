"""Models that Hugging Face's tools have brought to this machine, by the name they have there. Nothing is fetched here."""

from __future__ import annotations

import re
from pathlib import Path

from anyformer.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")  # organisation/model


def located(name: str | Path) -> Path:
    """The path of that name, or of the model of that name in the cache of Hugging Face's hub (`HF_HOME`).

    Raises CheckpointError where there is neither, with the command that brings it.
    """
    if name == "":
        raise CheckpointError("the name of the model is empty; give a model's directory")
    path = Path(name)
    if path.exists():
        return path
    if not HUB_NAME.fullmatch(str(name)):
        file = path.suffix.lower() in (".yaml", ".yml", ".json")
        wanted = "a specification's file, or a model's directory" if file else "a model's directory"
        raise CheckpointError(f"there is nothing at {path}; give {wanted}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        raise CheckpointError(
            f"there is nothing at {path}; if it is a model of the Hugging Face hub, `hf download {name}` brings it here, "
            "and it is found by this name"
        ) from None
