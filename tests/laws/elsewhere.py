"""What decoders without a class in transformers are held against: an oracle that reads one text at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.layers import AttentionSpec
from anyformer.spec import ModelSpec
from tests.laws.inputs import Inputs
from tests.laws.tolerance import close, distance, gradient_distance
from tests.laws.weights import filled, telling

Oracle = Callable[[dict[str, Tensor], Tensor], Tensor]  # weights by the oracle's names, ids [token] → logits


class Places(NamedTuple):
    """Where a layer keeps its parts, whatever its wiring."""

    projection: str  # of the attention
    feed: str
    norms: tuple[str, ...]  # in the order of their use


def places(spec: ModelSpec, i: int) -> Places:
    """The places of the i-th layer."""
    block = spec.stack.blocks[i]
    norms: list[str] = []
    projection = feed = ""
    for j, sublayer in enumerate(block.sublayers):
        path = f"stack.blocks.{i}.sublayers.{j}"
        norms += [f"{path}.norm_in"] * (sublayer.norm_in is not None)
        for k, branch in enumerate(sublayer.branches):
            norms += [f"{path}.branches.{k}.norm_in"] * (branch.norm_in is not None)
            mixer = f"{path}.branches.{k}.mixer"
            if isinstance(branch.mixer, AttentionSpec):
                projection = f"{mixer}.projection"
            else:
                feed = mixer
            norms += [f"{path}.branches.{k}.norm_out"] * (branch.norm_out is not None)
        norms += [f"{path}.norm_sum"] * (sublayer.norm_sum is not None)
    return Places(projection, feed, tuple(norms))


def named(spec: ModelSpec, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our tensors by short names: "0.q.weight", "0.norm0.weight", "tokens.weight"."""
    shared = spec.heads[0].tied
    table = f"shared.{shared}.weight" if shared else "stack.embedding.terms.0.table.weight"
    found = {"tokens.weight": weights[table], "head.weight": weights[table if shared else "heads.0.table.weight"]}
    found |= {name.split(".")[1]: w for name, w in weights.items() if name == "shared.distances.weight"}
    prefixes = {"stack.norm": "norm", "stack.embedding.terms.1": "positions"}
    for i in range(spec.n_layers):
        place = places(spec, i)
        attention = place.projection.removesuffix(".projection")
        prefixes |= {path: f"{i}.norm{k}" for k, path in enumerate(place.norms)}
        prefixes |= {f"{place.projection}.{x}": f"{i}.{x}" for x in "qkvo"}
        prefixes |= {f"{place.feed}.{x}": f"{i}.{x}" for x in ("gate", "up", "down")}
        prefixes |= {f"{attention}.scores.0.{x}": f"{i}.{x}" for x in ("r", "bias_key", "bias_position")}
    for name, weight in weights.items():
        prefix, _, end = name.rpartition(".")
        if name in prefixes:
            found[prefixes[name]] = weight
        elif prefix in prefixes:
            found[f"{prefixes[prefix]}.{end}"] = weight
    return found


def texts(given: Inputs) -> Iterator[tuple[int, Tensor]]:
    """Yield (row, which columns) of each document of real tokens."""
    for row, real in enumerate(given.real):
        columns = torch.arange(len(real))
        for piece in given.pieces:
            yield row, columns[piece.tokens][real[piece.tokens]]


def compare(
    spec: ModelSpec, oracle: Oracle, given: Inputs, kernel: str | None = None, *, by_our_names: bool = False
) -> None:
    """Hold logits and gradients of our model against the oracle's, text by text. The oracle's names are short, or ours."""
    weights = telling(spec)
    ours = filled(spec, weights)
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    theirs = leaves if by_our_names else named(spec, leaves)
    logits = ours(given.input_ids, kernel=kernel, **given.ours).logits
    generator = torch.Generator().manual_seed(1)
    total_ours, total_theirs, largest = torch.zeros(()), torch.zeros(()), 0.0
    for row, columns in texts(given):
        expected = oracle(theirs, given.input_ids[row, columns])
        close(logits[row, columns], expected)
        largest = max(largest, expected.std(-1).mean().item())
        weight = torch.randn(expected.shape, generator=generator)
        total_ours = total_ours + (logits[row, columns] * weight).sum()
        total_theirs = total_theirs + (expected * weight).sum()
    scale = spec.heads[0].scale
    assert largest > 0.5 * (scale.value(spec.stack.d_model) if scale else 1.0)
    total_ours.backward()
    total_theirs.backward()
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert gradient_distance(found, {name: leaf.grad for name, leaf in leaves.items()}) < 2e-5


def greedy_is_the_oracles(spec: ModelSpec, oracle: Oracle, n: int = 5) -> None:
    """Continue a text token by token on both sides."""
    weights = telling(spec, least_row=1.0)
    model, theirs = filled(spec, weights), named(spec, weights)
    ids = torch.randint(0, spec.vocab_size, (9,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for _ in range(n):
            expected, found = oracle(theirs, ids)[-1], model(ids[None]).logits[0, -1]
            assert distance(found, expected) < 2e-5
            assert found.argmax() == expected.argmax()
            ids = torch.cat((ids, expected.argmax()[None]))
