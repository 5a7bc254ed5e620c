"""A directory's files, changed in place: what their JSON says, and the tensors that they hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor


def say(file: Path, **settings: object) -> None:
    """Have a JSON file say this too."""
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def settings(directory: Path, **changes: object) -> None:
    """Have its config.json say this too."""
    say(directory / "config.json", **changes)


def tensors(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Have its model.safetensors hold what `change` leaves in the mapping by name."""
    file = directory / "model.safetensors"
    held = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(held)
    file.unlink()  # and write another, so that what has read this one keeps it
    save_file(held, file)
