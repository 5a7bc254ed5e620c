"""What stands between two texts: marks of released vocabularies, prompts, and cuts inside a token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFace

from anyformer.errors import TextError
from anyformer.text import Tokenizer
from anyformer.text.filling import (
    ENDS,
    KNOWN,
    Marks,
    cut_at_characters,
    ending_middles,
    marks_of,
    prompt_between,
    within,
)
from tests.text.samples import TEXT, TEXTS, llama_like

LEARNT = Tokenizer.train(TEXTS, 700)
BYTES = LEARNT.with_specials(KNOWN[0])
LLAMA = Tokenizer(llama_like(), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("spellings", KNOWN, ids=lambda each: each[0])
def test_marks_are_found_by_their_spelling_special_or_not(spellings: tuple[str, str, str], special: bool) -> None:
    """Qwen2.5-Coder's are not."""
    inner = HuggingFace.from_str(LEARNT._inner.to_str())
    inner.add_tokens([AddedToken(each, special=special, normalized=False) for each in reversed(spellings)])
    n = LEARNT.vocab_size
    assert marks_of(Tokenizer(inner, LEARNT.config)) == Marks(n + 2, n + 1, n)
    assert marks_of(LEARNT.with_specials(spellings[:2])) is None


def test_a_prompt_is_opened_as_any_other_and_spells_no_special_token() -> None:
    marks = Marks(*BYTES.encode("".join(KNOWN[0]), specials=True))
    prefix, suffix = "def f(<|fim_middle|>", "\n<|endoftext|> end"
    wanted = [marks.prefix, *BYTES.encode(prefix), marks.suffix, *BYTES.encode(suffix), marks.middle]
    assert prompt_between(BYTES, prefix, suffix) == [BYTES.begin_of_text, *wanted]
    assert marks.middle not in BYTES.encode(prefix)
    assert prompt_between(BYTES, "", "") == [BYTES.begin_of_text, *marks]


def test_a_middle_ends_at_marks_and_where_another_file_begins() -> None:
    by = BYTES.with_specials([ENDS[0], "<|file_sep|>"])
    assert by.closing_ids == (by.end_of_text,)
    ends = ending_middles(by).closing_ids
    assert set(ends) == {by.end_of_text, *marks_of(by), by.token(ENDS[0]), by.token("<|file_sep|>")}  # type: ignore[misc]
    assert by.closing_ids == (by.end_of_text,)
    assert len(ends) == 6


@pytest.mark.parametrize("ask", [ending_middles, lambda by: prompt_between(by, "a", "b")])
def test_a_vocabulary_without_marks_is_refused(ask: object) -> None:
    with pytest.raises(TextError, match=r"no tokens that mark a middle \(<\|fim_prefix\|> .* leave the suffix out"):
        ask(LEARNT)  # type: ignore[operator]


def test_no_space_is_put_before_what_stands_within() -> None:
    """Code Llama's suffix: what is spelled ▁the at a text's beginning is the without it."""
    the, spaced = LLAMA.token("▁the"), LLAMA.token("▁")
    assert LLAMA.encode("the") == [the]
    assert LLAMA.decode(within(LLAMA, "the")) == "the"
    assert the not in within(LLAMA, "the")
    assert within(LLAMA, " the") == [the]
    assert within(LLAMA, "") == []
    assert LLAMA.encode("") == []
    assert within(LLAMA, "  the") == [spaced, the]
    assert within(LEARNT, "the fox") == LEARNT.encode("the fox")
    by = LLAMA.with_specials(KNOWN[-1])
    prefix, suffix, middle = (by.encode(each, specials=True)[0] for each in KNOWN[-1])
    assert prompt_between(by, "the", " the") == [prefix, the, suffix, the, middle]


@settings(deadline=None)
@given(text=TEXT, seed=st.integers(0, 2**32))
def test_parts_are_encoded_each_by_itself(text: str, seed: int) -> None:
    for by, first in ((BYTES, True), (BYTES, False), (LLAMA, True), (LLAMA, False)):
        encode = by.encode if first else lambda each, by=by: within(by, each)
        ids = np.array(encode(text), dtype=np.int64)
        found = cut_at_characters(by, ids, np.random.default_rng(seed), first=first, more=10**6)
        if found is None:
            assert "▁" in text or text.startswith(" ") or by.unknown in ids
            continue
        places = np.random.default_rng(seed).integers(0, len(text) + 1, 2)
        one, other = sorted(places.tolist())
        assert found.prefix.tolist() == encode(text[:one])
        assert found.middle.tolist() == within(by, text[one:other])
        assert found.suffix.tolist() == within(by, text[other:])


def test_cuts_fall_inside_words_and_a_bound_holds() -> None:
    ids, rng = np.array(LEARNT.encode(TEXTS[1][:200])), np.random.default_rng(0)
    lengths = []
    for _ in range(300):
        found = cut_at_characters(LEARNT, ids, rng, first=True, more=2)
        lengths.append(None if found is None else sum(map(len, found)) - len(ids))
    assert {None, 0, 1, 2} <= set(lengths)
    assert max(each for each in lengths if each is not None) == 2


def test_tokens_that_cut_a_character_are_no_text() -> None:
    ids = np.array(LEARNT.encode("日本語")[1:-1] + LEARNT.encode("🦊")[:1])
    assert cut_at_characters(LEARNT, ids, np.random.default_rng(0), first=False, more=9) is None
