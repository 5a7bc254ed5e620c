"""Texts held to a form: what may follow is what an enumeration of the form's texts says, by whatever way a text is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, trainers

from anyformer.errors import RunFailed, UsageError
from anyformer.generation import (
    BeamSearch,
    ContinuousBatch,
    Decoding,
    DraftModel,
    Form,
    Grammar,
    Grammars,
    PromptLookup,
    Sampling,
    SpeculativeDecoding,
    Wanted,
    generate_text,
    search_ids,
    spaced,
)
from anyformer.generation.grammar import BLANKS
from anyformer.generation.penalties import Penalties
from anyformer.inference import generate
from anyformer.model import Transformer
from anyformer.text import Tokenizer
from tests.generation.test_text import TEXTS, sized
from tests.laws.models import SHRUNK, randomised
from tests.sample import combinations

MORE = 3  # rows of the model beyond the vocabulary
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "Ö"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def falling_back() -> Tokenizer:
    """A vocabulary like LLaMA's: pieces with ▁ for a space, and the bytes of all others."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<unk>", "</s>", *bytes_], show_progress=False)
    inner.train_from_iterator([text.replace(" ", "▁") for text in TEXTS], trainer)
    data = json.loads(inner.to_str())
    data["added_tokens"] = data["added_tokens"][:2]
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(data)), {"eos_token": "</s>"})


VOCABULARIES = {"bytes": Tokenizer.train(TEXTS, 320), "pieces": falling_back()}
GRAMMARS = {name: Grammars(each, each.vocab_size + MORE) for name, each in VOCABULARIES.items()}


