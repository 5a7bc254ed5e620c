"""Losses in windows are those of a plain loop over windows, and the ends of chunks are the same tokens at every length."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anyformer.model import Transformer, build
from anyformer.resizing import resize, shrink
from anyformer.study.windows import WindowLoss, window_losses
from anyformer.text import EncodedCorpus

SIZES = (70, 31, 32, 5)  # tokens a document: chunks of 32 are two, none, one, none


def text() -> EncodedCorpus:
    tokens = np.random.default_rng(0).integers(0, 50, sum(SIZES)).astype(np.uint16)
    offsets = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
    return EncodedCorpus(tokens, offsets, np.array(SIZES, np.int64), vocab_size=50, fingerprint="")


def small(name: str) -> Transformer:
    model = build(resize(shrink(name), vocab_size=50, context=16))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model


def slow(model: Transformer, window: np.ndarray, at: int) -> float:
    """Nats of the token at one place of a window, by a pass that ends before it."""
    with torch.no_grad():
        logits = model(torch.from_numpy(window[None, :at].astype(np.int64))).logits[0, -1].double()
    return float(torch.logsumexp(logits, 0) - logits[int(window[at])])


@pytest.mark.parametrize("length", [8, 16, 32])
def test_windows_are_read_one_by_one(length: int) -> None:
    model, given = small("llama2-7b"), text()
    found = {each.length: each for each in window_losses(model, given, (8, 16, 32))}[length]
    chunks = [given.document(0)[:32], given.document(0)[32:64], given.document(2)]
    windows = [chunk[at : at + length] for chunk in chunks for at in range(0, 32, length)]
    assert (found.chunks, found.windows) == (3, len(windows))
    for at in range(1, length):
        assert found.nats[at - 1] == pytest.approx(sum(slow(model, one, at) for one in windows), rel=1e-5)
    ends = [slow(model, chunk[32 - length :], at) for chunk in chunks for at in range(length - 3, length)]
    assert found.loss(last=3) == pytest.approx(math.fsum(ends) / 9, rel=1e-5)


def test_means() -> None:
    """Two chunks of two windows of four tokens."""
    one = WindowLoss(length=4, windows=4, chunks=2, nats=(8.0, 4.0, 12.0), ends=(1.0, 2.0, 6.0))
    assert one.loss() == 24 / 12
    assert one.loss(last=2) == 8 / 4
    assert one.between(1, 3) == 12 / 8


def test_learned_positions_end_and_short_texts_have_no_chunk() -> None:
    assert [each.length for each in window_losses(small("gpt2"), text(), (8, 16, 32))] == [8, 16]
    assert window_losses(small("llama2-7b"), text(), (8, 128)) == ()
