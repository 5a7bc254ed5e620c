"""DeepSeek-V3.2 and GLM-5, whose attention an indexer gives its keys, to and from transformers' DeepseekV32ForCausalLM and
GlmMoeDsaForCausalLM.

The layers for further tokens of the released files are passed over by both classes, as DeepSeek-V3's are. The released code turns
the indexer's features by a Hadamard matrix, which changes no product, and computes in 8 bits; the classes do neither, nor do we.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.deepseek import V3_ROUTER, choosing, deepseek
from anyformer.families.glm import glm5, router
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import (
    AHEAD,
    LAYER,
    further,
    latent_heads,
    latent_scale,
    layer_eps,
    modules,
    n_shared,
    v3_routing,
)
from anyformer.families.hf.experts import BY_EXPERT, dense_by_type, expert_width
from anyformer.families.hf.layout import Laid, within
from anyformer.families.hf.llama import SPARSE_WIDTHS
from anyformer.families.hf.mapping import Family, one
from anyformer.families.hf.settings import Settings
from anyformer.layers import AttentionSpec, IndexerSpec, MLASpec, RotarySpec
from anyformer.spec import ModelSpec

INDEXED = ("indexed_attention", "deepseek_sparse_attention")  # what every layer is, by its name and by an older one
OWN, SHARED = "full", "shared"  # whose choice a layer attends to: its own, or that of the last such layer
CHOICE = "chosen"  # the name of a choice that others read
INDEXER = {"q": "wq_b", "k": "wk", "norm_key": "k_norm", "weigh": "weights_proj"}


def indexer(theirs: str = "self_attn.indexer.", more: Mapping[str, str] | None = None) -> Laid:
    """The modules of an indexer, and those that it has `more` than others."""
    return within({**INDEXER, **(more or {})}, f"{table.MIXER}.indexer.", theirs)


def index_sizes(n_heads: int) -> tuple[table.Pair, ...]:
    """The indexer's; the class turns as many of its features as of attention's keys, and fails where it has fewer."""
    sizes = {
        "index_n_heads": ("n_heads", int, n_heads),
        "index_head_dim": ("head_dim", int, 128),
        "index_topk": ("top_k", int, 2048),
    }

    def enough(settings: Settings, spec: ModelSpec) -> ModelSpec:
        turning = max((latent.turning for latent in spec.nested(MLASpec)), default=0)
        if one(spec, IndexerSpec).head_dim < turning:
            raise settings.refusal(
                "index_head_dim", f"is less than qk_rope_head_dim = {turning}, which the class refuses"
            )
        settings.words("layer_types", spec.n_layers, INDEXED, INDEXED[:1] * spec.n_layers)
        return spec

    return table.together(IndexerSpec, sizes), table.Pair(enough)


def _listed(settings: Settings, name: str, types: tuple[str, ...], n: int) -> tuple[str, ...]:
    if len(types) != n or set(types) - {OWN, SHARED} or types[0] != OWN:
        raise settings.refusal(name, f"must be {n} times {OWN} or {SHARED}, the first {OWN}")
    return types


def _by_number(settings: Settings, n: int) -> tuple[str, ...]:
    """By a word with a letter a layer, or every how many they do."""
    every, start = settings.take("index_topk_freq", int, 1), settings.take("index_skip_topk_offset", int, 2)
    word, letters = settings.written("index_topk_pattern"), {"F": OWN, "S": SHARED}
    if isinstance(word, str | list) and word:
        found = tuple(letters.get(letter, letter) for letter in word)
        return found if settings.names("indexer_types") else _listed(settings, "index_topk_pattern", found, n)
    return tuple(SHARED if max(i - start + 1, 0) % max(every, 1) else OWN for i in range(n))


def shared_choices(usual: Callable[[Settings, int], tuple[str, ...]] = _by_number) -> table.Pair:
    """Which layers choose keys of their own, by a list; `usual` says it, of the number of layers, where there is none."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n = spec.n_layers
        otherwise = usual(settings, n)
        types = _listed(settings, "indexer_types", settings.strings("indexer_types") or otherwise, n)
        if SHARED not in types:
            return spec
        each = {kind: {"reads": reads, "choice": CHOICE} for kind, reads in ((OWN, "self"), (SHARED, "layer"))}
        layers = zip(spec.stack.blocks, types, strict=True)
        blocks = tuple(changed(block, IndexerSpec, **each[kind]) for block, kind in layers)
        return with_layers(spec, blocks)

    def write(spec: ModelSpec) -> dict[str, Any]:
        attentions = (one(block, AttentionSpec) for block in spec.stack.blocks)
        return {"indexer_types": [OWN if each.own_indexer else SHARED for each in attentions]}

    return table.Pair(read, write)


def _family(
    hf_type: str,
    architecture: str,
    template: ModelSpec,
    routing: table.Pair,
    *own: table.Pair,
    d_ff: int,
    eps: float,
    index_heads: int,
    context: int,
    latent: Iterable[table.Pair],
) -> Family:
    """The family of a class; the numbers are its defaults."""
    pairs = (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 2048),
        n_shared(1),
        *latent,
        layer_eps(eps),
        table.positions(RotarySpec(layout="interleaved"), context=context),
        routing,
        latent_scale(),
        table.tables(tied=False),
        table.only(
            rope_interleave=True, scoring_func="sigmoid", topk_method="noaux_tc", mlp_bias=False, moe_layer_freq=1
        ),
        table.layers(),
        dense_by_type(d_ff, 3, "first_k_dense_replace"),
        *index_sizes(index_heads),
        further(0),
        *own,
    )
    return table.family(
        hf_type,
        architecture,
        template,
        pairs,
        lambda spec: {**modules(spec), **indexer(), **LAYER},
        apart=BY_EXPERT,
        ahead=AHEAD,
    )


DEEPSEEK_V32 = _family(
    "deepseek_v32",
    "DeepseekV32ForCausalLM",
    choosing(deepseek(1, 8, 1, 8, 8, V3_ROUTER, n_dense=0, mscale=1.0), 1, layout="half"),
    v3_routing(),
    d_ff=18_432,
    eps=1e-6,
    index_heads=64,
    context=163_840,
    latent=latent_heads(narrow=True),
)
GLM_MOE_DSA = _family(
    "glm_moe_dsa",
    "GlmMoeDsaForCausalLM",
    glm5(1, 8, 1, 8, d_expert=8, choice=router(2, 1, 1.0), n_dense=0),
    v3_routing(256, 8, 2.5, 1, 1),
    table.only(indexer_rope_interleave=True),
    shared_choices(),
    d_ff=12_288,
    eps=1e-5,
    index_heads=32,
    context=202_752,
    latent=latent_heads(query_rank=2048, head_dim=192, value_dim=256, narrow=True),
)
