"""Serving: a model behind OpenAI's interface, many requests at once over one batch."""

from anyformer.serving.application import application
from anyformer.serving.asked import USUAL
from anyformer.serving.engine import Engine
from anyformer.serving.limits import Limits
from anyformer.serving.server import serve

__all__ = ["USUAL", "Engine", "Limits", "application", "serve"]
