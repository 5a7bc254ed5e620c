"""Models from and to disk: Hugging Face directories and ours."""

from anyformer.hub.loading import load
from anyformer.hub.saving import Saved, save
from anyformer.hub.source import load_spec
from anyformer.spec import loads

__all__ = ["Saved", "load", "load_spec", "loads", "save"]
