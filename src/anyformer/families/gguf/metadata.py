"""What the metadata of a GGUF file says of its model, as a configuration of Hugging Face's, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, did_you_mean
from anyformer.families.gguf.dialect import Dialect, Keys
from anyformer.families.gguf.keys import USUAL
from anyformer.families.gguf.tables import DIALECTS
from anyformer.families.hf import windows
from anyformer.families.hf.settings import Settings
from anyformer.layers.rope_scaling import Llama3Scaling, sharpening

# Keys that change no number of the model, below the architecture's name; the sizes among them must be those of the tensors.
HARMLESS = re.compile(
    r"vocab_size|pooling_type|attention\.(key|value)_length|tensor_data_layout|rope\.dimension_sections|n_deepstack_layers"
)
REAL = re.compile(r".*(epsilon|freq_base|freq_base_swa|softcapping|scale)")  # keys of numbers that are not whole
OF_TOKENS = "tokenizer."
SCALING = "rope.scaling."
# Below it: what is only said, and what changes no number while it has this value.
SAID = ("type", "finetuned", "original_context_length")
BETAS = ("beta_fast", "beta_slow")  # of YaRN, which the keys name
NEUTRAL = {
    "attn_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_ext_factor": 1.0,
    "yarn_log_multiplier": 0.0,
    "alpha": 0.0,
}


def key_of(dialect: Dialect, key: str) -> str:
    """What a file calls a key of its architecture; those of tokens are the same for all."""
    return key if key.startswith(OF_TOKENS) else f"{dialect.architecture}.{key}"


def dialect_of(metadata: Mapping[str, Any], tensors: Collection[str], where: str) -> Dialect:
    """How a file is read, by its `general.architecture` and what else it says or holds. Raises CheckpointError for none known."""
    name = metadata.get("general.architecture")
    rows = [row for row in DIALECTS.values() if row.architecture == name]
    if not rows:
        known = dict.fromkeys(row.architecture for row in DIALECTS.values())
        raise CheckpointError(
            f"{where}: GGUF files of the architecture {name!r} are not read here{did_you_mean(str(name), known)}; "
            f"{', '.join(known)} are; give the model's Hugging Face directory"
        )
    there = (row for row in reversed(rows) if row.when and (row.when in tensors or metadata.get(f"{name}.{row.when}")))
    return next(there, rows[0])


def config_of(
    metadata: Mapping[str, Any], tensors: Collection[str], shape: tuple[int, ...], where: str
) -> dict[str, Any]:
    """The configuration that Hugging Face would write; `shape` is the embedding's, (vocabulary, width).

    Raises CheckpointError for a setting that might change what is computed and that nobody here reads.
    """
    dialect = dialect_of(metadata, tensors, where)
    start = f"{dialect.architecture}."
    config: dict[str, Any] = {"model_type": dialect.hf_type, "vocab_size": shape[0], **dialect.fixed}
    said = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
    own = {name for keys in dialect.keys for name in keys.names}
    said |= {key: metadata[key] for key in (*dialect.settings, *own) if key.startswith(OF_TOKENS) and key in metadata}
    together = (*dialect.keys, *(keys for keys in USUAL if not own & {*keys.names}))
    several = {name for keys in together for name in keys.names}
    of_layers = tuple(f"{name}_feat_" for name in dialect.dense)  # which are held against the tensors
    for key, value in said.items():
        if key in several:
            continue
        if key in dialect.settings:
            config[dialect.settings[key]] = _one(value, f"{where}: {key_of(dialect, key)}")
        elif not key.startswith(SCALING) and not HARMLESS.fullmatch(key) and not key.startswith(of_layers):
            raise _unknown(where, start + key, value)
    left = {key: value for key, value in metadata.items() if key.removeprefix(start) not in several}
    scaling = _scaling(left, start + SCALING, where)
    if scaling is not None:
        config["rope_scaling"] = scaling
    needed = ("block_count", "embedding_length", "attention.head_count")
    for key in needed:
        if key in dialect.settings and key not in said:
            raise CheckpointError(f"{where} has no {start}{key}; it is no whole model, convert it again")
    if "attention.head_count_kv" in dialect.settings:
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
    for keys in together:
        config |= _several(said, keys, config, f"{where}: {start}")
    if dialect.depth_of_27b is not None:
        sizes = Settings(config, where)
        share = sizes.positive("hidden_size", int) / sizes.positive("num_attention_heads", int)
        largest = config["num_hidden_layers"] == dialect.depth_of_27b
        config["query_pre_attn_scalar"] = int(share if largest else sizes.optional("head_dim", int) or share)
    _hold_against(said, config, shape[0], f"{where}: {start}")
    config |= {setting: any(name.endswith(f".{end}") for name in tensors) for end, setting in dialect.told.items()}
    config["tie_word_embeddings"] = "output.weight" not in tensors
    return config


def _hold_against(said: Mapping[str, Any], config: Mapping[str, Any], n_rows: int, where: str) -> None:
    """Raise CheckpointError for a size that is only said and is another than the model has."""
    has = {"vocab_size": n_rows}
    width, heads = (config.get(name) for name in ("hidden_size", "num_attention_heads"))
    if type(width) is type(heads) is int and heads:
        has |= dict.fromkeys(
            ("attention.key_length", "attention.value_length"), config.get("head_dim") or width // heads
        )
    for key, size in has.items():
        if said.get(key, size) != size:
            raise CheckpointError(f"{where}{key} = {said[key]!r}, and the model has {size}; convert the file again")


def _several(said: Mapping[str, Any], keys: Keys, config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The settings that some keys say together; none where a file has none of them. Raises CheckpointError."""
    there = {name: said[name] for name in keys.names if name in said}
    if not there:
        return {}
    try:
        return keys.read(there, config)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        key, value = next(iter(there.items()))
        why = str(error) if isinstance(error, ValueError) else "goes with no other size of the file"
        raise CheckpointError(f"{where}{key} = {value!r} {why}; convert the file again") from None


