"""The text model of Mistral Large 4 to and from transformers' MistralLarge4TextModel with a head, which is in a model that sees.

It is released in names of its own, which transformers writes too, a text model by itself in part of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyformer.errors import SpecError
from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import LAYER, latent_heads, modules, n_shared
from anyformer.families.hf.dsa import index_sizes, indexer, shared_choices
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width, filed
from anyformer.families.hf.gemma import SOFTCAP
from anyformer.families.hf.layout import Laid, Theirs, within
from anyformer.families.hf.llama import SPARSE_WIDTHS
from anyformer.families.hf.llama4 import ROTATING, rotating
from anyformer.families.hf.mapping import one
from anyformer.families.hf.mistral4 import rotation, sharpened_rotation
from anyformer.families.hf.rotary import ORIGINAL, THETA
from anyformer.families.hf.settings import Settings
from anyformer.families.mistral_large4 import mistral_large4, unturned
from anyformer.layers import AttentionSpec, LearnedFrequenciesSpec, MLASpec, RouterSpec
from anyformer.spec import BlockSpec, HeadSpec, ModelSpec

YARN = {"rope_type": "yarn", THETA: 1e4, "factor": 2048.0, ORIGINAL: 512, "attention_factor": 1.0}
SOURCES = "kv_source_layers"
KEYS = ("keys that stand", "keys that turn")  # names of what later layers read, by whether a layer's keys turn
ROUTING = {
    "n_routed_experts": ("n_experts", int, 128),
    "num_experts_per_tok": ("top_k", int, 4),
    "routed_scaling_factor": ("factor", float, 1.0),
    "n_group": ("n_groups", int, 1),
    "topk_group": ("top_groups", int, 1),
}


def _turns(block: BlockSpec) -> bool:
    return one(block, MLASpec).rotary is not None


def _sources(settings: Settings, turns: Sequence[int]) -> list[int]:
    """Whose latents each layer reads: its own, or those of the last layer before it that keeps such for others."""
    found, n = settings.written(SOURCES), len(turns)
    found = [*range(n)] if found is None else found
    known = isinstance(found, list) and len(found) == n and all(type(each) is int for each in found)
    if not known or any(not 0 <= each <= i or found[each] != each for i, each in enumerate(found)):
        raise settings.refusal(SOURCES, f"must be {n} numbers of layers, each its own or of one before with its own")
    kept: dict[int, int] = {}
    for i, source in enumerate(found):
        if source != i and kept.get(turns[i]) != source:
            said = "keys that turn as its own" if turns[source] != turns[i] else "the last such keys"
            raise settings.refusal(
                SOURCES, f"has layer {i} read layer {source}, whose are not {said}; not computed here"
            )
        if source == i and i in found[i + 1 :]:
            kept[turns[i]] = i
    return found


def _layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n = settings.positive("num_hidden_layers", int)
    turns = rotating(settings, n)
    if not any(turns):
        raise settings.refusal(ROTATING, "has no layer that rotates, and the class learns how; make one a 1")
    sources, turning = _sources(settings, turns), spec.stack.blocks[0]
    plain = {1: turning, 0: unturned(turning)}
    made: dict[tuple[int, bool, bool], BlockSpec] = {}
    kinds = [(turns[i], source != i, i in sources[i + 1 :]) for i, source in enumerate(sources)]
    for kind in dict.fromkeys(kinds):
        turned, reads, lends = kind
        fields = {"reads": "layer" if reads else "self", "keys": KEYS[turned] if reads or lends else None}
        made[kind] = changed(plain[turned], AttentionSpec, **fields)
    return with_layers(spec, (made[kind] for kind in kinds))


def _said(spec: ModelSpec) -> dict[str, Any]:
    turns = [_turns(block) for block in spec.stack.blocks]
    if not any(turns):
        raise SpecError("no layer has rotary positions, which the class learns the frequencies of")
    latent = one(spec.stack.blocks[turns.index(True)], MLASpec)
    lent: dict[str | None, int] = {}
    sources: list[int] = []
    for i, block in enumerate(spec.stack.blocks):
        attention = one(block, AttentionSpec)
        if attention.reads == "self":
            lent[attention.keys] = i
        sources.append(i if attention.reads == "self" else lent.get(attention.keys, i))
    sizes = {"qk_nope_head_dim": latent.head_dim, "qk_rope_head_dim": latent.turning}
    return {"num_hidden_layers": spec.n_layers, ROTATING: [*map(int, turns)], SOURCES: sources, **sizes}


SCALE = "query_scale"
OF_INDEXER = {"norm_read": "q_input_norm"}


def _scales(place: str, scale: str, bias: str) -> Laid:
    """The two numbers a head of Scalable-Softmax, of attention and of its indexer."""
    names = {"scale": scale, "bias": bias}
    both = {"": "", "indexer.": "indexer."}
    return {
        f"{table.MIXER}.{ours}{SCALE}.{each}": Theirs(f"{place}.{theirs}{name}")
        for ours, theirs in both.items()
        for each, name in names.items()
    }


def _held(spec: ModelSpec) -> Mapping[Any, Any]:
    scales = _scales("self_attn", "softmax_scaling.scale", "softmax_scaling.bias")
    return {**modules(spec), **indexer(more=OF_INDEXER), **scales, **LAYER, **HELD}


def _feed(ours: str, theirs: str) -> Laid:
    """A gated feed-forward, in the names that transformers has for one by itself too."""
    words = {"gate": "w1", "up": "w3", "down": "w2"}
    return {f"{ours}.{x}": Theirs(f"{theirs}.{word}", also=(f"{theirs}.{x}_proj",)) for x, word in words.items()}


RELEASED: Mapping[Any, Any] = {
    "0.norm_in": "attention_norm",
    "1.norm_in": "ffn_norm",
    **within(
        {
            "q": "wq",
            ("kv_down", "k_rotary"): "wkv_a_with_mqa",
            "norm_kv": "kv_a_norm",
            ("k", "v"): Theirs("wkv_b", by="head"),
            "o": Theirs("wo", also=("o_proj",)),
        },
        f"{table.PROJECTION}.",
        "attention.",
    ),
    **indexer("attention.indexer.", OF_INDEXER),
    **_scales("attention", "ssmax_scaling.s", "ssmax_scaling.b"),
    **_feed(table.FEED, "feed_forward"),
    **_feed(f"{table.FEED}.shared_expert", "shared_experts"),
    **filed("gate", "experts", ("w1", "w3", "w2")),
}


def _around(spec: ModelSpec) -> Laid:
    learned = one(spec, LearnedFrequenciesSpec)
    return {f"shared.{learned.shared}.alpha": Theirs("rotary_emb.alpha", also=("lerope.alpha",))}


MISTRAL_LARGE4 = table.family(
    "mistral_large4_text",
    "MistralLarge4ForCausalLM",
    mistral_large4(1, 8, 1, 8, d_expert=8, n_experts=2, top_k=1, n_dense=0),
    (
        table.renamed(num_experts="n_routed_experts", num_local_experts="n_routed_experts"),
        table.only(q_lora_rank=None, norm_topk_prob=True),  # which the class does not ask for
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 6144),
        n_shared(1),
        *latent_heads(query_rank=None, head_dim=64),
        table.rms_eps(1e-5),
        table.together(RouterSpec, ROUTING),
        sharpened_rotation(YARN, rotation(YARN, 1_048_576, lambda _: 1.0, grows=False)),
        table.at(SOFTCAP, float, HeadSpec, "softcap", default=30.0),
        table.tables(tied=False),
        table.Pair(_layers, _said),
        dense_by_type(24_576, 1, "first_k_dense_replace"),
        *index_sizes(32),
        shared_choices(),
    ),
    _held,
    outside=_around,
    tokens_too="tok_embeddings",
    released=RELEASED,
)
