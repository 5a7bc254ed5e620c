"""Keys of GGUF files that are not one setting of a configuration each: by layer, or in other numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.gguf.dialect import Keys
from anyformer.families.hf import windows
from anyformer.layers.rotary import fraction_of

Said = Mapping[str, Any]
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
PART, LOCAL = "rope.dimension_count", "rope.freq_base_swa"
KV_HEADS, INNER, RANK = "attention.head_count_kv", "ssm.inner_size", "ssm.time_step_rank"
TURNS = "rope.scaling.finetuned"


# The window, of which 0 is none.
WINDOWED = Keys(
    (WINDOW,),
    lambda said, _: {"sliding_window": said[WINDOW] or None},
    lambda config: {} if config.get("sliding_window") is None else {WINDOW: int(config["sliding_window"])},
)


# The same, of a model whose YaRN does not round the pairs where its ramp begins and ends, which files do not say.
WINDOWED_EXACTLY = Keys(
    (WINDOW,),
    lambda said, config: {
        "sliding_window": said[WINDOW] or None,
        "rope_scaling": {**config["rope_scaling"], "truncate": False},
    },
    WINDOWED.write,
)


def _sliding(config: Said) -> list[bool]:
    """Which layers have a window."""
    return [kind == windows.SLIDING for kind in config["layer_types"]]


def _pattern(said: Said, _: Said) -> Said:
    slides = said[PATTERN]
    if not isinstance(slides, list) or not all(isinstance(each, bool) for each in slides):
        raise ValueError("is no list of which layers have a window")
    return {"layer_types": [windows.SLIDING if each else windows.FULL for each in slides]}


# Which layers have a window, where any has.
PATTERNED = Keys((PATTERN,), _pattern, lambda config: {PATTERN: slides} if any(slides := _sliding(config)) else {})


def _head_dim(config: Said) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _kv_heads(said: Said) -> list[int]:
    """How many heads of keys and values each layer has, 0 of those that do not attend."""
    heads = said[KV_HEADS]
    if not isinstance(heads, list) or len({*heads} - {0}) != 1:
        raise ValueError("is no list of one number, and of 0 for layers that do not attend")
    return heads


def _attending(said: Said, _: Said) -> Said:
    heads = _kv_heads(said)
    first, *later = [i for i, n in enumerate(heads) if n]
    period = later[0] - first if later else max(first, len(heads) - 1) + 1
    if [i for i in range(len(heads)) if i % period == first] != [first, *later]:
        raise ValueError("has heads in layers that do not come periodically")
    return {"num_key_value_heads": max(heads), "attn_layer_period": period, "attn_layer_offset": first}


def _heads_by_layer(config: Said) -> Said:
    period, first, heads = config["attn_layer_period"], config["attn_layer_offset"], int(config["num_key_value_heads"])
    return {KV_HEADS: [heads if i % period == first else 0 for i in range(config["num_hidden_layers"])]}


# Which layers attend, by a configuration's period and offset: those that do have heads of keys and values.
PERIODIC = Keys((KV_HEADS,), _attending, _heads_by_layer)


# How many features of a head turn.
PARTIAL = Keys(
    (PART,),
    lambda said, config: {"partial_rotary_factor": fraction_of(said[PART], _head_dim(config))},
    lambda config: {PART: int(config["partial_rotary_factor"] * _head_dim(config))},
)


def _whole(said: Said, config: Said) -> Said:
    if said[PART] != _head_dim(config):
        raise ValueError(f"must be {_head_dim(config)}: a head turns as a whole here")
    return {}


def _by_type(said: Said, config: Said) -> Said:
    full = {"rope_type": "default", "rope_theta": config["rope_theta"], **(config.get("rope_scaling") or {})}
    sliding = {"rope_type": "default", "rope_theta": said[LOCAL]}
    older = {"rope_theta": None, "rope_scaling": None}
    return {**older, "rope_parameters": {windows.SLIDING: sliding, windows.FULL: full}}


# Rotary positions of sliding layers, which nothing stretches, beside those of full ones.
ROTARY_BY_TYPE = Keys(
    (LOCAL,), _by_type, lambda config: {LOCAL: float(config["rope_parameters"][windows.SLIDING]["rope_theta"])}
)


def hybrid(attends: str, other: str) -> Keys:
    """The layers' kinds, by the words of a configuration: those that attend have heads of keys and values."""

    def read(said: Said, _: Said) -> Said:
        heads = _kv_heads(said)
        return {"num_key_value_heads": max(heads), "layer_types": [attends if n else other for n in heads]}

    def write(config: Said) -> Said:
        heads = int(config["num_key_value_heads"])
        return {KV_HEADS: [heads if kind == attends else 0 for kind in config["layer_types"]]}

    return Keys((KV_HEADS,), read, write)


