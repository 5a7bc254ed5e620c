"""A specification's model with transformers' interface: how it is built, initialised, called and checkpointed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPast, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from anyformer.errors import InputError, UsageError
from anyformer.integrations.transformers.cache import CACHE, AnyformerCache
from anyformer.integrations.transformers.config import AnyformerConfig
from anyformer.layers import TokensSpec
from anyformer.layers.head import Head
from anyformer.layers.init import initialise
from anyformer.model import Output, Transformer
from anyformer.spec import ModelSpec

# Arguments that change no number here, or are heard elsewhere. The last five say of packed rows what position_ids do.
KNOWN = {"return_dict", "num_items_in_batch", "token_type_ids"}
KNOWN |= {"seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}


class AnyformerPreTrainedModel(PreTrainedModel):
    """What the model and its headed classes share. Nothing is on the model but weights, so that it may be built on meta."""

    config_class = AnyformerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 (so transformers declares it)
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012
    _supports_sdpa = True

    config: AnyformerConfig

    @property
    def inner(self) -> Transformer:
        """The model of the specification."""
        return self.model.inner

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # As custom code it would be passed by: a module without weights of its own counts as initialised.
        super()._initialize_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        """The specification's initialisation, by torch's seed; what was loaded from files stays."""
        if not isinstance(module, Transformer):
            return
        kept = {p: p.detach().clone() for p in module.parameters() if getattr(p, "_is_hf_initialized", False)}
        if len(kept) == len(list(module.parameters())):
            return
        initialise(module, module.spec, torch.initial_seed())
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)

    def get_input_embeddings(self) -> nn.Module:
        """The table of tokens."""
        terms: Any = self.inner.stack.embedding.terms
        return next(term.table for term in terms if isinstance(term.spec, TokensSpec))

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Refused, as another number of rows is."""
        self.resize_token_embeddings()

    def get_output_embeddings(self) -> nn.Module | None:
        return None

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Embedding:
        """Refused: the specification would say another number of rows."""
        raise UsageError(
            "a specification says how many tokens there are; resize it (anyformer.resize) and build it anew"
        )

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] | None = None,
        every_n_layers: int = 1,
    ) -> None:
        if every_n_layers != 1:
            raise UsageError(f"every_n_layers = {every_n_layers}: each layer is made again, or none; leave it out")
        self.inner.recompute = "full" if enable else "none"

    @property
    def is_activation_checkpointing(self) -> bool:
        return self.inner.recompute != "none"

    def run(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_key_values: AnyformerCache | None,
        use_cache: bool | None,
        options: dict[str, Any],
        **asked: Any,
    ) -> tuple[Output, AnyformerCache | None]:
        """What the model gives, and the cache, which transformers calls `past_key_values` or, from 5.24 on, `cache`.

        `options` are its further arguments, refused where they would change the result and are not known here. Raises InputError.
        """
        given = options.pop("cache", None)
        given = past_key_values if given is None else given
        for name, value in options.items():
            if name not in KNOWN and value is not None:
                raise InputError(f"{name} is not among what a model of a specification takes; leave it out")
        if attention_mask is not None and attention_mask.dim() != 2:
            raise InputError(f"attention_mask has shape {tuple(attention_mask.shape)}; it must be [batch, token]")
        if isinstance(given, AnyformerCache):
            cache = given
        elif given is not None:
            raise InputError(f"{CACHE} is a {type(given).__name__}; give an AnyformerCache, or none")
        else:
            cache = AnyformerCache() if use_cache else None
        cache = None if torch.is_grad_enabled() else cache  # a cache keeps no gradients
        rows = input_ids if input_ids is not None else asked.get("decoder_input_ids")
        if rows is None:
            raise InputError("input_ids are missing; vectors (inputs_embeds) are not taken in their place")
        return (
            self.inner(
                input_ids,
                attention_mask,
                # A mask says where padding is, and positions are counted by it; without one they tell packed rows apart.
                None if attention_mask is not None or (cache and cache.get_seq_length()) else position_ids,
                options.get("token_type_ids"),
                cache=None if cache is None else cache.of(self.inner, rows.shape[0]),
                kernel="eager" if self.config._attn_implementation == "eager" else None,
                **asked,
            ),
            cache,
        )


class AnyformerModel(AnyformerPreTrainedModel):
    """The stacks alone, whose last hidden state the heads of the other classes read."""

    def __init__(self, config: AnyformerConfig, spec: ModelSpec | None = None) -> None:
        super().__init__(config)
        self.transformer = Transformer(spec or config.spec)
        self.post_init()

    @property
    def inner(self) -> Transformer:
        return self.transformer

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """What reads the source, as generation calls it; of a model without an encoder, the model."""
        return self if self.inner.encoder is None else Encoder(self)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: AnyformerCache | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast | Seq2SeqModelOutput:
        """The last hidden state [batch, token, width] of ids [batch, token], and what else is asked for."""
        out, cache = self.run(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            use_cache,
            options,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_last_hidden_state=encoder_outputs and encoder_outputs[0],
            output_logits=False,
            output_hidden_states=bool(output_hidden_states),
            output_attentions=bool(output_attentions),
        )
        if self.inner.encoder is None:
            return BaseModelOutputWithPast(out.last_hidden_state, cache, out.hidden_states, out.attentions)
        return Seq2SeqModelOutput(
            last_hidden_state=out.last_hidden_state,
            **{CACHE: cache},  # pyright: ignore[reportArgumentType]
            decoder_hidden_states=out.hidden_states,
            decoder_attentions=out.attentions,
            encoder_last_hidden_state=out.encoder_last_hidden_state,
        )


class Encoder(nn.Module):
    """The encoder of a model as generation calls it, which owns nothing."""

    main_input_name = "input_ids"
    owner: Any

    def __init__(self, owner: AnyformerModel) -> None:
        super().__init__()
        self.__dict__["owner"] = owner

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput:
        """What the encoder makes [batch, source, width] of ids [batch, source], and that alone."""
        return BaseModelOutput(last_hidden_state=self.owner.inner.encode(input_ids, attention_mask))


def expressed(head: Head) -> bool:
    """Whether a product of the last hidden state with the head's table, scaled and capped, is all that the head computes.

    TRL computes heads by themselves so; of others `get_output_embeddings` gives none, which it cannot pass by.
    """
    return head.layers is None and head.pool is None and not len(head.transform) and head.bias is None
