"""Models that write: decoders, and decoders beside an encoder, with transformers' generation over our cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerationMode
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from anyformer.errors import SpecError, UsageError
from anyformer.hub.wrapped import writes_text
from anyformer.integrations.transformers.cache import CACHE, AnyformerCache
from anyformer.integrations.transformers.config import AnyformerConfig
from anyformer.integrations.transformers.model import AnyformerModel, AnyformerPreTrainedModel, expressed
from anyformer.layers.cross_entropy import NOT_PREDICTED
from anyformer.layers.head import Head
from anyformer.model import Output
from anyformer.spec import cached_calls


class AnyformerWriter(AnyformerPreTrainedModel):
    """What both share: the head that says the next token, and the cache that generation gets."""

    def __init__(self, config: AnyformerConfig) -> None:
        super().__init__(config)
        spec = config.spec
        if not writes_text(spec):
            raise SpecError(
                "this specification writes no text: its tokens see later ones, or it has no head for tokens"
            )
        self.model = AnyformerModel(config)
        self._is_stateful = any(kept.how == "state" for kept in cached_calls(spec))
        if spec.heads[0].tied:  # a head's table is asked for a bias too
            self.head.table.register_parameter("bias", None)
        self.post_init()

    @property
    def head(self) -> Head:
        """The head that says the next token."""
        return self.inner.head()

    def logits_of(self, out: Output, kept: int | Tensor) -> Tensor:
        """Logits [batch, token, vocab] of the last so many tokens, or of the places that are named; 0: of all."""
        return self.head(out.read_by(self.head)[:, slice(-kept, None) if isinstance(kept, int) else kept])

    def get_output_embeddings(self) -> nn.Module | None:
        return self.head.table if expressed(self.head) else None

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Give generation our cache, unless the caller gave one. Raises UsageError where another kind is asked for."""
        if generation_config.cache_implementation is not None:
            said = generation_config.cache_implementation
            raise UsageError(f"cache_implementation = {said!r}: the specification says what is kept; leave it out")
        if generation_config.use_cache and model_kwargs.get(CACHE) is None:
            cache = AnyformerCache(max_cache_length)
            if generation_mode == GenerationMode.ASSISTED_GENERATION or generation_config.is_assistant:
                cache.activate_past_recording()
            model_kwargs[CACHE] = cache


class AnyformerForCausalLM(AnyformerWriter, GenerationMixin):
    """A decoder with the head that says the next token. Raises SpecError for what is none."""

    def __init__(self, config: AnyformerConfig) -> None:
        if config.spec.encoder is not None:
            raise SpecError("this specification has an encoder; take AnyformerForSeq2SeqLM")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: AnyformerCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [batch, token, vocab] of ids [batch, token]; the loss of labels [batch, token], shifted, -100 left out."""
        out, cache = self.model.run(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            use_cache,
            options,
            output_logits=False,
            output_hidden_states=bool(output_hidden_states),
            output_attentions=bool(output_attentions),
        )
        logits = self.logits_of(out, logits_to_keep)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=options.get("num_items_in_batch")
            )
        return CausalLMOutputWithPast(loss, logits, cache, out.hidden_states, out.attentions)


class AnyformerForSeq2SeqLM(AnyformerWriter, GenerationMixin):
    """An encoder and a decoder with the head that says the next token. Raises SpecError for what is none."""

    def __init__(self, config: AnyformerConfig) -> None:
        if config.spec.encoder is None:
            raise SpecError("this specification has no encoder; take AnyformerForCausalLM")
        super().__init__(config)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.model.get_encoder()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads [batch, token] to say the labels: each a place later, behind the token that starts it."""
        start = self.config.decoder_start_token_id
        if start is None:
            raise UsageError(
                "decoder_start_token_id is not set; set it in the configuration, or give decoder_input_ids"
            )
        padding = start if self.config.pad_token_id is None else self.config.pad_token_id
        return F.pad(labels[:, :-1].masked_fill(labels[:, :-1] == NOT_PREDICTED, padding), (1, 0), value=start)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: AnyformerCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        """Logits [batch, token, vocab] of the decoder's ids [batch, token]; the loss of labels [batch, token], -100 left out.

        Without decoder_input_ids they are made of the labels.
        """
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        out, cache = self.model.run(
            input_ids,
            attention_mask,
            None,
            past_key_values,
            use_cache,
            options,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_last_hidden_state=None if encoder_outputs is None else encoder_outputs[0],
            output_logits=False,
            output_hidden_states=bool(output_hidden_states),
            output_attentions=bool(output_attentions),
        )
        logits = self.logits_of(out, logits_to_keep)
        loss = None
        if labels is not None:
            n = options.get("num_items_in_batch")
            total = F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), reduction="mean" if n is None else "sum"
            )
            loss = total if n is None else total / n
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            **{CACHE: cache},  # pyright: ignore[reportArgumentType]
            decoder_hidden_states=out.hidden_states,
            decoder_attentions=out.attentions,
            encoder_last_hidden_state=out.encoder_last_hidden_state,
        )
