"""A model is an ordinary PyTorch module: it is copied, pickled, exported, wrapped for data parallelism, and gives a loss."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.export import Dim, export
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from anyformer.errors import InputError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Causal, IndexerSpec, MoESpec, SlidingWindow, SymmetricWindow
from anyformer.layers.recurrence import RecurrentSpec
from anyformer.model import Output
from anyformer.resizing import resize, shrink
from anyformer.spec import Count, ModelSpec, Width, Window
from tests.laws.models import SHRUNK, flop_counter, ids_for, randomised
from tests.laws.tolerance import FLOAT32, close, gradient_distance

# Untied and tied, a state, experts, an encoder–decoder, chosen keys; every preset among the slow tests.
SAMPLE = ["llama2-7b", "gpt2", "qwen3-next-80b-a3b", "transformer-base", "albert-base", "glm-5"]
every_preset_a_sample_fast = pytest.mark.parametrize(
    "spec",
    [
        *(pytest.param(shrink(preset(name).spec), id=name) for name in SAMPLE),
        *(pytest.param(spec, id=name, marks=pytest.mark.slow) for name, spec in SHRUNK.items()),
    ],
)
# Without padding and with it; the others of each are among the slow tests.
EXPORTED = [("transformer-base", False), ("gemma3-1b", False), ("bert-base", True), ("deepseek-7b", True)]
MORE = set(product((*dict(EXPORTED), "t5-small"), (False, True))) - set(EXPORTED)


def inputs(spec: ModelSpec, batch: int, n: int, padded: bool = False) -> dict[str, Any]:
    both = {"input_ids": ids_for(spec, batch, n, seed=n)}
    if padded:
        both["attention_mask"] = (torch.arange(n) < n - torch.arange(batch)[:, None]).long()
    return both if spec.encoder is None else both | {"decoder_input_ids": ids_for(spec, batch, n - 1, seed=n)}


def fixed_in_length(spec: ModelSpec) -> bool:
    """Whether a pass depends on the number of tokens in steps that export cannot follow: chunks of a state, rows of experts."""
    return any(isinstance(value, RecurrentSpec | MoESpec) for value in spec.nested())


@every_preset_a_sample_fast
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_computes_the_same_with_weights_of_its_own(spec: ModelSpec, how: Any) -> None:
    model, given = randomised(spec), inputs(spec, 2, 8)
    expected = model(**given).last_hidden_state.detach()
    again = how(model)
    assert list(again.state_dict()) == list(model.state_dict())
    assert {p.data_ptr() for p in again.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())
    assert torch.equal(again(**given).last_hidden_state, expected)
    with torch.no_grad():
        for p in again.parameters():
            p.zero_()
    assert torch.equal(model(**given).last_hidden_state, expected)


@pytest.mark.parametrize(
    ("name", "padded"), [*EXPORTED, *(pytest.param(*each, marks=pytest.mark.slow) for each in sorted(MORE))]
)
def test_export_keeps_batch_and_length_open(name: str, padded: bool) -> None:
    spec = resize(shrink(preset(name).spec), context=256)
    model = randomised(spec).eval()
    given = inputs(spec, 2, 24, padded)
    batch, of_source = Dim("batch", min=2, max=64), Dim("n", min=16, max=250)
    own = {"decoder_input_ids": Dim("n_decoder", min=16, max=250)}
    with torch.no_grad():
        open_ = {key: {0: batch, 1: own.get(key, of_source)} for key in given}
        program = export(model, (), given, dynamic_shapes=open_).module()
        for shape in ((3, 17), (5, 40), (2, 200)):  # below what kernels choose by, and beyond
            other = inputs(spec, *shape, padded)
            for key, value in model(**other).outputs.items():
                close(program(**other).outputs[key], value)


@pytest.mark.parametrize(
    "fields",
    [
        {"mask": Causal() & SlidingWindow(size=Window(12))},
        {"mask": SymmetricWindow(radius=Window(12))},
        {"indexer": IndexerSpec(n_heads=Count(2), head_dim=Width(8), top_k=Window(12))},
    ],
    ids=["window", "both ways", "chosen"],
)
def test_lengths_below_what_is_seen_are_exported_with_those_beyond(fields: dict[str, Any]) -> None:
    """The example's length, on either side of it, decides nothing."""
    spec = changed(resize(shrink(preset("llama2-7b").spec), context=256), AttentionSpec, **fields)
    model, open_ = randomised(spec).eval(), {"input_ids": {0: Dim("batch", min=1, max=64), 1: Dim("n", min=2, max=250)}}
    with torch.no_grad():
        for example in (6, 24):
            given = {"input_ids": ids_for(spec, 2, example)}
            program = export(model, (), given, dynamic_shapes=open_, strict=False).module()
            for shape in ((1, 3), (2, 12), (2, 13), (3, 40)):
                ids = ids_for(spec, *shape)
                close(program(input_ids=ids).logits, model(ids).logits)


