"""Vectors of texts against transformers' hidden states, pooled by hand; in any order and batch; what is refused."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import anyformer
from anyformer import layers
from anyformer.errors import AnyformerError, InputError
from anyformer.families import preset
from anyformer.families.heads import sentence_embedding
from anyformer.hub import save
from anyformer.inference import embed, retrieve
from anyformer.inference.embedding import Pool, ranks
from anyformer.model import Transformer
from anyformer.resizing import resize, shrink
from anyformer.text import Tokenizer, WordPiece
from tests.laws.models import randomised
from tests.training.models import encoder_decoder

TEXTS = [
    "the cat sits on the mat",
    "a dog",
    "the dog and the cat and the owl sit on a roof",
    "an owl on a hill",
    "the mat",
]


@cache
def tokenizer() -> Tokenizer:
    return WordPiece(vocab_size=60).train(TEXTS)


@cache
def plain() -> Tokenizer:
    """Byte-level BPE, whose rules add nothing to a text."""
    return Tokenizer.train(TEXTS, 280)


@cache
def fitted(name: str) -> Transformer:
    spec = resize(shrink(preset(name).spec), vocab_size=(tokenizer() if name == "bert-base" else plain()).vocab_size)
    return randomised(spec)


def theirs(name: str, folder: Path) -> Any:
    save(fitted(name), folder / "model", form="hf")
    return transformers.AutoModel.from_pretrained(folder / "model").eval()


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_an_encoders_vectors_are_pooled_states_of_transformers(pool: Pool, tmp_path: Path) -> None:
    model, encoder = fitted("bert-base"), theirs("bert-base", tmp_path)
    found = embed(model, tokenizer(), TEXTS, pool=pool, batch_tokens=30)
    for text, vector in zip(TEXTS, found, strict=True):
        ids = tokenizer().frame((text,)).ids
        assert ids[0] == tokenizer().begin_of_text
        assert ids[-1] == tokenizer().end_of_text
        with torch.no_grad():
            states = encoder(torch.tensor(ids)[None]).last_hidden_state[0]
        expected = {"mean": states.mean(0), "first": states[0], "last": states[-1]}[pool]
        torch.testing.assert_close(vector, unit(expected), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("left", [False, True])
def test_a_decoders_vector_is_its_last_tokens_whatever_the_padding(left: bool, tmp_path: Path) -> None:
    model, decoder = fitted("gpt2"), theirs("gpt2", tmp_path)
    found = embed(model, plain(), TEXTS)
    ids = [plain().encode(text) for text in TEXTS]
    width = max(map(len, ids))
    rows = torch.tensor([[0] * (width - len(row)) + row if left else row + [0] * (width - len(row)) for row in ids])
    mask = torch.tensor(
        [
            [0] * (width - len(row)) + [1] * len(row) if left else [1] * len(row) + [0] * (width - len(row))
            for row in ids
        ]
    )
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        states = decoder(rows, attention_mask=mask, position_ids=positions).last_hidden_state
        own = fitted("gpt2").spec.but(heads=(sentence_embedding(layers.LastTokenSpec()),))
        headed = anyformer.build(own, seed=None)
        headed.load_state_dict(model.state_dict(), strict=False)
        through_head = headed(rows, mask).outputs["embedding"]
    last = torch.stack([row[-1] if left else row[len(i) - 1] for row, i in zip(states, ids, strict=True)])
    torch.testing.assert_close(found, unit(last), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(through_head, found, atol=2e-5, rtol=1e-4)


def test_order_and_batches_change_nothing() -> None:
    model = fitted("bert-base")
    whole = embed(model, tokenizer(), TEXTS)
    assert whole.shape == (5, model.spec.stack.d_model)
    for batch_tokens in (1, 20, 10_000):
        again = embed(model, tokenizer(), TEXTS[::-1], batch_tokens=batch_tokens)
        torch.testing.assert_close(again.flip(0), whole, atol=1e-6, rtol=1e-5)
    assert (whole @ whole.T - torch.eye(5)).abs().max() > 1e-3
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(5))


def test_a_models_own_head_goes_before_what_is_usual() -> None:
    spec = fitted("bert-base").spec
    model = randomised(spec.but(heads=(sentence_embedding(layers.FirstTokenSpec()).but(transform=()),)))
    found, pooled = embed(model, tokenizer(), TEXTS), embed(model, tokenizer(), TEXTS, pool="first")
    torch.testing.assert_close(unit(found), pooled)
    assert (found.norm(dim=1) - 1).abs().min() > 1e-2
    usual = randomised(spec.but(heads=()))
    torch.testing.assert_close(embed(usual, tokenizer(), TEXTS), embed(usual, tokenizer(), TEXTS, pool="mean"))


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        ([], {}, "no texts"),
        (["the cat", " \t"], {}, "text 2 is blank"),
        (["the mat", "the cat " * 50], {}, r"text 2 is 102 tokens long, beyond the \d+ that are read"),
        (["the mat", "the cat sits"], {"longest": 4}, "text 2 is 5 tokens long, beyond the 4"),
        (["the mat"], {"pool": "max"}, "no pool 'max'; there are mean, first, last"),
        (["the mat"], {"pool": "men"}, r"no pool 'men' \(did you mean 'mean'\?\)"),
    ],
)
def test_what_no_vector_stands_for_is_refused(texts: list[str], options: dict[str, Any], says: str) -> None:
    with pytest.raises(AnyformerError, match=says):
        embed(fitted("bert-base"), tokenizer(), texts, **options)


def test_long_texts_are_cut_where_that_is_asked_for() -> None:
    model = fitted("bert-base")
    long = "the cat sits on the mat and the owl"
    cut = embed(model, tokenizer(), [long], longest=6, truncate=True)
    torch.testing.assert_close(cut, embed(model, tokenizer(), ["the cat sits on"]))


def test_an_encoder_beside_a_decoder_is_refused() -> None:
    model = randomised(resize(encoder_decoder(), vocab_size=plain().vocab_size))
    with pytest.raises(InputError, match="an encoder and a decoder"):
        embed(model, plain(), TEXTS)


def test_ranks_count_what_is_nearer_and_spare_what_is_right_too() -> None:
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(2, 40, 6))
    target += source
    group = np.stack((rng.integers(0, 30, 40), rng.integers(100, 130, 40)), 1)
    found = ranks(torch.tensor(source), torch.tensor(target), torch.tensor(group))
    for i in range(40):
        cosines = [float(source[i] @ t / np.linalg.norm(source[i]) / np.linalg.norm(t)) for t in target]
        rivals = [j for j in range(40) if group[j, 0] != group[i, 0] and group[j, 1] != group[i, 1]]
        assert found[i] == 1 + sum(cosines[j] > cosines[i] for j in rivals)
    assert (found > 1).any()
    assert len(set(group[:, 1].tolist())) < 40


def test_vectors_that_are_all_alike_find_nothing() -> None:
    same = torch.ones(4, 3)
    assert ranks(same, same, torch.arange(8).view(4, 2)).tolist() == [4] * 4


def test_texts_find_themselves() -> None:
    found = retrieve(fitted("bert-base"), tokenizer(), [(text, text) for text in TEXTS])
    assert found == (1.0, 1.0, 5, 0)
