"""Pairs of runs of text: heads that are added, what cannot be trained so, texts and vocabularies without pairs; recipes."""

from typing import Any

import pytest

from anyformer import layers
from anyformer.errors import AnyformerError, SpecError, TextError, UsageError
from anyformer.families.heads import row_classes, with_head
from anyformer.recipe import NextSentence, Recipe, SentenceOrder, SentencePairs, dumps, loads
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer
from anyformer.training.data.text import TextData
from anyformer.training.objectives.objective import objective_of, with_head_for
from anyformer.training.objectives.sentences import PAIRED
from anyformer.training.objectives.specification import MASK
from anyformer.training.run import RunOptions, train
from tests.training.models import decoder, encoder_decoder
from tests.training.noisy import encoded, plain_tokenizer, sentences
from tests.training.test_objectives import CPU
from tests.training.test_objectives_noise import recipe
from tests.training.test_sentences import BERT, TOKENIZER, both, corpus, data, fitting


def test_a_head_is_added_where_there_is_none() -> None:
    bare = decoder(layers.Everything())
    found = with_head_for(bare, NextSentence())
    assert found.heads == (*bare.heads, row_classes(2, "nsp"))
    assert with_head_for(found, NextSentence()) == found
    assert with_head_for(BERT, NextSentence()) == BERT
    assert [head.name for head in with_head_for(BERT, SentenceOrder()).heads] == ["mlm", "nsp", "sop"]
    three = with_head(found, row_classes(3, "nsp"))
    assert [head.table and head.table.rows for head in three.heads] == [61, 3]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (decoder(), "its masks are causal"),
        (encoder_decoder(), "it is an encoder and a decoder"),
        (
            decoder(layers.Everything()),
            r"it has no head 'nsp' for the next sentence; training.objectives.objective.with_head_for\(",
        ),
        (with_head(BERT, row_classes(3, "nsp")), "its head 'nsp' does not tell 2 classes of rows apart"),
    ],
)
def test_what_cannot_learn_so_is_refused(spec: ModelSpec, says: str) -> None:
    with pytest.raises(UsageError, match=f"NextSentence does not go with this architecture: {says}"):
        objective_of(NextSentence(), spec)


ONE = corpus([80])


@pytest.mark.parametrize(
    ("given", "text", "error", "says"),
    [
        (recipe(NextSentence()), TextData(ONE, None, TOKENIZER), TextError, "has only one; give several files"),
        (recipe(NextSentence()), TextData(corpus([80, 0]), None, TOKENIZER), TextError, "has only one"),
        (recipe(NextSentence()), TextData(corpus([80] * 9), ONE, TOKENIZER), TextError, "has only one"),
        (
            recipe(SentenceOrder()),
            TextData(corpus([1, 0, 1]), None, TOKENIZER),
            TextError,
            "no document has two tokens",
        ),
        (
            recipe(SentenceOrder(), seq_len=4, batch_tokens=4, tokens=4),
            data(),
            UsageError,
            "rows of 4 tokens hold no pair of texts and 3 special tokens; use a --seq-len of 5 or more",
        ),
        (recipe(SentenceOrder(rate=0.001)), data(), UsageError, "hides nothing"),
    ],
)
def test_text_without_pairs_is_refused(given: Recipe, text: TextData, error: type[AnyformerError], says: str) -> None:
    with pytest.raises(error, match=says):
        train(fitting(given.objective), given, text, options=RunOptions(device=CPU))  # type: ignore[arg-type]


def test_one_document_has_an_order() -> None:
    rows = next(TextData(corpus([400]), None, TOKENIZER).feed(recipe(SentenceOrder())))
    assert (rows.source <= 0).all()


@pytest.mark.parametrize("token", list(PAIRED.values()))
def test_a_vocabulary_without_the_tokens_is_refused(token: str) -> None:
    lacking = plain_tokenizer().with_specials((), {k: v for k, v in PAIRED.items() if v != token})
    made = TextData(encoded(sentences(60, 1), lacking), None, lacking)
    with pytest.raises(TextError, match=r"no special token .*, which NextSentence needs; train one with") as refusal:
        made.feed(recipe(NextSentence()))
    assert token in str(refusal.value)


def test_tokens_go_by_what_the_tokenizer_calls_them() -> None:
    """RoBERTa's are <s> and </s>."""
    named = {"cls_token": "<s>", "sep_token": "</s>"}
    made: Tokenizer = plain_tokenizer().with_specials((), {**MASK, **named})
    rows = next(TextData(encoded(sentences(60, 1), made), None, made).feed(recipe(NextSentence())))
    opening, closing = (made.encode(spelled, specials=True)[0] for spelled in named.values())
    assert (rows.input_ids[:, 0] == opening).all()
    assert ((rows.input_ids == closing).sum(1) == 2).all()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"negatives": 0.0}, "must be above 0 and below 1"),
        ({"negatives": 1.0}, "must be above 0 and below 1"),
        ({"short": 1.1}, "at least 0 and at most 1"),
        ({"max_ngram": 0}, "at least 1"),
        ({"rate": 0.0}, "must be above 0 and below 1"),
    ],
)
def test_fields_out_of_their_range_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        NextSentence(**fields)


@both
def test_recipes_carry_all_fields(objective: SentencePairs) -> None:
    given = recipe(objective.but(negatives=0.4, short=0.2, max_ngram=2))
    assert loads(dumps(given)) == given
