"""Layers and branches are those that a pass calls, and a model without some is the smaller one."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from anyformer.inspection.sites import Sites, watched, without_branch, without_layers
from anyformer.layers.block import Block, Branch
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec
from tests.inspection.looked_at import small
from tests.laws.models import every_preset
from tests.laws.tolerance import close

IDS = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))


def logits(model: Transformer, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return model(ids, **({} if model.spec.encoder is None else {"decoder_input_ids": ids})).logits


@every_preset
def test_every_call_of_a_pass_has_a_site(spec: ModelSpec) -> None:
    model, sites = build(spec).eval(), Sites.of(spec)
    ids = IDS % spec.vocab_size
    layers, branches = list[type](), list[str]()

    def branch(i: int, given: object, made: object) -> None:
        branches.append(sites.branches[i].kind)

    with watched(model, Block, lambda i, *_: layers.append(Block)), watched(model, Branch, branch), torch.no_grad():
        model(ids, **({} if spec.encoder is None else {"decoder_input_ids": ids}))
    assert len(layers) == len(sites.layers)
    assert len(branches) == len(sites.branches)
    assert len(sites.main) == spec.n_layers
    assert {site.of_layer for site in sites.branches} <= {site.path for site in sites.layers}


def test_modules_that_predict_further_tokens_are_no_layers() -> None:
    model = small("deepseek-v3-mtp")
    assert len(model.ahead)
    calls = {Block: 0, Branch: 0}
    for kind in calls:

        def see(*_: object, kind: type = kind) -> None:
            calls[kind] += 1

        with torch.no_grad(), watched(model, kind, see):
            model(IDS, output_ahead=True)
    sites = Sites.of(model.spec)
    assert (calls[Block], calls[Branch]) == (len(sites.layers), len(sites.branches))


def test_a_layer_that_is_passed_over_is_computed_where_others_read_what_it_lends() -> None:
    """Gemma 3n's last layers read keys of earlier ones, and a memory's stores are counted."""
    for name, computed in (("gemma3n-e4b", True), ("llama3-8b", False)):
        model = small(name)
        lends = [i for i, block in enumerate(model.spec.stack.blocks) if any(mixer.lends() for mixer in block.mixers)]
        at, calls = (lends[0] if lends else 0), list[int]()
        with without_layers(model, [at]), watched(model, Branch, lambda i, *_, to=calls: to.append(i)):
            logits(model)
        missing = len(Sites.of(model.spec).branches) - len(calls)
        assert missing == (0 if computed else 2)
    model = small("qwen3-next-80b-a3b")  # whose layers keep other things
    cache = model.new_cache(2, 16)
    with torch.no_grad(), without_layers(model, [0]):
        whole = model(IDS).logits
        pieces = [model(IDS[:, :5], cache=cache).logits, model(IDS[:, 5:], cache=cache).logits]
    close(torch.cat(pieces, 1), whole)


@pytest.mark.parametrize(
    "name", ["llama3-8b", "gpt2", "gptj-6b", "gemma3-1b", "mixtral-8x7b", "t5-v1.1-small", "bert-base"]
)
def test_without_layers_a_model_is_one_that_lacks_them(name: str) -> None:
    """With 4 layers, of a decoder beside an encoder too, where layers are counted from the encoder's first."""
    model = small(name, n_layers=4)
    main = Sites.of(model.spec).main
    for gone in ((3,), (0,), (1, 2)):
        stack = model.spec.stack
        kept = [i for i in range(4) if i not in gone]
        fewer = build(model.spec.but(stack=stack.but(blocks=tuple(stack.blocks[i] for i in kept))), None).eval()
        state = {}
        for key, tensor in model.state_dict().items():
            if (found := re.match(r"stack\.blocks\.(\d+)\.", key)) is None:
                state[key] = tensor
            elif int(found[1]) in kept:
                state[f"stack.blocks.{kept.index(int(found[1]))}.{key[found.end() :]}"] = tensor
        fewer.load_state_dict(state)
        with without_layers(model, [main.start + i for i in gone]):
            close(logits(model), logits(fewer))
    assert not torch.allclose(logits(model), logits(fewer))  # and it is whole again


def test_layers_that_share_their_weights_are_told_apart() -> None:
    model = small("albert-base", n_layers=3)
    whole = logits(model)
    found = []
    for i in range(3):
        with without_layers(model, [i]):
            found.append(logits(model))
    close(found[0], found[1])  # the same layer twice, whichever is passed over
    assert not torch.allclose(found[0], whole)
    with without_layers(model, [0, 1]):
        once = logits(model)
    assert not torch.allclose(once, found[0])


def test_a_branch_that_writes_nothing_is_one_whose_output_map_is_zero() -> None:
    model = small("llama3-8b")
    for number, path in (
        (0, "0.sublayers.0.branches.0.mixer.projection.o"),
        (3, "1.sublayers.1.branches.0.mixer.down"),
    ):
        with without_branch(model, number):
            silent = logits(model)
        weight = model.get_parameter(f"stack.blocks.{path}.weight")
        before = weight.data.clone()
        weight.data.zero_()
        close(logits(model), silent)
        weight.data.copy_(before)
        assert not torch.allclose(logits(model), silent)


def test_contexts_within_each_other() -> None:
    model = small("llama3-8b", n_layers=3)
    with without_layers(model, [0, 2]):
        both = logits(model)
    with without_layers(model, [0]):
        alone = logits(model)
        with without_layers(model, [2]):
            close(logits(model), both)
        close(logits(model), alone)
    assert not any("forward" in each.__dict__ for each in model.modules())


def test_hooks_are_gone_when_a_pass_fails() -> None:
    model = small("llama3-8b")
    whole = logits(model)

    def fails(*_: object) -> None:
        raise ValueError("seen")

    with pytest.raises(ValueError, match="seen"), watched(model, Block, fails):
        logits(model)
    close(logits(model), whole)
