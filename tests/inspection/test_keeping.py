"""A smaller model of what matters most is the given model without the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import UsageError
from anyformer.inspection.sites import Sites, without_layers
from anyformer.layers import GatedFeedForwardSpec
from anyformer.model import Transformer
from anyformer.surgery.plans import heads_that_matter
from tests.cli.running import refused, run, succeeded
from tests.inspection.looked_at import TEXT, small, tokenizer
from tests.laws.tolerance import close

IDS = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 4, encoding="utf-8")
    return path


def saved(model: Transformer, directory: Path) -> Path:
    af.save(model, directory, tokenizer=tokenizer())
    return directory


def logits(model: Transformer) -> Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


@contextmanager
def zeroed(weights: list[tuple[Tensor, Tensor]], dim: int = 1) -> Iterator[None]:
    """Have some columns of some weights be 0 meanwhile."""
    before = [weight.data.clone() for weight, _ in weights]
    for weight, gone in weights:
        weight.data.index_fill_(dim, gone, 0)
    yield
    for (weight, _), data in zip(weights, before, strict=True):
        weight.data.copy_(data)


def others(matters: Tensor, n: int) -> Tensor:
    return matters.topk(len(matters) - n, largest=False).indices


def test_neurons_that_matter_less_are_gone(text: Path, tmp_path: Path) -> None:
    model = small("llama3-8b")
    given = saved(model, tmp_path / "given")
    made = af.transplant(af.vary(model.spec, d_ff=24), given, text)
    assert made.new == ()
    d_ff = next(model.spec.nested(GatedFeedForwardSpec)).d_ff
    assert made.how == (f"the 24 of {d_ff} neurons that matter most",)
    found = af.inspect(given, text).importance
    writing = {name: axes["d_ff"] for name, axes in found.items() if "d_ff" in axes}
    with zeroed([(model.get_parameter(name), others(each, 24)) for name, each in writing.items()]):
        close(logits(made.model), logits(model))
    plain = af.transplant(af.vary(model.spec, d_ff=24), given)
    assert not torch.allclose(logits(plain.model), logits(made.model))
    assert "that weigh most" in plain.how[0]


@pytest.mark.parametrize(
    ("name", "given_heads", "change"),
    [
        ("llama2-7b", (4, 4), {"n_heads": 3}),  # which no mean of 4 is
        ("llama3-8b", (4, 2), {"n_heads": 2, "n_kv_heads": 2}),  # one of each group
        ("llama3-8b", (4, 2), {"n_heads": 2, "n_kv_heads": 1}),  # a whole group
        ("gpt2", (4, 4), {"n_heads": 2}),  # biases, and learned positions
        ("deepseek-v2-lite", (4, 4), {"n_heads": 3}),  # latent attention
    ],
)
def test_heads_that_matter_less_are_gone(
    name: str, given_heads: tuple[int, int], change: dict[str, Any], text: Path, tmp_path: Path
) -> None:
    model = small(name)
    given = saved(model, tmp_path / "given")
    width = {} if name in ("deepseek-v2-lite", "llama3-8b") else {"head_dim": model.spec.stack.d_model // 4}
    made = af.transplant(af.vary(model.spec, **change, **width), given, text)
    assert made.new == ()
    n = change["n_heads"]
    assert f"the {n} of {given_heads[0]} heads that matter most" in made.how
    writing = {name: axes["heads"] for name, axes in af.inspect(given, text).importance.items() if "heads" in axes}
    gone = []
    for each, matters in writing.items():
        groups = matters.unflatten(0, (given_heads[1], -1))
        keys = change.get("n_kv_heads", n if given_heads[0] == given_heads[1] else given_heads[1])
        kept = best_of_groups(groups.tolist(), keys, n // keys)
        weight = model.get_parameter(each)
        columns = torch.arange(weight.shape[1]).unflatten(0, (given_heads[0], -1))
        gone.append((weight, columns[[i for i in range(given_heads[0]) if i not in kept]].flatten()))
    with zeroed(gone):
        close(logits(made.model), logits(model))
    assert not torch.allclose(logits(made.model), logits(model))


def best_of_groups(groups: list[list[float]], n_groups: int, each: int) -> set[int]:
    """Return the heads of the best groups by all ways to choose them, said plainly."""

    def total(which: tuple[int, ...]) -> float:
        return sum(sum(sorted(groups[i])[-each:]) for i in which)

    best = max(combinations(range(len(groups)), n_groups), key=total)
    size = len(groups[0])
    return {i * size + j for i in best for j in sorted(range(size), key=lambda j, i=i: groups[i][j])[-each:]}


def test_experts_that_matter_less_are_gone(text: Path, tmp_path: Path) -> None:
    """With as many choices as there are experts left, the others are those that no token may choose."""
    model = small("mixtral-8x7b")
    given = saved(model, tmp_path / "given")
    change = "MoE(router=Router(n_experts=2,top_k=2,renormalise=true))"
    made = af.transplant(af.vary(model.spec, experts=change), given, text)
    assert "the 2 of 4 experts that matter most" in made.how
    found = {name: axes["experts"] for name, axes in af.inspect(given, text).importance.items() if "experts" in axes}
    mine = made.model.state_dict()
    for name, matters in found.items():
        kept = matters.topk(2).indices.sort().values
        network = name.rsplit("experts.", 1)[0]
        before = {key: each for key, each in model.state_dict().items() if key.startswith(network)}
        for key, tensor in before.items():
            assert torch.equal(mine[key], tensor[kept]), key  # of the router too


def test_layers_that_the_loss_needs_least_are_gone(text: Path, tmp_path: Path) -> None:
    model = small("llama3-8b", n_layers=5)
    given = saved(model, tmp_path / "given")
    made = af.transplant(af.vary(model.spec, n_layers=3), given, text)
    said = next(each for each in made.how if each.startswith("layers "))
    kept = [int(each) for each in said.removeprefix("layers ").split(" of ")[0].split(",")]
    gone = [i for i in range(5) if i not in kept]
    with without_layers(model, gone):
        close(logits(made.model), logits(model))
    losses = {}
    for pair in combinations(range(5), 2):
        with without_layers(model, pair):
            losses[pair] = af.evaluate(model, text, tokenizer=tokenizer()).loss
    alone = []
    for i in range(5):
        with without_layers(model, [i]):
            alone.append(af.evaluate(model, text, tokenizer=tokenizer()).loss)
    first = sorted(range(5), key=alone.__getitem__)[:2]  # the two best go on
    assert losses[gone[0], gone[1]] == min(each for pair, each in losses.items() if set(pair) & set(first))
    whole = af.transplant(af.vary(model.spec, n_layers=3), given, text, layers="0-2")
    assert not any(each.startswith("layers") for each in whole.how)  # those that are said stay


def test_of_a_decoder_beside_an_encoder_the_decoders_layers_go(tmp_path: Path) -> None:
    lines = TEXT.split(", ")
    (tmp_path / "a").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "b").write_text("\n".join(reversed(lines)), encoding="utf-8")
    model = small("transformer-base", n_layers=3)
    given = saved(model, tmp_path / "given")
    blocks = model.spec.stack.blocks[:1]
    spec = model.spec.but(stack=model.spec.stack.but(blocks=tuple(blocks)))
    made = af.transplant(spec, given, source=tmp_path / "a", target=tmp_path / "b")
    said = next(each for each in made.how if each.startswith("layers "))
    kept = int(said.removeprefix("layers ").split(" of ")[0])
    main = Sites.of(model.spec).main
    with torch.no_grad(), without_layers(model, [main.start + i for i in range(3) if i != kept]):
        theirs = model(IDS, decoder_input_ids=IDS).logits
    with torch.no_grad():
        close(made.model.eval()(IDS, decoder_input_ids=IDS).logits, theirs)


def test_an_encoders_own_layers_go_too(tmp_path: Path) -> None:
    """The best pair of the encoder's, found by trying each beside the decoder that was chosen before."""
    lines = TEXT.split(", ")
    (tmp_path / "a").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "b").write_text("\n".join(reversed(lines)), encoding="utf-8")
    both: dict[str, Any] = {"source": tmp_path / "a", "target": tmp_path / "b"}
    model = small("transformer-base", n_layers=3)
    given = saved(model, tmp_path / "given")
    assert model.spec.encoder is not None
    encoder = model.spec.encoder.but(blocks=model.spec.encoder.blocks[:2])
    for stack in (model.spec.stack, model.spec.stack.but(blocks=model.spec.stack.blocks[:2])):
        made = af.transplant(model.spec.but(encoder=encoder, stack=stack), given, **both)
        said = [each.split(" of 3, ")[0].split(" ")[-1].split(",") for each in made.how if each.startswith("layers ")]
        main = Sites.of(model.spec).main
        decoders = [i for i in main if len(said) == 2 and str(i - main.start) not in said[0]]
        losses = {}
        for i in range(3):
            with without_layers(model, [i, *decoders]):
                losses[i] = af.evaluate(model, **both, tokenizer=tokenizer()).loss
        (gone,) = (i for i in range(3) if str(i) not in said[-1])
        assert losses[gone] == min(losses.values())
        assert len(decoders) == 3 - len(stack.blocks)
        with torch.no_grad(), without_layers(model, [gone, *decoders]):
            theirs = model(IDS, decoder_input_ids=IDS).logits
        with torch.no_grad():
            close(made.model.eval()(IDS, decoder_input_ids=IDS).logits, theirs)