def spelled(tokenizer: Tokenizer, token: int) -> bytes | None:
    """What a token adds to a text; None for a special one, and for none."""
    spelling = tokenizer.spelling(token)
    if spelling is None or token in tokenizer.special_ids:
        return None
    if tokenizer.kind != "byte-level-bpe":
        hexadecimal = re.fullmatch("<0x(..)>", spelling)
        return bytes.fromhex(hexadecimal[1]) if hexadecimal else spelling.replace("▁", " ").encode()
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    letters = {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return bytes(letters[letter] for letter in spelling)


def tokens_within(tokenizer: Tokenizer, text: bytes) -> dict[int, bytes]:
    """The tokens that a text may begin with."""
    each = ((token, spelled(tokenizer, token)) for token in range(tokenizer.vocab_size))
    return {token: more for token, more in each if more and text.startswith(more)}


def held(tokenizer: Tokenizer, form: Form, content: Any, **drawn: Any) -> Sampling:
    name = "bytes" if tokenizer is VOCABULARIES["bytes"] else "pieces"
    return Sampling(**drawn, grammar=GRAMMARS[name].read(form, content))


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return VOCABULARIES[request.param]


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    spec = next(spec for name, spec in SHRUNK.items() if "llama2" in name)
    return randomised(sized(spec, tokenizer.vocab_size + MORE))


letters = st.text(st.sampled_from("ax Ö🙂0"), min_size=1, max_size=4)


@given(st.sampled_from(sorted(VOCABULARIES)), st.lists(letters, min_size=1, max_size=4, unique=True), st.randoms())
@settings(deadline=None, max_examples=combinations(200))
def test_what_may_follow_is_what_some_text_goes_on_with(name: str, texts: list[str], chance: Any) -> None:
    tokenizer = VOCABULARIES[name]
    whole = [text.encode() for text in texts]
    grammar = GRAMMARS[name].read("regex", "|".join(map(re.escape, texts)))
    n, closing = tokenizer.vocab_size + MORE, tokenizer.closing_ids
    penalties = Penalties(Sampling(grammar=grammar), torch.zeros(1, 1, dtype=torch.long), None, n, closing, 99)
    written = b""
    while True:
        behind = [text[len(written) :] for text in whole if text.startswith(written)]
        expected = {token for text in behind for token in tokens_within(tokenizer, text)}
        if b"" in behind:
            expected |= set(closing)
        logits = torch.zeros(1, n)
        penalised = penalties.applied(logits)[0]
        found = set(penalised.isfinite().nonzero()[:, 0].tolist())
        if len({text[:1] for text in behind}) > 1:
            assert found == expected
        else:  # what is sure to follow is written in its usual tokens alone
            assert found <= expected
            assert all(found & tokens_within(tokenizer, text).keys() or (not text and found) for text in behind)
        token = chance.choice(sorted(found))
        if token in closing:
            break
        guesses = [token, chance.choice(sorted(found))]
        guessed = penalties.applied(torch.zeros(3, n), guesses)
        assert torch.equal(guessed[0], penalised)
        penalties.add([[token]])
        assert torch.equal(guessed[1], penalties.applied(logits)[0])
        written += spelled(tokenizer, token) or b""


def test_blanks_of_json_have_an_end_unless_a_schema_says_which() -> None:
    schema = {"type": "array", "maxItems": 0}
    assert spaced(schema) == {"x-guidance": {"whitespace_pattern": BLANKS}, **schema}
    assert spaced({"x-guidance": {"lenient": True}})["x-guidance"] == {"whitespace_pattern": BLANKS, "lenient": True}
    said = {"x-guidance": {"whitespace_pattern": " "}}
    assert spaced(said) == said


@pytest.mark.parametrize("seed", range(4))
def test_json_has_its_schema(model: Transformer, tokenizer: Tokenizer, seed: int) -> None:
    how = held(tokenizer, "json_schema", PERSON, temperature=1.0)
    for each in generate_text(model, tokenizer, ["a", "bc"], sampling=how, max_new_tokens=200, seed=10 * seed):
        assert each.ended_by == "end_of_text"
        value = json.loads(each.text)
        assert set(value) == {"name", "age", "tags"}
        assert isinstance(value["name"], str)
        assert len(value["name"]) <= 6
        assert value["age"] in range(131)
        assert set(value["tags"]) <= {"a", "Ö"}
        assert len(value["tags"]) <= 2


FORMS: list[tuple[Form, Any, str]] = [
    ("regex", "(ab|cd){2}x?", "(ab|cd){2}x?"),
    ("regex", "a/b|", "a/b|"),
    ("grammar", 'start: "a" b+\nb: /[0-9]{2}/ ","', "a([0-9]{2},)+"),
    ("grammar", 'start[capture="said"]: /[ab]{2}/', "[ab]{2}"),
    ("grammar", 'root ::= "yes" | "no" [a-c]', "yes|no[a-c]"),
    ("json_schema", {"enum": ["Ö", 3]}, '"Ö"|3'),
    ("json_schema", {"type": "array", "items": {"const": 1}}, r"\[\s*(1\s*(,\s*1\s*)*)?\]"),
]


@pytest.mark.parametrize(("form", "content", "pattern"), FORMS)
def test_every_way_writes_the_same(
    model: Transformer, tokenizer: Tokenizer, form: Form, content: Any, pattern: str
) -> None:
    """Alone, in a batch of rows that end at different times, among others that come and go, and with guesses."""
    how, prompts = held(tokenizer, form, content), ["ab", "x", "if x > 0"]
    options: dict[str, Any] = {"max_new_tokens": 12, "sampling": how}
    together = generate_text(model, tokenizer, prompts, **options)
    alone = [generate_text(model, tokenizer, [prompt], **options)[0] for prompt in prompts]
    uncached = generate_text(model, tokenizer, prompts, **options, cache=False)
    guessed = generate_text(model, tokenizer, prompts, **options, guessing=PromptLookup(3))
    drafted = generate_text(model, tokenizer, prompts, **options, guessing=DraftModel(model, 2))
    for other in (alone, uncached, guessed, drafted):
        assert [each.token_ids for each in other] == [each.token_ids for each in together]
        assert [each.ended_by for each in other] == [each.ended_by for each in together]
    for each in together:
        if each.ended_by == "end_of_text":
            assert re.fullmatch(pattern, each.text)
    closing, batch = tokenizer.closing_ids, ContinuousBatch(model, 99)
    rows = []
    for prompt in prompts:
        ids = tuple(tokenizer.encode(prompt))
        opening = () if tokenizer.begin_of_text is None else (tokenizer.begin_of_text,)
        row, first = batch.add(Wanted((*opening, *ids), 12, how, closing_ids=closing))
        assert first is not None
        rows.append((row, [first.token_id]))
        batch.step()
        for row, found in rows:  # which rows went on is known by what they say
            if found[-1] not in closing and len(row.written) > len(found):
                found.append(row.written[-1])
    while any(not row.ended for row, _ in rows):
        step = batch.step()
        for row, found in rows:
            if row in step:
                found.append(step[row].token_id)
    assert [[token for token in found if token not in closing] for _, found in rows] == [
        each.token_ids for each in together
    ]


def paths(tokenizer: Tokenizer, text: bytes) -> Iterator[tuple[int, ...]]:
    """All the ways to spell a text."""
    if not text:
        yield ()
        return
    for token, more in tokens_within(tokenizer, text).items():
        for rest in paths(tokenizer, text[len(more) :]):
            yield (token, *rest)


@torch.no_grad()
def test_beams_find_the_likeliest_text(model: Transformer, tokenizer: Tokenizer) -> None:
    """With as many beams as there are ways to spell the texts: by their probabilities, each computed alone."""
    texts, closing = [a + b for a in "ofx" for b in "of"], tokenizer.closing_ids[0]
    how = held(tokenizer, "regex", "[ofx][of]")
    every = [(*path, closing) for text in texts for path in paths(tokenizer, text.encode())]
    prompt = torch.tensor([tokenizer.encode("the fox")])

    def score(path: tuple[int, ...]) -> float:
        ids = torch.cat((prompt, torch.tensor([path])), 1)
        logs = model(ids).logits[0, prompt.shape[1] - 1 : -1].double().log_softmax(-1)
        return float(logs.gather(1, ids[0, prompt.shape[1] :, None]).sum())

    best = max(every, key=score)
    search = BeamSearch(len(every), length_penalty=0.0, stopping="bound")
    options: dict[str, Any] = {"max_new_tokens": 12, "closing_ids": (closing,)}
    ((found, *_),) = search_ids(model, prompt, how=search, sampling=how, **options)
    assert found.token_ids == best
    assert found.score == pytest.approx(score(best), abs=1e-4)


@torch.no_grad()
def test_what_is_drawn_has_the_models_probabilities(model: Transformer, tokenizer: Tokenizer) -> None:
    """Of the tokens of three letters: the model's own share of each."""
    tokens = [token for letter in "fx0" for token in tokens_within(tokenizer, letter.encode())]
    how = held(tokenizer, "regex", "[fx0]", temperature=1.0)
    prompt = torch.tensor([tokenizer.encode("the")])
    expected = model(prompt).logits[0, -1, tokens].double().softmax(-1)
    n = 3000
    steps = Decoding(model, prompt.expand(n, -1), max_new_tokens=1, sampling=how, closing_ids=tokenizer.closing_ids)
    drawn = torch.tensor(list(next(steps).values()))
    found = torch.tensor([(drawn == token).sum() for token in tokens])
    assert int(found.sum()) == n
    chi_square = ((found - n * expected) ** 2 / (n * expected)).sum()
    assert float(chi_square) < 28  # which so few kinds pass in one of ten thousand trials


def test_a_guess_outside_of_the_grammar_falls(model: Transformer, tokenizer: Tokenizer) -> None:
    how = held(tokenizer, "regex", "(ab){9}")
    outside = tokenizer.encode("0")[-1]
    penalties = Penalties(how, torch.zeros(1, 1, dtype=torch.long), None, tokenizer.vocab_size + MORE, (), 9)
    found = penalties.applied(torch.zeros(3, tokenizer.vocab_size + MORE), [outside, outside])
    assert found[0, outside] == -torch.inf
    assert found[1:].isfinite().all()
    steps = SpeculativeDecoding(
        model, torch.tensor([[5, 6, 7]]), None, DraftModel(model, 3), max_new_tokens=9, sampling=how
    )
    assert tokenizer.decode([step[0] for step in steps]).startswith("ab")


def test_a_grammar_goes_before_bans(model: Transformer, tokenizer: Tokenizer) -> None:
    """Where all that the grammar leaves is forbidden, it is written all the same; what may be avoided is."""
    options: dict[str, Any] = {
        "suppressed": tuple(tokens_within(tokenizer, b"x")),
        "min_new_tokens": 9,
        "no_repeat_ngram_size": 1,
    }
    for pattern in ("x", "xxx"):
        how = held(tokenizer, "regex", pattern, **options)
        (written,) = generate_text(model, tokenizer, ["if"], sampling=how, max_new_tokens=20)
        assert (written.text, written.ended_by) == (pattern, "end_of_text")
    how = held(tokenizer, "regex", "x|f", **options)
    assert generate_text(model, tokenizer, ["if"], sampling=how)[0].text == "f"
    last = held(tokenizer, "regex", "f{9}", last_token=tokenizer.closing_ids[0])
    (written,) = generate_text(model, tokenizer, ["if"], sampling=last, max_new_tokens=3)
    assert (set(written.text), written.ended_by) == ({"f"}, "length")


def test_from_python(model: Transformer, tokenizer: Tokenizer) -> None:
    text = generate(model, tokenizer, "the", json_schema={"type": "array", "items": {"type": "null"}, "minItems": 2})
    assert set(json.loads(text)) == {None}
    assert generate(model, tokenizer, ["the", "fox"], regex="[0-9]{3}", max_new_tokens=2)[1].isdecimal()
    assert generate(model, tokenizer, "the", grammar='start: "a" | "b"') in ("a", "b")
    with pytest.raises(UsageError, match="leave one of json_schema and grammar out"):
        generate(model, tokenizer, "the", json_schema={}, grammar="")


HEAVY = "(a{1000}){1000}b"  # which llguidance reads, and gives up behind the first token


def test_what_is_too_much_ends_its_own_row(model: Transformer) -> None:
    tokenizer = VOCABULARIES["bytes"]
    if model.spec.vocab_size != tokenizer.vocab_size + MORE:
        pytest.skip("one vocabulary shows it")
    batch = ContinuousBatch(model, 99)
    fine, _ = batch.add(Wanted((5, 6), 5, held(tokenizer, "regex", "x{5}"), closing_ids=(0,)))
    heavy, _ = batch.add(Wanted((5, 6), 5, held(tokenizer, "regex", HEAVY), closing_ids=(0,)))
    assert set(batch.step()) == {fine}
    assert str(heavy.error).startswith("the text can't be held to its grammar: lexer error")
    assert isinstance(heavy.error, RunFailed)
    assert heavy.ended
    while not fine.ended:
        assert set(batch.step()) == {fine}


def test_any_token_that_ends_a_text_ends_it_and_nothing_follows() -> None:
    """Rows that have ended may stay in a batch, where tokens are chosen for them that nobody reads."""
    plain = VOCABULARIES["bytes"].with_specials(["<end>"])
    said = json.dumps({"eos_token_id": [0, plain.vocab_size - 1]}).encode()
    tokenizer = Tokenizer(plain._inner, plain.config, {"generation_config.json": said})
    n = tokenizer.vocab_size
    how = Sampling(grammar=Grammars(tokenizer, n).read("regex", "x"))
    penalties = Penalties(how, torch.zeros(1, 1, dtype=torch.long), None, n, tokenizer.closing_ids, 9)
    x = tokenizer.encode("x")[-1]
    for token in (x, 0, x, x):
        penalties.add([[token]])
        assert penalties.applied(torch.zeros(1, n)).isfinite().nonzero()[:, 1].tolist() == [0, n - 1]


def test_a_text_goes_on_where_another_began(tokenizer: Tokenizer) -> None:
    """Rows may be taken several times, as beams are, and then grow apart."""
    how = held(tokenizer, "regex", "ab|ax")
    n = tokenizer.vocab_size + MORE
    penalties = Penalties(how, torch.zeros(1, 1, dtype=torch.long), None, n, tokenizer.closing_ids, 9)
    a, b, x = (tokenizer.encode(letter)[-1] for letter in "abx")
    penalties.add([[a]])
    penalties.select([0, 0, 0])
    penalties.add([[b], [x], [b]])
    found = penalties.applied(torch.zeros(3, n)).isfinite().nonzero().tolist()
    assert found == [[row, tokenizer.closing_ids[0]] for row in range(3)]
    assert isinstance(how.grammar, Grammar)
