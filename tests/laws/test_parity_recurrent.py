"""Law 6 for language models of recurrences alone, held against torch.nn's Embedding, LSTM, GRU and Linear, text by text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer.families import PRESETS, preset
from anyformer.layers import LSTMSpec
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from tests.laws.elsewhere import texts
from tests.laws.inputs import inputs
from tests.laws.references import ELSEWHERE
from tests.laws.tolerance import FLOAT32, close, gradient_distance
from tests.laws.weights import filled, telling

NAMES = ("lstm-medium", "gru-medium", "awd-lstm-ptb", "awd-lstm-wikitext2")


class Reference(nn.Module):
    """Layers one on another, as torch.nn has them, between a table and a map to logits."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab_size, spec.stack.d_model)
        layers: list[Any] = []
        for block in spec.stack.blocks:
            mixer: Any = block.sublayers[0].branches[0].mixer
            width, inner = spec.stack.d_model, mixer.d_inner or spec.stack.d_model
            kind = nn.LSTM if isinstance(mixer, LSTMSpec) else nn.GRU
            for i in range(mixer.n_layers):
                last = i == mixer.n_layers - 1
                layers.append(kind(width if i == 0 else inner, width if last else inner, batch_first=True))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(spec.stack.d_model, spec.vocab_size)
        if spec.heads[0].tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """[token, vocab] of ids [token]."""
        x = self.tokens(ids[None])
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x)[0]


def names(spec: ModelSpec) -> dict[str, str]:
    """Ours by theirs."""
    table = f"shared.{spec.heads[0].tied}.weight" if spec.heads[0].tied else "stack.embedding.terms.0.table.weight"
    found = {"tokens.weight": table, "head.bias": "heads.0.bias"}
    if not spec.heads[0].tied:
        found["head.weight"] = "heads.0.table.weight"
    at = 0
    for b, block in enumerate(spec.stack.blocks):
        path = f"stack.blocks.{b}.sublayers.0.branches.0.mixer"
        mixer: Any = block.sublayers[0].branches[0].mixer
        for i in range(mixer.n_layers):
            pairs = {"weight_ih": "input", "weight_hh": "state", "bias_ih": "bias_input", "bias_hh": "bias_state"}
            found |= {f"layers.{at}.{theirs}_l0": f"{path}.{ours}_{i}" for theirs, ours in pairs.items()}
            at += 1
    return found


def test_every_preset_of_these_families_is_held_against_torch_nn() -> None:
    here = {family for family, file in ELSEWHERE.items() if file == "test_parity_recurrent.py"}
    assert {name for name, record in PRESETS.items() if record.family in here} == set(NAMES)


@pytest.mark.parametrize("kind", ["right", "left", "packed"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_are_those_of_torch_nn(name: str, kind: str) -> None:
    spec = shrink(preset(name).spec)
    weights, given = telling(spec), inputs(kind, spec.vocab_size)
    ours, theirs, called = filled(spec, weights), Reference(spec), names(spec)
    held = dict(theirs.named_parameters())
    assert set(called) == set(held)
    assert set(called.values()) == set(weights)
    for theirs_name, our_name in called.items():
        held[theirs_name].data.copy_(weights[our_name])
    logits = ours(given.input_ids, **given.ours).logits
    generator, totals = torch.Generator().manual_seed(1), [torch.zeros(()), torch.zeros(())]
    for row, columns in texts(given):
        expected = theirs(given.input_ids[row, columns])
        close(logits[row, columns], expected)
        assert expected.std(-1).mean() > 0.3
        weight = torch.randn(expected.shape, generator=generator)
        totals = [a + (b * weight).sum() for a, b in zip(totals, (logits[row, columns], expected), strict=True)]
    for total in totals:
        total.backward()
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert gradient_distance(found, {called[name]: each.grad for name, each in held.items()}) < FLOAT32
