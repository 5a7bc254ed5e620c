"""Random legal combinations of parts, for hypothesis: what nobody has published must obey the laws too."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import anyformer.layers as L
from anyformer.families.compose import changed, edited
from anyformer.families.deepseek import predicting_further
from anyformer.layers.mask import ignores_heads
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    EmbeddingSpec,
    HeadLayersSpec,
    HeadSpec,
    Length,
    MapSpec,
    MixerSpec,
    ModelSpec,
    ScaleSpec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    Vocab,
    Width,
    Window,
)

D_MODEL = 48
optional = lambda strategy: st.one_of(st.none(), strategy)  # noqa: E731

activations = st.sampled_from(
    [
        L.ReLU(),
        L.ReLU2(),
        *(L.GELU(form=form) for form in ("erf", "tanh", "quick")),
        L.SiLU(),
        L.Swish(beta=1.5),
        L.Sigmoid(),
        L.Tanh(),
        L.ELU(alpha=0.5),
        L.SELU(),
        L.Softplus(beta=2.0),
        L.Identity(),
    ]
)
norms: st.SearchStrategy[MapSpec] = st.one_of(
    st.builds(L.LayerNormSpec, eps=st.sampled_from([1e-5, 1e-2]), bias=st.booleans(), weight=st.booleans()),
    st.builds(
        L.RMSNormSpec,
        eps=st.sampled_from([1e-6, 1e-2]),
        weight_offset=st.sampled_from([0.0, 1.0]),
        cast=st.sampled_from(["before", "after"]),
    ),
)
# One number added to all features would be undone by the next LayerNorm, and its gradient be nothing but rounding.
tails: st.SearchStrategy[MapSpec] = st.one_of(
    norms,
    st.builds(L.GainSpec, start=st.just(0.5)),
    st.just(L.FactorSpec(factor=0.6)),
    st.just(L.ShiftSpec(start=0.1, over="features")),
)
rotaries = st.builds(
    L.RotarySpec,
    theta=st.sampled_from([100.0, 10000.0]),
    fraction=st.sampled_from([0.5, 1.0]),
    where=st.sampled_from(["first", "last"]),
    layout=st.sampled_from(["half", "interleaved"]),
    backwards=st.booleans(),
    scaling=optional(
        st.sampled_from(
            [
                L.LinearScaling(factor=4.0),
                L.Llama3Scaling(factor=8.0, original_context=Length(32)),
                L.YaRN(factor=4.0, original_context=Length(16)),
                L.ProportionalRoPE(share=0.5),
            ]
        )
    ),
    learned=optional(st.just(L.LearnedFrequenciesSpec())),
)
windows = st.builds(L.SlidingWindow, size=st.integers(1, 9).map(Window))
causal_masks: st.SearchStrategy[L.Mask] = st.one_of(
    st.just(L.Causal()),
    windows.map(lambda window: L.Causal() & window),
    windows.map(lambda window: L.Heads(masks=(L.Causal(), L.Causal() & window))),
    st.just(L.Causal() & L.SameBlock(size=Window(4))),
    st.just(L.Causal() & (L.SameBlock(size=Window(5)) | L.BlockEnds(size=Window(5), last=Count(2)))),
    windows.map(lambda window: L.Heads(masks=(L.Causal() & window, L.Causal() & L.Strided(stride=Window(4))))),
    st.tuples(windows, windows).map(lambda two: L.Causal() & (two[0] | ~two[1])),
    st.just(L.Causal() & L.LocalAndVertical(size=Window(3), near=Window(2), stride=Window(4))),
)


@st.composite
def grouped(draw: st.DrawFn) -> L.GQASpec:
    n_heads, n_kv_heads = draw(st.sampled_from([(4, None), (4, 2), (4, 1), (6, 3), (1, None)]))
    over: Any = draw(st.sampled_from(["head", "heads", "projection"]))
    qk_norm = draw(optional(st.just(L.RMSNormSpec() if over != "heads" else L.LayerNormSpec(bias=False))))
    biases: dict[str, Any] = {f"bias_{name}": draw(st.booleans()) for name in ("query", "key", "value", "output")}
    one_map = draw(st.sampled_from([False, False, True]))
    biases["bias_value"] = biases["bias_value"] and not one_map
    return L.GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=None if n_kv_heads is None else Count(n_kv_heads),
        head_dim=draw(st.sampled_from([Width(8), None])),
        norm_query=qk_norm,
        norm_key=qk_norm,
        norm_value=draw(st.sampled_from([None, None, qk_norm])),
        values_are_keys=one_map,
        norm_over=over,
        norm_last=over != "projection" and draw(st.booleans()),
        clip=draw(optional(st.just(2.0))),
        rotary=draw(optional(rotaries)),
        **biases,
    )


@st.composite
def latent(draw: st.DrawFn) -> L.MLASpec:
    rotary, rank, normed = draw(optional(rotaries)), draw(optional(st.just(Width(10)))), draw(optional(norms))
    return L.MLASpec(
        n_heads=draw(st.sampled_from([Count(1), Count(4)])),
        kv_rank=draw(st.sampled_from([Width(6), Width(20)])),
        query_rank=rank,
        head_dim=Width(8),
        rotary=rotary,
        rotary_dim=Width(8) if rotary is not None else draw(optional(st.just(Width(8)))),
        value_dim=draw(st.sampled_from([Width(12), None])),
        norm_kv=draw(optional(norms)),
        norm_query=normed,
        unnormed=rank is not None and normed is not None and draw(st.booleans()),
        bias_down=draw(st.booleans()),
        bias_output=draw(st.booleans()),
    )


@st.composite
def shared_vectors(draw: st.DrawFn) -> L.SharedKVSpec:
    groups, rank = draw(st.sampled_from([(1, None), (1, Width(10)), (2, Width(6))]))
    return L.SharedKVSpec(
        n_heads=draw(st.sampled_from([Count(2), Count(4)])),
        head_dim=Width(8),
        query_rank=draw(optional(st.just(Width(10)))),
        rotary=draw(optional(rotaries)),
        norm_latent=draw(optional(norms)),
        norm_query=draw(optional(norms)),
        norm_key=draw(optional(norms)),
        out_groups=Count(groups),
        out_rank=rank,
    )


heads_of_experts = st.builds(
    L.MoASpec,
    router=st.sampled_from(
        [
            L.RouterSpec(n_experts=Count(4), top_k=2, score="softmax-of-chosen"),
            L.RouterSpec(n_experts=Count(3), top_k=1, factor=2.0, bias=True, gains=True),
            L.RouterSpec(n_experts=Count(4), top_k=3, score="sigmoid", renormalise=True, correction=True),
        ]
    ),
    kv_heads=st.sampled_from([Count(2), Count(1)]),
    head_dim=st.just(Width(8)),
    rotary=optional(rotaries),
    bias=st.booleans(),
)
compressors = st.builds(
    L.CompressorSpec,
    every=st.sampled_from([Window(2), Window(3), Window(5)]),
    overlap=st.booleans(),
    norm=optional(norms),
)


query_scales = st.sampled_from(
    [
        L.LogN(length=Length(5)),
        L.LogN(length=Length(3), growth=0.4),
        L.LogSteps(length=Length(3), growth=0.4, start=1),
        L.SSMaxSpec(),
    ]
)
gates = st.builds(
    L.OutputGateSpec,
    over=st.sampled_from(["features", "heads"]),
    activation=st.sampled_from([L.Sigmoid(), L.Softplus()]),
    bias=st.booleans(),
    reads=st.sampled_from(["layer", "query"]),
)
indexers = st.builds(
    L.IndexerSpec,
    n_heads=st.sampled_from([Count(1), Count(6)]),
    head_dim=st.sampled_from([Width(4), Width(10)]),
    top_k=st.sampled_from([Window(1), Window(3), Window(50)]),
    layout=st.sampled_from([None, "half", "interleaved"]),
    norm_key=optional(norms),
    norm_query=optional(norms),
    norm_read=optional(norms),
    query_scale=optional(query_scales),
    weighed=st.booleans(),
)
engrams = st.builds(
    L.EngramSpec,
    vocab=st.just(Vocab(37)),
    end=st.sampled_from([5, 36]),
    width=st.just(Width(24)),
    rows=st.sampled_from([Vocab(1), Vocab(40)]),
    longest=st.sampled_from([2, 3, 4]),
    n_tables=st.sampled_from([1, 2]),
    multiple=st.just(4),
    size=st.sampled_from([1, 3]),
    number=st.sampled_from([0, 1]),
    norm=optional(norms),
)
block_indexers = st.builds(
    L.BlockIndexerSpec,
    n_heads=st.sampled_from([Count(1), Count(2), Count(4)]),
    head_dim=st.sampled_from([Width(4), Width(10)]),
    top_k=st.sampled_from([Window(2), Window(3)]),
    layout=st.sampled_from([None, "half", "interleaved"]),
    norm_key=optional(norms),
    norm_query=optional(norms),
    every=st.sampled_from([Window(1), Window(3)]),
    near=st.sampled_from([Count(1), Count(2)]),
)
SCALED = L.ChainSpec(maps=(L.ShiftSpec(over="features"), L.GainSpec(over="features")))
DISTANCES = L.RelativeTableSpec(farthest=Length(12), n_buckets=Count(6), norm=L.LayerNormSpec(), shared="distances")


@st.composite
def attentions(draw: st.DrawFn, masks: st.SearchStrategy[L.Mask] = causal_masks, **fixed: Any) -> L.AttentionSpec:
    two_sets = st.builds(L.LocalAndGlobalSpec, n_heads=st.sampled_from([Count(1), Count(4)]))
    projection = draw(st.one_of(grouped(), shared_vectors(), latent(), two_sets, heads_of_experts))
    scores = draw(
        st.sampled_from(
            [
                (),
                (L.ALiBiSpec(),),
                (L.RelativeBucketsSpec(n_buckets=Count(8), max_distance=Window(12)),),
                (L.RelativeSinusoidSpec(bidirectional=True),),
                (L.RelativeSinusoidSpec(base=100.0), L.ALiBiSpec()),
                (L.ShawKeysSpec(farthest=Window(3)),),
                (L.BySegmentSpec(), L.ALiBiSpec()),
                (L.DistanceProfilesSpec(width=Width(3), extent=Window(5)),),
                (
                    L.ContentToPositionSpec(table=DISTANCES, projection=L.LinearSpec()),
                    L.PositionToContentSpec(table=DISTANCES, projection=L.LinearSpec(bias=True)),
                ),
            ]
        )
    )
    options = {
        "scale": draw(st.sampled_from([ScaleSpec(power=-0.5), ScaleSpec(power=-1.0), ScaleSpec(factor=0.4)])),
        "softcap": draw(optional(st.just(3.0))),
        "sink": draw(st.booleans()),
        "gate": draw(optional(gates)),
        "norm": draw(optional(norms)),
        "scores": scores,
        "mask": draw(masks),
        "relative_values": draw(optional(st.just(L.ShawValuesSpec(farthest=Window(4))))),
        "query_scale": draw(optional(query_scales)),
        "difference": draw(st.sampled_from([None, None, L.DifferentialSpec(start=0.4), L.DifferentialSpec(norm=None)])),
    }
    if getattr(projection, "kv_heads", projection.n_heads) % 2:
        options["difference"] = None
    if (
        isinstance(projection, L.GQASpec)
        and not projection.values_are_keys
        and not fixed
        and not draw(st.integers(0, 3))
    ):
        convolved = L.ConvolvedHeadsSpec(each=draw(st.sampled_from([1, 2, 4])), heads=draw(st.sampled_from([1, 3])))
        short = L.CausalConvolutionSpec(size=convolved.each)
        mixed = draw(st.sampled_from([{"convolved": convolved}, {"short": short}]))
        projection = projection.but(**mixed)
    chosen = draw(st.one_of(st.none(), st.none(), indexers)) if ignores_heads(options["mask"]) else None
    of_blocks = draw(optional(block_indexers)) if chosen else None
    blocks = draw(st.one_of(st.none(), compressors)) if projection.takes_blocks and not fixed else None
    if blocks is not None:
        options |= {"scores": (), "relative_values": None, "compressor": blocks}
        chosen = chosen and chosen.but(compressor=blocks.but(norm=None), where=draw(st.sampled_from(["first", "last"])))
    elif of_blocks is not None and projection.n_heads % of_blocks.n_heads == 0:
        chosen = of_blocks
    elif chosen is not None and options["mask"] in (L.Causal(), L.Everything()) and draw(st.booleans()):
        chosen = chosen.but(every=Window(3), top_k=Window(3 * chosen.top_k), gated=draw(st.booleans()))
    if chosen is not None:  # which turns as many features as attention's, and may have fewer
        projection = changed(projection, L.RotarySpec, learned=None)
    return L.AttentionSpec(projection=projection, indexer=chosen, **{**options, **fixed})


def dropping_tokens(spec: ModelSpec) -> ModelSpec:
    """The same whose embedding takes one token for masked, which makes an encoder of it."""
    return changed(spec, L.TokensSpec, dropout=L.TokenDropoutSpec(token=5))


SUMS = L.TransientGlobalSpec(
    every=Window(3), scores=L.RelativeBucketsSpec(n_buckets=Count(8), max_distance=Window(12), bidirectional=True)
)


def summing_blocks(spec: ModelSpec) -> ModelSpec:
    """The same whose attention reads sums of blocks beside its keys where it can, which makes an encoder of it."""

    def summing(attention: L.AttentionSpec) -> L.AttentionSpec:
        by_place = tuple(score for score in attention.scores if not score.reads_content)
        still = changed(attention.projection, L.GQASpec, rotary=None)
        plain = attention.but(projection=still, scores=by_place, relative_values=None)
        return attention if SUMS.misfit(plain) else plain.but(transient=SUMS)

    return edited(without_blocks(spec), L.AttentionSpec, summing)


def without_blocks(spec: ModelSpec) -> ModelSpec:
    """The same whose attention keeps no blocks of past tokens, and mixes none with the next."""

    def without(attention: L.AttentionSpec) -> L.AttentionSpec:
        indexer = attention.indexer and attention.indexer.but(compressor=None)
        alone = changed(attention.projection, L.GQASpec, convolved=None, short=None)
        return attention.but(compressor=None, indexer=indexer, projection=alone)

    return edited(spec, L.AttentionSpec, without)


@st.composite
def feed_forwards(draw: st.DrawFn, *, learning: bool = True) -> MixerSpec:
    """Draw a feed-forward; what is between the maps of one expert among many learns nothing."""
    bias: dict[str, Any] = {"bias_in": draw(st.booleans()), "bias_out": draw(st.booleans())}
    activation = draw(st.one_of(activations, st.just(L.XIELU())) if learning else activations)
    gainless = st.just(L.RMSNormSpec(weight=False, eps=1e-2))
    bias["norm"] = draw(optional(st.one_of(norms, gainless) if learning else gainless))
    if draw(st.booleans()):
        groups = draw(st.sampled_from([1, 1, 2])) if learning else 1
        return L.FeedForwardSpec(d_ff=Width(20), activation=activation, groups=Count(groups), **bias)
    limit, offset = draw(optional(st.just(1.0))), draw(st.sampled_from([0.0, 1.0]))
    bias["sparsity"] = draw(st.sampled_from([None, None, 0.3]))
    return L.GatedFeedForwardSpec(d_ff=Width(20), activation=activation, limit=limit, up_offset=offset, **bias)


routers = st.sampled_from(
    [
        L.RouterSpec(n_experts=Count(4), top_k=2, renormalise=True),
        L.RouterSpec(n_experts=Count(3), top_k=1, factor=2.0, bias=True, gains=True),
        L.RouterSpec(n_experts=Count(4), top_k=2, norm=L.RMSNormSpec(), scale=ScaleSpec(power=-0.5), gains=True),
        L.RouterSpec(n_experts=Count(5), top_k=3, score="softmax-of-chosen"),
        L.RouterSpec(n_experts=Count(6), top_k=2, score="sigmoid", correction=True, n_groups=3, top_groups=2),
        L.RouterSpec(n_experts=Count(4), top_k=2, score="sigmoid", renormalise=True, eps=0.1, softcap=2.0),
        L.RouterSpec(n_experts=Count(4), top_k=2, score="sigmoid", correction=True, corrects="logits"),
        L.RouterSpec(n_experts=Count(4), top_k=2, score="sparsemixer", tolerance=0.3),
        L.RouterSpec(n_experts=Count(3), top_k=3, n_identity=2, correction=True),
        L.RouterSpec(n_experts=Count(4), top_k=2, score="sqrt-softplus", renormalise=True, correction=True),
        L.RouterSpec(n_experts=Count(4), top_k=2, n_shared=2, score="sigmoid", renormalise=True, correction=True),
        L.RouterSpec(n_experts=Count(4), top_k=1, n_shared=1, n_identity=1, bias=True),
        L.RouterSpec(n_experts=Count(4), top_k=2, score="sqrt-softplus", hashed=Vocab(37), factor=1.5),
        L.RouterSpec(n_experts=Count(4), top_k=1, hashed=Vocab(20), n_identity=1),
        L.RouterSpec(
            n_experts=Count(3),
            top_k=2,
            n_identity=1,
            empty=True,
            stream=L.RouterStreamSpec(width=Width(12)),
            inner=L.ChainSpec(maps=(L.LinearSpec(d_out=Width(10), bias=True), L.GELU())),
        ),
    ]
)


@st.composite
def mixtures(draw: st.DrawFn) -> MixerSpec:
    shared = draw(optional(feed_forwards()))
    gate = shared is not None and draw(st.booleans())
    weighs: Any = draw(st.sampled_from(["output", "input"]))
    return L.MoESpec(
        router=draw(routers),
        expert=draw(feed_forwards(learning=False)),
        norm=draw(optional(norms)),
        shared_expert=shared,
        shared_gate=gate,
        latent=draw(optional(st.just(Width(12)))),
        weighs=weighs,
        bias=draw(st.booleans()),
    )


@st.composite
def recurrences(draw: st.DrawFn) -> MixerSpec:
    """Draw a mixer with a state: of one to four heads, grouped or not, by convolutions of one to four tokens."""
    convolution = L.CausalConvolutionSpec(
        size=draw(st.sampled_from([1, 2, 4])), bias=draw(st.booleans()), activation=draw(optional(activations))
    )
    heads, groups = draw(st.sampled_from([(Count(4), Count(2)), (Count(3), Count(1)), (Count(2), Count(2))]))
    bias, first = draw(st.booleans()), draw(st.booleans())
    short = L.ShortConvolutionSpec(convolution=convolution, bias=bias)
    mamba2 = L.SSDSpec(
        n_heads=heads,
        head_dim=Width(8),
        state_dim=Width(6),
        n_groups=groups,
        convolution=convolution,
        norm=draw(optional(norms)),
        norm_groups=first,
        norm_first=first,
        bias=bias,
        multipliers=draw(st.sampled_from([(), (0.5, 2.0, 0.7, 1.5, 0.9)])),
        least_step=draw(st.sampled_from([0.0, 0.2])),
        most_step=draw(optional(st.just(0.9))),
    )
    delta = L.GatedDeltaNetSpec(
        n_key_heads=groups,
        n_heads=heads,
        key_dim=Width(8),
        value_dim=Width(6),
        convolution=convolution,
        norm=draw(norms),
        most_rate=draw(st.sampled_from([1.0, 2.0])),
        activation=draw(st.sampled_from([L.SiLU(), L.Sigmoid()])),
        gate_rank=draw(optional(st.just(Width(5)))),
        forgets=draw(st.sampled_from(["head", "feature"])),
        forget_rank=draw(optional(st.just(Width(4)))),
        bound=draw(st.sampled_from([None, None, 5.0])),
    )
    rnn = draw(st.sampled_from([L.LSTMSpec, L.GRUSpec]))(
        n_layers=draw(st.sampled_from([Count(1), Count(2)])), d_inner=draw(optional(st.just(Width(10)))), bias=bias
    )
    mamba = L.S6Spec(
        width=Width(20),
        state_dim=Width(6),
        step_rank=draw(optional(st.just(Width(5)))),
        convolution=convolution,
        norm=draw(optional(norms)),
        bias=bias,
    )
    griffin = L.RGLRUSpec(
        width=Width(6 * heads), n_blocks=heads, convolution=convolution, activation=draw(activations), bias=bias
    )
    lightning = L.LightningAttentionSpec(
        n_heads=heads,
        head_dim=Width(6),
        norm=draw(norms),
        activation=draw(activations),
        rate=draw(optional(st.just(0.3))),
    )
    mlstm = L.MLSTMSpec(
        n_heads=heads,
        key_dim=Width(4),
        value_dim=Width(6),
        cap=draw(optional(st.just(15.0))),
        norm=draw(norms),
        gate=draw(st.sampled_from([L.SiLU(), L.Sigmoid()])),
        eps=draw(st.sampled_from([1e-6, 0.3])),
    )
    time = L.WKVSpec(
        width=draw(optional(st.just(Width(10)))), gate=draw(activations), depth=draw(optional(st.just(0.3)))
    )
    channel = L.ChannelMixSpec(d_ff=Width(18), activation=draw(activations), gate=draw(activations))
    return draw(st.sampled_from([short, mamba2, delta, mamba, griffin, rnn, lightning, mlstm, time, channel]))


@st.composite
def blocks(draw: st.DrawFn, masks: st.SearchStrategy[L.Mask] = causal_masks) -> BlockSpec:
    mixers: list[MixerSpec] = [
        draw(st.one_of(attentions(masks), recurrences())),
        draw(st.one_of(feed_forwards(), mixtures())),
    ]
    each = optional(norms)
    short = st.just(L.ResidualConvolutionSpec(convolution=L.CausalConvolutionSpec(size=3)))
    then = st.one_of(st.none(), st.none(), short)
    branches = [
        BranchSpec(mixer=m, norm_in=draw(each), norm_out=draw(optional(tails)), then=draw(then)) for m in mixers
    ]
    groups: list[tuple[BranchSpec, ...]] = [(branch,) for branch in branches]
    wiring = draw(st.sampled_from(["serial", "parallel", "late"]))
    if wiring == "parallel":
        groups = [tuple(branches)]
    elif wiring == "late":
        late = draw(st.one_of(feed_forwards(), mixtures(), recurrences()))
        groups[0] += (BranchSpec(mixer=late, norm_out=draw(optional(tails)), late=True),)
    # Something must keep the stream's size in check, or a random network overflows; a norm before or after does.
    return BlockSpec(
        sublayers=tuple(
            SublayerSpec(
                branches=g,
                norm_in=draw(st.one_of(norms, st.just(L.GatedRMSNormSpec(rank=Width(3))))),
                norm_out=draw(optional(norms)),
                norm_sum=draw(each),
                skip=draw(st.sampled_from([None, None, SCALED])),
            )
            for g in groups
        )
    )


@st.composite
def decoders(draw: st.DrawFn, masks: st.SearchStrategy[L.Mask] = causal_masks) -> ModelSpec:
    """Draw a decoder of two unequal layers."""
    tied = draw(st.booleans())
    table = TableSpec(rows=Vocab(37), shared="tokens" if tied else None)
    positions = st.sampled_from(
        [
            (),
            (L.LearnedPositionsSpec(n_positions=Length(64), offset=2),),
            (L.FactorisedPositionsSpec(shape=(8, 2, 4)),),
            (L.SinusoidSpec(),),
            (L.SinusoidSpec(), L.LanguagesSpec(n_languages=Count(3))),
            (L.SinusoidSpec(layout="concatenated", frequencies="half-1", start=2),),
        ]
    )
    scale = draw(optional(st.just(ScaleSpec(power=0.5))))
    embedding = EmbeddingSpec(
        terms=(L.TokensSpec(table=table, scale=scale), *draw(positions)), norm=draw(optional(norms))
    )
    head = HeadSpec(table=table, bias=draw(st.booleans()), softcap=draw(optional(st.just(4.0))))
    each = draw(two_layers(masks))
    if draw(st.sampled_from([False, False, False, True])):  # streams side by side, of which the layers run on one
        inside = draw(st.sampled_from([None, 1]))
        norm = draw(optional(norms))
        joined = L.AltUpSpec(
            inside=inside, norm=norm, residual=draw(st.sampled_from([L.AddSpec(), L.AddSpec(scale=0.7)]))
        )
        n = draw(st.sampled_from([Count(2), Count(3)]))
        hyper = L.HyperConnectionSpec(
            iterations=draw(st.sampled_from([Count(1), Count(4), None])),
            norm=draw(optional(norms)),
            most=draw(st.sampled_from([2.0, 0.7])),
            floor=draw(st.sampled_from([0.0, 0.1])),
        )
        gated = L.GatedResidualSpec(rank=Width(3), norm=draw(optional(norms)), whole=draw(st.sampled_from([0, 1])))
        connection = draw(st.sampled_from([joined, hyper, gated]))
        joint = each if connection is joined and inside is None else map(_without_norm_sum, each)
        if connection is gated and gated.whole:
            first = SublayerSpec(branches=(BranchSpec(mixer=draw(engrams)),))
            joint = (block.but(sublayers=(first, *block.sublayers)) for block in joint)
        ended = L.GatedStreamsSpec(n=n, rank=Width(5), norm=draw(optional(norms)))
        streams = StackSpec(
            d_model=Width(D_MODEL),
            embedding=embedding,
            blocks=tuple(block.but(connection=connection) for block in joint),
            residual=draw(
                st.sampled_from(
                    [L.StreamsSpec(n=n), L.HyperStreamsSpec(n=n), L.HyperStreamsSpec(n=n, ends="mean"), ended]
                )
            ),
            norm=draw(norms),
        )
        return ModelSpec(stack=streams, heads=(head,), init=L.ByRole())
    residual = draw(
        st.sampled_from(
            [
                L.AddSpec(),
                L.AddSpec(scale=0.7, branch=0.6),
                L.AddByDepthSpec(power=0.1),
                L.AddByDepthSpec(power=0.0, branch=ScaleSpec(factor=0.9, power=-0.25)),
                L.ReversibleSpec(),
                L.ReversibleSpec(output="both"),
            ]
        )
    )
    if not residual.sums_normed:
        each = tuple(_without_norm_sum(block) for block in each)
    if residual.undoes:
        each = tuple(changed(block, BranchSpec, late=False) for block in each)
    # Of few blocks a router's gradient may be nothing but rounding; experts on blocks are among those that have names.
    apart = any(mixer.borrows() for mixer in each[1].mixers) or any(each[1].nested(L.MoESpec))
    if draw(st.sampled_from([False, False, True])) and not apart:
        each = (each[0], draw(shortened(each[1])))
    stack = StackSpec(d_model=Width(D_MODEL), embedding=embedding, blocks=each, residual=residual, norm=draw(norms))
    if residual.width(D_MODEL) > D_MODEL:
        head = head.but(transform=(L.LinearSpec(),))  # from both streams back to d_model
    elif draw(st.sampled_from([False, False, True])):
        layers = draw(head_layers(masks))
        if not residual.sums_normed:
            layers = layers.but(blocks=tuple(map(_without_norm_sum, layers.blocks)))
        if residual.undoes:
            layers = changed(layers, BranchSpec, late=False)
        return ModelSpec(stack=stack, heads=(head.but(layers=layers),), init=L.ByRole())
    model = ModelSpec(stack=stack, heads=(head,), init=L.ByRole())
    return (
        model
        if any(mixer.borrows() for mixer in each[1].mixers)
        else predicting_further(model, draw(st.sampled_from([0, 0, 0, 2])))
    )


@st.composite
def shortened(draw: st.DrawFn, layer: BlockSpec) -> BlockSpec:
    """Draw a layer that runs this one on blocks of tokens, or on blocks of blocks."""
    layer = changed(changed(layer, BranchSpec, late=False), L.AttentionSpec, indexer=None, compressor=None)
    mixer = L.ShortenedSpec(
        every=draw(st.sampled_from([Window(2), Window(3)])),
        blocks=(layer,) * draw(st.sampled_from([1, 2])),
        pool=draw(optional(st.just(L.LinearSpec(bias=True)))),
        spread=draw(optional(st.just(L.LinearSpec()))),
        norm=draw(optional(norms)),
    )
    outer = BlockSpec(sublayers=(SublayerSpec(branches=(BranchSpec(mixer=mixer),), norm_in=draw(optional(norms))),))
    if draw(st.sampled_from([False, False, True])):
        deeper = L.ShortenedSpec(every=Window(2), blocks=(outer, layer))
        outer = BlockSpec(sublayers=(SublayerSpec(branches=(BranchSpec(mixer=deeper),)),))
    return outer


@st.composite
def head_layers(draw: st.DrawFn, masks: st.SearchStrategy[L.Mask] = causal_masks) -> HeadLayersSpec:
    """Draw one layer of a head of its own, which reads its stream or what that began with."""
    layer, reads = draw(blocks(masks)), draw(st.sampled_from(["self", "input"]))
    terms = draw(st.sampled_from([(), (L.LearnedPositionsSpec(n_positions=Length(64)),)]))
    alone = {"indexer": None, "compressor": None} if reads == "input" else {}
    layer = changed(changed(layer, L.GQASpec, convolved=None, short=None), L.AttentionSpec, reads=reads, **alone)
    return HeadLayersSpec(blocks=(layer,), terms=terms)  # layers of the stack that no head reads learn nothing


@st.composite
def two_layers(draw: st.DrawFn, masks: st.SearchStrategy[L.Mask] = causal_masks) -> tuple[BlockSpec, BlockSpec]:
    """Draw two unequal layers; the second may read the first's keys or choice of keys, and add embeddings of its own."""
    first, second = draw(blocks(masks)), draw(blocks(masks))
    mixer = first.sublayers[0].branches[0].mixer
    if isinstance(mixer, L.AttentionSpec) and mixer.indexer is not None and draw(st.booleans()):
        first = changed(first, L.IndexerSpec, choice="c")
        second = changed(first, L.IndexerSpec, reads="layer")
    if (
        isinstance(mixer, L.AttentionSpec)
        and mixer.compressor is None
        and not isinstance(mixer.projection, L.LocalAndGlobalSpec)
        and not mixer.projection.mixes
        and draw(st.booleans())
    ):
        first = changed(first, L.AttentionSpec, keys="k")
        second = changed(changed(first, L.IndexerSpec, reads="layer", choice="c"), L.AttentionSpec, reads="layer")
        first = changed(first, L.IndexerSpec, choice="c")
    if draw(st.booleans()):
        table = TableSpec(rows=draw(st.sampled_from([Vocab(37), Vocab(20)])), width=Width(8))
        mixer = L.PerLayerEmbeddingSpec(table=table, activation=draw(activations), norm=draw(optional(norms)))
        around = BranchSpec(
            mixer=L.LaurelSpec(rank=Width(4), norm=draw(optional(norms))), norm_out=draw(optional(norms))
        )
        branches = (BranchSpec(mixer=mixer, norm_out=draw(norms)), around)
        second = second.but(sublayers=(*second.sublayers, SublayerSpec(branches=branches, norm_in=draw(norms))))
    if draw(st.sampled_from([False, False, False, True])):
        found = BranchSpec(mixer=draw(engrams), norm_out=draw(optional(norms)))
        second = second.but(sublayers=(SublayerSpec(branches=(found,)), *second.sublayers))
    return first, second


def _without_norm_sum(block: BlockSpec) -> BlockSpec:
    """Without norms of sums, and skips: what can be undone, and what streams side by side take."""
    return block.but(sublayers=tuple(sublayer.but(norm_sum=None, skip=None) for sublayer in block.sublayers))
