"""The text model of GLM-5.3 Flash: Kimi Delta Attention, latent attention to the best blocks of keys, hyper-connections."""

from __future__ import annotations

from anyformer.families.compose import changed, elsewhere
from anyformer.families.deepseek import deepseek
from anyformer.families.glm import router
from anyformer.families.kimi import kda
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    GatedFeedForwardSpec,
    HyperConnectionSpec,
    HyperStreamsSpec,
    IndexerSpec,
    MLASpec,
    RMSNormSpec,
    RouterSpec,
)
from anyformer.spec import BlockSpec, Count, ModelSpec, Width, Window

BARE = RMSNormSpec(weight=False, eps=1e-5)


def glm_next(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 3) -> ModelSpec:
    """GLM-5 without positions, whose indexer chooses blocks of 16 keys by a weighed mean of theirs; three layers of KDA with
    bounded decays to one that attends; clamped gates; four streams, whose mean is read at the end (transformers' class)."""
    model = deepseek(
        *sizes, d_expert=d_expert, router=choice, n_dense=n_dense, vocab_size=154_880, context=1_048_576, init=ByRole()
    )
    indexer = IndexerSpec(n_heads=Count(32), head_dim=Width(128), top_k=Window(2048), every=Window(16), gated=True)
    model = changed(changed(model, RMSNormSpec, eps=1e-5), AttentionSpec, indexer=indexer)
    model = changed(model, MLASpec, head_dim=256, value_dim=256, rotary=None, rotary_dim=None)
    model = changed(model, GatedFeedForwardSpec, limit=10.0)
    model = elsewhere(model, range(3, model.n_layers, 4), kda(sizes[2]).but(bound=5.0))
    model = changed(model, BlockSpec, connection=HyperConnectionSpec(norm=BARE))
    streams = HyperStreamsSpec(ends="mean", norm=None)
    return model.but(stack=model.stack.but(residual=streams))


GLM_NEXT = Origin("glm-5.3-flash", "glm-5", 2026, "transformers' class of GLM-5.3 Flash").lineage(
    "Kimi Delta Attention in three of four layers, an indexer that chooses blocks of keys, no positions; four hyper-connected "
    "streams, clamped gates",
    Preset("glm-5.3-flash", glm_next(45, 4096, 64, 12_288, d_expert=2048, choice=router(288, 8, 2.5))),
    family="glm",
    sizes="Zhipu AI 2026, the sizes of transformers' class of the text model",
    tokenizer="154,880",
)
