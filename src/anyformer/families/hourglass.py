"""Hourglass: layers in the middle on fewer tokens. Nawrot et al. 2021, arXiv:2110.13711, as Trax has it (HourglassLM)."""

from __future__ import annotations

from anyformer.families.compose import attend, block, feed, language_model, pre_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, LayerNormSpec, LinearSpec, RelativeSinusoidSpec, ShortenedSpec
from anyformer.spec import BranchSpec, ModelSpec, SublayerSpec, Window


def hourglass(vocab_size: int, outer: int, inner: int, every: int) -> ModelSpec:
    """`outer` layers on tokens before and behind `inner` layers on blocks of `every`, 512 wide; each group ends with a norm."""
    norm = LayerNormSpec(eps=1e-6)
    attention, feed_forward = attend(8, bias=True, scores=(RelativeSinusoidSpec(),)), feed(2048, GELU(form="tanh"))
    layer = block(pre_norm(norm, attention), pre_norm(norm, feed_forward))
    last = block(pre_norm(norm, attention), pre_norm(norm, feed_forward).but(norm_sum=norm))
    shorter = ShortenedSpec(
        every=Window(every),
        blocks=repeat(layer, inner),
        pool=LinearSpec(bias=True),
        spread=LinearSpec(bias=True),
        norm=norm,
    )
    middle = block(SublayerSpec(branches=(BranchSpec(mixer=shorter),), norm_out=norm))
    layers = (*repeat(layer, outer - 1), last, middle, *repeat(layer, outer))
    return language_model(vocab_size, 512, layers, norm, tied=False, head_bias=True, context=2048)


LINEAR = (
    "the paper's linear pooling and upsampling (section 2.3); with its attention resampling, which Trax takes by default, there "
    "are further layers at both ends; blocks begin with the text, where the paper's first is the first token alone"
)

HOURGLASS = Origin("hourglass", "gpt2", 2021, "arXiv:2110.13711, section 2").lineage(
    "Transformer-XL's relative positions, layers in the middle on blocks of tokens",
    Preset("hourglass-linear-enwik8", hourglass(256, 5, 24, 3), alias="hourglass"),
    Preset("hourglass-linear-wiki40b", hourglass(32_000, 4, 8, 4)),
    sizes=f"Trax, configurations of HourglassLM for enwik8 and Wiki-40B; {LINEAR}",
    tokenizer="bytes; SentencePiece, 32,000",
)
