"""DeepSeek-V4 to and from transformers' DeepseekV4ForCausalLM, which writes files by the names of the released ones.

The class divides weights by their sum whatever norm_topk_prob says, and passes over the layers for further tokens. Its blocks
start at the first slot of a row, be that padding; here they start with a document, so that padding changes nothing.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, edited, with_layers
from anyformer.families.deepseek_v4 import (
    HASHED,
    HEAVY,
    PLAIN,
    ROUTED,
    SLIDING,
    SPARSE,
    STRETCHED,
    attention_layers,
    deepseek_v4,
)
from anyformer.families.hf import table
from anyformer.families.hf.experts import EXPERTS, HELD, routed
from anyformer.families.hf.layout import Laid, Modules, Theirs
from anyformer.families.hf.mapping import Family, TensorRow, one
from anyformer.families.hf.rotary import FRACTION, THETA, rotary_of, scaling_settings
from anyformer.families.hf.settings import Settings
from anyformer.layers import (
    AttentionSpec,
    CompressorSpec,
    GatedFeedForwardSpec,
    HyperConnectionSpec,
    HyperStreamsSpec,
    IndexerSpec,
    RotarySpec,
    RouterSpec,
    SharedKVSpec,
    SlidingWindow,
    YaRN,
)
from anyformer.layers.rotary import fraction_of
from anyformer.spec import BlockSpec, ModelSpec, StackSpec, TableSpec, Vocab, Window

RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}  # by an older list of how many tokens a layer's blocks have
RATES = {SPARSE: 4, HEAVY: 128}
OLDER = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
SCORES = {"sqrtsoftplus": "sqrt-softplus", "sigmoid": "sigmoid"}
MAIN, COMPRESSED = "main", "compress"


def _attention(block: BlockSpec) -> str:
    compressor = one(block, AttentionSpec).compressor
    return SLIDING if compressor is None else SPARSE if compressor.overlap else HEAVY


def _experts(block: BlockSpec) -> str:
    return ROUTED if one(block, RouterSpec).hashed is None else HASHED


def _layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of the template's, one of each kind of attention and of experts, those that are said."""
    n, n_hashed = settings.take("num_hidden_layers", int, 43), settings.take("num_hash_layers", int, 3)
    ratios = settings.written("compress_ratios")
    usual = attention_layers(n)
    if ratios is not None:
        if not isinstance(ratios, list) or len(ratios) < n or not all(each in [*RATIOS] for each in ratios[:n]):
            raise settings.refusal("compress_ratios", f"must be {n} times one of {', '.join(map(str, RATIOS))}")
        usual = [RATIOS[ratio] for ratio in ratios[:n]]
    types = settings.words("layer_types", n, (SLIDING, SPARSE, HEAVY), usual)
    feeds = settings.words(
        "mlp_layer_types", n, (HASHED, ROUTED), (HASHED if i < n_hashed else ROUTED for i in range(n))
    )
    known = {(_attention(block), _experts(block)): block for block in spec.stack.blocks}
    return with_layers(spec, (known[kind] for kind in zip(types, feeds, strict=True)))


def _types(spec: ModelSpec) -> dict[str, Any]:
    blocks = spec.stack.blocks
    types = {"layer_types": [*map(_attention, blocks)], "mlp_layer_types": [*map(_experts, blocks)]}
    return {"num_hidden_layers": spec.n_layers, **types}


