"""GGUF files as data: for each architecture its keys and tensors, by tables that go both ways."""

from anyformer.families.gguf.dialect import Adapted, Dialect
from anyformer.families.gguf.metadata import config_of, dialect_of, key_of, llama3_scaling, metadata_of
from anyformer.families.gguf.tables import DIALECTS

__all__ = ["DIALECTS", "Adapted", "Dialect", "config_of", "dialect_of", "key_of", "llama3_scaling", "metadata_of"]