@every_preset_a_sample_fast
def test_a_batch_may_have_no_rows_and_no_row_is_without_a_token(spec: ModelSpec) -> None:
    """As the last share of a split batch has none; without a token a process may end in PyTorch's attention."""
    model = randomised(spec)
    nothing = inputs(spec, 0, 5)
    assert model(**nothing).last_hidden_state.shape[:2] == list(nothing.values())[-1].shape
    with pytest.raises(InputError, match=r"shape \(2, 0\), which is no token; give each row one at least"):
        model(**{key: ids[:, :0] for key, ids in inputs(spec, 2, 5).items()})


@pytest.mark.slow
@every_preset_a_sample_fast
def test_export(spec: ModelSpec) -> None:
    """Of every preset, where a pass can be exported with an open length with one, else as it is."""
    model, given = randomised(spec).eval(), inputs(spec, 2, 24)
    open_ = {key: {0: Dim.AUTO, 1: Dim.AUTO} for key in given}
    with torch.no_grad():
        program = export(model, (), given, dynamic_shapes=None if fixed_in_length(spec) else open_).module()
        for key, value in model(**given).outputs.items():
            close(program(**given).outputs[key], value)


@pytest.fixture(scope="module")
def _one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = Path(tmp_path_factory.mktemp("group")) / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@every_preset_a_sample_fast
@pytest.mark.usefixtures("_one_process")
def test_data_parallel_gradients_are_the_models(spec: ModelSpec) -> None:
    """One process: what DDP wraps it finds in the output, and gives the gradients that it was given."""
    model, given = randomised(spec), inputs(spec, 2, 8)
    model(**given).last_hidden_state.square().sum().backward()
    expected = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    wrapped(**given).last_hidden_state.square().sum().backward()
    for name, p in model.named_parameters():
        if (gradient := expected[name]) is not None:
            assert p.grad is not None
            close(p.grad, gradient)


@pytest.mark.parametrize(
    ("name", "shift"), [("llama2-7b", 1), ("bert-base", 0), ("transformer-base", 0), ("mamba2-130m", 1)]
)
def test_labels_give_the_mean_of_their_cross_entropy(name: str, shift: int) -> None:
    """Transformers' meaning: of a decoder the tokens themselves, which it shifts; elsewhere one a place; -100 is left out."""
    spec = shrink(preset(name).spec)
    model, given = randomised(spec), inputs(spec, 2, 12)
    n = given.get("decoder_input_ids", given["input_ids"]).shape[1]
    labels = ids_for(spec, 2, n, seed=3)
    labels[0, :5] = -100
    out = model(**given, labels=labels)
    logs = model(**given).logits.log_softmax(-1)
    each = [
        -logs[i, t, labels[i, t + shift]]
        for i in range(2)
        for t in range(n - shift)
        if int(labels[i, t + shift]) != -100
    ]
    assert out.loss is not None
    close(out.loss, torch.stack(each).mean())
    assert out[0] is out["loss"] is out.loss
    assert torch.equal(out[1], out.logits)
    in_chunks = model(**given, labels=labels, output_logits=False).loss
    assert in_chunks is not None
    close(in_chunks, out.loss)
    out.loss.backward()
    assert model.heads[0].table.weight.grad.any()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's, which has no rule for scattering
@pytest.mark.parametrize("name", ["llama2-7b", "gpt2", "mamba2-130m", "rwkv-4-169m", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_functions_of_its_weights_have_their_gradients(name: str) -> None:
    """torch.func's grad, and vmap over it for each row's own, are the backward pass of each row alone."""
    model = randomised(shrink(preset(name).spec))
    model.kernel = "eager"  # PyTorch's operator has no rule for vmap
    ids, weights = ids_for(model.spec, 2, 8), dict[str, Tensor](model.named_parameters())

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (row[None],), {"labels": row[None]}).loss

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, ids)
    for i, row in enumerate(ids):
        alone = torch.autograd.grad(loss(weights, row), list(weights.values()))
        wanted = dict(zip(weights, alone, strict=True))
        assert gradient_distance({name: grads[i] for name, grads in each.items()}, wanted) < FLOAT32


