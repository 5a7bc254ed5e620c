"""GPT-NeoX-20B: parallel branches, a norm each; a quarter of a head rotates. Black et al. 2022, arXiv:2204.06745."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.families.compose import language_model, repeat
from anyformer.layers import GELU, AttentionSpec, Causal, FeedForwardSpec, LayerNormSpec, RotarySpec
from anyformer.spec import BlockSpec, BranchSpec, ModelSpec, SublayerSpec, Width
from tests.hard_cases.case import Case, Parity, attention_heads, of_transformers


def neox(*, n_layers: int = 44, d_model: int = 6144, n_heads: int = 64, vocab_size: int = 50_432) -> ModelSpec:
    """Return the architecture; sizes of the 20B: the paper, section 2 and table 1 (vocabulary padded to 50,432)."""
    norm = LayerNormSpec(eps=1e-5)
    heads = attention_heads(n_heads, bias=True).but(rotary=RotarySpec(theta=1e4, fraction=0.25))
    feed = FeedForwardSpec(d_ff=Width(4 * d_model), activation=GELU(form="tanh"))
    branches = (AttentionSpec(projection=heads, mask=Causal()), feed)
    layer = BlockSpec(sublayers=(SublayerSpec(branches=tuple(BranchSpec(mixer=m, norm_in=norm) for m in branches)),))
    blocks = repeat(layer, n_layers)
    return language_model(vocab_size=vocab_size, d_model=d_model, blocks=blocks, norm=norm, tied=False, context=2048)


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    published = {"vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64}
    every = {**published, "intermediate_size": 24576, "hidden_act": "gelu_fast", **sizes}
    return of_transformers("GPTNeoXForCausalLM", "GPTNeoXConfig", **every, attn_implementation="eager")


def split(fused: Tensor) -> tuple[Tensor, ...]:
    """Return q, k and v of rows (head, 3, head_dim), with four heads."""
    return tuple(part.flatten(0, 1) for part in fused.unflatten(0, (4, 3, -1)).unbind(1))


LAYER, BRANCH = "gpt_neox.layers.{i}", "stack.blocks.{i}.sublayers.0.branches"


def rows() -> dict[str, Any]:
    """Return the table, weights and biases by the same names."""
    table: dict[str, Any] = {
        "gpt_neox.embed_in.weight": "stack.embedding.terms.0.table.weight",
        "embed_out.weight": "heads.0.table.weight",
        "lm_head.weight": "heads.0.table.weight",
    }
    for w in ("weight", "bias"):
        table |= {
            f"{LAYER}.input_layernorm.{w}": f"{BRANCH}.0.norm_in.{w}",
            f"{LAYER}.post_attention_layernorm.{w}": f"{BRANCH}.1.norm_in.{w}",
            f"{LAYER}.attention.query_key_value.{w}": (
                tuple(f"{BRANCH}.0.mixer.projection.{n}.{w}" for n in "qkv"),
                split,
            ),
            f"{LAYER}.attention.dense.{w}": f"{BRANCH}.0.mixer.projection.o.{w}",
            f"{LAYER}.mlp.dense_h_to_4h.{w}": f"{BRANCH}.1.mixer.up.{w}",
            f"{LAYER}.mlp.dense_4h_to_h.{w}": f"{BRANCH}.1.mixer.down.{w}",
            f"gpt_neox.final_layer_norm.{w}": f"stack.norm.{w}",
        }
    return table


CASE = Case(
    "gpt-neox-20b",
    neox,
    "20.55B",
    theirs,
    parity=Parity(
        lambda: theirs(
            vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
        ),
        lambda: neox(vocab_size=96, d_model=64, n_layers=2, n_heads=4),
        rows(),
    ),
)
