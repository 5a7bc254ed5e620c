"""Command A's mixture to and from transformers' Cohere2MoeForCausalLM: the first layers may be dense, experts for all tokens may
be averaged with those chosen, norms may be RMSNorms.

A full layer turns nothing, but where it is dense and a setting of the dense ones is 1.
"""

from __future__ import annotations

from typing import Any, TypeVar

from anyformer.families.cohere import cohere2_moe
from anyformer.families.compose import changed, edited, with_layers
from anyformer.families.hf import cohere, table, windows
from anyformer.families.hf.exaone import WINDOWED
from anyformer.families.hf.experts import (
    HELD,
    dense_by_type,
    expert_width,
    filed,
    routing,
    sparse,
)
from anyformer.families.hf.layout import gated, moved
from anyformer.families.hf.llama import SPARSE_WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import THETA
from anyformer.families.hf.settings import Settings
from anyformer.layers import (
    FactorSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
)
from anyformer.spec import BranchSpec, ModelSpec, Spec

S = TypeVar("S", bound=Spec)
SCORES: dict[str, Any] = {"softmax": "softmax-of-chosen", "sigmoid": "sigmoid"}
SCORE, TOGETHER = "expert_selection_fn", "shared_expert_combination_strategy"
EVERY, OF_DENSE, FIRST = "sliding_window_pattern", "prefix_dense_sliding_window_pattern", "first_k_dense_replace"


def averaging(part: S, half: bool = True) -> S:
    """A model, or a part of one, with the mean of experts and the one for all tokens in place of their sum."""
    mean = FactorSpec(factor=0.5) if half else None
    return edited(part, BranchSpec, lambda b: b.but(norm_out=mean if isinstance(b.mixer, MoESpec) else None))


def _norms(settings: Settings, spec: ModelSpec) -> ModelSpec:
    eps = settings.optional("rms_norm_eps", float)
    return spec if eps is None else edited(spec, LayerNormSpec, lambda _: RMSNormSpec(eps=eps))


POSITIONS = table.positions(cohere.ROTARY.but(theta=10_000.0), context=8192)


def _positions(settings: Settings, spec: ModelSpec) -> ModelSpec:
    if settings.written("rope_scaling"):
        raise settings.refusal("rope_scaling", "is passed over by this class; call it rope_parameters, or leave it out")
    return POSITIONS.read(settings, spec)


def _said_positions(spec: ModelSpec) -> dict[str, Any]:
    said = dict(POSITIONS.write(spec))
    scaling = said.pop("rope_scaling") or {"rope_type": "default"}
    return {**said, "rope_parameters": {THETA: said[THETA], **scaling}}


def _score(settings: Settings, spec: ModelSpec) -> ModelSpec:
    word = settings.word(SCORE, SCORES, "softmax")
    sum_is_one = settings.take("norm_topk_prob", bool, True) and word == "sigmoid"
    return changed(spec, RouterSpec, score=SCORES[word], renormalise=sum_is_one)


def _said_score(spec: ModelSpec) -> dict[str, Any]:
    router = one(spec, RouterSpec)
    return {SCORE: "sigmoid" if router.score == "sigmoid" else "softmax", "norm_topk_prob": router.renormalise}


def _shared(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n, way = settings.take("num_shared_experts", int, 0), settings.word(TOGETHER, ("average", "sum"), "average")
    expert = one(spec, GatedFeedForwardSpec)
    spec = changed(spec, MoESpec, shared_expert=expert.but(d_ff=n * expert.d_ff) if n else None)
    return averaging(spec, half=n > 0 and way == "average")


def _said_shared(spec: ModelSpec) -> dict[str, Any]:
    mixture = one(spec, MoESpec)
    shared, expert = (part and one(part, GatedFeedForwardSpec).d_ff for part in (mixture.shared_expert, mixture.expert))
    way = "average" if any(spec.nested(FactorSpec)) else "sum"
    return {"num_shared_experts": (shared or 0) // (expert or 1), TOGETHER: way}


def _full(settings: Settings, n: int) -> list[bool]:
    """By a pattern of the dense layers, and one of the others."""
    every, before = settings.positive(EVERY, int, 4), settings.positive(OF_DENSE, int, 1)
    first = settings.take(FIRST, int, 0)
    numbers = (*((i, before) for i in range(first)), *((i, every) for i in range(n - first)))
    return [(i + 1) % step == 0 for i, step in numbers]


def _dense(settings: Settings, spec: ModelSpec) -> ModelSpec:
    turn = settings.take(OF_DENSE, int, 1) == 1
    rotary = one(spec, RotarySpec)
    blocks = (
        block if sparse(block) else averaging(changed(block, GQASpec, rotary=rotary) if turn else block, half=False)
        for block in spec.stack.blocks
    )
    return with_layers(spec, blocks)


def _said_dense(spec: ModelSpec) -> dict[str, Any]:
    full = [block for block in spec.stack.blocks if not sparse(block) and windows.window_of(block) is None]
    return {OF_DENSE: 1 if all(any(block.nested(RotarySpec)) for block in full) else 4}


def _beside(name: str) -> str:
    return name.replace(table.FEED, table.BESIDE)


SHARED = gated(f"{table.BESIDE}.shared_expert", "mlp.shared_experts")
LAYER = {**cohere.MODULES, **SHARED}
COHERE2_MOE = table.family(
    "cohere2_moe",
    "Cohere2MoeForCausalLM",
    windows.two_kinds(cohere2_moe(4, 8, 1, 8, 1, n_experts=2)),
    (
        *SPARSE_WIDTHS,
        expert_width("intermediate_size", "expert", 22_528),
        table.heads(head_dim=128),
        table.BIASES,
        table.if_any(LayerNormSpec, cohere.EPS),
        table.Pair(_norms, lambda spec: {"rms_norm_eps": next((x.eps for x in spec.nested(RMSNormSpec)), None)}),
        cohere.LOGITS,
        table.tables(tied=True),
        table.Pair(_positions, _said_positions),
        routing(8, 2),
        table.Pair(_score, _said_score),
        table.Pair(_shared, _said_shared),
        WINDOWED,
        windows.layer_types(_full, 4096),
        dense_by_type(None, 0, FIRST, of_dense="prefix_dense_intermediate_size"),
        table.Pair(_dense, _said_dense),
    ),
    LAYER,
    apart=(moved(HELD, _beside), moved(filed(), _beside)),
)
