"""What cannot be continued is refused in one way, whatever it is and however it is asked; so is a token that there is not."""

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.generation import ContinuousBatch, PromptLookup, Wanted, generate_text
from anyformer.generation.beam import BeamSearch, search_ids
from anyformer.generation.decode import generate_ids
from anyformer.generation.speculative import SpeculativeDecoding
from anyformer.layers import LastTokenSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import HeadSpec, TableSpec, Vocab, specification
from anyformer.text import Tokenizer

SEES_LATER = ("bert-base", "longformer-base-4096", "bigbird-base", "xlnet-base", "deberta-base", "electra-small")
SAYS = "cannot generate text: it lets a token see later ones .* take a decoder.*`evaluate`.*`embed`.*`classify`"


@pytest.mark.parametrize("name", SEES_LATER)
def test_one_refusal_for_all_that_see_later_tokens(name: str) -> None:
    """Of ids, by search, and of a text, before anything else is found wrong with it."""
    model = af.build(af.shrink(af.preset(name)))
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(InputError, match=SAYS):
        generate_ids(model, ids, max_new_tokens=2)
    with pytest.raises(InputError, match=SAYS):
        generate_ids(model, ids[:, :0], max_new_tokens=-1)
    with pytest.raises(InputError, match=SAYS):
        search_ids(model, ids, max_new_tokens=2, how=BeamSearch(2))
    tokenizer = Tokenizer.train(["a text of a few words"], 300)  # more tokens than the model has
    with pytest.raises(InputError, match=SAYS):
        generate_text(model, tokenizer, [""])


OTHER_HEADS = {
    "a class of the row": HeadSpec(name="class", pool=LastTokenSpec(), table=TableSpec(rows=Vocab(3))),
    "a class of the row, of as many as tokens": HeadSpec(
        name="class", pool=LastTokenSpec(), table=TableSpec(rows=Vocab(101))
    ),
    "a class of each token": HeadSpec(name="class", table=TableSpec(rows=Vocab(3))),
    "a vector": HeadSpec(name="class"),
}


@pytest.mark.parametrize("head", OTHER_HEADS.values(), ids=OTHER_HEADS)
def test_a_head_that_says_no_token_writes_nothing(head: HeadSpec) -> None:
    spec = af.shrink(af.preset("gpt2"))
    model, ids = af.build(spec.but(heads=(head, *spec.heads))), torch.ones(1, 3, dtype=torch.long)
    says = "gives no next token: its first head, 'class', does not choose among its 101 tokens"
    for ask in (
        lambda: generate_ids(model, ids, max_new_tokens=2),
        lambda: search_ids(model, ids, max_new_tokens=2, how=BeamSearch(2)),
        lambda: SpeculativeDecoding(model, ids, None, PromptLookup(2), max_new_tokens=2),
        lambda: generate_text(model, Tokenizer.train(["a text"], 257), ["a"]),
        lambda: ContinuousBatch(model, 20).add(Wanted((1, 2), 3)),
    ):
        with pytest.raises(InputError, match=says):
            ask()


def test_it_is_asked_of_architectures_of_their_full_size() -> None:
    """Windows and blocks of any size let tokens see later ones, and shrinking changes no answer."""
    for name in af.presets():
        whole, small = specification(af.preset(name)), af.shrink(af.preset(name))
        assert (later_tokens_seen(whole.stack, after_prefix=True) is None) == (
            later_tokens_seen(small.stack, after_prefix=True) is None
        ), name


@pytest.mark.parametrize("token", [-1, 10**9, 2**62])
@pytest.mark.parametrize("name", ["gpt2", "t5-small", "albert-base"])
def test_a_token_that_there_is_not(name: str, token: int) -> None:
    spec = af.shrink(af.preset(name))
    model = af.build(spec)
    ids, wrong = torch.ones(1, 3, dtype=torch.long), torch.tensor([[1, token, 1]])
    says = f"there is no token {token}; this .* has those from 0 to"
    both = [{"input_ids": wrong}]
    if spec.encoder:
        both = [{"input_ids": wrong, "decoder_input_ids": ids}, {"input_ids": ids, "decoder_input_ids": wrong}]
    for given in both:
        with pytest.raises(InputError, match=says):
            model(**given)
        if name != "albert-base":
            with pytest.raises(InputError, match=says):
                generate_ids(model, max_new_tokens=2, **given)  # type: ignore[arg-type]


def test_one_prompt_is_not_a_list_of_letters() -> None:
    tokenizer = Tokenizer.train(["to be"], 258)
    model = af.build(af.resize(af.load_spec("gpt2"), n_params=60_000, vocab_size=tokenizer.vocab_size, context=64))
    with pytest.raises(InputError, match="prompts = 'to be' must be a list; put one prompt into brackets"):
        generate_text(model, tokenizer, "to be")


@pytest.mark.slow
def test_a_table_that_looks_for_it_breaks_no_graph() -> None:
    model = af.build(af.shrink(af.preset("gpt2")))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids = torch.ones(1, 3, dtype=torch.long)
    assert torch.equal(compiled(ids).logits, model(ids).logits)
