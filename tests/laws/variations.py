"""One setting of a small configuration changed, or left out: what `test_settings.py` holds against transformers' classes."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers import cache_utils, masking_utils, modeling_rope_utils
from transformers.integrations import moe
from transformers.utils import generic

from anyformer.errors import AnyformerError
from anyformer.families import FAMILIES
from anyformer.families.hf.mapping import class_of, misfits
from tests.laws.models import SHRUNK
from tests.oracles import text_models as text_models

# What changes no number of a model that is not trained, and sizes that are only larger. Of an indexer's few heads many pairs
# score 0, of which either side may take others.
UNTRIED = re.compile(
    r"token_id|dropout|drop$|aux_loss|initializer|init_std|^_|vocab_size|label|dtype|name|^architectures$|version|"
    r"^return_|^output_|^use_cache$|problem_type|is_encoder_decoder|implementation|model_type|^index(er)?_n_heads$"
)
SIZE = re.compile(r"size|position|n_ctx|context|^d_|dim$|ffn|n_embd|rank|width")
COUNT = re.compile(r"head_dim|window|chunk|groups")
MAY_BE_NONE = re.compile(r"expert|group|shared|every|freq|interval|step|layers_|window|offset")
ACTIVATIONS = ("relu", "gelu", "gelu_pytorch_tanh", "relu2", "quick_gelu", "gelu_10", "silu")
TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
ROTARY = ("rope_parameters", "rope_scaling")
NO_IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
MOST = 4_000_000  # parameters; what a class takes where nothing is said may be larger
# What classes are made with, which asks a configuration for settings of its own.
SHARED = (masking_utils, modeling_rope_utils, cache_utils, generic, moe)
CORRECTIONS = re.compile(r"correction|expert_bias|final_logits_bias|layer_scalar")  # buffers that are learned


class Base(NamedTuple):
    """A small model of a type that is read: the name of its class, and its settings."""

    hf_type: str
    kind: str
    settings: dict[str, Any]

    def config(self, settings: Mapping[str, Any]) -> Any:
        """Return what transformers makes of settings, whose tables it writes to."""
        said = {name: value for name, value in settings.items() if name not in ("model_type", "architectures")}
        return transformers.AutoConfig.for_model(self.hf_type, **deepcopy(said))


@cache
def base(hf_type: str) -> Base | None:
    """Return the first shrunk preset that the class of a type computes."""
    family = FAMILIES[hf_type]
    for spec in SHRUNK.values():
        with suppress(AnyformerError):
            settings, apart = misfits(family, spec)
            if not apart:
                return Base(hf_type, class_of(family, settings), NO_IDS | settings)
    return None


def stretched(n_pairs: int, context: int) -> Iterator[dict[str, Any]]:
    """Yield tables of rotary positions, each scaling in the ways that it may be described."""
    original = {"original_max_position_embeddings": 16}
    lists = {
        "short_factor": [1.0 + 0.1 * i for i in range(n_pairs)],
        "long_factor": [1.5 + 0.4 * i for i in range(n_pairs)],
    }
    yield {"rope_type": "linear", "factor": 3.0}
    yield {"rope_type": "dynamic", "factor": 2.0}
    yield {"rope_type": "yarn", "factor": 4.0}
    for more in (
        {},
        {"mscale": 0.7},
        {"mscale": 0.7, "mscale_all_dim": 0.4},
        {"attention_factor": 1.3},
        {"beta_fast": 0.5, "beta_slow": 0.2, "truncate": False},
    ):
        yield {"rope_type": "yarn", "factor": 4.0, **original, **more}
    yield {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original}
    yield {"rope_type": "longrope", "factor": 4.0, **lists, **original}
    yield {"rope_type": "longrope", **lists, "original_max_position_embeddings": max(2 * context, 64)}
    yield {"rope_type": "longrope", **lists, **original, "attention_factor": 1.2}
    yield {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    yield {"rope_type": "default", "partial_rotary_factor": 0.5}


def _rotary(value: Any, whole: Mapping[str, Any]) -> Iterator[Any]:
    """Yield tables instead of one, or of one of those of each type of layer."""
    by_type = isinstance(value, dict) and any(isinstance(each, dict) for each in value.values())
    context = whole.get("max_position_embeddings") or 32
    for kind in value if by_type else (None,):
        usual = dict((value if kind is None else value[kind]) or {})
        share = (
            usual.get("partial_rotary_factor") or whole.get("partial_rotary_factor") or whole.get("rotary_pct") or 1.0
        )
        said = {name: usual[name] for name in ("rope_theta", "partial_rotary_factor") if name in usual}
        for table in (*stretched(int(_head_dim(whole) * share) // 2, context), {**usual, "rope_theta": 77.0}):
            yield {**said, **table} if kind is None else {**value, kind: {**said, **table}}


def _head_dim(whole: Mapping[str, Any]) -> int:
    for name in ("qk_rope_head_dim", "head_dim", "attention_head_dim"):
        if whole.get(name):
            return whole[name]
    width = next((whole[name] for name in ("hidden_size", "n_embd", "d_model") if whole.get(name)), 8)
    heads = next((whole[n] for n in ("num_attention_heads", "n_head", "num_heads", "n_heads") if whole.get(n)), 1)
    return width // heads


def others(name: str, value: Any, whole: Mapping[str, Any], source: str) -> Iterator[Any]:
    """Yield other values of a setting, of its kind; of words those that its class compares it with."""
    words = [
        word
        for said in re.findall(rf'\b{re.escape(name)}\s*(?:==|!=|in|not in)\s*(\[[^\]]*\]|\([^)]*\)|"[^"]*")', source)
        for word in re.findall(r'"([^"]*)"', said)
    ]
    match value:
        case _ if name in ROTARY:
            yield from _rotary(value, whole)
        case bool():
            yield not value
        case str():
            yield from ACTIVATIONS if "act" in name or value in ACTIVATIONS else words
        case int() if SIZE.search(name) and not COUNT.search(name):
            yield 2 * value
        case int():
            yield from (
                2 * value,
                1,
                3,
                *((2, 4) if "head" in name else ()),
                *((0,) if MAY_BE_NONE.search(name) else ()),
            )
        case float():
            yield from (0.03 if "eps" in name else 1.7 * value or 0.4, 0.3, 0.0)
        case [first, *rest]:
            yield from ([*rest, first], value[::-1], [first] * len(value), [value[-1]] * len(value))
            if isinstance(first, str):
                yield from ([word] * len(value) for word in (*words, *TYPES))
            elif isinstance(first, int):
                yield from ([], [0], [1], [0, 1])
        case []:
            yield from ([0], [1], [0, 1])
        case dict():
            for inner, held in value.items():
                yield from ({**value, inner: other} for other in others(inner, held, {**whole, **value}, source))
        case _:
            yield from (3, 0.7, True, False, *words, *((8, 16) if SIZE.search(name) else ()))


def variations(small: Base) -> list[tuple[str, Any]]:
    """Return each setting with each other value: those that are written, those of the class, and those that it reads."""
    config = small.config(small.settings)
    modules = (sys.modules[type(config).__module__], sys.modules[getattr(transformers, small.kind).__module__])
    used = {getattr(value, "__module__", None) for value in vars(modules[1]).values()}
    shared = (module for module in SHARED if module.__name__ in used)
    source = "".join(map(inspect.getsource, (*modules, *shared)))
    read = re.findall(r'config\.(?!json)(\w+)|getattr\([\w.]*config, "(\w+)"', source)
    methods = {name for name in dir(type(config)) if callable(getattr(type(config), name, None))}
    asked = dict.fromkeys(sorted({a or b for a, b in read} - methods))
    whole = asked | config.to_dict() | small.settings
    aliases = config.attribute_map.items()
    twice = {alias for alias, _ in aliases} | {own for alias, own in aliases if alias in small.settings}
    found: list[tuple[str, Any]] = []
    for name, value in whole.items():
        if not UNTRIED.search(name) and name not in twice:
            each = (other for other in others(name, value, whole, source) if other != value)
            found += [(name, other) for i, other in enumerate(each) if name != "rope_scaling" or i % 4 == 0]
    return found


def changed(small: Base, name: str, value: Any) -> dict[str, Any]:
    """Return the settings with another value for one; a table of rotary positions stands for all that is said of them."""
    older = ("rope_scaling", "rope_theta", "partial_rotary_factor") if name == ROTARY[0] else ()
    return {each: said for each, said in small.settings.items() if each not in older} | {name: value}


def made(small: Base, settings: Mapping[str, Any], seed: int = 0) -> Any:
    """Return the model of their class with every number random. Raises whatever the class does with such settings."""
    config, kind = small.config(settings), getattr(transformers, small.kind)
    with torch.device("meta"):
        n = sum(weight.numel() for weight in kind._from_config(copy.deepcopy(config)).parameters())
    if n > MOST:
        raise ValueError(f"{n} parameters are too many to be tried")
    ways = {"attn_implementation": attention(config), "experts_implementation": "eager"}
    model = kind._from_config(config, **ways).to(torch.float64)
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    tables = {id(module.weight): module for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, weight in model.named_parameters():
        if not weight.requires_grad or "Sinusoid" in type(tables.get(id(weight))).__name__:
            continue  # constants, which follow from the settings
        if id(weight) in tables:  # some rows as small as an eps
            share = torch.rand(weight.shape[0], *[1] * (weight.dim() - 1), generator=generator)
            weight.data.copy_(0.01**share * noise(weight))
        elif weight.dim() > 1 and min(weight.shape[-2:]) > 1 and not name.endswith(("A_log", "dt_bias", "bias")):
            weight.data.copy_(1.2 * weight.shape[-1] ** -0.5 * noise(weight))
        else:
            weight.data.copy_(weight.data.nan_to_num(0, 0, 0) + (0.3 * noise(weight)).clamp(-0.4, 0.4))
    kept = model.state_dict()
    for name, buffer in model.named_buffers():
        if name in kept and buffer.is_floating_point() and CORRECTIONS.search(name):
            buffer.data.add_(0.3 * noise(buffer))
    return model.eval()


def attention(config: Any) -> str:
    """Return the kernel of theirs that is right: Falcon's eager adds ALiBi twice."""
    return "sdpa" if config.model_type == "falcon" and config.alibi else "eager"
