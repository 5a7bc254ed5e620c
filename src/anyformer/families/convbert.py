"""ConvBERT: ELECTRA's BERT in which convolutions stand beside half as many heads. Jiang et al. 2020, arXiv:2008.02496."""

from __future__ import annotations

from anyformer.families.bert import WORDPIECE, bert
from anyformer.families.compose import changed, edited
from anyformer.families.heads import with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import AttentionSpec, FeedForwardSpec, GQASpec, SpanConvolutionSpec
from anyformer.spec import BranchSpec, Count, ModelSpec, SublayerSpec

BESIDE = "beside"


def convbert(n_layers: int, d_model: int, n_heads: int, *, width: int | None = None, groups: int = 1) -> ModelSpec:
    """BERT without heads; half of its heads attend, the others are convolutions of the same queries (section 2.4).

    The feed-forwards' maps are in `groups`; an embedding of another `width` is projected.
    """
    model = bert(n_layers, d_model, n_heads, width=width)
    model = changed(model, FeedForwardSpec, groups=Count(groups))
    n, half = Count(n_heads // 2), 0.5
    model = changed(model, GQASpec, n_heads=n, share=half)
    model = changed(model, AttentionSpec, queries=BESIDE)
    beside = BranchSpec(mixer=SpanConvolutionSpec(n_heads=n, share=half, queries=BESIDE))

    def mixed(sublayer: SublayerSpec) -> SublayerSpec:
        attends = isinstance(sublayer.branches[0].mixer, AttentionSpec)
        return sublayer.but(branches=(*sublayer.branches, beside)) if attends else sublayer

    return edited(model, SublayerSpec, mixed)


CONVBERT = Origin("convbert", "electra", 2020, "arXiv:2008.02496, section 2").lineage(
    "half of the heads are convolutions over 9 tokens, by kernels made of the text; a head for masked words",
    Preset(
        "convbert-small",
        with_masked_words(convbert(12, 256, 4, width=128)),
        "14M",
        "13.2M with the head for masked words; the paper counts 14M",
    ),
    Preset(
        "convbert-medium-small",
        with_masked_words(convbert(12, 384, 8, width=128, groups=2)),
        "17M",
        "17.6M with the head for masked words, 17.5M without, which the paper cuts",
    ),
    Preset("convbert-base", with_masked_words(convbert(12, 768, 12)), "106M", alias="convbert"),
    sizes="Jiang et al. 2020, arXiv:2008.02496, section 4.1 and table 2 (sizes as released, from memory)",
    tokenizer=WORDPIECE,
)
