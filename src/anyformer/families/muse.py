"""The text model of Muse Glimmer: Trinity's attention in a dense model, norms without gains, capped logits (Meta 2026)."""

from __future__ import annotations

from anyformer.families.compose import changed, turning_windows
from anyformer.families.gemma import NORM
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import AttentionSpec, GQASpec, OutputGateSpec, RMSNormSpec
from anyformer.spec import BranchSpec, EmbeddingSpec, HeadSpec, ModelSpec, ScaleSpec, SublayerSpec


def muse_glimmer(*sizes: int) -> ModelSpec:
    """LLaMA with gated values, sandwich norms of gains around 0, and norms without gains of tokens' vectors and of each head's
    queries and keys, whose scores are multiplied; three windows to a layer that sees everything and rotates nothing."""
    bare = RMSNormSpec(eps=1e-5, weight=False)
    plain = llama(*sizes, head_dim=128, vocab_size=202_048, eps=1e-5, context=131_072)
    plain = changed(plain, SublayerSpec, norm_in=NORM.but(eps=1e-5))
    plain = changed(plain, BranchSpec, norm_out=NORM.but(eps=1e-8))
    plain = changed(plain, GQASpec, norm_query=bare, norm_key=bare)
    plain = changed(plain, AttentionSpec, gate=OutputGateSpec(), scale=ScaleSpec(factor=3.87, power=-0.5))
    plain = changed(changed(plain, EmbeddingSpec, norm=bare), HeadSpec, scale=ScaleSpec(factor=26**-0.5), softcap=20.0)
    return turning_windows(plain.but(stack=plain.stack.but(norm=bare.but(weight=True, cast="after"))), 2048)


MUSE = Origin("muse-glimmer", "trinity", 2026, "transformers' class of Muse Glimmer").lineage(
    "dense; norms without gains of tokens, queries and keys, whose scores are multiplied; capped logits",
    Preset("muse-glimmer", muse_glimmer(52, 6656, 32, 19_968, 2)),
    family="muse",
    sizes="Meta 2026, the sizes of transformers' class of the text model; the release counts 30B with what sees",
    tokenizer="202,048",
)
