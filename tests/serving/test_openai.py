"""OpenAI's own client, with no second tries, is answered what our functions give without a server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import openai
import pytest
import torch

from anyformer.generation import Prefixes, Sampling, encode_prompt, generate_text
from anyformer.inference import embed, generate
from anyformer.inference.opened import Opened
from anyformer.serving import Limits
from anyformer.serving.choice import spelled
from anyformer.text.chat import Chat
from anyformer.text.filling import KNOWN
from anyformer.text.schemes import SCHEMES, scheme
from tests.serving.conftest import LONGEST, Running, Start


@pytest.fixture(scope="module")
def client(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=running.v1, api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("kind", SCHEMES)
def test_tokens_are_spelled_with_their_spaces(kind: str) -> None:
    tokenizer = scheme(kind, 300).train(["the cat sat on the mat", "a cat and a hat", "that mat is flat"])
    ids = tokenizer.encode("the cat sat on that flat mat")
    assert len(ids) > 6
    assert "".join(spelled(tokenizer, token)[0] for token in ids).lstrip() == tokenizer.decode(ids)


def text_of(running: Running, prompt: str, n: int, seed: int, **drawn: Any) -> str:
    (found,) = generate_text(
        running.found.model,
        running.found.tokenizer,
        [prompt],
        max_new_tokens=n,
        sampling=Sampling(**drawn),
        seed=seed,
    )
    return found.text


def test_completions(client: openai.OpenAI, running: Running) -> None:
    told = client.completions.create(model="tiny", prompt="if x", max_tokens=30, temperature=0)
    (expected,) = generate_text(running.found.model, running.found.tokenizer, ["if x"], max_new_tokens=30)
    assert told.choices[0].text == expected.text
    assert told.choices[0].finish_reason == ("length" if expected.ended_by == "length" else "stop")
    assert told.usage is not None
    assert told.usage.prompt_tokens == len(encode_prompt(running.found.tokenizer, "if x"))
    assert told.usage.completion_tokens == len(expected.token_ids) + (expected.ended_by != "length")
    assert told.model == "tiny"


def test_what_is_drawn_follows_the_seed(client: openai.OpenAI, running: Running) -> None:
    told = client.completions.create(
        model="tiny", prompt=["Größe", "the fox"], max_tokens=25, temperature=0.9, top_p=0.8, seed=7, n=2
    )
    assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
    for choice in told.choices:
        prompt = ["Größe", "the fox"][choice.index // 2]
        assert choice.text == text_of(running, prompt, 25, temperature=0.9, top_p=0.8, seed=7 + choice.index)


@pytest.mark.parametrize("prompt", ["東", "return", "🙂"])
def test_a_stream_is_the_whole_text(client: openai.OpenAI, running: Running, prompt: str) -> None:
    """Characters of several tokens come whole; random bytes give what is no character, as the text itself does."""
    pieces, usage = [], None
    with client.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=40,
        temperature=1,
        seed=3,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for event in stream:
            usage = event.usage or usage
            pieces += [choice.text for choice in event.choices]
    expected = text_of(running, prompt, 40, temperature=1.0, seed=3)
    assert "".join(pieces) == expected
    assert len(pieces) > 3
    assert usage is not None
    assert usage.completion_tokens <= 40


def test_stop(client: openai.OpenAI, running: Running) -> None:
    whole = text_of(running, "if x", 40, temperature=1.0, seed=1)
    stop = whole[10:12]
    told = client.completions.create(model="tiny", prompt="if x", max_tokens=40, temperature=1, seed=1, stop=[stop])
    assert told.choices[0].text == whole[: whole.index(stop)]
    assert told.choices[0].finish_reason == "stop"


def test_a_chat_goes_by_the_template(client: openai.OpenAI, running: Running) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the fox?"}]
    said = "system: be brief\nuser: the fox?\nassistant:"
    expected = text_of(running, said, 20, temperature=0.7, seed=5)
    request = {"model": "tiny", "messages": messages, "max_completion_tokens": 20, "temperature": 0.7, "seed": 5}
    told = client.chat.completions.create(**request)  # type: ignore[call-overload]
    assert told.choices[0].message.content == expected
    assert told.choices[0].message.role == "assistant"
    with client.chat.completions.create(**request, stream=True) as stream:  # type: ignore[call-overload]
        events = list(stream)
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == expected
    assert [event.choices[0].finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].choices[0].finish_reason in ("length", "stop")


def known(told: Any) -> int:
    return told.usage.prompt_tokens_details.cached_tokens


def test_what_was_read_stays_for_prompts_that_begin_alike(start: Start, found: Opened) -> None:
    """A conversation goes on from its last answer, and several choices read their prompt once; 0 bytes keep nothing."""
    told: Any
    one: Any = None
    for limits, stays in ((Limits(longest=LONGEST), True), (Limits(longest=LONGEST, prefix_nbytes=0), False)):
        with start(limits) as server:
            told, before = openai.OpenAI(base_url=server.v1, api_key="none"), 0
            messages = [{"role": "user", "content": "the fox?"}]
            for turn in range(2):
                prompt = server.app.state.service.chat_template.text(messages)  # type: ignore[attr-defined]
                one = told.chat.completions.create(
                    model="tiny", messages=messages, max_tokens=6, temperature=0, n=2 if turn else 1
                )
                text, n = one.choices[0].message.content, len(encode_prompt(found.tokenizer, prompt))
                assert text == text_of(server, prompt, 6, 0)
                assert all(each.message.content == text for each in one.choices)
                assert one.usage.prompt_tokens == n
                assert known(one) >= before - 1 if stays else known(one) == 0
                messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "if x"}]
                before = n
            metrics = httpx.get(f"{server.url}/metrics").text
            cached = int(re.findall(r'tokens_total\{kind="cached"\} (\d+)', metrics)[0])
            assert cached == known(one) + before - 1 if stays else cached == 0, (
                "the second choice has the prompt from the first"
            )


def test_what_cannot_stay_ends_no_server(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong between two requests is nobody's answer, and the next one is answered."""
    with start() as server:
        told = openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=30)
        kept, keep = list[int](), Prefixes.keep

        def failing(prefixes: Prefixes, ids: Sequence[int], *rest: Any) -> None:
            kept.append(len(ids))
            if len(kept) == 2:  # after the prompt the whole, once nobody waits
                raise RuntimeError("a device is gone")
            keep(prefixes, ids, *rest)

        monkeypatch.setattr(Prefixes, "keep", failing)
        for _ in range(2):
            one = told.completions.create(model="tiny", prompt="if x", max_tokens=4, temperature=0)
            assert one.choices[0].text == text_of(server, "if x", 4, 0)
        assert len(kept) >= 3


