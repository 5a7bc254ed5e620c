"""GPT to and from transformers' OpenAIGPTLMHeadModel: matrices are (in, out), queries, keys and values one matrix."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.gpt2 import D_MODEL, EPS, N_HEADS
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import dropped, one
from anyformer.families.hf.settings import Settings
from anyformer.families.openai_gpt import openai_gpt
from anyformer.layers import GELU, ActivationSpec, FeedForwardSpec, ReLU, SiLU
from anyformer.spec import ModelSpec

# What this class means by the names, which is not what the others mean: its "gelu" is the tanh form.
ACTIVATIONS: dict[str, ActivationSpec] = {"gelu": GELU(form="tanh"), "relu": ReLU(), "silu": SiLU(), "swish": SiLU()}


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The activation, and feed-forwards four times as wide as the stream, whatever its width."""
    activation = settings.take("afn", str, "gelu")
    if activation not in ACTIVATIONS:
        raise settings.refusal("afn", f"is none of the activations {', '.join(ACTIVATIONS)}")
    return changed(spec, FeedForwardSpec, d_ff=4 * spec.stack.d_model, activation=ACTIVATIONS[activation])


def _write(spec: ModelSpec) -> dict[str, Any]:
    activation = one(spec, FeedForwardSpec, "feed-forward without a gate").activation
    return {"afn": next((name for name, known in ACTIVATIONS.items() if known == activation), "gelu")}


_FAMILY = table.family(
    "openai-gpt",
    "OpenAIGPTLMHeadModel",
    openai_gpt(n_layers=1, d_model=8, n_heads=1),
    (
        table.VOCABULARY,
        table.learned("n_positions", 512),
        D_MODEL,
        N_HEADS,
        table.Pair(_read, _write),
        EPS,
        table.layers("n_layer"),
        table.tables(tied=True),
        table.NO_DROPOUT,
    ),
    {
        **table.norms("ln_1", "ln_2"),
        table.QKV: Theirs("attn.c_attn", turned=True),
        f"{table.PROJECTION}.o": Theirs("attn.c_proj", turned=True),
        f"{table.FEED}.up": Theirs("mlp.c_fc", turned=True),
        f"{table.FEED}.down": Theirs("mlp.c_proj", turned=True),
    },
    stack="transformer",
    layer="h",
    tokens="tokens_embed",
    outside={"stack.embedding.terms.1": "positions_embed"},
    buffers=("attn.bias",),  # the causal mask, in old files
    # n_ctx repeats n_positions; the others are past.
    ignored=("n_ctx", "n_special", "predict_special_tokens"),
)
OPENAI_GPT = _FAMILY._replace(rows=lambda spec: [*_FAMILY.rows(spec), dropped("transformer.position_ids")])