def metadata_of(dialect: Dialect, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file of an architecture, below its name, for a configuration of Hugging Face's; whole numbers are int.

    What a file has no key for is not said: whoever writes one reads it back. Raises CheckpointError for rotary positions that
    are scaled in a way that files do not know.
    """
    by_type = config.get("rope_parameters")
    turning = config if by_type is None else {**config, "rope_theta": by_type[windows.FULL]["rope_theta"]}
    found: dict[str, Any] = {}
    for key, setting in dialect.settings.items():
        value = turning.get(setting)
        if value is not None:
            found[key] = value if isinstance(value, bool) else (float if REAL.fullmatch(key) else int)(value)
    if "num_attention_heads" in config:
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        found |= dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), head_dim)
    for keys in dialect.keys:
        found |= keys.write(config)
    inner = config.get("rope_scaling") if by_type is None else by_type[windows.FULL]
    scaling = {name: value for name, value in (inner or {}).items() if value is not None and name != "rope_theta"}
    kind = scaling.pop("rope_type", "default")
    if kind not in ("default", "llama3", "linear", "yarn"):
        raise CheckpointError(f"GGUF files have no key for rotary positions scaled by {kind!r}; keep the directory")
    if kind in ("linear", "yarn"):
        said = {"type": kind, "factor": float(scaling["factor"])}
        said |= {f"yarn_{name}": float(scaling[name]) for name in BETAS if name in scaling}
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
        used |= {"factor", "attn_factor", *(f"yarn_{name}" for name in BETAS)}
        factor = _number(said, "factor", start, where)
        original = int(_number(said, "original_context_length", start, where))
        found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        found |= {name: _number(said, f"yarn_{name}", start, where) for name in BETAS if f"yarn_{name}" in said}
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