def test_log_probabilities(client: openai.OpenAI, running: Running) -> None:
    """As lm-eval asks: token ids, echo, one more token; the sum is that of the whole pass."""
    ids = encode_prompt(running.found.tokenizer, "the fox said")
    told = client.completions.create(
        model="tiny", prompt=[ids, ids[:3]], max_tokens=1, temperature=0, echo=True, logprobs=2
    )
    with torch.no_grad():
        expected = running.found.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    for choice, prompt in zip(told.choices, (ids, ids[:3]), strict=True):
        said = choice.logprobs
        assert said is not None
        assert said.token_logprobs is not None
        assert said.top_logprobs is not None
        assert said.tokens is not None
        assert said.text_offset is not None
        assert said.token_logprobs[0] is None
        true = [float(expected[i, token]) for i, token in enumerate(prompt[1:])]
        assert said.token_logprobs[1:-1] == pytest.approx(true, abs=1e-3)
        assert len(said.tokens) == len(prompt) + 1
        assert said.text_offset == [len("".join(said.tokens[:i])) for i in range(len(said.tokens))]
        for logprob, tops in zip(said.token_logprobs[1:], said.top_logprobs[1:], strict=True):
            assert logprob in tops.values()
        assert said.token_logprobs[-1] == max(said.top_logprobs[-1].values())  # the greedy token


