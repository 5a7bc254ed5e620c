"""Importing this lets transformers build, load and save every specification: config.json with `model_type: anyformer`.

No code is read from a checkpoint: the Auto classes know these classes from here alone, and transformers reads no entry points.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from anyformer.integrations.transformers.cache import AnyformerCache
from anyformer.integrations.transformers.config import AnyformerConfig
from anyformer.integrations.transformers.decoders import AnyformerForCausalLM, AnyformerForSeq2SeqLM
from anyformer.integrations.transformers.encoders import AnyformerForMaskedLM, AnyformerForSequenceClassification
from anyformer.integrations.transformers.model import AnyformerModel, AnyformerPreTrainedModel

AutoConfig.register(AnyformerConfig.model_type, AnyformerConfig)
AutoModel.register(AnyformerConfig, AnyformerModel)
AutoModelForCausalLM.register(AnyformerConfig, AnyformerForCausalLM)
AutoModelForMaskedLM.register(AnyformerConfig, AnyformerForMaskedLM)
AutoModelForSeq2SeqLM.register(AnyformerConfig, AnyformerForSeq2SeqLM)
AutoModelForSequenceClassification.register(AnyformerConfig, AnyformerForSequenceClassification)

__all__ = [
    "AnyformerCache",
    "AnyformerConfig",
    "AnyformerForCausalLM",
    "AnyformerForMaskedLM",
    "AnyformerForSeq2SeqLM",
    "AnyformerForSequenceClassification",
    "AnyformerModel",
    "AnyformerPreTrainedModel",
]
