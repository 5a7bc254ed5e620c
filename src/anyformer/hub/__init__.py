"""Models from and to disk: Hugging Face directories and ours."""

from anyformer.hub.loading import load
from anyformer.hub.saving import Saved, save
from anyformer.hub.source import is_path, load_spec

__all__ = ["Saved", "is_path", "load", "load_spec", "save"]