@pytest.mark.parametrize("prompt", ["東", "🙂"])
def test_where_tokens_begin(client: openai.OpenAI, running: Running, prompt: str) -> None:
    """In the whole text and in a stream: random bytes are parts of characters, and no characters."""
    ask: dict[str, Any] = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 60,
        "temperature": 1,
        "seed": 3,
        "logprobs": 0,
    }
    whole = client.completions.create(**ask).choices[0]
    assert whole.logprobs is not None
    offsets, tokens = whole.logprobs.text_offset or [], whole.logprobs.tokens or []
    parts, at = 0, 0
    for offset, token in zip(offsets, tokens, strict=True):
        assert at <= offset <= at + parts, "bytes are a character each at most"
        if token.startswith("bytes:"):
            parts += token.count("\\x")
        elif token != "<|endoftext|>":
            assert whole.text[offset:].startswith(token)
            at, parts = offset + len(token), 0
    assert any(token.startswith("bytes:") for token in tokens)
    streamed = list[int]()
    for event in client.completions.create(**ask, stream=True):
        said = event.choices[0].logprobs
        streamed += said.text_offset or [] if said else []
    assert streamed == offsets
    echoed = client.completions.create(**{**ask, "echo": True}).choices[0]
    assert echoed.logprobs is not None
    assert (echoed.logprobs.text_offset or [])[-len(offsets) :] == [len(prompt) + each for each in offsets]


def test_a_message_is_role_and_content(client: openai.OpenAI) -> None:
    """What a template would not be told of is refused, and what is empty is not there."""
    message = {"role": "assistant", "content": "", "refusal": None, "annotations": []}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    client.chat.completions.create(model="tiny", messages=[message], max_tokens=1)  # type: ignore[list-item]
    with pytest.raises(openai.BadRequestError, match="the chat template knows no tool_calls"):
        client.chat.completions.create(model="tiny", messages=[{**message, "tool_calls": [call]}], max_tokens=1)  # type: ignore[list-item]
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].name is not supported here; such a message has"):
        client.chat.completions.create(model="tiny", messages=[{**message, "name": "fox"}], max_tokens=1)  # type: ignore[list-item]


def test_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hm"}],
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    said = told.choices[0].logprobs
    assert said is not None
    assert said.content
    for token in said.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(each.logprob for each in token.top_logprobs)
        assert math.exp(token.logprob) < 1
    assert told.choices[0].message.content is not None
    content = b"".join(bytes(token.bytes or []) for token in said.content)
    assert told.choices[0].message.content in content.decode(errors="replace")


def test_embeddings(client: openai.OpenAI, running: Running) -> None:
    texts = ["the fox", "if x > 0"]
    expected = embed(running.found.model, running.found.tokenizer, texts)
    for given in ({}, {"encoding_format": "float"}):  # base64 is the client's own default
        told = client.embeddings.create(model="tiny", input=texts, **given)  # type: ignore[call-overload]
        assert torch.allclose(torch.tensor([each.embedding for each in told.data]), expected, atol=1e-6)
        assert told.usage.prompt_tokens > 0


