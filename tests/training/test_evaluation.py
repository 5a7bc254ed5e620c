"""Evaluation document by document against one document at a time; feeds and validation rows."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anyformer.errors import TextError
from anyformer.model import build
from anyformer.recipe import CausalLM, Recipe
from anyformer.text import ParallelCorpus, split_pairs
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run.evaluation import DocumentLoss, Evaluation, evaluate
from tests.training.models import VOCAB, decoder
from tests.training.texts import encoded, text_data

RECIPE = Recipe(tokens=2000, batch_tokens=64, seq_len=16)


def test_every_document_has_its_own_nats() -> None:
    spec, data = decoder(), text_data()
    model = build(spec)
    validation = data.validation(RECIPE)
    assert validation is not None
    assert data.held_out is not None
    found = evaluate(model, objective_of(CausalLM(), spec), validation, batch_tokens=64)
    assert len(found.documents) == data.held_out.n_documents
    for i, document in enumerate(found.documents):
        ids = torch.from_numpy(data.held_out.document(i).astype(np.int64))
        nats = 0.0
        for start in range(0, len(ids) - 1, 16):  # windows of 16 inputs, each read without the one before
            window = ids[start : start + 17]
            with torch.no_grad():
                nats += float(F.cross_entropy(model(window[None, :-1]).logits[0], window[1:], reduction="sum"))
        assert document.nats == pytest.approx(nats, rel=1e-5)
        assert document.tokens == len(ids) - 1
        assert document.nbytes == data.held_out.document_nbytes[i]


def test_figures_follow_from_nats() -> None:
    found = Evaluation((DocumentLoss(10.0, 4, 20), DocumentLoss(2.0, 2, 5)))
    assert (found.loss, found.perplexity) == (2.0, pytest.approx(math.e**2))
    assert found.bits_per_byte == pytest.approx(12 / math.log(2) / 25)


def test_a_uniform_model_needs_the_logarithm_of_its_vocabulary() -> None:
    spec = decoder()
    model = build(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    validation = text_data().validation(RECIPE)
    assert validation is not None
    objective = objective_of(CausalLM(), spec)
    assert evaluate(model, objective, validation).loss == pytest.approx(math.log(VOCAB), rel=1e-6)
    assert evaluate(model, objective, validation, most_tokens=32).loss == pytest.approx(math.log(VOCAB), rel=1e-6)


def test_a_sample_is_a_fixed_part_of_the_text() -> None:
    validation = text_data().validation(RECIPE)
    assert validation is not None
    whole = sum(rows.labels.size for rows, _ in validation.batches(64))
    parts = [[rows.input_ids.tolist() for rows, _ in validation.batches(32, 64)] for _ in range(2)]
    assert parts[0] == parts[1]
    assert sum(np.size(part) for part in parts[0]) == 64 < whole


def test_a_feed_goes_on_where_it_stopped() -> None:
    data = text_data()
    feed = data.feed(RECIPE)
    for _ in range(37):
        next(feed)
    state = feed.state()
    coming = [next(feed).input_ids for _ in range(20)]
    other = data.feed(RECIPE)
    other.restore(dict(state))
    for batch in coming:
        np.testing.assert_array_equal(next(other).input_ids, batch)


def test_less_than_a_batch_is_refused() -> None:
    with pytest.raises(TextError, match="less than one batch of 512"):
        text_data().feed(RECIPE.but(batch_tokens=512 * 16))


def test_seeds_order_the_same_text_differently() -> None:
    data = text_data()
    first, again, other = (next(data.feed(RECIPE.but(seed=seed))).input_ids for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_pairs_are_split_once_each() -> None:
    corpus = ParallelCorpus(tuple((f"s{i}", f"t{i}") for i in range(47)))
    train, held_out = split_pairs(corpus, 0.1)
    assert len(held_out.pairs) == 4
    assert sorted((*train.pairs, *held_out.pairs)) == sorted(corpus.pairs)
    for fraction in (0.0, 0.001, 0.9):
        with pytest.raises(TextError, match="validation split is empty"):
            split_pairs(corpus, fraction)


def test_encoded_text_is_what_the_tests_think() -> None:
    text = encoded(3)
    assert text.n_documents == 3
    assert text.document(0)[0] == text.document(0)[-1] == 0
