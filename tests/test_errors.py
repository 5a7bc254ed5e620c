"""Messages are safe to print: short, and without what a terminal would act on."""

import pytest

from anyformer.errors import LONGEST, LONGEST_WORD, RunFailed, SpecError, did_you_mean, first_line, unknown


@pytest.mark.parametrize("kind", [SpecError, RunFailed])
def test_long_messages_lose_their_middle(kind: type[SpecError]) -> None:
    said = str(kind(f"the field {'x ' * 100_000} is wrong; write less"))
    assert len(said) < LONGEST + 100
    assert said.startswith("the field x x")
    assert said.endswith("is wrong; write less")
    assert "characters) …" in said


def test_long_words_lose_theirs() -> None:
    said = str(SpecError(f"a = {'9' * 1000} and b = {'/x' * 500} are wrong"))
    assert len(said) < 2 * LONGEST_WORD + 150
    assert said.startswith("a = 999")
    assert said.endswith("are wrong")
    assert str(SpecError("a" * (LONGEST_WORD - 1))) == "a" * (LONGEST_WORD - 1)


def test_what_a_terminal_would_act_on_is_escaped() -> None:
    said = str(SpecError("a\x1b[31mred\x07\u202eback\u2028\ud800 é → 日本 [red]\r\tx"))
    assert said == "a\\x1b[31mred\\x07\\u202eback\\u2028\\ud800 é → 日本 [red]\\r\\tx"
    assert str(SpecError("two\nlines")) == "two\nlines"


def test_a_suggestion_is_of_the_same_first_word_where_one_is() -> None:
    """Spelled nearest to bert-base-uncased is flaubert-base-uncased."""
    known = ["flaubert-base-uncased", "bert-large", "bert-base", "gpt2", "gpt2-medium"]
    assert did_you_mean("bert-base-uncased", known) == " (did you mean 'bert-base'?)"
    assert did_you_mean("gpt2-mediun", known) == " (did you mean 'gpt2-medium'?)"
    assert did_you_mean("gtp2", known) == " (did you mean 'gpt2'?)"


def test_suggestions_take_anything() -> None:
    assert did_you_mean(3, ["a"]) == ""
    assert did_you_mean("x" * 10**6, ["x" * 10]) == ""
    assert did_you_mean(["norm"], ["norm"]) == " (did you mean 'norm'?)"
    assert unknown("mode", {"a": 1}, ["a"]).startswith("mode = {'a': 1} is unknown")


def test_the_first_line_of_what_others_say() -> None:
    """Of an error that says nothing there is none: a device without words was a traceback."""
    assert first_line(RuntimeError("no driver\nat line 3")) == "no driver"
    assert first_line(AssertionError()) == first_line(AssertionError("")) == "AssertionError"
    assert len(first_line(ValueError("x" * 10_000))) < LONGEST_WORD + 50