@pytest.mark.parametrize(
    ("n", "given", "kept"),
    [
        ((2, 2), (4, 4), ([1, 3], [1, 3])),
        ((2, 2), (4, 2), ([1, 3], [0, 1])),  # the best of each group
        ((2, 1), (4, 2), ([2, 3], [1])),  # the best group
        ((4, 1), (4, 4), None),  # queries stay, keys become means
        ((2, 1), (4, 4), None),  # keys for more queries than before
        ((4, 4), (4, 4), None),
    ],
)
def test_which_heads_stay(n: tuple[int, int], given: tuple[int, int], kept: tuple[list[int], list[int]] | None) -> None:
    found = heads_that_matter(torch.tensor([0.1, 0.4, 0.2, 0.8]), n, given)
    assert (None if found is None else tuple(each.tolist() for each in found)) == kept


def test_the_command(text: Path, tmp_path: Path) -> None:
    given = saved(small("llama3-8b"), tmp_path / "given")
    into = f"{given}+d_ff=24+n_layers=1"
    said = succeeded(
        run("convert", given, tmp_path / "smaller", "--into", into, "--data", text, "--tokens", "64")
    ).stdout
    assert "neurons that matter most" in said
    assert "layers " in said
    made = af.transplant(into, given, text, tokens=64)
    theirs = af.load(tmp_path / "smaller")[0].state_dict()
    assert all(torch.equal(each, theirs[name]) for name, each in made.model.state_dict().items())