def test_embeddings_of_token_ids(client: openai.OpenAI, running: Running) -> None:
    """As they are given, behind no prompt and framed by no rules."""
    tokenizer = running.found.tokenizer
    texts = ["the fox", "if x > 0"]
    ids = [tokenizer.encode(text) for text in texts]
    assert not any(tokenizer.around)
    expected = embed(running.found.model, tokenizer, texts)
    for given, rows in ((ids, expected), (ids[0], expected[:1]), ([ids[0], texts[1]], expected)):
        told = client.embeddings.create(model="tiny", input=given)  # type: ignore[arg-type]
        assert torch.allclose(torch.tensor([each.embedding for each in told.data]), rows, atol=1e-6)
    assert client.embeddings.create(model="tiny", input=ids).usage.prompt_tokens == sum(map(len, ids))
    last = running.found.model.spec.vocab_size - 1
    for wrong, says in (
        ([1, last + 1], f"text 1: there is no token {last + 1}; this model has those from 0 to {last}"),
        ([[1], [-1]], "input must be a text, token ids"),
        ([[]], "input must be a text, token ids"),
        ([1] * 201, "text 1 is 201 tokens long, beyond the 200 that are read; split it$"),
        (["x > 0 " * 200], "beyond the 200 that are read; split it$"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="tiny", input=wrong)  # type: ignore[arg-type]
        assert re.search(says, caught.value.body["message"])  # type: ignore[index]
    with pytest.raises(
        openai.BadRequestError, match="prompt_name goes before texts, and token ids are read as they are"
    ):
        client.embeddings.create(model="tiny", input=[1], extra_body={"prompt_name": "query"})


def test_what_changes_nothing_is_taken(client: openai.OpenAI, running: Running) -> None:
    expected = text_of(running, "if x", 9, seed=3, temperature=1.0)
    ask: dict[str, Any] = {"model": "tiny", "prompt": "if x", "max_tokens": 9, "seed": 3}
    told = client.completions.create(**ask, n=2, best_of=2)
    assert told.choices[0].text == expected
    with pytest.raises(openai.BadRequestError, match="best_of is not supported here, but as many as n"):
        client.completions.create(**ask, n=2, best_of=3)
    messages = [{"role": "assistant", "content": None}, {"role": "user", "content": "hm"}]
    neutral = {"function_call": "none", "prompt_cache_retention": "24h", "verbosity": "medium"}
    chat: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 9, "seed": 3}
    answer = client.chat.completions.create(**chat, extra_body=neutral)
    said = "assistant: \nuser: hm\nassistant:"
    assert answer.choices[0].message.content == text_of(running, said, 9, seed=3, temperature=1.0)
    for name, value in (("function_call", {"name": "f"}), ("verbosity", "low")):
        with pytest.raises(openai.BadRequestError, match=f"{name} is not supported here"):
            client.chat.completions.create(**chat, extra_body={name: value})
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content must be a text"):
        client.chat.completions.create(**{**chat, "messages": [{"role": "user", "content": None}]})


def test_a_suffix_asks_for_what_stands_before_it(client: openai.OpenAI, running: Running) -> None:
    model, tokenizer = running.found.model, running.found.tokenizer
    ask: dict[str, Any] = {"model": "tiny", "prompt": ["if x", ""], "max_tokens": 9, "seed": 3}
    told = client.completions.create(**ask, suffix=":\n    return x")
    for i, (prompt, choice) in enumerate(zip(ask["prompt"], told.choices, strict=True)):
        how = {"suffix": ":\n    return x", "max_new_tokens": 9, "seed": 3 + i, "temperature": 1.0}
        assert choice.text == generate(model, tokenizer, prompt, **how)
    plain = client.completions.create(**ask)
    assert [each.text for each in told.choices] != [each.text for each in plain.choices]
    assert client.completions.create(**ask, suffix="").choices[0].text == plain.choices[0].text  # OpenAI's default
    mark = {str(tokenizer.token(KNOWN[0][1])): 100}
    for suffix, n in (("x", 1), ("", 9)):  # a mark ends what stands between, and no other text
        told = client.completions.create(**{**ask, "prompt": "if"}, suffix=suffix, logit_bias=mark)
        assert told.usage is not None
        assert (told.choices[0].text, told.usage.completion_tokens) == ("", n)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_penalties_and_a_bias_change_what_is_written(client: openai.OpenAI, running: Running) -> None:
    told = {text_of(running, "Größe", 25, seed=3, temperature=5.0)}
    for change in (
        {"presence_penalty": 2},
        {"frequency_penalty": -1.5},
        {"min_p": 0.5},
        {"repetition_penalty": 1.9},
        {"no_repeat_ngram_size": 1},
    ):
        answer = client.completions.create(
            model="tiny", prompt="Größe", max_tokens=25, temperature=5.0, seed=3, extra_body=change
        )
        assert answer.choices[0].text == text_of(running, "Größe", 25, seed=3, temperature=5.0, **change)
        told.add(answer.choices[0].text)
    assert len(told) == 6, "each should have changed the text"
    biased = client.completions.create(model="tiny", prompt="Größe", max_tokens=9, logit_bias={"70": 100})
    assert biased.choices[0].text == running.found.tokenizer.decode([70] * 9)
    ends = {"prompt": "a", "max_tokens": 8, "logit_bias": {str(running.found.tokenizer.end_of_text): 100}}
    for least in (0, 5):
        answer = client.completions.create(model="tiny", temperature=0, extra_body={"min_tokens": least}, **ends)  # type: ignore[arg-type]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == least + 1  # the one that ends it is counted


