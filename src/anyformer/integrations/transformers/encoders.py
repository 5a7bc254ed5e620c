"""Models that judge: words that were hidden, and classes of texts."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from anyformer.errors import SpecError
from anyformer.families.classifier import with_classifier
from anyformer.families.heads import CLASSES, with_head
from anyformer.hub.wrapped import says_hidden_words
from anyformer.integrations.transformers.config import AnyformerConfig
from anyformer.integrations.transformers.model import AnyformerModel, AnyformerPreTrainedModel
from anyformer.layers.head import Head
from anyformer.spec import ModelSpec


class AnyformerJudge(AnyformerPreTrainedModel):
    """What both share: a head by name, asked alone."""

    output: type[Any]  # transformers', of what the class gives

    def __init__(self, config: AnyformerConfig, spec: ModelSpec, name: str) -> None:
        super().__init__(config)
        self.name = name
        self.model = AnyformerModel(config, spec)
        self.post_init()

    @property
    def head(self) -> Head:
        """The head that is asked."""
        return self.inner.head(self.name)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> ModelOutput:
        """The head's logits of ids [batch, token], and the loss of labels, as the class says."""
        out, _ = self.model.run(
            input_ids,
            attention_mask,
            position_ids,
            None,
            False,
            options,
            heads=[self.name],
            output_hidden_states=bool(output_hidden_states),
            output_attentions=bool(output_attentions),
        )
        loss = None if labels is None else self.loss_of(out.logits, labels, options.get("num_items_in_batch"))
        return self.output(loss=loss, logits=out.logits, hidden_states=out.hidden_states, attentions=out.attentions)

    def loss_of(self, logits: Tensor, labels: Tensor, n: Any) -> Tensor:
        """The loss that transformers has for the class."""
        return self.loss_function(logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=n)


class AnyformerForMaskedLM(AnyformerJudge):
    """An encoder with the head that says hidden words, the first of its heads. Raises SpecError for what has none.

    Logits are [batch, token, vocab]; the loss is of labels [batch, token], -100 left out.
    """

    output = MaskedLMOutput

    def __init__(self, config: AnyformerConfig) -> None:
        spec = config.spec
        if (name := says_hidden_words(spec)) is None:
            raise SpecError("this specification has no head for hidden words; take one with a head 'mlm'")
        super().__init__(config, spec, name)


class AnyformerForSequenceClassification(AnyformerJudge):
    """A model with a head for `config.num_labels` classes a text; files without one get a new one.

    Logits are scores [batch, num_labels]; the loss is of labels [batch].
    """

    output = SequenceClassifierOutput

    def __init__(self, config: AnyformerConfig) -> None:
        spec = config.spec
        spec = with_head(
            spec, with_classifier(spec, config.num_labels or 2).heads[0]
        )  # beside those that the files have
        config.specification = AnyformerConfig.of(spec).specification
        super().__init__(config, spec, CLASSES)

    def loss_of(self, logits: Tensor, labels: Tensor, n: Any) -> Tensor:
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