def _rates(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """How many tokens a block has, in sparse and in heavily compressed layers."""
    found = settings.section("compress_rates")
    if found is None:
        rates = {kind: settings.positive(OLDER[kind], int, usual) for kind, usual in RATES.items()}
    else:
        rates = {kind: found.positive(kind, int) for kind in RATES}
        found.close()
    every = {True: Window(rates[SPARSE]), False: Window(rates[HEAVY])}
    return edited(spec, CompressorSpec, lambda compressor: compressor.but(every=every[compressor.overlap]))


def _written_rates(spec: ModelSpec) -> dict[str, Any]:
    found = {SPARSE if each.overlap else HEAVY: each.every for each in spec.nested(CompressorSpec)}
    return {"compress_rates": RATES | found}


def _positions(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Those of layers without blocks and with them: a table each, or one that stretches the latter alone."""
    context = settings.positive("max_position_embeddings", int, 1_048_576)
    turning, head_dim = settings.optional("qk_rope_head_dim", int), settings.positive("head_dim", int, 512)
    fraction = settings.optional(FRACTION, float) or (fraction_of(turning, head_dim) if turning else PLAIN.fraction)
    plain = PLAIN.but(fraction=fraction, theta=settings.positive(THETA, float, PLAIN.theta))
    theta = settings.positive("compress_rope_theta", float, STRETCHED.theta)
    inner = settings.section("rope_parameters") or settings.section("rope_scaling")
    main, compressed = (inner.section(name) if inner else None for name in (MAIN, COMPRESSED))
    stretched = plain.but(theta=theta)
    if main and compressed:
        plain, stretched = rotary_of(main, context, plain), rotary_of(compressed, context, plain)
    elif inner:
        inner.ignore(THETA, FRACTION)
        stretched = rotary_of(inner, context, plain).but(theta=theta, fraction=fraction)
        if isinstance(stretched.scaling, YaRN) and stretched.scaling.attention_factor is None:
            stretched = stretched.but(scaling=stretched.scaling.but(attention_factor=1.0))
    blocks = spec.stack.blocks
    each = (changed(b, SharedKVSpec, rotary=plain if _attention(b) == SLIDING else stretched) for b in blocks)
    return with_layers(spec, each).but(context=context)


def _tables(spec: ModelSpec) -> dict[str, Any]:
    found = {_attention(block) == SLIDING: one(block, RotarySpec) for block in spec.stack.blocks}
    stretched = found.get(False, STRETCHED)
    plain = found.get(True) or PLAIN.but(fraction=stretched.fraction)
    tables = {
        name: {
            "rope_type": "default",
            THETA: each.theta,
            FRACTION: each.fraction,
            **(scaling_settings(each.scaling) or {}),
        }
        for name, each in ((MAIN, plain), (COMPRESSED, stretched))
    }
    thetas = {THETA: plain.theta, "compress_rope_theta": stretched.theta, FRACTION: plain.fraction}
    return {"max_position_embeddings": spec.context or 1_048_576, **thetas, "rope_parameters": tables}


def _older(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Take the number of experts and their width by other names, where they are not said by these."""
    for name, other in (("n_routed_experts", "num_local_experts"), ("moe_intermediate_size", "intermediate_size")):
        if settings.written(name) is None:
            settings.put({name: settings.written(other)})
        settings.ignore(other)
    return spec


def _hashed(_: Settings, spec: ModelSpec) -> ModelSpec:
    """The tables by which tokens have their experts have a row for each token."""
    rows = Vocab(spec.vocab_size)
    return edited(spec, RouterSpec, lambda router: router.but(hashed=None if router.hashed is None else rows))


def _modules(attention: str, feed: str, names: dict[str, str]) -> dict[str, str]:
    """A layer's modules below what the two branches are called, by the names of those in each."""
    return {
        **{f"{table.PROJECTION}.{ours}": f"{attention}.{names[ours]}" for ours in PROJECTED},
        f"{table.PROJECTION}.o_down": f"{attention}.{names['o_down']}.weight",
        f"{table.MIXER}.sink": f"{attention}.{names['sink']}",
        **_compressor(f"{table.MIXER}.compressor", f"{attention}.compressor", names),
        **_compressor(f"{table.MIXER}.indexer.compressor", f"{attention}.{names['compressor of indexer']}", names),
        f"{table.MIXER}.indexer.q": f"{attention}.{names['indexer']}.{names['q']}",
        f"{table.MIXER}.indexer.weigh": f"{attention}.{names['indexer']}.{names['weigh']}",
        f"{table.FEED}.router.table": f"{feed}.gate.tid2eid",
        **{f"{table.FEED}.shared_expert.{x}": f"{feed}.shared_experts.{names[x]}" for x in ("gate", "up", "down")},
    }


def _compressor(ours: str, theirs: str, names: dict[str, str]) -> dict[str, str]:
    return {
        f"{ours}.value": f"{theirs}.{names['k']}",
        f"{ours}.gate": f"{theirs}.{names['gates']}",
        f"{ours}.bias": f"{theirs}.{names['places']}",
        f"{ours}.norm": f"{theirs}.{names['norm_key']}",
    }


PROJECTED = ("q_down", "q", "norm_latent", "k", "norm_key", "o")
IN_MEMORY = {
    "q_down": "q_a_proj",
    "q": "q_b_proj",
    "norm_latent": "q_a_norm",
    "k": "kv_proj",
    "norm_key": "kv_norm",
    "o_down": "o_a_proj",
    "o": "o_b_proj",
    "sink": "sinks",
    "gates": "gate_proj",
    "places": "position_bias",
    "indexer": "compressor.indexer",
    "compressor of indexer": "compressor.indexer",
    "weigh": "scorer.weights_proj",
    **{x: f"{x}_proj" for x in ("gate", "up", "down")},
}
IN_FILES = {
    "q_down": "wq_a",
    "q": "wq_b",
    "norm_latent": "q_norm",
    "k": "wkv",
    "norm_key": "norm",
    "o_down": "wo_a",
    "o": "wo_b",
    "sink": "attn_sink",
    "gates": "wgate",
    "places": "ape",
    "indexer": "indexer",
    "compressor of indexer": "indexer.compressor",
    "weigh": "weights_proj",
    "gate": "w1",
    "up": "w3",
    "down": "w2",
}
MODULES: Modules = {
    "0.norm_in": "input_layernorm",
    "1.norm_in": "post_attention_layernorm",
    **_modules("self_attn", "mlp", IN_MEMORY),
    **HELD,
}
FILED: Modules = {
    "0.norm_in": "attn_norm",
    "1.norm_in": "ffn_norm",
    **routed("ffn.gate.weight", "ffn.gate.bias"),
    **_modules("attn", "ffn", IN_FILES),
    **{f"{EXPERTS}.{x}": f"ffn.experts.*.{IN_FILES[x]}" for x in ("gate", "up", "down")},
}
# How many streams there are, and the least of what they are mixed by.
STREAMS = (
    table.at("hc_mult", int, HyperStreamsSpec, "n", default=4),
    table.at("hc_eps", float, HyperConnectionSpec, "least", default=1e-6, positive=True),
)
PAIRS = (
    table.only(num_key_value_heads=1, n_shared_experts=1, attention_bias=False, mlp_bias=False),
    table.Pair(_older),
    table.Pair(_layers, _types),
    table.at("vocab_size", int, TableSpec, "rows", default=129_280),
    table.Pair(_hashed),
    table.at("hidden_size", int, StackSpec, "d_model", default=4096),
    table.Pair(_positions, _tables),
    table.together(
        SharedKVSpec,
        {
            "num_attention_heads": ("n_heads", int, 64),
            "head_dim": ("head_dim", int, 512),
            "q_lora_rank": ("query_rank", int, 1024),
            "o_groups": ("out_groups", int, 8),
            "o_lora_rank": ("out_rank", int, 1024),
        },
    ),
    table.at("sliding_window", int, SlidingWindow, "size", default=128),
    table.Pair(_rates, _written_rates),
    table.if_any(
        IndexerSpec,
        table.together(
            IndexerSpec,
            {
                "index_n_heads": ("n_heads", int, 64),
                "index_head_dim": ("head_dim", int, 128),
                "index_topk": ("top_k", int, 512),
            },
        ),
    ),
    table.together(
        RouterSpec,
        {
            "n_routed_experts": ("n_experts", int, 256),
            "num_experts_per_tok": ("top_k", int, 6),
            "routed_scaling_factor": ("factor", float, 1.5),
        },
    ),
    table.choice("scoring_func", RouterSpec, "score", SCORES, "sqrtsoftplus"),
    table.at("moe_intermediate_size", int, GatedFeedForwardSpec, "d_ff", default=2048),
    table.activation("hidden_act", "silu", GatedFeedForwardSpec),
    table.at("swiglu_limit", float, GatedFeedForwardSpec, "limit", default=10.0, positive=True),
    *STREAMS,
    table.at("hc_eps", float, HyperStreamsSpec, "least", default=1e-6),
    table.at("hc_sinkhorn_iters", int, HyperConnectionSpec, "iterations", default=20, positive=True),
    table.rms_eps(1e-6),
    table.tables(tied=False),
    table.fixed(num_key_value_heads=1, n_shared_experts=1),
)
COEFFICIENTS = {"weight": "fn", "bias": "base", "scale": "scale"}


def coefficients(spec: ModelSpec, attention: tuple[str, ...], feed: tuple[str, ...], end: tuple[str, ...] = ()) -> Laid:
    """The coefficients of streams: of each layer's two branches, and at the end. Of the names of each the first is written."""
    places = {"stack.residual.end": end} if end else {}
    for i in range(spec.n_layers):
        for k, names in enumerate((attention, feed)):
            theirs = tuple(f"layers.{i}.{name}" for name in names)
            places[f"stack.blocks.{i}.connection.sublayers.{k}.coefficients"] = theirs
    return {
        f"{ours}.{own}": Theirs(f"{first}{name}", also=tuple(f"{other}{name}" for other in others))
        for ours, (first, *others) in places.items()
        for own, name in COEFFICIENTS.items()
    }


def _family(modules: Modules, attention: str, feed: str, head: str) -> Family:
    return table.family(
        "deepseek_v4",
        "DeepseekV4ForCausalLM",
        deepseek_v4(8, 8, 8, [SLIDING, SPARSE, HEAVY] * 2, [HASHED] * 3 + [ROUTED] * 3),
        PAIRS,
        modules,
        outside=lambda spec: coefficients(spec, (attention,), (feed,), ("hc_head.hc_", "hc_head_")),
        heads=(head,),
        ignored=("norm_topk_prob", "num_nextn_predict_layers", "expert_dtype"),
    )


def _files(spec: ModelSpec) -> list[TensorRow]:
    """The rows of files, which call the table of tokens otherwise where they lack the head."""
    rows = _family(FILED, "hc_attn_", "hc_ffn_", "head").rows(spec)
    return [row._replace(also=(*row.also, "model.embed.weight")) if row.theirs == TOKENS else row for row in rows]


TOKENS = ("model.embed_tokens.weight",)
DEEPSEEK_V4 = _family(MODULES, "attn_hc.", "ffn_hc.", "lm_head")._replace(files=_files)
