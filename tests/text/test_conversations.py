"""Conversations as files have them and as ids: which tokens are answers, and that nothing else stands before them than in use."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.errors import AnyformerError, TextError
from anyformer.generation import encode_prompt
from anyformer.text import Tokenizer
from anyformer.text.chat import Chat
from anyformer.text.conversations import read_conversations, read_preferences, split_exchanges
from anyformer.text.prompts import answered_prompt, answered_turns

END, TURN = "<|endoftext|>", "<|im_end|>"
TEXTS = ["who is the fox? he is naïve, said the owl: 東京 🙂 and more.", "system user assistant think"] * 20
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "who is the fox?"},
    {"role": "assistant", "content": "<think>hm</think>he is naïve 🙂"},
    {"role": "user", "content": "and the owl?"},
    {"role": "assistant", "content": "<think>oh</think>she said more"},
]
OPENED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + OPENED
)
# As Qwen3's: what was reasoned before the last question is left out.
FORGETTING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content if loop.last or m.role != 'assistant' else m.content.split('</think>')[-1] }}{{ '<|im_end|>\n' }}"
    "{% endfor %}" + OPENED
)
CALL = {"type": "function", "function": {"name": "find", "arguments": {"what": "fox"}}}
CALLED = [
    {"role": "user", "content": "who is the fox?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "he is naïve"},
    {"role": "assistant", "content": "the fox"},
]
SCHEMA = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object", "properties": {"what": {}}}},
}
CALLING = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}"
    "{{ (m.content if m.content is defined else '') + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + OPENED
)
# As Phi-3's: what is no question ends with the token that ends a text.
CLOSED = CHATML.replace(OPENED, OPENED.replace("{% endif %}", "{% else %}{{ eos_token }}{% endif %}"))


def tokenizer(template: str = CHATML, **config: Any) -> Tokenizer:
    plain = Tokenizer.train(TEXTS, 330).with_specials(["<|im_start|>", TURN])
    named = {"bos_token": END, "eos_token": TURN, "add_bos_token": False, "chat_template": template}
    return Tokenizer(plain._inner, {**named, **config})


def test_answers_are_those_that_transformers_finds(tmp_path: Path) -> None:
    """By `{% generation %}`, which says so in the template itself."""
    from transformers import PreTrainedTokenizerFast

    with Chat(tokenizer()) as chat:
        chat.tokenizer.save(tmp_path)
        theirs: Any = PreTrainedTokenizerFast.from_pretrained(tmp_path).apply_chat_template(
            TALK, return_dict=True, return_assistant_tokens_mask=True
        )
        (ours,) = answered_turns(chat, TALK)
        n = len(ours.ids)
        assert ours.ids.tolist() == theirs["input_ids"][:n]
        assert ours.learned.tolist() == [bool(each) for each in theirs["assistant_masks"][:n]]
        assert not any(theirs["assistant_masks"][n:])
        assert chat.tokenizer.decode(ours.ids[ours.learned], specials=True) == "".join(
            message["content"] + TURN for message in TALK if message["role"] == "assistant"
        )


@pytest.mark.parametrize("template", [CHATML, FORGETTING, CLOSED], ids=["chatml", "forgetting", "closed"])
def test_before_an_answer_stands_what_a_model_is_given_to_write_it(template: str) -> None:
    with Chat(tokenizer(template)) as chat:
        found = answered_turns(chat, TALK)
        begins = [
            text.ids[:at].tolist() for text in found for at in np.flatnonzero(np.diff(text.learned, prepend=False))[::2]
        ]
        assert begins == [chat.token_ids(TALK[:2]), chat.token_ids(TALK[:4])]
        assert len(found) == (2 if template is FORGETTING else 1)


def test_answers_before_the_first_that_counts_are_not_learnt() -> None:
    with Chat(tokenizer()) as chat:
        (whole,), (later,) = answered_turns(chat, TALK), answered_turns(chat, TALK, first=3)
        assert later.ids.tolist() == whole.ids.tolist()
        assert chat.tokenizer.decode(later.ids[later.learned]) == TALK[4]["content"]
        assert answered_turns(chat, TALK[:2]) == []


def test_calls_of_tools_are_answers_and_what_tools_give_is_not(tmp_path: Path) -> None:
    """As transformers hands them to the template: schemas, arguments as an object though the file has them as a text."""
    from transformers import PreTrainedTokenizerFast

    with Chat(tokenizer(CALLING)) as chat:
        chat.tokenizer.save(tmp_path)
        theirs: Any = PreTrainedTokenizerFast.from_pretrained(tmp_path).apply_chat_template(
            CALLED, tools=[SCHEMA], return_dict=True, return_assistant_tokens_mask=True
        )
        called = {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}
        asks = {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": called}], "name": None}
        talk = {"messages": [CALLED[0], asks, *CALLED[2:]]}
        one, two = read_conversations(
            written(tmp_path, {**talk, "tools": [SCHEMA]}, {**talk, "tools": json.dumps([SCHEMA])})
        ).rows
        assert one[:2] == two[:2]
        assert one.tools == two.tools == (SCHEMA,)
        said: Any = one.answers[0]
        (ours,) = answered_turns(chat, said, tools=one.tools)
        n = len(ours.ids)
        assert ours.ids.tolist() == theirs["input_ids"][:n]
        assert ours.learned.tolist() == [bool(each) for each in theirs["assistant_masks"][:n]]
        assert not any(theirs["assistant_masks"][n:])
        learned = chat.tokenizer.decode(ours.ids[ours.learned], specials=True)
        assert learned == '{"name": "find", "arguments": {"what": "fox"}}' + TURN + "the fox" + TURN


def test_tools_are_part_of_what_is_said(tmp_path: Path) -> None:
    with_tools = read_conversations(written(tmp_path, {"messages": CALLED, "tools": [SCHEMA]}))
    without = read_conversations(written(tmp_path, {"messages": CALLED, "tools": []}))
    assert with_tools.fingerprint != without.fingerprint
    assert without.rows[0].tools == ()
    assert '"what": "fox"' in "".join(without.texts())
    answers = [{"role": "assistant", "content": "no"}]
    given = {"prompt": CALLED[:1], "chosen": CALLED[1:], "rejected": answers, "tools": [SCHEMA]}
    assert read_preferences(written(tmp_path, given)).rows[0].tools == (SCHEMA,)


def test_a_template_that_would_leave_tools_out_is_refused() -> None:
    with Chat(tokenizer()) as chat:
        with pytest.raises(TextError, match="the chat template knows no tools"):
            answered_turns(chat, TALK, tools=[SCHEMA])
        with pytest.raises(TextError, match="the chat template knows no tool_calls"):
            answered_turns(chat, CALLED)


def test_a_template_that_opens_answers_otherwise_is_refused() -> None:
    template = "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
    with Chat(tokenizer(template)) as chat, pytest.raises(TextError, match="writes message 3 otherwise than it opens"):
        answered_turns(chat, TALK)


def test_a_prompt_is_as_it_is_continued_and_its_answer_closed() -> None:
    by = tokenizer(add_bos_token=True)
    found = answered_prompt(by, "who is", " the fox?")
    before = encode_prompt(by, "who is")
    assert found.ids.tolist() == [*before, *by.encode(" the fox?"), by.end_of_text]
    assert found.learned.tolist() == [False] * len(before) + [True] * (len(found.ids) - len(before))
    closed = answered_prompt(by, "who is", f" the fox?{TURN} and more")
    assert closed.ids.tolist() == found.ids.tolist()  # nothing behind it is learnt


def test_an_answer_begins_where_the_prompt_ends_even_within_a_token() -> None:
    by = tokenizer()
    both = by.encode("said the")
    cut = next(n for n in range(1, 8) if by.encode("said the"[:n]) != both[: len(by.encode("said the"[:n]))])
    found = answered_prompt(by, "said the"[:cut], "said the"[cut:])
    before = by.encode("said the"[:cut])
    assert found.ids.tolist() == [*before, *by.encode("said the"[cut:]), by.end_of_text]
    assert found.learned.sum() == len(found.ids) - len(before)


def written(folder: Path, *lines: object) -> Path:
    path = folder / "talk.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_files_of_each_form(tmp_path: Path) -> None:
    ask, say, no = TALK[1:2], TALK[2:3], [{"role": "assistant", "content": "no"}]
    corpus = read_conversations(
        written(
            tmp_path,
            {"messages": TALK},
            {"prompt": "a", "completion": "b"},
            {"prompt": ask, "completion": say, "id": 3},
        )
    )
    assert [row.before for row in corpus.rows] == [(), "a", tuple(ask)]
    assert [row.answers for row in corpus.rows] == [(tuple(TALK),), ("b",), (tuple(say),)]
    assert [row.line for row in corpus.rows] == [1, 2, 3]
    assert list(corpus.texts()) == [*(each["content"] for each in TALK), "a", "b", ask[0]["content"], say[0]["content"]]
    given = {"prompt": ask, "chosen": say, "rejected": no}
    both = {"chosen": ask + say, "rejected": ask + no}
    path = written(
        tmp_path, given, both, {"prompt": "a", "chosen": "b", "rejected": "c"}, both | {"prompt": ask[0]["content"]}
    )
    packed = tmp_path / "talk.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    one, two, three, told_again = read_preferences(packed).rows
    assert one[:2] == two[:2] == told_again[:2] == (tuple(ask), (tuple(say), tuple(no)))
    assert three[:2] == ("a", ("b", "c"))
    train, unseen = split_exchanges(read_preferences(path), 0.34)
    assert (len(train.rows), len(unseen.rows)) == (3, 1)
    assert len({train.fingerprint, unseen.fingerprint, corpus.fingerprint}) == 3


SAID = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (3, "line 1: 3 is not an object with messages"),
        (
            [{"messages": [SAID] * 9}] * 99,
            "line 1: .{,400} is not an object with messages",
        ),  # a list that is the whole file
        ({"text": "a"}, 'there is no "messages", and no "prompt" with a "completion", among \'text\''),
        ({"prompt": "a", "completions": "b"}, "there is no 'completion' among .*did you mean 'completions'"),
        ({"prompt": "a", "completion": ""}, "completion is empty"),
        ({"prompt": "a", "completion": [ANSWER]}, "prompt = 'a' is not a list of messages"),
        ({"prompt": "a", "completion": {"b": 1}}, "line 1: completion = {'b': 1} is neither a text nor a list of mess"),
        ({"prompt": [SAID], "completion": [SAID]}, "no message of completion has the role"),
        ({"messages": []}, "no message of messages has the role"),
        ({"messages": [SAID, "b"]}, "message 2 of messages, 'b', is not an object with texts"),
        ({"messages": [{"role": "assistant", "content": None}]}, "message 1 of messages"),
        ({"messages": [{**ANSWER, "content": "\ud800"}]}, "line 1"),
        ({"messages": [{**SAID, "name": "\ud800"}, ANSWER]}, "line 1 holds half a character"),
        (
            {"messages": [SAID, ANSWER], "tools": {"name": "a"}},
            "line 1: tools = .* is not a list of objects, each the JSON",
        ),
        ({"messages": [SAID, ANSWER], "tools": "find"}, "line 1: tools = 'find' is not JSON"),
        ({"prompt": "a", "completion": "b", "tools": [{}]}, "tools are for messages"),
        ({"messages": [{"role": "assistant", "tool_calls": ["a"]}]}, r"tool_calls = \['a'\] is not a list of objects"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{b"}]}]},
            "message 1 of messages: arguments = '{b' of a tool call is not JSON",
        ),
    ],
)
def test_what_is_no_conversation_is_refused(line: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(AnyformerError, match=says):
        read_conversations(written(tmp_path, line))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"chosen": "a", "rejected": "b"}, 'there is no "prompt"'),
        ({"prompt": "a", "chosen": "b"}, "there is no 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are the same"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "rejected is empty"),
        ({"chosen": [SAID, ANSWER], "rejected": [SAID]}, "no message of rejected has the role"),
        ({"prompt": "c", "chosen": [SAID, ANSWER], "rejected": [SAID]}, "'c' is none of the messages that both"),
    ],
)
def test_what_is_no_preference_is_refused(line: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=says):
        read_preferences(written(tmp_path, line))


@pytest.mark.parametrize(("name", "says"), [("talk.csv", "ends in .jsonl"), ("none.jsonl", "no conversations at")])
def test_other_files_are_refused(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "talk.csv").write_text("messages\n")
    with pytest.raises(TextError, match=says):
        read_conversations(tmp_path / name)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TextError, match="holds no conversations"):
        read_conversations(tmp_path / "empty.jsonl")
