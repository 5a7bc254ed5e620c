"""Two Llamas of one shape with the same weights: ours, and transformers' LlamaForCausalLM."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    ByRole,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
    RMSNormSpec,
    RotarySpec,
    SiLU,
    TokensSpec,
)
from anyformer.model import Transformer, build
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    EmbeddingSpec,
    HeadSpec,
    ModelSpec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    Vocab,
    Width,
)


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes; untied, theta 10,000."""

    d_model: int = 384
    n_layers: int = 6
    n_heads: int = 6
    n_kv_heads: int = 6
    d_ff: int = 1024
    vocab_size: int = 8192
    n_positions: int = 1024


SMALL = Shape()  # the 15.7 M parameters of the table of anchors


def spec(shape: Shape) -> ModelSpec:
    """Return the shape as a specification."""
    norm = RMSNormSpec(eps=1e-5)
    projection = GQASpec(n_heads=Count(shape.n_heads), n_kv_heads=Count(shape.n_kv_heads), rotary=RotarySpec())
    attention = AttentionSpec(projection=projection, mask=Causal())
    feed_forward = GatedFeedForwardSpec(d_ff=Width(shape.d_ff), activation=SiLU())
    block = BlockSpec(
        sublayers=tuple(SublayerSpec(norm_in=norm, branches=(BranchSpec(mixer=m),)) for m in (attention, feed_forward))
    )
    table = TableSpec(rows=Vocab(shape.vocab_size))
    stack = StackSpec(
        d_model=Width(shape.d_model),
        embedding=EmbeddingSpec(terms=(TokensSpec(table=table),)),
        blocks=(block,) * shape.n_layers,
        residual=AddSpec(),
        norm=norm,
    )
    return ModelSpec(stack=stack, heads=(HeadSpec(table=table),), init=ByRole())


def ours(shape: Shape) -> Transformer:
    """Return our model, with the weights of seed 0."""
    return build(spec(shape), seed=0)


def theirs(shape: Shape) -> Any:
    """Return transformers' model with the weights of ours; eager PyTorch, its default attention (sdpa)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        intermediate_size=shape.d_ff,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.n_positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    weights = {theirs_of(name): weight for name, weight in ours(shape).state_dict().items()}
    model.load_state_dict(weights, strict=True)
    return model


def theirs_of(name: str) -> str:
    """Return their name of one of our tensors."""
    if name.startswith("stack.blocks."):
        _, _, layer, _, sublayer, rest = name.split(".", 5)
        inner = {
            "norm_in": ("input_layernorm", "post_attention_layernorm")[int(sublayer)],
            **{f"branches.0.mixer.projection.{n}": f"self_attn.{n}_proj" for n in "qkvo"},
            **{f"branches.0.mixer.{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")},
        }
        return f"model.layers.{layer}.{inner[rest.removesuffix('.weight')]}.weight"
    return {
        "stack.embedding.terms.0.table.weight": "model.embed_tokens.weight",
        "stack.norm.weight": "model.norm.weight",
        "heads.0.table.weight": "lm_head.weight",
    }[name]


def largest_difference(shape: Shape) -> float:
    """Return the largest absolute difference of the two models' logits, relative to the largest logit."""
    ids = torch.arange(2 * 64).reshape(2, 64) * 31 % shape.vocab_size
    with torch.no_grad():
        mine, other = ours(shape)(ids).logits, theirs(shape)(ids).logits
    return ((mine - other).abs().max() / other.abs().max()).item()


def facts(shape: Shape) -> dict[str, int]:
    """Return the sizes, for the record of a result."""
    return dataclasses.asdict(shape)
