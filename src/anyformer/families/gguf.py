"""GGUF's names for what Hugging Face's configurations and tensors say: a dialect for each architecture it writes.

The format: ggml's docs/gguf.md; names of tensors and what is done to them: llama.cpp's conversion from Hugging Face.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, did_you_mean
from anyformer.families.hf.settings import Settings
from anyformer.layers.rope_scaling import sharpening

Change = Callable[[Tensor, Mapping[str, Any]], Tensor]  # (tensor, configuration) → as the other side stores it


class Turn(NamedTuple):
    """What is done to a tensor of a file, to be as Hugging Face stores it, and back."""

    restored: Change
    stored: Change


SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LLAMA_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FOUR_NORMS = {
    **LLAMA_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _halves(n_heads: str) -> Turn:
    """llama.cpp turns neighbouring features, Hugging Face those half a head apart."""

    def heads(tensor: Tensor, config: Mapping[str, Any], *shape: int) -> Tensor:
        return tensor.unflatten(0, (int(config[n_heads]), *shape)).transpose(1, 2).flatten(0, 2)

    return Turn(
        lambda tensor, config: heads(tensor, config, -1, 2), lambda tensor, config: heads(tensor, config, 2, -1)
    )


# Gains that a model adds 1 to are stored with the 1.
ONE_MORE = Turn(lambda tensor, _: tensor - 1, lambda tensor, _: tensor + 1)


@dataclass(frozen=True)
class Dialect:
    """How files of one `general.architecture` are read and written."""

    hf_type: str
    settings: Mapping[str, str] = field(default_factory=lambda: SIZES)  # key below the architecture's → setting
    layer: Mapping[str, str] = field(default_factory=lambda: LLAMA_LAYER)  # tensor of a block → of a layer
    turns: Mapping[str, Turn] = field(default_factory=dict)  # by what a tensor's name in the file matches
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that files of this architecture do not hold
    unheeded: tuple[str, ...] = ()  # keys that llama.cpp itself reads and leaves out of what it computes
    depth_of_27b: int | None = None  # Gemma's largest scales attention by d_model / n_heads; its files do not say so

    def name(self, theirs: str) -> str | None:
        """The name in the file of a tensor of Hugging Face's; None for one that no file holds."""
        stem, dot, end = theirs.rpartition(".")
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        table = self.layer if match else WHOLE
        wanted = match[2] if match else stem
        found = next((ours for ours, name in table.items() if name == wanted), None)
        return None if found is None else f"blk.{match[1]}.{found}{dot}{end}" if match else f"{found}{dot}{end}"

    def restored(self, name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
        """The tensor that the file calls `name` as Hugging Face stores it."""
        turn = self._turn(name)
        return tensor if turn is None else turn.restored(tensor, config)

    def stored(self, name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
        """A tensor of Hugging Face's as a file holds it that calls it `name`."""
        turn = self._turn(name)
        return tensor if turn is None else turn.stored(tensor, config)

    def _turn(self, name: str) -> Turn | None:
        return next((turn for pattern, turn in self.turns.items() if re.fullmatch(pattern, name)), None)


TURNED = {
    r"blk\.\d+\.attn_q\.\w+": _halves("num_attention_heads"),
    r"blk\.\d+\.attn_k\.\w+": _halves("num_key_value_heads"),
}
OFFSET = {r".*norm\.weight": ONE_MORE}
HEAD_DIM = {**SIZES, "attention.key_length": "head_dim"}
GEMMA_2 = {
    **HEAD_DIM,
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
GELU = {"hidden_activation": "gelu_pytorch_tanh"}

DIALECTS: dict[str, Dialect] = {
    "llama": Dialect("llama", {**HEAD_DIM, "rope.dimension_count": "head_dim"}, turns=TURNED),
    "qwen2": Dialect("qwen2"),
    "gemma": Dialect("gemma", HEAD_DIM, turns=OFFSET, fixed={"hidden_act": "gelu_pytorch_tanh"}),
    "gemma2": Dialect("gemma2", GEMMA_2, FOUR_NORMS, OFFSET, GELU, depth_of_27b=46),
    "gemma3": Dialect(
        "gemma3_text",
        {**HEAD_DIM, "attention.sliding_window": "sliding_window"},
        {**FOUR_NORMS, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
        OFFSET,
        GELU,
        depth_of_27b=62,
    ),
    "phi3": Dialect(
        "phi3",
        {**SIZES, "attention.sliding_window": "sliding_window"},
        {
            **{name: LLAMA_LAYER[name] for name in ("attn_norm", "attn_output", "ffn_norm", "ffn_down")},
            "attn_qkv": "self_attn.qkv_proj",
            "ffn_up": "mlp.gate_up_proj",
        },
        unheeded=("attention.sliding_window",),
    ),
}

# Keys that change no number of the model, below the architecture's name.
HARMLESS = re.compile(
    r"vocab_size|rope\.dimension_count|attention\.(key|value)_length|attention\.causal|tensor_data_layout"
)
REAL = re.compile(r".*(epsilon|freq_base|softcapping)")  # keys of numbers that are not whole
SCALING = "rope.scaling."
# Below it: what is only said, and what changes no number while it has this value.
SAID = ("type", "finetuned", "original_context_length")
NEUTRAL = {
    "attn_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_ext_factor": 1.0,
    "yarn_log_multiplier": 0.0,
    "alpha": 0.0,
}


def dialect_of(metadata: Mapping[str, Any], where: str) -> Dialect:
    """How a file is read, by its `general.architecture`. Raises CheckpointError for one that is not known."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in DIALECTS:
        raise CheckpointError(
            f"{where}: GGUF files of the architecture {name!r} are not read here{did_you_mean(str(name), DIALECTS)}; "
            f"{', '.join(DIALECTS)} are; give the model's Hugging Face directory"
        )
    return DIALECTS[name]


def config_of(
    metadata: Mapping[str, Any], tensors: Iterable[str], shape: tuple[int, ...], where: str
) -> dict[str, Any]:
    """The configuration that Hugging Face would write; `shape` is the embedding's, (vocabulary, width).

    Raises CheckpointError for a setting that might change what is computed and that nobody here reads.
    """
    dialect, architecture = dialect_of(metadata, where), str(metadata["general.architecture"])
    config: dict[str, Any] = {"model_type": dialect.hf_type, "vocab_size": shape[0], **dialect.fixed}
    for key, value in metadata.items():
        if not key.startswith(f"{architecture}."):
            continue
        short = key.removeprefix(f"{architecture}.")
        if short in dialect.settings:
            config[dialect.settings[short]] = _one(value, f"{where}: {key}")
        elif not short.startswith(SCALING) and not HARMLESS.fullmatch(short):
            raise _unknown(where, key, value)
    scaling = _scaling(metadata, f"{architecture}.{SCALING}", where)
    if scaling is not None:
        config["rope_scaling"] = scaling
    missing = [key for key in ("block_count", "embedding_length", "attention.head_count") if SIZES[key] not in config]
    if missing:
        raise CheckpointError(f"{where} has no {architecture}.{missing[0]}; it is no whole model, convert it again")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    if dialect.depth_of_27b is not None:
        said = Settings(config, where)
        share = said.positive("hidden_size", int) / said.positive("num_attention_heads", int)
        largest = config["num_hidden_layers"] == dialect.depth_of_27b
        config["query_pre_attn_scalar"] = int(share if largest else said.optional("head_dim", int) or share)
    config["tie_word_embeddings"] = "output.weight" not in set(tensors)
    return config


def metadata_of(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file of an architecture, below its name, for a configuration of Hugging Face's; whole numbers are int.

    What a file has no key for is not said: whoever writes one reads it back. Raises CheckpointError for rotary positions that
    are scaled in a way that files do not know.
    """
    found: dict[str, Any] = {}
    for key, setting in DIALECTS[architecture].settings.items():
        if config.get(setting) is not None:
            found[key] = (float if REAL.fullmatch(key) else int)(config[setting])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found |= dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), head_dim)
    scaling = {name: value for name, value in (config.get("rope_scaling") or {}).items() if value is not None}
    kind = scaling.pop("rope_type", "default")
    if kind not in ("default", "llama3", "linear", "yarn"):
        raise CheckpointError(f"GGUF files have no key for rotary positions scaled by {kind!r}; keep the directory")
    if kind in ("linear", "yarn"):
        said = {"type": kind, "factor": float(scaling["factor"])}
        for name, setting in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if setting in scaling:
                said[name] = float(scaling[setting])
        if kind == "yarn":
            said["original_context_length"] = int(scaling["original_max_position_embeddings"])
        if "attention_factor" in scaling:
            said["attn_factor"] = scaling["attention_factor"] / sharpening(said["factor"])
        found |= {f"{SCALING}{name}": value for name, value in said.items()}
    return {**found, "vocab_size": int(config["vocab_size"])}


def _one(value: Any, what: str) -> Any:
    """Files may hold one number for all layers, or a list; only lists of one number are one model's here."""
    if not isinstance(value, list):
        return value
    if not value or any(item != value[0] for item in value):
        raise CheckpointError(f"{what} differs by layer, which none of these families has; give its directory")
    return value[0]


def _unknown(where: str, key: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"{where}: {key} = {value!r} is unknown here and might change what is computed; "
        "give the model's Hugging Face directory"
    )


def _scaling(metadata: Mapping[str, Any], start: str, where: str) -> dict[str, Any] | None:
    """The scaling of rotary positions, all of whose keys, which begin with `start`, are used or refused."""
    said = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
    kind, used = said.get("type"), {*SAID}
    found: dict[str, Any] | None = None
    if kind == "none":
        used.add("factor")
    elif kind == "linear":
        used.add("factor")
        found = {"rope_type": "linear", "factor": _number(said, "factor", start, where)}
    elif kind == "yarn":
        used |= {"factor", "attn_factor", "yarn_beta_fast", "yarn_beta_slow"}
        factor = _number(said, "factor", start, where)
        original = int(_number(said, "original_context_length", start, where))
        found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for name, setting in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if name in said:
                found[setting] = _number(said, name, start, where)
        if said.get("attn_factor", 1.0) != 1.0:  # of what cos and sin are multiplied by anyway
            found["attention_factor"] = sharpening(factor) * _number(said, "attn_factor", start, where)
    elif kind is not None:
        raise _unknown(where, f"{start}type", kind)
    for name, value in said.items():
        if name not in used and (name not in NEUTRAL or value != NEUTRAL[name]):
            raise _unknown(where, start + name, value)
    return found


def _number(said: Mapping[str, Any], name: str, start: str, where: str) -> float:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        is_ = "is missing" if value is None else f"= {value!r} is no number above 0"
        raise CheckpointError(f"{where}: {start}{name} {is_}; the file is not whole, convert it again")
    return float(value)


def llama3_scaling(factors: Tensor, theta: float, where: str) -> dict[str, Any]:
    """The scaling whose wavelengths were divided by `factors` (rope_freqs.weight), which the metadata leaves out.

    Raises CheckpointError where LLaMA 3's constants (1, 4, 8192: arXiv:2407.21783) do not give these factors.
    """
    from anyformer.layers import Llama3Scaling

    n = factors.numel()
    if not bool(((factors >= 1) & (factors < 1e6)).all()):
        raise CheckpointError(f"{where}: rope_freqs.weight holds what no wavelength is divided by; copy it again")
    plain = [theta ** (-i / n) for i in range(n)]
    scaling = Llama3Scaling(factor=round(float(factors.max()), 3))
    expected = torch.tensor([f / s for f, s in zip(plain, scaling.scaled(plain), strict=True)])
    if not torch.allclose(factors.float(), expected, rtol=1e-3):
        raise CheckpointError(f"{where}: rope_freqs.weight is no scaling known here; give the model's directory")
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": int(scaling.original_context),
    }
