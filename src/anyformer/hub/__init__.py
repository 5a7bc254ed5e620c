"""Models from and to disk: Hugging Face directories and ours."""

from anyformer.hub.loading import load, load_auxiliary, load_into, load_tokenizer
from anyformer.hub.saving import SavedDirectory, convert, save
from anyformer.hub.source import load_spec, vary
from anyformer.hub.transplant import transplant
from anyformer.spec import loads

__all__ = [
    "SavedDirectory",
    "convert",
    "load",
    "load_auxiliary",
    "load_into",
    "load_spec",
    "load_tokenizer",
    "loads",
    "save",
    "transplant",
    "vary",
]
