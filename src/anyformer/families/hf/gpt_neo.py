"""GPT-Neo to and from transformers' GPTNeoForCausalLM: separate matrices, a list of which layers see all."""

from __future__ import annotations

from typing import Any

from anyformer.families.gpt_neo import gpt_neo
from anyformer.families.hf.layout import deviation, link, places, rows_of, starts, table_rows, tied
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import FeedForwardSpec, GQASpec, LayerNormSpec, LearnedPositionsSpec, SlidingWindow
from anyformer.spec import ModelSpec


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration describes. Raises CheckpointError."""
    n_layers, window = settings.take("num_layers", int), settings.take("window_size", int, 256)
    types = _types(settings.written("attention_types") or [[["global", "local"], 12]])
    settings.ignore("attention_layers")  # `attention_types`, written out
    if types is None or len(types) != n_layers or set(types) - {"global", "local"}:
        raise settings.refusal(
            "attention_types", f"must call each of the {n_layers} layers global or local, as [[[kinds …], times] …]"
        )
    d_model = settings.take("hidden_size", int)
    spec = gpt_neo(
        windows=[None if kind == "global" else window for kind in types],
        d_model=d_model,
        n_heads=settings.take("num_heads", int),
        vocab_size=settings.take("vocab_size", int),
        d_ff=settings.take("intermediate_size", int, 4 * d_model),
        activation=settings.activation("activation_function", "gelu_new"),
        eps=settings.take("layer_norm_epsilon", float, 1e-5),
        tied=settings.take("tie_word_embeddings", bool, True),
        context=settings.take("max_position_embeddings", int, 2048),
    ).but(init=starts(settings))
    settings.close()
    return spec


def _types(runs: Any) -> list[str] | None:
    try:
        return [str(kind) for kinds, times in runs for _ in range(times) for kind in kinds]
    except (TypeError, ValueError):
        return None


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of GPT-Neo."""
    feed = one(spec.stack, FeedForwardSpec, "feed-forward without a gate")
    windows = [next((w.size for w in b.nested() if isinstance(w, SlidingWindow)), None) for b in spec.stack.blocks]
    return {
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": one(spec.stack, LearnedPositionsSpec, "learned positions").n_positions,
        "hidden_size": spec.stack.d_model,
        "num_layers": spec.n_layers,
        "attention_types": [[["global" if window is None else "local"], 1] for window in windows],
        "num_heads": one(spec.stack, GQASpec, "multi-head attention").n_heads,
        "intermediate_size": feed.d_ff,
        "window_size": next((window for window in windows if window is not None), 256),
        "activation_function": spelling(feed.activation) or "gelu_new",
        "layer_norm_epsilon": one(spec.stack, LayerNormSpec, "layer norm").eps,
        "initializer_range": deviation(spec),
        "tie_word_embeddings": tied(spec),
    }


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    links = [link("stack.norm", "transformer.ln_f"), link("stack.embedding.terms.1", "transformer.wpe")]
    found = table_rows(spec, "transformer.wte", "lm_head")
    for i in range(spec.n_layers):
        place, theirs = places(spec, i), f"transformer.h.{i}"
        attention = f"{theirs}.attn.attention"
        found.append(dropped(f"{attention}.bias", f"{attention}.masked_bias"))  # old files: the causal mask
        links += [link(ours, f"{theirs}.{x}") for ours, x in zip(place.norms, ("ln_1", "ln_2"), strict=True)]
        links += [link(f"{place.projection}.{x}", f"{attention}.{x}_proj") for x in "qkv"]
        links += [
            link(f"{place.projection}.o", f"{attention}.out_proj"),
            link(f"{place.feed}.up", f"{theirs}.mlp.c_fc"),
            link(f"{place.feed}.down", f"{theirs}.mlp.c_proj"),
        ]
    return [*found, *rows_of(spec, links)]


GPT_NEO = Family("gpt_neo", "GPTNeoForCausalLM", "transformer.", to_spec, to_config, rows)
