"""Linear maps and tables are PyTorch's: what adapters, parametrizations and hooks make of them is heard everywhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.families import PRESETS
from anyformer.generation import generate_ids, layout
from anyformer.generation.layout import lay_out_for_decoding
from anyformer.generation.sampling import Sampling
from anyformer.layers.cross_entropy import LossOptions, cross_entropy
from anyformer.layers.head import Unembedding
from anyformer.layers.linear import Linear
from anyformer.model import Transformer, build
from anyformer.resizing import shrink
from tests.laws.models import ids_for, randomised

# Untied; tied by a shared table; MLA's folded maps and experts; shared layers; a gated feed-forward, a state, an encoder–decoder.
NAMES = ["llama2-7b", "gpt2", "deepseek-v2-lite", "albert-base", "gemma3-1b", "mamba2-130m", "transformer-base"]


LayOut = Callable[[Transformer], Transformer]


@pytest.fixture(params=["columns", "blocks"])
def lay_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LayOut:
    monkeypatch.setattr(layout, "LEAST", 1)
    return partial(lay_out_for_decoding, several=request.param == "blocks")


def model_of(name: str, seed: int = 0) -> Transformer:
    return randomised(shrink(PRESETS[name].spec), seed)


def logits(model: Any, ids: Tensor) -> Tensor:
    model = model.base_model.model if isinstance(model, PeftModel) else model
    more = {"decoder_input_ids": ids} if model.encoder is not None else {}
    return torch.cat([each.flatten() for each in model(ids, **more).outputs.values()])  # of all heads


def maps_of(model: Transformer) -> list[str]:
    return [path for path, each in model.named_modules() if isinstance(each, nn.Linear | nn.Embedding)]


def with_adapter(model: Transformer, targets: Any, **options: Any) -> Any:
    """The model with LoRA whose product is no longer zero."""
    adapted: Any = get_peft_model(model, LoraConfig(target_modules=targets, r=2, lora_alpha=4, **options))  # type: ignore[arg-type]
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.manual_seed(len(name))
            nn.init.normal_(weight, std=0.3)
    return adapted


@pytest.mark.parametrize("name", NAMES)
def test_every_map_and_table_is_called_whoever_watches(name: str, lay_out: LayOut) -> None:
    model = lay_out(model_of(name))
    ids, called = ids_for(model.spec, 1, 7), set()
    plain = logits(model, ids).detach()
    maps = {path: each for path, each in model.named_modules() if isinstance(each, nn.Linear | nn.Embedding)}
    assert maps
    for path, each in maps.items():
        each.register_forward_hook(lambda *_, path=path: called.add(path))
    torch.testing.assert_close(logits(model, ids), plain, atol=1e-5, rtol=1e-5)
    assert called == set(maps)
    called.clear()
    with torch.no_grad():
        torch.testing.assert_close(logits(model, ids), plain, atol=1e-5, rtol=1e-5)
    assert called == set(maps)


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_of_any_map_is_what_merging_it_gives(name: str, lay_out: LayOut) -> None:
    model = lay_out(model_of(name))
    ids, plain = ids_for(model.spec, 1, 7), logits(model, ids_for(model.spec, 1, 7)).detach()
    adapted = with_adapter(model, maps_of(model))
    learning = logits(adapted, ids)
    assert (learning - plain).abs().max() > 0.01
    learning.square().sum().backward()
    silent = [n for n, w in adapted.named_parameters() if w.requires_grad and (w.grad is None or not w.grad.any())]
    assert not silent
    with torch.no_grad():
        torch.testing.assert_close(logits(adapted, ids), learning.detach(), atol=1e-5, rtol=1e-5)
        merged = adapted.merge_and_unload()
        assert set(merged.state_dict()) == set(model_of(name).state_dict())
        torch.testing.assert_close(logits(merged, ids), learning.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "target"), [("llama2-7b", "up"), ("llama2-7b", "v"), ("qwen2-7b", "k")])
def test_a_map_that_is_replaced_is_no_longer_taken_from_where_it_lay(name: str, target: str, lay_out: LayOut) -> None:
    """`safe_merge` gives one of the maps that lie together another tensor; so may anyone, and of its bias."""
    model = lay_out(model_of(name))
    ids = ids_for(model.spec, 1, 7)
    adapted = with_adapter(model, [path for path in maps_of(model) if path.endswith(f".{target}")])
    merged = adapted.merge_and_unload(safe_merge=True)
    learnt = logits(merged, ids).detach()
    with torch.no_grad():
        torch.testing.assert_close(logits(merged, ids), learnt, atol=1e-4, rtol=1e-4)
        for path in maps_of(merged):
            each = merged.get_submodule(path)
            if path.endswith(f".{target}"):
                each.bias = nn.Parameter(torch.ones(each.out_features) + (0 if each.bias is None else each.bias))
    with_bias = logits(merged, ids).detach()
    assert (with_bias - learnt).abs().max() > 0.01
    with torch.no_grad():
        torch.testing.assert_close(logits(merged, ids), with_bias, atol=1e-4, rtol=1e-4)
        for path in maps_of(merged):
            if path.endswith(f".{target}"):
                merged.get_submodule(path).bias = None
    without = logits(merged, ids).detach()
    with torch.no_grad():
        torch.testing.assert_close(logits(merged, ids), without, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama2-7b", "deepseek-v2-lite", "gemma3-1b"])
@pytest.mark.parametrize("first", ["laid out", "adapted"])
def test_text_of_an_adapter_is_that_of_the_merged_model(name: str, first: str, lay_out: LayOut) -> None:
    """Decoding joins q, k and v, gate and up, and folds MLA's maps: none of it may pass by an adapter."""
    model, drawn = model_of(name), {"max_new_tokens": 8, "sampling": Sampling(temperature=4.0)}
    ids = ids_for(model.spec, 2, 5)
    if first == "laid out":
        lay_out(model)
    adapted = with_adapter(model, maps_of(model))
    if first == "adapted":
        lay_out(model)
    text = generate_ids(model, ids, **drawn)
    assert torch.equal(text, generate_ids(model, ids, **drawn, cache=False))
    assert torch.equal(text, generate_ids(adapted.merge_and_unload(), ids, **drawn))
    assert not torch.equal(text, generate_ids(model_of(name), ids, **drawn)), "the adapter should change the text"


