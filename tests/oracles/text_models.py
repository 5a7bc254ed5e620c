"""Text models that transformers has inside models that see alone, each with the head that the whole one has.

The whole ones are held against ours in tests/hub/test_composite.py. Here their text models are classes like any decoder's,
so that they are under all laws: `transformers` has them by these names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextPreTrainedModel, Glm5NextTextModel
from transformers.models.mistral_large4.modeling_mistral_large4 import (
    MistralLarge4PreTrainedModel,
    MistralLarge4TextModel,
)
from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerPreTrainedModel, MuseGlimmerTextModel
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel


def predicting(
    name: str, base: type[Any], text: type[Any], finished: Callable[[Tensor, Any], Tensor] = lambda logits, _: logits
) -> type[Any]:
    """The class of a text model with a head, whose logits are `finished` as the whole model's are, by the configuration."""
    config_class = text.config_class

    class Predicting(base, GenerationMixin):
        _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
        input_modalities = ("text",)

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = text(config)
            self.model.embed_tokens.padding_idx = None  # else that token's row has no gradient
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(
            self,
            input_ids: Tensor | None = None,
            attention_mask: Tensor | None = None,
            position_ids: Tensor | None = None,
            cache: Any = None,
            inputs_embeds: Tensor | None = None,
            use_cache: bool | None = None,
            logits_to_keep: int = 0,
            **kwargs: Any,
        ) -> CausalLMOutputWithPast:
            read = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
            out = self.model(**read, cache=cache, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs)
            logits = finished(self.lm_head(out.last_hidden_state[:, -logits_to_keep:]), self.config)
            states = {"hidden_states": out.hidden_states, "attentions": out.attentions}
            return CausalLMOutputWithPast(logits=logits, cache=out.cache, **states)  # type: ignore[call-arg]

    Predicting.__name__ = Predicting.__qualname__ = name
    Predicting.__module__ = text.__module__  # whose text is looked through for settings
    Predicting.config_class = config_class
    # Not the module's alone: as some of its own are imported, another takes its place.
    setattr(type(transformers), name, Predicting)
    AutoModelForCausalLM.register(config_class, Predicting)
    return Predicting


predicting("Step3p5ForCausalLM", Step3p7PreTrainedModel, Step3p7TextModel)


def capped(logits: Tensor, config: Any) -> Tensor:
    """Return the logits, multiplied by a setting where there is one, and capped."""
    cap = config.final_logit_softcapping
    return cap * (logits * getattr(config, "output_multiplier", 1.0) / cap).tanh()


predicting("MuseGlimmerForCausalLM", MuseGlimmerPreTrainedModel, MuseGlimmerTextModel, capped)
predicting("MistralLarge4ForCausalLM", MistralLarge4PreTrainedModel, MistralLarge4TextModel, capped)
predicting("Glm5NextForCausalLM", Glm5NextPreTrainedModel, Glm5NextTextModel)
