"""Mistral Large 4, the text model: latent attention to the keys that an indexer chooses, frequencies and growths of queries that
are learned, no positions in every fourth layer (Mistral AI 2026)."""

from __future__ import annotations

from typing import TypeVar

from anyformer.families.compose import changed, edited, with_layers_of
from anyformer.families.deepseek import choosing, deepseek
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    IndexerSpec,
    LayerNormSpec,
    LearnedFrequenciesSpec,
    MLASpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SSMaxSpec,
    YaRN,
)
from anyformer.spec import Count, HeadSpec, Length, ModelSpec, Spec, Width

S = TypeVar("S", bound=Spec)
LEARNED = LearnedFrequenciesSpec(shared="frequencies")
STRETCHED = YaRN(factor=2048.0, original_context=Length(512), attention_factor=1.0)


def unturned(value: S) -> S:
    """A model or a layer whose heads have the features that would turn among their own."""

    def whole(latent: MLASpec) -> MLASpec:
        width = Width(latent.head_dim + latent.turning)
        return latent.but(head_dim=width, rotary_dim=None, rotary=None)

    return edited(value, MLASpec, whole)


def mistral_large4(*sizes: int, d_expert: int, n_experts: int, top_k: int, n_dense: int = 1) -> ModelSpec:
    """Mistral Small 4's experts and latent attention, with queries made of the stream; learned frequencies, stretched from 512
    tokens to 1,048,576, and Scalable-Softmax; an indexer that reads the stream; capped logits (transformers' class)."""
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, group_score="top2-sum", renormalise=True)
    plain = {"n_dense": n_dense, "query_rank": None, "vocab_size": 204_800, "context": 1_048_576, "init": ByRole()}
    model = choosing(deepseek(*sizes, d_expert=d_expert, router=router, **plain), 32)
    model = changed(changed(model, MLASpec, head_dim=64), RotarySpec, scaling=STRETCHED, learned=LEARNED)
    model = changed(changed(model, AttentionSpec, query_scale=SSMaxSpec()), RMSNormSpec, eps=1e-5)
    model = changed(model, IndexerSpec, norm_read=LayerNormSpec(eps=1e-6), query_scale=SSMaxSpec())
    model = changed(model, HeadSpec, softcap=30.0)
    return with_layers_of(model, unturned(model), range(3, model.n_layers, 4))


MISTRAL_LARGE4 = Origin("mistral-large-4", "mistral4", 2026, "transformers' class of Mistral Large 4").lineage(
    "learned rotary frequencies and none in every fourth layer, Scalable-Softmax for steps, an indexer that reads the stream, "
    "queries made of the stream, capped logits",
    Preset("mistral-large-4", mistral_large4(72, 6144, 64, 24_576, d_expert=6144, n_experts=128, top_k=4)),
    family="mistral",
    sizes="Mistral AI 2026, the sizes of transformers' class of the text model, and the total and active parameters of the "
    "checkpoint's name there, 1T-A52B",
    tokenizer="204,800 rows",
)
