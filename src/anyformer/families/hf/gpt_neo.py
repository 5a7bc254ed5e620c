"""GPT-Neo to and from transformers' GPTNeoForCausalLM: separate matrices, a list of which layers see all."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.gpt_neo import gpt_neo
from anyformer.families.hf import table
from anyformer.families.hf.gpt2 import EPS
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GQASpec, SlidingWindow
from anyformer.spec import ModelSpec, Window


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The depth, each layer's kind and the window, of a template of a global layer and a local one."""
    n_layers, window = settings.take("num_layers", int), settings.take("window_size", int, 256)
    types = _types(settings.written("attention_types") or [[["global", "local"], 12]])
    settings.ignore("attention_layers")  # `attention_types`, written out
    if types is None or len(types) != n_layers or set(types) - {"global", "local"}:
        raise settings.refusal(
            "attention_types", f"must call each of the {n_layers} layers global or local, as [[[kinds …], times] …]"
        )
    seeing_all, local = spec.stack.blocks
    kinds = {"global": seeing_all, "local": changed(local, SlidingWindow, size=Window(window))}
    return spec.but(stack=spec.stack.but(blocks=tuple(kinds[kind] for kind in types)))


def _types(runs: Any) -> list[str] | None:
    try:
        return [str(kind) for kinds, times in runs for _ in range(times) for kind in kinds]
    except (TypeError, ValueError):
        return None


def _write(spec: ModelSpec) -> dict[str, Any]:
    kinds = ["global" if table.window_of(block) is None else "local" for block in spec.stack.blocks]
    return {
        "num_layers": spec.n_layers,
        "attention_types": [[[kind], 1] for kind in kinds],
        "window_size": table.window_of(spec) or 256,
    }


GPT_NEO = table.family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    gpt_neo(windows=(None, 1), d_model=8, n_heads=1),
    (
        table.Pair(_read, _write),
        table.VOCABULARY,
        table.learned("max_position_embeddings", 2048),
        table.D_MODEL,
        table.at("num_heads", int, GQASpec, "n_heads"),
        table.d_ff("intermediate_size"),
        table.activation("activation_function", "gelu_new", FeedForwardSpec),
        EPS,
        table.tables(tied=True),
    ),
    {
        **table.norms("ln_1", "ln_2"),
        **{f"{table.PROJECTION}.{x}": f"attn.attention.{x}_proj" for x in "qkv"},
        f"{table.PROJECTION}.o": "attn.attention.out_proj",
        **table.feeds(up="mlp.c_fc", down="mlp.c_proj"),
    },
    stack="transformer",
    layer="h",
    tokens="wte",
    norm="ln_f",
    outside={"stack.embedding.terms.1": "wpe"},
    buffers=("attn.attention.bias", "attn.attention.masked_bias"),  # the causal mask, in old files
)