def test_adapters_of_stacked_experts_are_heard() -> None:
    model = model_of("mixtral-8x7b")
    ids = ids_for(model.spec, 1, 9)
    plain = logits(model, ids).detach()
    experts = [f"{p}.weight" for p, e in model.named_modules() if type(e).__name__ == "StackedLinear"]
    adapted = with_adapter(model, [], target_parameters=experts)
    learning = logits(adapted, ids)
    learning.sum().backward()
    assert (learning - plain).abs().max() > 0.01
    assert all(w.grad is not None and w.grad.any() for n, w in adapted.named_parameters() if "lora_B" in n)
    loop = adapted.base_model.model(ids, kernel="eager").logits.flatten()
    torch.testing.assert_close(loop, learning, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(adapted.merge_and_unload(), ids), learning, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama2-7b", "gpt2"])
@pytest.mark.parametrize(
    "options", [LossOptions(), LossOptions(label_smoothing=0.1, z_loss=0.01)], ids=["plain", "more"]
)
def test_the_loss_of_an_adapted_head_is_that_of_its_logits(name: str, options: LossOptions) -> None:
    """Where the table is plain, the gradients come out of a product that nobody sees; the two ways agree."""
    model = model_of(name)
    ids = ids_for(model.spec, 40, 30)
    labels = ids.roll(-1, 1).masked_fill(ids % 5 == 0, -100)

    def loss(model: Transformer, fused: bool) -> tuple[Tensor, Tensor]:
        out = model(ids, output_logits=False)
        total, each = cross_entropy(model.heads[0], out.last_hidden_state, labels, options)
        assert (model.heads[0].matrix() is not None) == fused
        total.backward()
        return total.detach(), each

    total, each = loss(model, fused=True)
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    table = model.heads[0].table
    table.register_forward_hook(lambda *_: None)
    again, each_again = loss(model, fused=False)
    torch.testing.assert_close(again, total, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(each_again, each, rtol=1e-4, atol=1e-4)
    for path, weight in model.named_parameters():
        if path in expected:
            torch.testing.assert_close(weight.grad, expected[path], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["llama2-7b", "gpt2", "albert-base"])
def test_parametrizing_changes_no_later_model(name: str) -> None:
    model = model_of(name)
    for module in list(model.modules()):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.utils.parametrize.register_parametrization(module, "weight", Doubled())
    ids = ids_for(model.spec, 1, 6)
    assert (logits(model, ids) - logits(model_of(name), ids)).abs().max() > 0.01
    built = build(model.spec)
    kinds = {type(each) for each in built.modules() if isinstance(each, nn.Linear | nn.Embedding)}
    assert all("Parametrized" not in kind.__name__ for kind in kinds)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_the_sizes_are_pytorchs() -> None:
    model = model_of("llama2-7b")
    d, vocab = model.spec.stack.d_model, model.spec.vocab_size
    q: Any = model.stack.blocks[0].sublayers[0].branches[0].mixer.projection.q
    table: Any = model.stack.embedding.terms[0].table
    assert (type(q), q.in_features, q.bias) == (Linear, d, None)
    assert (type(model.heads[0].table), model.heads[0].table.out_features) == (Unembedding, vocab)
    x = torch.randn(2, d)
    assert torch.equal(q(x), F.linear(x, q.weight))
    assert (table.num_embeddings, table.embedding_dim, table.padding_idx, table.max_norm) == (vocab, d, None, None)
    ids = torch.arange(5)
    assert torch.equal(nn.Embedding.forward(table, ids), table(ids))


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_what_is_shared_stays_shared_in_a_copy(how: Any) -> None:
    model = model_of("gpt2")
    again = how(model)
    assert again.heads[0].table is again.stack.embedding.terms[0].table is next(iter(again.shared.values()))
    name, table = next(iter(again.shared.items()))
    setattr(again.shared, name, nn.Embedding(table.num_embeddings, table.embedding_dim))
    assert again.heads[0].table is again.stack.embedding.terms[0].table is not table
    assert model.heads[0].table is model.stack.embedding.terms[0].table is next(iter(model.shared.values()))
