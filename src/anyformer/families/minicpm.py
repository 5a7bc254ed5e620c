"""MiniCPM3, latent attention among multipliers that follow width and depth: OpenBMB 2024; Hu et al. 2024, arXiv:2404.06395."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.youtu import youtu
from anyformer.layers import AddByDepthSpec, ByRole, LongRoPE, MLASpec, Normal, RMSNormSpec, RotarySpec, TokensSpec
from anyformer.spec import HeadSpec, Length, ModelSpec, ScaleSpec, Width

# Of the 16 pairs of features that turn, at every length.
STRETCH = (
    *(1.0591234137867171, 1.1241891283591912, 1.2596935748670968, 1.5380380402321725, 2.093982484148734),
    *(3.1446935121267696, 4.937952647693647, 7.524541999994549, 10.475458000005451, 13.062047352306353),
    *(14.85530648787323, 15.906017515851266, 16.461961959767827, 16.740306425132907, 16.87581087164081),
    16.940876586213285,
)
LONGROPE = LongRoPE(short=STRETCH, long=STRETCH, factor=1.0, original_context=Length(32_768))


def by_depth(share: float) -> AddByDepthSpec:
    """What branches write, times a share of 1 / √layers (arXiv:2404.06395, section 3.1); a layer has two."""
    return AddByDepthSpec(power=0.0, branch=ScaleSpec(factor=share * 2**0.5, power=-0.5))


def minicpm3(*sizes: int) -> ModelSpec:
    """Youtu-LLM's layers with smaller latents, in halves that turn; logits of a model of 256 features, whatever its width."""
    model = youtu(*sizes, vocab_size=73_448)
    model = changed(model, RMSNormSpec, eps=1e-5)
    latent, turning = RMSNormSpec(eps=1e-6), RotarySpec(scaling=LONGROPE)
    dims = {"kv_rank": Width(256), "query_rank": Width(768), "head_dim": Width(64), "rotary_dim": Width(32)}
    dims |= {"value_dim": Width(64), "norm_kv": latent, "norm_query": latent}
    model = changed(changed(model, MLASpec, rotary=turning, **dims), TokensSpec, scale=ScaleSpec(factor=12.0))
    model = changed(model, HeadSpec, scale=ScaleSpec(factor=256.0, power=-1.0))
    start = Normal(scale=0.1)
    return model.but(
        stack=model.stack.but(residual=by_depth(1.4)), init=ByRole(table=start, matrix=start), context=Length(32_768)
    )


MINICPM3 = Origin("minicpm3", "deepseek-v2", 2024, "the release of September 2024, from memory").lineage(
    "multipliers of embeddings, branches and logits; dense, one table, half of the features of DeepSeek's heads",
    Preset("minicpm3-4b", minicpm3(62, 2560, 40, 6400), "4B", "4.07B, which the name cuts", alias="minicpm3"),
    sizes="OpenBMB 2024, the released configuration, as transformers' MiniCPM3ForCausalLM and others that read it have it",
    tokenizer="SentencePiece BPE with byte fallback, 73,448",
)