def test_what_a_request_does_not_say_is_as_usual(start: Start) -> None:
    with start(usual=Sampling(3.0, top_k=9, no_repeat_ngram_size=2)) as server:
        ask = openai.OpenAI(base_url=server.v1, api_key="none").completions.create
        for change, how in (
            ({}, {"temperature": 3.0, "top_k": 9, "no_repeat_ngram_size": 2}),
            ({"temperature": 2.0, "top_k": 0}, {"temperature": 2.0, "no_repeat_ngram_size": 2}),
            ({"temperature": 0, "top_k": -1, "no_repeat_ngram_size": 0}, {}),
        ):
            answer = ask(model="tiny", prompt="if x", max_tokens=20, seed=7, extra_body=change)
            assert answer.choices[0].text == text_of(server, "if x", 20, seed=7, **how)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "gpt-4"}, "there is no model 'gpt-4'"),
        ({"max_tokens": 1000}, "context is 200 tokens"),
        ({"max_tokens": 10**6}, "context is 200 tokens; the prompt has 2, and 1000000 are asked for"),
        ({"prompt": "x" * 3000}, "context is 200 tokens"),
        ({"prompt": [10**6]}, "there is no token"),
        ({"temperature": -1}, "temperature must be"),
        ({"stop": [""]}, "stop must be"),
        ({"frequency_penalty": 3.0}, "frequency_penalty must be a number from -2 to 2"),
        ({"logit_bias": {"x": 1}}, "logit_bias must be an object of token ids"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias must be an object of token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias must be"),
        ({"logit_bias": {"99999": 1}}, "logit_bias: there is no token 99999; this model has those from 0 to"),
        ({"stream": True, "stream_options": {"include_usge": True}}, r"stream_options\.include_usge is not supported"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            r"stream_options\.include_usage must be true or false",
        ),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, r"include_obfuscation is not supported"),
        ({"stream": True, "stream_options": []}, "stream_options must be an object"),
        ({"extra_body": {"min_p": 2}}, "min_p must be"),
        ({"extra_body": {"tools": [{"type": "function"}]}}, "tools is not supported"),
        ({"extra_body": {"banana": 1}}, "banana is unknown"),
        ({"logprobs": 99}, "logprobs must be"),
        ({"seed": "x"}, "seed must be"),
        ({"extra_body": {"min_tokens": 3}}, "min_tokens is more than the 2 of max_tokens"),
        ({"prompt": []}, "prompt must be"),
        ({"extra_body": {"suffix": 3}}, "suffix must be a text"),
        ({"suffix": "b", "prompt": [5, 6]}, "suffix goes with prompts that are texts, without echo"),
        ({"suffix": "b", "echo": True}, "suffix goes with prompts that are texts, without echo"),
        ({"suffix": "x" * 3000}, "context is 200 tokens; .* and the prompt has 3,001"),
        ({"suffix": "if " * 190}, "context is 200 tokens; the prompt has"),
    ],
)
def test_what_is_wrong_is_named(client: openai.OpenAI, change: dict[str, object], says: str) -> None:
    request = {"model": "tiny", "prompt": "a", "max_tokens": 2, **change}
    with pytest.raises(openai.APIStatusError, match=says) as caught:
        client.completions.create(**request)  # type: ignore[call-overload]
    assert caught.value.status_code in (400, 404)
    assert caught.value.type in ("invalid_request_error", "not_found_error")
    if set(change) == {"logit_bias"}:
        assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("limits", "param"),
    [({"max_tokens": 199}, "messages"), ({"max_completion_tokens": 5000}, "max_completion_tokens"), ({}, "messages")],
)
def test_a_chat_is_told_of_its_own_fields(client: openai.OpenAI, limits: dict[str, int], param: str) -> None:
    messages = [{"role": "user", "content": "if x > 0 " * (1 if limits else 300)}]
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="tiny", messages=messages, **limits)  # type: ignore[call-overload]
    assert caught.value.param == param


