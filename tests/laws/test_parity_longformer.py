"""Law 6 for Longformer and LED: global tokens, padding beside them, windows that differ by layer, rows of any length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import spec_of
from anyformer.layers import Everything, MarkedKeys, MarkedQueries, SymmetricWindow
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Window
from tests.laws.parity import Pair, pair
from tests.laws.tolerance import FLOAT32, VISIBLE, distance, gradient_distance
from tests.laws.weights import edited, filled, telling

LONGFORMER, LED = "longformer-base-4096", "led-base-16384"
N, PADDED = 37, 6  # no multiple of the windows


@dataclass
class Told:
    """The tokens of both sides, the first stack's marked; [batch, token] each."""

    ids: Tensor
    real: Tensor
    marks: Tensor
    more: Mapping[str, Tensor]  # the decoder's, where there is one

    def ours(self, model: Any) -> Tensor:
        return model(self.ids, self.real.long(), facts={"mark": self.marks}, **self.more).logits

    def theirs(self, model: Any) -> Tensor:
        return model(self.ids, self.real.long(), global_attention_mask=self.marks, **self.more).logits

    @property
    def kept(self) -> Tensor:
        """Which logits are of real tokens."""
        return self.more["decoder_attention_mask"].bool() if self.more else self.real


def told(spec: ModelSpec, padding: str, n: int = N) -> Told:
    """Return two rows, of which the second is padded; no token is the padding's but where there is padding."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, spec.vocab_size, (2, n), generator=generator)
    real, marks = torch.ones_like(ids), torch.zeros_like(ids)
    marks[0, 2] = marks[:, 17] = marks[1, 24] = 1
    if padding != "none":
        real[1, slice(n - PADDED, None) if padding == "right" else slice(0, PADDED)] = 0
    ids, more = ids.where(real > 0, 1), {}
    if spec.encoder is not None:
        read = torch.randint(3, spec.vocab_size, (2, 11), generator=generator)
        of_read = torch.ones_like(read)
        of_read[0, 8:] = 0
        more = {"decoder_input_ids": read, "decoder_attention_mask": of_read}
    return Told(ids, real.bool(), marks, more)


def compared(both: Pair, given: Told) -> tuple[float, float]:
    """Return how far apart logits are, and gradients."""
    ours, theirs = given.ours(both.ours)[given.kept], given.theirs(both.theirs)[given.kept]
    weight = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1))
    for model, logits in ((both.ours, ours), (both.theirs, theirs)):
        model.zero_grad(set_to_none=True)
        (logits * weight).sum().backward()
    return distance(ours, theirs), gradient_distance(both.our_gradients(), both.gradients())


# LED's positions count padding, so that rows padded on the left are other texts there.
@pytest.mark.parametrize(
    ("name", "padding"),
    [(LONGFORMER, "none"), (LONGFORMER, "right"), (LONGFORMER, "left"), (LED, "none"), (LED, "right")],
)
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_global_tokens_are_theirs(name: str, padding: str, kernel: str) -> None:
    spec = shrink(preset(name).spec)
    both, given = pair(spec), told(spec, padding)
    both.ours.kernel = kernel
    logits, gradients = compared(both, given)
    assert max(logits, gradients) < FLOAT32
    given.marks = torch.zeros_like(given.marks)
    with torch.no_grad():
        unmarked = given.ours(both.ours)[given.kept]
    assert distance(unmarked, told(spec, padding).ours(both.ours)[given.kept].detach()) > VISIBLE * FLOAT32


@pytest.mark.parametrize("name", [LONGFORMER, LED])
def test_windows_may_differ_by_layer(name: str) -> None:
    spec = shrink(preset(name).spec)
    stack = spec.encoder or spec.stack
    first, second = stack.blocks
    wider = edited(second, SymmetricWindow, lambda window: window.but(radius=Window(2 * window.radius)))
    stack = stack.but(blocks=(first, wider))
    spec = spec.but(encoder=stack) if spec.encoder else spec.but(stack=stack)
    assert FAMILIES["led" if spec.encoder else "longformer"].to_config(spec)["attention_window"] == [10, 20]
    assert max(compared(pair(spec), told(spec, "right"))) < FLOAT32


@pytest.mark.parametrize(
    ("part", "edit"),
    [
        (SymmetricWindow, lambda window: window.but(radius=Window(window.radius - 1))),
        (SymmetricWindow, lambda window: window.but(radius=Window(window.radius + 1))),
        (MarkedKeys, lambda _: ~Everything()),
        (MarkedQueries, lambda _: ~Everything()),
    ],
    ids=["a narrower window", "a wider window", "marked keys unseen", "marked queries local"],
)
@pytest.mark.parametrize("name", [LONGFORMER, LED])
def test_a_distinguishing_field_is_seen(name: str, part: Any, edit: Any) -> None:
    spec = shrink(preset(name).spec)
    weights, given = telling(spec), told(spec, "right")
    with torch.no_grad():
        before, after = (given.ours(filled(s, weights))[given.kept] for s in (spec, edited(spec, part, edit)))
    assert distance(after, before) > VISIBLE * FLOAT32


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (LONGFORMER, {"attention_window": 7}, "attention_window = 7 must be even"),
        (LONGFORMER, {"attention_window": [10]}, r"attention_window = \[10\] must be a number above 0, or 2 of them"),
        (LONGFORMER, {"num_attention_heads": 5}, "num_attention_heads = 5 does not divide hidden_size = 32"),
        (LONGFORMER, {"architectures": ["LongformerForQuestionAnswering"]}, "has no class that is read here"),
        (LED, {"scale_embedding": True}, "scale_embedding = True is not computed here"),
        (LED, {"tie_word_embeddings": False}, "tie_word_embeddings = False is not computed here"),
    ],
)
def test_settings_that_would_compute_something_else_are_refused(name: str, change: dict[str, Any], said: str) -> None:
    family = FAMILIES["led" if name == LED else "longformer"]
    config = {"model_type": family.hf_type, **family.to_config(shrink(preset(name).spec))}
    spec_of(FAMILIES, config, "config.json")
    with pytest.raises(CheckpointError, match=said):
        spec_of(FAMILIES, config | change, "config.json")