@pytest.mark.parametrize(
    "name", ["mamba-130m", "recurrentgemma-2b", "rwkv-4-169m", "jamba-v0.1", "lstm-medium", "gru-medium"]
)
def test_derivatives_along_a_direction_are_those_of_the_gradient(name: str) -> None:
    """And a function of its weights, wherever a part finds them."""
    model = randomised(shrink(preset(name).spec)).double()
    model.kernel = "eager"
    ids, weights = ids_for(model.spec, 2, 8), dict[str, Tensor](model.named_parameters())
    along = {key: torch.randn_like(value) / 10 for key, value in weights.items()}

    def score(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (ids,)).logits.square().mean()

    found = torch.func.jvp(score, (weights,), (along,))[1]
    gradient = torch.autograd.grad(score(weights), list(weights.values()), allow_unused=True)
    wanted = sum((g * along[key]).sum() for key, g in zip(weights, gradient, strict=True) if g is not None)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_labels_of_a_row_and_what_does_not_fit() -> None:
    spec = shrink(preset("albert-base").spec)
    model, ids = randomised(spec), ids_for(spec, 3, 8)
    of_rows = next(head.spec.name for head in model.heads if head.pool is not None)
    classes = torch.tensor([0, 1, 1])
    out = model(ids, heads=[of_rows], labels=classes)
    assert out.loss is not None
    close(out.loss, F.cross_entropy(out.logits, classes))
    with pytest.raises(InputError, match=r"labels have shape \(3, 7\) .* answers \(3, 8\)"):
        model(ids, labels=ids[:, 1:])
    decoder = randomised(shrink(preset("gpt2").spec))
    for labels, keep, says in ((ids[:, 1:], 0, r"\(3, 7\) .* \(3, 8\)"), (ids, 1, r"\(3, 8\) .* \(3, 1\)")):
        with pytest.raises(InputError, match="labels have shape " + says):
            decoder(ids, labels=labels, logits_to_keep=keep)
    for logits in (True, False):
        wrong, last = torch.where(ids == ids[0, 1], -1, ids), decoder.spec.vocab_size
        with pytest.raises(InputError, match=r"there is no label -1 of the head 'lm', .* give -100 where nothing is"):
            decoder(ids, labels=wrong, output_logits=logits)
        with pytest.raises(InputError, match=f"there is no label {last} of the head .* from 0 to {last - 1}"):
            decoder(ids, labels=torch.full_like(ids, last), output_logits=logits)
        with pytest.raises(InputError, match=r"labels are torch\.float32; give whole numbers"):
            decoder(ids, labels=ids.float(), output_logits=logits)
        losses = [decoder(ids, labels=each, output_logits=logits).loss for each in (ids, ids.int())]
        assert torch.equal(*losses)
    with pytest.raises(InputError, match="logits_to_keep=-3 is no number of tokens"):
        decoder(ids, logits_to_keep=-3)
    with pytest.raises(KeyError):
        out["nothing"]


@pytest.mark.parametrize("name", ["llama2-7b", "gpt2", "mixtral-8x7b", "qwen3-next"])
def test_pytorch_counts_its_flops_which_hooks_every_module(name: str) -> None:
    """Those of the backward pass are twice the forward pass's, but for ids and for products that are added up in place."""
    model = randomised(shrink(preset(name).spec))
    ids = ids_for(model.spec, 2, 12)
    with flop_counter() as forward, torch.no_grad():
        model(ids)
    with flop_counter() as both:
        model(ids).logits.sum().backward()
    assert 2 < both.get_total_flops() / forward.get_total_flops() < 3.6


def test_an_output_is_a_tree_of_tensors() -> None:
    spec = shrink(preset("llama2-7b").spec)
    out = randomised(spec)(ids_for(spec, 2, 6), output_hidden_states=True)
    leaves, tree = pytree.tree_flatten(out)
    assert {id(out.logits), id(out.last_hidden_state)} <= {id(leaf) for leaf in leaves}
    doubled = pytree.tree_unflatten([leaf * 2 if torch.is_tensor(leaf) else leaf for leaf in leaves], tree)
    assert isinstance(doubled, Output)
    assert torch.equal(doubled.logits, 2 * out.logits)