def test_many_texts_let_streams_go_on(running: Running, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors of a request are made batch by batch, each between two steps of texts that grow."""
    batches: list[int] = []
    engine = running.app.state.service.engine  # type: ignore[attr-defined]
    ask = engine.between_steps
    monkeypatch.setattr(engine, "between_steps", lambda work: (batches.append(1), ask(work))[1])
    texts = [f"the fox {'and more ' * 10}{i}" for i in range(200)]
    expected = embed(running.found.model, running.found.tokenizer, texts)
    told = client.embeddings.create(model="tiny", input=texts)
    assert torch.allclose(torch.tensor([each.embedding for each in told.data]), expected, atol=1e-6)
    assert told.usage.prompt_tokens == sum(len(running.found.tokenizer.frame((text,)).ids) for text in texts)
    assert len(batches) > 1
    with pytest.raises(openai.BadRequestError, match="2,048 texts at most"):
        client.embeddings.create(model="tiny", input=["x"] * 2049)


WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Ürümqi"]}, "degrees": {"type": "integer", "minimum": -60, "maximum": 60}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


def test_answers_have_the_schema_that_is_asked_for(client: openai.OpenAI, running: Running) -> None:
    """Each of two choices, whole and as streams, beside another that nothing holds, and as the function writes it."""
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "the fox"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "weather", "schema": WEATHER, "strict": True},
        },
        "max_tokens": 150,
        "seed": 4,
        "n": 2,
    }
    told = client.chat.completions.create(**asked)
    texts = [choice.message.content or "" for choice in told.choices]
    for text in texts:
        value = json.loads(text)
        assert set(value) == {"city", "degrees"}
        assert value["city"] in ("Oslo", "Ürümqi")
        assert value["degrees"] in range(-60, 61)
    streamed = ["", ""]
    with client.chat.completions.create(**asked, stream=True) as stream:
        for event in stream:
            for choice in event.choices:
                streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    how = Sampling(temperature=1.0, grammar=running.found.grammar({"json_schema": WEATHER}))
    with closing(Chat(running.found.tokenizer)) as template:
        prompt = template.token_ids(asked["messages"])
    (expected,) = generate_text(
        running.found.model, running.found.tokenizer, [prompt], max_new_tokens=150, sampling=how, seed=4
    )
    assert texts[0] == expected.text


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "json_object"}, r"\{.*"),
        ({"type": "grammar", "syntax": "regex", "definition": "[a-c]{4}"}, "[a-c]{4}"),
        ({"type": "grammar", "syntax": "lark", "definition": 'start: "yes" | "no"'}, "yes|no"),
    ],
)
def test_completions_are_held_to_a_form(client: openai.OpenAI, form: Any, pattern: str) -> None:
    told = client.completions.create(
        model="tiny", prompt="if x", max_tokens=30, temperature=0, extra_body={"response_format": form}
    )
    assert re.fullmatch(pattern, told.choices[0].text, re.DOTALL)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("json", "response_format must be {'type': 'text'} or"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format must be"),
        ({"type": "json_object", "more": 1}, "response_format must be"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}, "json_schema: Invalid type: objekt"),
        ({"type": "grammar", "syntax": "regex", "definition": "(a"}, "unclosed group"),
    ],
)
def test_a_form_that_is_none_is_refused_by_name(client: openai.OpenAI, form: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=re.escape(said)) as refused:
        client.completions.create(model="tiny", prompt="x", extra_body={"response_format": form})
    assert refused.value.param == "response_format"


def test_a_form_that_is_too_much_ends_its_own_answer(client: openai.OpenAI) -> None:
    heavy = {"type": "grammar", "syntax": "regex", "definition": "(a{1000}){1000}b"}
    with ThreadPoolExecutor() as pool:
        other = pool.submit(client.completions.create, model="tiny", prompt="if x", max_tokens=60, temperature=0)
        with pytest.raises(openai.BadRequestError, match="the text can't be held to its grammar"):
            client.completions.create(model="tiny", prompt="x", max_tokens=9, extra_body={"response_format": heavy})
        assert other.result().choices[0].finish_reason in ("stop", "length")
