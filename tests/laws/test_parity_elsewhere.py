"""Law 6 for decoders that transformers has no class for, held against slow ones of plain torch, and LaMDA against T5's stack."""

from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from anyformer.families import preset
from anyformer.layers import (
    GELU,
    BlockEnds,
    GQASpec,
    LayerNormSpec,
    RelativeBucketsSpec,
    RelativeSinusoidSpec,
    RMSNormSpec,
    RotarySpec,
    SameBlock,
    SlidingWindow,
    Strided,
)
from anyformer.resizing import shrink
from anyformer.spec import Count, HeadSpec, ModelSpec, Spec, Window
from tests.laws.elsewhere import Oracle, compare, greedy_is_the_oracles
from tests.laws.inputs import inputs
from tests.laws.mutations import check_seen
from tests.laws.weights import edited
from tests.oracles import decoders


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def gpt3_sees(layer: int, head: int, query: int, key: int) -> bool:
    return key <= query and (layer % 2 == 0 or query - key < 5)


def strided_sees(layer: int, head: int, query: int, key: int) -> bool:
    stride = 5
    near = range(max(0, query - (stride - 1)), query + 1)  # the window shrinks to five keys, as the stride does
    return key <= query and (key in near if head % 2 == 0 else (query - key) % stride == 0)


def fixed_sees(layer: int, head: int, query: int, key: int) -> bool:
    size, last = 5, 4
    return key <= query and (key // size == query // size or key % size in range(size - last, size))


def gpt3(w: dict[str, Tensor], ids: Tensor) -> Tensor:
    positions = w["positions.weight"][: len(ids)]
    return decoders.gpt(w, ids, n_layers=2, n_heads=4, sees=gpt3_sees, positions=positions, feed=decoders.gelu_tanh)


def sparse(w: dict[str, Tensor], ids: Tensor, sees: Any, shape: tuple[int, ...]) -> Tensor:
    places = torch.cartesian_prod(*(torch.arange(n) for n in shape))[: len(ids)]
    positions = sum(w[f"positions.weight_{i}"][places[:, i]] for i in range(len(shape)))
    assert isinstance(positions, Tensor)
    return decoders.gpt(w, ids, n_layers=2, n_heads=4, sees=sees, positions=positions, feed=quick_gelu)


def lamda(w: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The decoder of T5 v1.1 without an encoder, as transformers has it."""
    config = transformers.T5Config(
        vocab_size=101,
        d_model=32,
        d_kv=16,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        is_decoder=True,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=5,
        use_cache=False,
    )
    stack = transformers.models.t5.modeling_t5.T5Stack(config).eval()
    given = {"embed_tokens.weight": w["tokens.weight"], "final_layer_norm.weight": w["norm.weight"]}
    given["block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = w["distances"]
    for i in range(2):
        attention, feed = f"block.{i}.layer.0", f"block.{i}.layer.2"
        given[f"{attention}.layer_norm.weight"] = w[f"{i}.norm0.weight"]
        given[f"{feed}.layer_norm.weight"] = w[f"{i}.norm1.weight"]
        given |= {f"{attention}.SelfAttention.{x}.weight": w[f"{i}.{x}.weight"] for x in "qkvo"}
        names = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
        given |= {f"{feed}.DenseReluDense.{x}.weight": w[f"{i}.{y}.weight"] for x, y in names.items()}
    out = torch.func.functional_call(stack, given, (), {"input_ids": ids[None]})
    return out.last_hidden_state[0] @ w["tokens.weight"].T / 32**0.5


ORACLES: dict[str, Oracle] = {
    "gpt3-125m": gpt3,
    "gpt3-1.3b": gpt3,
    "sparse-transformer-cifar10": partial(sparse, sees=strided_sees, shape=(32, 32, 3)),
    "sparse-transformer-imagenet64": partial(sparse, sees=strided_sees, shape=(64, 64, 3)),
    "sparse-transformer-enwik8": partial(sparse, sees=fixed_sees, shape=(96, 128)),
    "palm-8b": partial(decoders.palm, n_layers=2, n_heads=4),
    "palm-540b": partial(decoders.palm, n_layers=2, n_heads=4),
    "gopher-280b": partial(decoders.gopher, n_layers=2, n_heads=4),
    "chinchilla-70b": partial(decoders.gopher, n_layers=2, n_heads=4),
    "lamda-137b": lamda,
}


def test_every_preset_of_these_families_is_held_against_an_oracle() -> None:
    from anyformer.families import PRESETS
    from tests.laws.references import ELSEWHERE

    here = {family for family, file in ELSEWHERE.items() if file == "test_parity_elsewhere.py"}
    held = {shrink(preset(name).spec) for name in ORACLES}
    for record in PRESETS.values():
        assert record.family not in here or shrink(record.spec) in held, record.name


@pytest.mark.in_turn
@pytest.mark.parametrize(("kind", "kernel"), [("right", None), ("left", None), ("packed", None), ("left", "eager")])
@pytest.mark.parametrize("name", ORACLES)
def test_logits_and_gradients_are_those_of_the_oracle(name: str, kind: str, kernel: str | None) -> None:
    spec = shrink(preset(name).spec)
    compare(spec, ORACLES[name], inputs(kind, spec.vocab_size), kernel)


@pytest.mark.parametrize("name", ORACLES)
def test_greedy_continuation_is_that_of_the_oracle(name: str) -> None:
    greedy_is_the_oracles(shrink(preset(name).spec), ORACLES[name])


def but(**changes: Any) -> Any:
    return lambda value: value.but(**changes)


MUTATIONS: dict[str, tuple[str, type[Spec], Any]] = {
    "gpt3 band": ("gpt3-175b", SlidingWindow, but(size=Window(6))),
    "gpt3 gelu": ("gpt3-175b", GELU, but(form="erf")),
    "gpt3 eps": ("gpt3-175b", LayerNormSpec, but(eps=1e-6)),
    "strided stride": ("sparse-transformer-cifar10", Strided, but(stride=Window(6))),
    "strided window": ("sparse-transformer-cifar10", SlidingWindow, but(size=Window(6))),
    "fixed block": ("sparse-transformer-enwik8", SameBlock, but(size=Window(6))),
    "fixed ends": ("sparse-transformer-enwik8", BlockEnds, but(last=Count(3))),
    "sparse gelu": ("sparse-transformer-enwik8", GELU, but(form="tanh")),
    "palm scale of logits": ("palm-540b", HeadSpec, but(scale=None)),
    "palm theta": ("palm-540b", RotarySpec, but(theta=11_000.0)),
    "palm layout": ("palm-540b", RotarySpec, but(layout="interleaved")),
    "palm eps": ("palm-540b", LayerNormSpec, but(eps=1e-6)),
    "gopher base": ("gopher-280b", RelativeSinusoidSpec, but(base=11_000.0)),
    "gopher eps": ("gopher-280b", RMSNormSpec, but(eps=1e-5)),
    "gopher rotary": ("gopher-280b", GQASpec, but(rotary=RotarySpec())),
    "lamda farthest": ("lamda-137b", RelativeBucketsSpec, but(max_distance=Window(12))),
    "lamda gelu": ("lamda-137b", GELU, but(form="erf")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str) -> None:
    origin, kind, edit = MUTATIONS[name]
    spec: ModelSpec = shrink(preset(origin).spec)
    mutated = edited(spec, kind, edit)
    check_seen(spec, mutated)