# What llama.cpp asks for of models that do not attend, whose classes have no such settings.
NO_ATTENTION = Keys(
    ("context_length", "feed_forward_length", "attention.head_count", KV_HEADS),
    lambda said, config: {},
    lambda config: {"context_length": 1 << 20, "feed_forward_length": 0, "attention.head_count": 0},
)


def _expanded(setting: str) -> Keys:
    """How much wider a state space mixer is than the stream, by this setting."""
    return Keys(
        (INNER,),
        lambda said, config: {setting: int(said[INNER]) // int(config["hidden_size"])},
        lambda config: {INNER: int(config[setting] * config["hidden_size"])},
    )


EXPANDED, EXPANDED_IN_A_HYBRID = _expanded("expand"), _expanded("mamba_expand")


def _rank(config: Said) -> int:
    return -(-int(config["hidden_size"]) // 16) if config["time_step_rank"] == "auto" else int(config["time_step_rank"])


STEP_RANK = Keys((RANK,), lambda said, config: {"time_step_rank": said[RANK]}, lambda config: {RANK: _rank(config)})


def only(key: str, value: Any) -> Keys:
    """A key that says one thing of the models that are computed here."""

    def read(said: Said, _: Said) -> Said:
        if said[key] != value:
            raise ValueError("is computed by no class here")
        return {}

    return Keys((key,), read, lambda config: {key: value})


PLAIN_STEPS = only("ssm.dt_b_c_rms", False)
# Tokens see those behind them too, which is not what readers of files take where nothing is said.
NOT_CAUSAL = only("attention.causal", False)
# What is so of all models whose own keys do not say it.
USUAL = (Keys((PART,), _whole, lambda config: {}), only("attention.causal", True))


def heads_of_states(n_heads: str, head_dim: str, *, expand: str | None = None, whole: str | None = None) -> Keys:
    """The heads of a Mamba-2 mixer, by the names of its settings: files say how wide all are together."""

    def read(said: Said, config: Said) -> Said:
        width, n = int(said[INNER]), int(said[RANK])
        together = {whole: width} if whole else {f"{expand}": width // int(config["hidden_size"])}
        return {n_heads: n, head_dim: width // n, **together}

    return Keys(
        (INNER, RANK),
        read,
        lambda config: {RANK: int(config[n_heads]), INNER: int(config[n_heads] * config[head_dim])},
    )


# Whether the layers that attend turn queries and keys.
ROTARY_OR_NONE = Keys(
    (TURNS,),
    lambda said, config: {"position_embedding_type": "rope" if said[TURNS] else "nope"},
    lambda config: {TURNS: config["position_embedding_type"] == "rope"},
)


def _every(said: Said, config: Said) -> Said:
    if isinstance(said[PATTERN], list):
        return _pattern(said, config)
    return {"global_attn_every_n_layers": said[PATTERN]}


def _how_often(config: Said) -> Said:
    slides = _sliding(config)
    every = slides.index(False, 1) if False in slides[1:] else len(slides)
    return {PATTERN: every if slides == [bool(i % every) for i in range(len(slides))] else slides}


# Every how many layers one sees all, the first among them.
PATTERNED_FROM_FULL = Keys((PATTERN,), _every, _how_often)


def _last_of(said: Said, config: Said) -> Said:
    return _pattern(said, config) if isinstance(said[PATTERN], list) else {"sliding_window_pattern": said[PATTERN]}


def _unless_6(config: Said) -> Said:
    slides = _sliding(config)
    return {} if slides == [bool((i + 1) % 6) for i in range(len(slides))] else {PATTERN: slides}


# The same, the last of every so many seeing all; 6 where nothing is said.
PATTERNED_BY_6 = Keys((PATTERN,), _last_of, _unless_6)
