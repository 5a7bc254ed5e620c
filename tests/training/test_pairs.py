"""The 2017 recipe's objective on pairs: a model learns to copy, and is evaluated on pairs it has not seen."""

import random

import pytest
import torch

from anyformer.errors import TextError
from anyformer.recipe import AdamW, Recipe, Seq2Seq
from anyformer.resizing import resize
from anyformer.text import ParallelCorpus, Tokenizer, split_pairs
from anyformer.training.objectives.seq2seq.data import PairData
from anyformer.training.run import RunOptions, train
from tests.training.models import encoder_decoder

RECIPE = Recipe(
    objective=Seq2Seq(), tokens=60 * 256, batch_tokens=256, optimizer=AdamW(lr=1e-2), label_smoothing=0.1, seq_len=64
)
HOW = RunOptions(device=torch.device("cpu"), validations=2)


def pairs() -> PairData:
    rng = random.Random(0)
    words = ["ada", "bob", "eve", "sees", "hears"]
    lines = [" ".join(rng.choices(words, k=rng.randint(2, 5))) for _ in range(120)]
    corpus = ParallelCorpus(tuple((line, line.upper()) for line in lines))
    train_pairs, held_out = split_pairs(corpus, 0.1)
    return PairData(train_pairs, held_out, Tokenizer.train(corpus.texts(), 280))


def test_pairs_are_learned_and_resumed(tmp_path: object) -> None:
    data = pairs()
    spec = resize(encoder_decoder(), vocab_size=data.vocab_size)
    result = train(spec, RECIPE, data, options=HOW)
    assert result.evaluation is not None
    assert result.steps[0].loss > 5
    assert result.evaluation.loss < 3
    assert data.held_out is not None
    assert len(result.evaluation.documents) == len(data.held_out.pairs)
    assert result.evaluation.nbytes == sum(len(target.encode()) for _, target in data.held_out.pairs)
    again = train(spec, RECIPE, pairs(), options=HOW)
    assert [m.loss.hex() for m in again.steps] == [m.loss.hex() for m in result.steps]


def test_fewer_pairs_than_a_batch_are_refused() -> None:
    with pytest.raises(TextError, match="less than one batch"):
        pairs().feed(RECIPE.but(batch_tokens=1_000_000))
