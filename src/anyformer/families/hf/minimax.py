"""MiniMax-01 and MiniMax-M2 to and from transformers' MiniMaxForCausalLM and MiniMaxM2ForCausalLM, whose files are Mixtral's.

MiniMax-01's class norms the stream before each branch: what we have behind a layer is the first norm of their next layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.families.compose import changed
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import ALONE, HELD, OF_MIXTRAL, PLACES_OF_MIXTRAL, filed, mixtral_routing, routed
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, EPS, NORMS, QK_NORMS, WIDTHS
from anyformer.families.hf.mapping import TensorRow, constant, one, width_of_head
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import layer_kinds, template
from anyformer.families.minimax import minimax, minimax_m2
from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    GQASpec,
    LightningAttentionSpec,
    RMSNormSpec,
    RotarySpec,
)
from anyformer.layers.rotary import fraction_of
from anyformer.spec import ModelSpec

# Mixtral's files with a correction beside the router.
CORRECTED_MIXTRAL = {
    **filed(None, *PLACES_OF_MIXTRAL),
    **routed("block_sparse_moe.gate.weight", "block_sparse_moe.e_score_correction_bias"),
}


def _turning(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The released files say how many features of a head rotate."""
    n = settings.optional("rotary_dim", int)
    if n is None or settings.names(FRACTION):
        return spec
    return changed(spec, RotarySpec, fraction=fraction_of(n, width_of_head(spec)))


MINIMAX_M2 = table.family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    minimax_m2(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(n_kv_heads=8, head_dim=128),
        EPS,
        table.positions(RotarySpec(theta=5_000_000.0), fraction=FRACTION, context=196_608),
        table.Pair(_turning),
        mixtral_routing(256, 8),
        table.tables(tied=False),
        table.layers(),
        table.only(scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True, qk_norm_type="per_layer"),
        table.only(attn_type_list=lambda spec: [1] * spec.n_layers, shared_intermediate_size=0),
    ),
    {**NORMS, **ATTENTION, **QK_NORMS},
    apart=({**ALONE, **routed("mlp.gate.weight", "mlp.e_score_correction_bias")}, CORRECTED_MIXTRAL),
    # Modules that predict further tokens, in training.
    ignored=("num_mtp_modules", "mtp_transformer_layers", "use_mtp"),
)

WORDS = {"linear_attention": LightningAttentionSpec, "full_attention": AttentionSpec}
BLOCK = 256
# The class's tables, of the rates of heads [head, 1, 1] and the places in a block [place, 1].
DECAYS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "slope_rate": lambda rate, at: rate,
    "query_decay": lambda rate, at: (-rate * at).exp(),
    "key_decay": lambda rate, at: (-rate * (BLOCK - at)).exp(),
    "diagonal_decay": lambda rate, at: (-rate * (at - at.T)).exp().tril()[None],
}
PLACES = ("full_attn", "linear_attn", "mlp")  # each with factors of the stream and of what is added to it


def _turns(settings: Settings, n_layers: int) -> Sequence[str]:
    """By the released files' numbers, 1 for layers that attend, or by the class's default."""
    usual = [1 - i % 2 for i in range(n_layers)]
    return [[*WORDS][each] for each in settings.flags("attn_type_list", n_layers, usual, "attends")]


def _lightning(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The other mixer has as many heads as attention, as wide."""
    n_heads, width = one(spec, GQASpec).n_heads, width_of_head(spec)
    norm = RMSNormSpec(eps=1e-6)  # whatever the others' is
    return changed(spec, LightningAttentionSpec, n_heads=n_heads, head_dim=width, norm=norm)


def _factors(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of the stream and of branches, the same in all places."""
    found = {}
    for field, word in (("scale", "alpha"), ("branch", "beta")):
        names = [f"{place}_{word}_factor" for place in PLACES]
        values = [settings.take(name, float, 1.0) for name in names]
        for name, value in zip(names, values, strict=True):
            if value != values[0]:
                raise settings.refusal(name, f"must be {names[0]} = {values[0]}; others in each place are not computed")
        found[field] = values[0]
    return spec.but(stack=spec.stack.but(residual=AddSpec(**found)))


def _factors_of(spec: ModelSpec) -> dict[str, float]:
    # Spelled out, as those that hang on the depth are not.
    found = one(spec.stack.residual.within(spec.stack.n_branches), AddSpec)
    return {
        f"{place}_{word}_factor": value
        for place in PLACES
        for word, value in (("alpha", found.scale), ("beta", found.branch))
    }


def _layer(spec: ModelSpec) -> dict[Any, Any]:
    n_heads = one(spec, LightningAttentionSpec).n_heads
    return {
        "0.norm_sum": "post_attention_layernorm",
        **ATTENTION,
        tuple(f"{table.MIXER}.{x}" for x in "qkv"): Theirs("self_attn.qkv_proj", by=int(n_heads)),
        f"{table.MIXER}.norm": "self_attn.norm",
        f"{table.MIXER}.out_gate": "self_attn.output_gate",
        f"{table.MIXER}.out": "self_attn.out_proj",
    }


def _norms(spec: ModelSpec) -> dict[str, str]:
    """The first of each layer, and the last of all."""
    theirs = [*(f"layers.{i}.input_layernorm" for i in range(spec.n_layers)), "norm"]
    behind = (f"stack.blocks.{i}.sublayers.1.norm_sum" for i in range(spec.n_layers))
    return dict(zip(("stack.embedding.norm", *behind), theirs, strict=True))


def _decay(name: str, rates: Sequence[float]) -> Tensor:
    """A table of the class for heads of these rates: what is left of tokens in a block of `BLOCK`."""
    rate, at = torch.tensor(rates, dtype=torch.float64).view(-1, 1, 1), torch.arange(1, BLOCK + 1)[:, None]
    return DECAYS[name](rate, at).to(torch.get_default_dtype())


def _tables(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of tables that hold nothing learnt; made when they are asked for, since full-size ones take a gigabyte."""
    for i, layer in enumerate(spec.stack.layers):
        for mixer in layer.nested(LightningAttentionSpec):
            rates = tuple((mixer.rate or 1.0) * slope for slope in mixer.slopes())
            yield from (constant(f"model.layers.{i}.self_attn.{name}", partial(_decay, name, rates)) for name in DECAYS)


MINIMAX = table.family(
    "minimax",
    "MiniMaxForCausalLM",
    template(minimax(8, 8, 1, 8), WORDS),
    (
        *WIDTHS,
        table.activation("hidden_act", "silu", LightningAttentionSpec),
        table.heads(n_kv_heads=8),
        table.rms_eps(1e-5),
        table.Pair(_lightning),
        table.positions(RotarySpec(theta=1_000_000.0), context=131_072),
        table.Pair(_turning),
        windows.window(None),
        mixtral_routing(8, 2),
        table.Pair(_factors, _factors_of),
        table.tables(tied=False),
        table.only(block_size=(None, BLOCK)),  # which files have tables of
        layer_kinds(WORDS, _turns),
    ),
    _layer,
    apart=(HELD, OF_MIXTRAL),
    outside=_norms,
    further=_tables,
)
