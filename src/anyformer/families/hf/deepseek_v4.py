"""DeepSeek-V4 to and from transformers' DeepseekV4ForCausalLM, which writes files by the names of the released ones.

The class divides weights by their sum whatever norm_topk_prob says, and passes over the layers for further tokens. Its blocks
start at the first slot of a row, be that padding; here they start with a document, so that padding changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.families.compose import firsts
from anyformer.families.deepseek_v4 import (
    HASHED,
    HEAVY,
    PLAIN,
    ROUTED,
    ROUTER,
    SLIDING,
    SPARSE,
    STRETCHED,
    attention_layers,
    deepseek_v4,
)
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import EXPERTS, HELD, routed
from anyformer.families.hf.layout import Laid, Modules, Theirs, within
from anyformer.families.hf.mapping import Family, TensorRow, one
from anyformer.families.hf.rotary import FRACTION, THETA, rotary_of, scaling_settings
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import (
    AttentionSpec,
    CompressorSpec,
    GatedFeedForwardSpec,
    HyperConnectionSpec,
    HyperStreamsSpec,
    IndexerSpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SharedKVSpec,
    YaRN,
)
from anyformer.layers.rotary import fraction_of
from anyformer.spec import BlockSpec, Count, ModelSpec

RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}  # by an older list of how many tokens a layer's blocks have
RATES = {SPARSE: 4, HEAVY: 128}
OLDER = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
SCORES = {"sqrtsoftplus": "sqrt-softplus", "sigmoid": "sigmoid"}
MAIN, COMPRESSED = "main", "compress"


def _layers(settings: Settings, n: int) -> Sequence[str]:
    ratios = settings.written("compress_ratios")
    usual = attention_layers(n)
    if ratios is not None:
        if not isinstance(ratios, list) or len(ratios) < n or not all(each in [*RATIOS] for each in ratios[:n]):
            raise settings.refusal("compress_ratios", f"must be {n} times one of {', '.join(map(str, RATIOS))}")
        usual = [RATIOS[ratio] for ratio in ratios[:n]]
    return settings.words("layer_types", n, (SLIDING, SPARSE, HEAVY), usual)


def _rates(settings: Settings) -> tuple[int, int]:
    """How many tokens a block has, in sparse and in heavily compressed layers."""
    found = settings.section("compress_rates")
    each = (found.positive(kind, int) if found else settings.positive(OLDER[kind], int, RATES[kind]) for kind in RATES)
    sparse, heavy = each
    if found is not None:
        found.close()
    return sparse, heavy


def _rotary(settings: Settings, head_dim: int, context: int) -> tuple[RotarySpec, RotarySpec]:
    """The rotary positions of layers without blocks and with them: a table each, or one that stretches the latter alone."""
    turning = settings.optional("qk_rope_head_dim", int)
    fraction = settings.optional(FRACTION, float) or (fraction_of(turning, head_dim) if turning else PLAIN.fraction)
    plain = PLAIN.but(fraction=fraction, theta=settings.positive(THETA, float, PLAIN.theta))
    theta = settings.positive("compress_rope_theta", float, STRETCHED.theta)
    older, tables = settings.section("rope_scaling"), settings.section("rope_parameters")
    inner = tables or older
    if inner is None:
        return plain, plain.but(theta=theta)
    each = inner.section(MAIN), inner.section(COMPRESSED)
    if each[0] and each[1]:
        return rotary_of(each[0], context, plain), rotary_of(each[1], context, plain)
    inner.ignore(THETA, FRACTION)
    stretched = rotary_of(inner, context, plain).but(theta=theta, fraction=fraction)
    if isinstance(stretched.scaling, YaRN) and stretched.scaling.attention_factor is None:
        stretched = stretched.but(scaling=stretched.scaling.but(attention_factor=1.0))
    return plain, stretched


def _read(settings: Settings, _: ModelSpec) -> ModelSpec:
    n, eps = settings.take("num_hidden_layers", int, 43), settings.take("rms_norm_eps", float, 1e-6)
    head_dim = settings.positive("head_dim", int, 512)
    context = settings.positive("max_position_embeddings", int, 1_048_576)
    n_hashed = settings.take("num_hash_layers", int, 3)
    usual = [HASHED if i < n_hashed else ROUTED for i in range(n)]
    score = settings.take("scoring_func", str, "sqrtsoftplus")
    if score not in SCORES:
        raise settings.refusal("scoring_func", f"is not computed here; {' and '.join(SCORES)} are")
    settings.require("num_key_value_heads", 1)
    settings.require("n_shared_experts", 1)
    settings.require("attention_bias", False)
    settings.require("mlp_bias", False)
    router = ROUTER.but(
        n_experts=Count(settings.positive("n_routed_experts", int, settings.positive("num_local_experts", int, 256))),
        top_k=settings.positive("num_experts_per_tok", int, 6),
        score=SCORES[score],
        factor=settings.positive("routed_scaling_factor", float, 1.5),
    )
    return deepseek_v4(
        settings.positive("hidden_size", int, 4096),
        settings.positive("num_attention_heads", int, 64),
        settings.positive("moe_intermediate_size", int, settings.positive("intermediate_size", int, 2048)),
        _layers(settings, n),
        kinds=settings.words("mlp_layer_types", n, (HASHED, ROUTED), usual),
        router=router,
        activation=settings.activation("hidden_act", "silu"),
        limit=settings.positive("swiglu_limit", float, 10.0),
        head_dim=head_dim,
        query_rank=settings.positive("q_lora_rank", int, 1024),
        out_groups=settings.positive("o_groups", int, 8),
        out_rank=settings.positive("o_lora_rank", int, 1024),
        size=settings.positive("sliding_window", int, 128),
        every=_rates(settings),
        index=(
            settings.positive("index_n_heads", int, 64),
            settings.positive("index_head_dim", int, 128),
            settings.positive("index_topk", int, 512),
        ),
        rotary=_rotary(settings, head_dim, context),
        n_streams=settings.positive("hc_mult", int, 4),
        iterations=settings.positive("hc_sinkhorn_iters", int, 20),
        least=settings.positive("hc_eps", float, 1e-6),
        eps=eps,
        vocab_size=settings.positive("vocab_size", int, 129_280),
        context=context,
    )


def _attention(block: BlockSpec) -> str:
    compressor = one(block, AttentionSpec).compressor
    return SLIDING if compressor is None else SPARSE if compressor.overlap else HEAVY


def _write(spec: ModelSpec) -> dict[str, Any]:
    blocks = spec.stack.blocks
    types = [_attention(block) for block in blocks]
    hashed = [one(block, RouterSpec).hashed is not None for block in blocks]
    first = firsts(types, spec)
    rates, index = dict(RATES), {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 512}
    for kind in rates.keys() & first.keys():
        rates[kind] = one(first[kind], CompressorSpec).every
    if SPARSE in first:
        indexer = one(first[SPARSE], IndexerSpec)
        index = {"index_n_heads": indexer.n_heads, "index_head_dim": indexer.head_dim, "index_topk": indexer.top_k}
    compressed = next((block for kind, block in first.items() if kind != SLIDING), None)
    plain = one(first[SLIDING], RotarySpec) if SLIDING in first else PLAIN
    stretched = one(compressed, RotarySpec) if compressed else STRETCHED
    heads, router = one(spec, SharedKVSpec), one(spec, RouterSpec)
    hyper, norm = one(spec, HyperConnectionSpec), one(spec, RMSNormSpec)
    expert = one(one(spec, MoESpec).expert, GatedFeedForwardSpec)
    fraction = (stretched if compressed else plain).fraction
    tables = {
        name: {
            "rope_type": "default",
            THETA: each.theta,
            FRACTION: each.fraction,
            **(scaling_settings(each.scaling) or {}),
        }
        for name, each in ((MAIN, plain if SLIDING in first else plain.but(fraction=fraction)), (COMPRESSED, stretched))
    }
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.stack.d_model,
        "num_hidden_layers": spec.n_layers,
        "layer_types": types,
        "mlp_layer_types": [HASHED if table else ROUTED for table in hashed],
        "compress_rates": rates,
        **index,
        "num_attention_heads": heads.n_heads,
        "num_key_value_heads": 1,
        "head_dim": heads.head_dim,
        "q_lora_rank": heads.query_rank,
        "o_groups": heads.out_groups,
        "o_lora_rank": heads.out_rank,
        "sliding_window": windows.window_of(spec),
        "n_routed_experts": router.n_experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": router.top_k,
        "routed_scaling_factor": router.factor,
        "scoring_func": next((word for word, score in SCORES.items() if score == router.score), "sqrtsoftplus"),
        "moe_intermediate_size": expert.d_ff,
        "swiglu_limit": expert.limit,
        "hidden_act": spelling(expert.activation) or "silu",
        "hc_mult": spec.stack.residual.n_streams,
        "hc_sinkhorn_iters": hyper.iterations,
        "hc_eps": hyper.least,
        "rms_norm_eps": norm.eps,
        "max_position_embeddings": spec.context or 1_048_576,
        THETA: plain.theta,
        "compress_rope_theta": stretched.theta,
        FRACTION: fraction,
        "rope_parameters": tables,
    }


def _modules(attention: str, feed: str, names: dict[str, str]) -> dict[str, str]:
    """A layer's modules below what the two branches are called, by the names of those in each."""
    mixer = "0.branches.0.mixer"
    return {
        **{f"{table.PROJECTION}.{ours}": f"{attention}.{names[ours]}" for ours in PROJECTED},
        f"{table.PROJECTION}.o_down": f"{attention}.{names['o_down']}.weight",
        f"{mixer}.sink": f"{attention}.{names['sink']}",
        **_compressor(f"{mixer}.compressor", f"{attention}.compressor", names),
        **_compressor(f"{mixer}.indexer.compressor", f"{attention}.{names['compressor of indexer']}", names),
        f"{mixer}.indexer.q": f"{attention}.{names['indexer']}.{names['q']}",
        f"{mixer}.indexer.weigh": f"{attention}.{names['indexer']}.{names['weigh']}",
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
COEFFICIENTS = {"weight": "fn", "bias": "base", "scale": "scale"}


def _around(spec: ModelSpec, connection: str) -> Laid:
    """The coefficients of streams: of each layer's two branches, and at the end."""
    found = within(
        {
            f"stack.residual.end.{ours}": Theirs(f"hc_head.hc_{theirs}", also=(f"hc_head_{theirs}",))
            for ours, theirs in COEFFICIENTS.items()
        }
    )
    for i in range(spec.n_layers):
        for k, branch in enumerate(("attn", "ffn")):
            place = f"stack.blocks.{i}.connection.sublayers.{k}.coefficients"
            name = f"layers.{i}.{connection.format(branch)}"
            found |= within({f"{place}.{ours}": f"{name}{theirs}" for ours, theirs in COEFFICIENTS.items()})
    return found


def _family(modules: Modules, connection: str, head: str) -> Family:
    return table.family(
        "deepseek_v4",
        "DeepseekV4ForCausalLM",
        deepseek_v4(8, 1, 8, [SLIDING], out_groups=1),
        (table.Pair(_read, _write), table.tables(tied=False)),
        modules,
        outside=lambda spec: _around(spec, connection),
        heads=(head,),
        ignored=("norm_topk_prob", "num_nextn_predict_layers", "expert_dtype"),
    )


def _files(spec: ModelSpec) -> list[TensorRow]:
    """The rows of files, which call the table of tokens otherwise where they lack the head."""
    rows = _family(FILED, "hc_{}_", "head").rows(spec)
    return [row._replace(also=(*row.also, "model.embed.weight")) if row.theirs == TOKENS else row for row in rows]


TOKENS = ("model.embed_tokens.weight",)
DEEPSEEK_V4 = _family(MODULES, "{}_hc.", "lm_head")._replace(files=_files)
