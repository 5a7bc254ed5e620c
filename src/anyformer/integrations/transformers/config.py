"""The configuration that holds a specification, and names of it what others' tools look for."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from anyformer.errors import SpecError
from anyformer.families.heads import JUDGES
from anyformer.layers import GQASpec
from anyformer.spec import Architecture, ModelSpec, dumps, loads, specification


class AnyformerConfig(PreTrainedConfig):
    """A specification as config.json has it: `AnyformerConfig(specification=…)` of a dictionary, or `AnyformerConfig.of(spec)`.

    The other fields follow from it and are what tools ask for; none of them changes the model. Raises SpecError for a
    specification that cannot be.
    """

    model_type: ClassVar[str] = "anyformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]
    # TRL asks which classes come with the files, of all that are not transformers' own
    auto_map: ClassVar[dict[str, str]] = {}

    specification: dict[str, Any] | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    # TRL computes a head by its table, and by these two of its options
    final_logit_softcapping: float | None = None
    logit_scale: float | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False  # what is tied is one tensor, once in the state dict: there is nothing to tie
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.specification is not None:
            spec = self.spec
            self.vocab_size, self.hidden_size = spec.vocab_size, spec.stack.d_model
            self.num_hidden_layers, self.is_encoder_decoder = spec.n_layers, spec.encoder is not None
            heads = (value.n_heads for value in spec.nested(GQASpec))
            self.num_attention_heads = next(heads, 0)
            head = next(iter(spec.heads), None)
            self.final_logit_softcapping = head and head.softcap
            self.logit_scale = head.scale.value(spec.stack.d_model) if head and head.scale else None
            judge = next((each for each in spec.heads if each.name in JUDGES and each.table), None)
            if judge is not None and judge.table is not None and self.id2label is None:
                kwargs.setdefault("num_labels", int(judge.table.rows))
            if spec.context is not None:  # an int or absent, never null: others compare with it
                kwargs["max_position_embeddings"] = int(spec.context)
        super().__post_init__(**kwargs)

    @classmethod
    def of(cls, architecture: Architecture, **options: Any) -> AnyformerConfig:
        """The configuration of a specification, a preset's name or a path."""
        return cls(specification=json.loads(dumps(specification(architecture), "json")), **options)

    @property
    def spec(self) -> ModelSpec:
        """The specification, read strictly."""
        if self.specification is None:
            raise SpecError(
                "config.json of model_type anyformer holds no specification; write it with `anyformer convert`"
            )
        return loads(json.dumps(self.specification))
