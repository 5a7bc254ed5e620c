"""GPT-Neo, GPT-J and CodeGen to and from transformers' GPTNeoForCausalLM, GPTJForCausalLM and CodeGenForCausalLM.

GPT-Neo lists which layers see all; of GPT-J's heads a number of features rotate in pairs. CodeGen is GPT-J with one matrix for
queries, values and keys, in four shares.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.gpt_neo import gpt_neo
from anyformer.families.gptj import gptj
from anyformer.families.hf import table, windows
from anyformer.families.hf.gpt2 import D_MODEL, EPS, MASKS, N_HEADS, gpt_family
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one, width_of_head
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GQASpec, RotarySpec, SlidingWindow
from anyformer.layers.rotary import fraction_of
from anyformer.spec import ModelSpec, Window
from anyformer.spec.ranges import MOST_LAYERS


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The depth, each layer's kind and the window, of a template of a global layer and a local one."""
    n_layers, window = settings.take("num_layers", int), settings.take("window_size", int, 256)
    runs = _types(settings.written("attention_types") or [[["global", "local"], 12]])
    listed = settings.strings("attention_layers")  # `attention_types`, written out, which goes before them
    types = listed or runs
    if types is None or len(types) != n_layers or set(types) - {"global", "local"}:
        raise settings.refusal(
            "attention_layers" if listed else "attention_types",
            f"must call each of the {n_layers} layers global or local, as [[[kinds …], times] …]",
        )
    seeing_all, local = spec.stack.blocks
    kinds = {"global": seeing_all, "local": changed(local, SlidingWindow, size=Window(window))}
    return with_layers(spec, (kinds[kind] for kind in types))


def _types(runs: Any) -> list[str] | None:
    try:
        each = (str(kind) for kinds, times in runs for _ in range(times) for kind in kinds)
        return list(islice(each, MOST_LAYERS + 1))
    except (TypeError, ValueError):
        return None


def _write(spec: ModelSpec) -> dict[str, Any]:
    kinds = ["global" if windows.window_of(block) is None else "local" for block in spec.stack.blocks]
    return {
        "num_layers": spec.n_layers,
        "attention_types": [[[kind], 1] for kind in kinds],
        "window_size": windows.window_of(spec) or 256,
    }


GPT_NEO = gpt_family(
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
    outside={"stack.embedding.terms.1": "wpe"},
    buffers=("attn.attention.bias", "attn.attention.masked_bias"),  # the causal mask, in old files
    fixed_masks=True,
)


def _read_turning(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """How many features rotate."""
    fraction = fraction_of(settings.take("rotary_dim", int, 64), width_of_head(spec))
    return changed(spec, RotarySpec, fraction=fraction)


def _write_turning(spec: ModelSpec) -> dict[str, Any]:
    return {"rotary_dim": one(spec, RotarySpec).dims(width_of_head(spec))}


SETTINGS_OF_GPTJ = (
    table.VOCABULARY,
    table.context("n_positions", 2048),
    D_MODEL,
    N_HEADS,
    table.even("n_head", "n_embd"),
    table.only(tie_word_embeddings=False),  # of a tied head this class would lose the bias
    table.Pair(_read_turning, _write_turning),
    table.d_ff("n_inner"),
    table.activation("activation_function", "gelu_new", FeedForwardSpec),
    EPS,
    table.starts(),
    table.fixed(tie_word_embeddings=False),
    table.layers("n_layer"),
)
LAYER_OF_GPTJ = {
    **table.norms("ln_1", "ln_1"),
    f"{table.PROJECTION}.o": "attn.out_proj",
    **table.feeds(up="mlp.fc_in", down="mlp.fc_out"),
}
of_gptj = partial(gpt_family, buffers=MASKS, ignored=("n_ctx",))
GPTJ = of_gptj(
    "gptj",
    "GPTJForCausalLM",
    gptj(1, 8, 1, vocab_size=8),
    SETTINGS_OF_GPTJ,
    {**LAYER_OF_GPTJ, **{f"{table.PROJECTION}.{x}": f"attn.{x}_proj" for x in "qkv"}},
)
SHARES = 4  # of heads, a share of each on one of the cores that CodeGen was trained on


def _shared_out(settings: Settings, spec: ModelSpec) -> ModelSpec:
    if one(spec, GQASpec).n_heads % SHARES:
        raise settings.refusal("n_head", f"is no multiple of {SHARES}, which this class refuses")
    return spec


CODEGEN = of_gptj(
    "codegen",
    "CodeGenForCausalLM",
    gptj(1, 8, 1, vocab_size=8),
    (*SETTINGS_OF_GPTJ, table.Pair(_shared_out)),
    {**LAYER_OF_GPTJ, tuple(f"{table.PROJECTION}.{x}" for x in "qvk"): Theirs("attn.qkv_proj", by=SHARES)},
)
