"""A model is trained on text that never has some tokens; the audit must find those."""

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import InputError
from anyformer.inference.audit import audit
from anyformer.text import Tokenizer

TEXT = "the owl sits in the old oak, and no owl knows why it is so quiet there.\n" * 30
SEEN_LATER = "quixotic jazz: fjord, wavy lynx, black gold & empty cups! " * 12


@pytest.mark.parametrize("name", ["llama2-7b", "gpt2"])  # a table for each end, and one for both
def test_tokens_that_training_never_showed(name: str) -> None:
    tokenizer = Tokenizer.train([TEXT, SEEN_LATER], 300)
    ids = torch.tensor(tokenizer.encode(TEXT))
    counts = dict(zip(*(each.tolist() for each in ids.unique(return_counts=True)), strict=True))
    unseen = {i for i in range(tokenizer.vocab_size) if i not in counts} - {tokenizer.end_of_text}
    model = af.build(af.resize(af.preset(name), n_params=40_000, vocab_size=tokenizer.vocab_size), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        starts = torch.randint(0, len(ids) - 33, (8,), generator=generator).tolist()
        rows = torch.stack([ids[start : start + 33] for start in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for corpus in (None, counts):
        found = audit(model, tokenizer, corpus)
        worst = [suspect.token for suspect in found.suspects[: len(unseen)]]
        assert len(unseen & set(worst)) >= 0.95 * len(unseen), found.compared_with
        # Letters of the other text, which are reachable and yet were never shown: no rule by spelling finds these.
        hidden = {i for i in unseen if tokenizer.encode(tokenizer.decode([i])) == [i]}
        assert len(hidden) >= 10
        assert len(hidden & set(worst)) >= 0.9 * len(hidden)
    assert found.compared_with == f"the {len(unseen) + 1} tokens that the text never has"
    assert all(suspect.count == counts.get(suspect.token, 0) for suspect in found.suspects)
    untrained = af.build(af.resize(af.preset(name), n_params=40_000, vocab_size=tokenizer.vocab_size), seed=1)
    guessed = {suspect.token for suspect in audit(untrained, tokenizer).suspects[: len(unseen)]}
    assert len(guessed & unseen) < 0.95 * len(unseen)


def test_a_larger_vocabulary_is_refused() -> None:
    tokenizer = Tokenizer.train([TEXT], 300)
    model = af.build(af.resize(af.preset("gpt2"), n_params=40_000, vocab_size=270))
    with pytest.raises(InputError, match=r"the tokenizer has \d+ tokens and the model 270"):
        audit(model, tokenizer)


def test_a_model_that_reads_no_tokens_is_refused() -> None:
    tokenizer = Tokenizer.train([TEXT], 260)
    spec = af.resize(af.preset("gpt2"), n_params=40_000, vocab_size=tokenizer.vocab_size)
    embedding = spec.stack.embedding
    blind = spec.but(stack=spec.stack.but(embedding=embedding.but(terms=embedding.terms[1:])), heads=())
    with pytest.raises(InputError, match="no table of tokens"):
        audit(af.build(blind), tokenizer)