def test_data_that_choose_nothing_are_told_so(text: Path, tmp_path: Path) -> None:
    """More neurons, or another norm; not where something is fewer."""
    model = small("llama3-8b")
    given, said = saved(model, tmp_path / "given"), "the data chose nothing"
    for change in (
        {"d_ff": 200},
        {"norm": "LayerNorm"},
        {"d_ff": 24},
        {"n_layers": 1},
        {"n_heads": 2},
        {"d_model": 16},
    ):
        how = af.transplant(af.vary(model.spec, **change), given, text, tokens=64).how
        chosen = change.keys() & {"n_layers", "n_heads", "d_model"} or change == {"d_ff": 24}
        assert any(each.startswith(said) for each in how) != bool(chosen), (change, how)


def test_refused_in_a_line(text: Path, tmp_path: Path) -> None:
    given = saved(small("llama3-8b"), tmp_path / "given")
    into = ("--into", f"{given}+d_ff=24")
    refused(run("convert", given, tmp_path / "a", *into, "--tokens", "64"), "tokens are those of the data", "--data")
    refused(run("convert", given, tmp_path / "a", *into, "--data", "nowhere"), "no corpus at nowhere")
    refused(run("convert", given, tmp_path / "a", "--data", text), "--data is of what --into makes; give --into too")
    refused(run("convert", given, tmp_path / "a", "--source", text), "--source is of what --into makes")
    assert not (tmp_path / "a").exists()
    with pytest.raises(UsageError, match="--source and --target"):
        af.transplant(into[1], given, source=text)


def test_a_group_goes_by_the_heads_that_stay_of_it() -> None:
    matters = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.1, 0.9, 0.1, 0.1])
    found = heads_that_matter(matters, (1, 1), (8, 2))
    assert found is not None
    assert [each.tolist() for each in found] == [[5], [1]]
