"""xLSTM to and from transformers' xLSTMForCausalLM, which says widths as shares of the stream's."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.xlstm import xlstm
from anyformer.layers import GatedFeedForwardSpec, MLSTMSpec, RMSNormSpec
from anyformer.spec import HeadSpec, ModelSpec

SHARE, MULTIPLE, CACHED = 2.667, 64, 64
CELL = {"q": "q", "k": "k", "v": "v", "out_gate": "ogate_preact", "out": "out_proj", "write_bias": "igate_preact.bias"}
CELL |= {"write": "igate_preact", "forget": "fgate_preact", "forget_bias": "fgate_preact.bias"}


def _layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The class builds `num_blocks` layers, `num_hidden_layers` where that is left out."""
    n_layers = settings.positive("num_hidden_layers", int, 32)
    return with_layers(spec, spec.stack.blocks * settings.positive("num_blocks", int, n_layers))


def _sizes(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of heads and feed-forwards."""
    d_model, n_heads = spec.stack.d_model, settings.positive("num_heads", int, 8)
    found = {}
    for name, share in (("qk_dim", 0.5), ("v_dim", 1.0)):
        width = int(d_model * settings.positive(f"{name}_factor", float, share))
        if width < n_heads or width % n_heads:
            raise settings.refusal(f"{name}_factor", f"makes {width} features, no multiple of num_heads = {n_heads}")
        found[name] = width // n_heads
    spec = changed(spec, MLSTMSpec, n_heads=n_heads, key_dim=found["qk_dim"], value_dim=found["v_dim"])
    share = settings.positive("ffn_proj_factor", float, SHARE)
    multiple = settings.positive("ffn_round_up_to_multiple_of", int, MULTIPLE)
    return changed(spec, GatedFeedForwardSpec, d_ff=_rounded_up(d_model * share, multiple))


def _rounded_up(width: float, multiple: int) -> int:
    return int((width + multiple - 1) // multiple * multiple)


def _written(spec: ModelSpec) -> dict[str, Any]:
    d_model, mixer = spec.stack.d_model, one(spec, MLSTMSpec)
    d_ff = one(spec, GatedFeedForwardSpec).d_ff
    usual = _rounded_up(d_model * SHARE, MULTIPLE) == d_ff
    # The class's cache has room for multiples of 64 features, and holds no others.
    uncached = {"use_cache": False} if any(width % CACHED for width in mixer.widths) else {}
    return {
        **uncached,
        "num_heads": mixer.n_heads,
        "qk_dim_factor": _share(mixer.widths[0], d_model),
        "v_dim_factor": _share(mixer.widths[2], d_model),
        "ffn_proj_factor": SHARE if usual else _share(d_ff, d_model),
        "ffn_round_up_to_multiple_of": MULTIPLE if usual else 1,
    }


def _share(width: int, d_model: int) -> float:
    """What makes the width of d_model, when it is cut to a whole number."""
    share = width / d_model
    return share if int(d_model * share) == width else (width + 0.5) / d_model


XLSTM = table.family(
    "xlstm",
    "xLSTMForCausalLM",
    xlstm(1, 32, 1, 8),
    (
        *table.STREAM,
        table.only(embedding_dim=lambda spec: spec.stack.d_model),
        table.Pair(_sizes, _written),
        table.at("gate_soft_cap", float, MLSTMSpec, "cap", default=15.0),
        table.at("output_logit_soft_cap", float, HeadSpec, "softcap", default=30.0),
        table.at("norm_eps", float, RMSNormSpec, "eps", default=1e-6),
        table.eps(1e-6, "norm_eps"),
        table.at("eps", float, MLSTMSpec, "eps", default=1e-6),
        table.tables(tied=False),
        table.only(use_bias=False, weight_mode="single", add_out_norm=True),
        table.Pair(_layers, lambda spec: {"num_hidden_layers": spec.n_layers}),
    ),
    {
        "0.norm_in": "norm_mlstm",
        "1.norm_in": "norm_ffn",
        **{f"{table.MIXER}.{ours}": f"mlstm_layer.{theirs}" for ours, theirs in CELL.items()},
        f"{table.MIXER}.norm": Theirs("mlstm_layer.multihead_norm", by=(-1,)),
        **table.feeds(gate="ffn.proj_up_gate", up="ffn.proj_up", down="ffn.proj_down"),
    },
    stack="backbone",
    layer="blocks",
    tokens="embeddings",
    norm="out_norm",
    ignored=(
        "norm_reduction_force_float32", "chunkwise_kernel", "sequence_kernel", "step_kernel", "mode", "chunk_size",
        "return_last_states", "autocast_kernel_dtype", "inference_state_dtype", "max_inference_chunksize",
    ),
)  # fmt: skip
