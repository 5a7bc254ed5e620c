"""Tools: OpenAI's own client hands them over and reads the calls; the template is told what its author's would be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from anyformer.generation import Sampling, generate_text
from anyformer.inference.opened import Opened
from anyformer.serving import Limits, application
from anyformer.serving.limits import Refusal
from anyformer.serving.tools import Tools, read_calls, read_tools
from anyformer.text.chat import Chat

PLACE = {"properties": {"city": {"enum": ["Oslo", "Ürümqi"]}}, "required": ["city"], "additionalProperties": False}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"$ref": "#/$defs/Place"}},
            "required": ["at"],
            "additionalProperties": False,
            "$defs": {"Place": {"type": "object", **PLACE}},
        },
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CITIES = ({"at": {"city": "Oslo"}}, {"at": {"city": "Ürümqi"}})
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def told(found: Opened) -> Opened:
    """The model, and a template that knows tools."""
    return found._replace(tokenizer=found.tokenizer.with_chat_template(TEMPLATE))


@pytest.fixture(scope="module")
def client(told: Opened) -> Iterator[openai.OpenAI]:
    with TestClient(application(told, "tiny", Limits(longest=900))) as http:
        yield openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http, max_retries=0)


ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "the fox"}],
    "tools": [WEATHER, NOW],
    "max_tokens": 200,
    "seed": 2,
}


def ask(client: openai.OpenAI, **change: Any) -> Any:
    """What is answered to the request, so changed."""
    create: Any = client.chat.completions.create
    return create(**ASKED | change)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_is_asked_for_comes(client: openai.OpenAI, choice: Any) -> None:
    """Whole, and in a stream; its arguments have the function's schema, references and all."""
    names = {"get_weather"} if isinstance(choice, dict) else {"get_weather", "now"}
    answer = ask(client, tool_choice=choice, n=3)
    for each in answer.choices:
        assert each.finish_reason == "tool_calls"
        assert each.message.content is None
        (call,) = each.message.tool_calls or []
        assert call.type == "function"
        assert call.id.startswith("call_")
        assert call.function.name in names
        assert json.loads(call.function.arguments) in (CITIES if call.function.name == "get_weather" else ({},))
    calls, reasons = [], []
    with ask(client, tool_choice=choice, stream=True) as stream:
        for event in stream:
            for piece in event.choices:
                assert not piece.delta.content
                calls += piece.delta.tool_calls or []
                reasons += [piece.finish_reason] if piece.finish_reason else []
    assert [(each.index, each.function and each.function.name) for each in calls] == [
        (0, (answer.choices[0].message.tool_calls or [])[0].function.name)  # type: ignore[union-attr]
    ]
    assert reasons == ["tool_calls"]


def test_arguments_are_an_object_where_the_schema_does_not_say(client: openai.OpenAI) -> None:
    loose = {"properties": {"x": {"const": 1}}, "required": ["x"], "additionalProperties": False}
    tools: Any = [{"type": "function", "function": {"name": "now", "parameters": loose}}]
    answer = client.chat.completions.create(**ASKED | {"tools": tools}, tool_choice="required", n=4)
    for each in answer.choices:
        (call,) = each.message.tool_calls or []
        assert json.loads(call.function.arguments) == {"x": 1}


def test_an_answer_that_calls_nothing_is_text(client: openai.OpenAI, told: Opened) -> None:
    """The same whole and in a stream, after the prompt that the template writes of the tools."""
    with Chat(told.tokenizer) as template:
        prompt = template.token_ids(ASKED["messages"], [WEATHER, NOW])
    (expected,) = generate_text(told.model, told.tokenizer, [prompt], max_new_tokens=20, sampling=Sampling(1.0), seed=2)
    for choice in "auto", "none":
        answer = ask(client, max_tokens=20, tool_choice=choice).choices[0]
        assert answer.message.content == expected.text
        assert answer.message.tool_calls is None
        with ask(client, max_tokens=20, tool_choice=choice, stream=True) as stream:
            pieces = [each.delta.content or "" for event in stream for each in event.choices]
        assert "".join(pieces) == expected.text
        assert (sum(map(bool, pieces)) == 1) == (choice == "auto"), "what may be a call is told when it is whole"


def test_what_a_tool_gave_is_read(client: openai.OpenAI, told: Opened) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "hm"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "name": "get_weather", "content": "rain"},
    ]
    answer = ask(client, messages=messages, tools=[], max_tokens=1)
    said = "user: hm\nassistant: get_weather(Oslo)\ntool: rain\nassistant:"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(told.tokenizer.encode(said))


TOOLS = read_tools([WEATHER, NOW], None, parallel=True)
CALL = ("now", {})


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [CALL]),
        (
            'Sure. [TOOL_CALLS][{"name": "now", "arguments": {}},\n{"name": "now", "parameters": {}}]',
            "Sure.",
            [CALL] * 2,
        ),
        ('<|tool_call|>[{"name": "get_weather", "arguments": {"at": "{}"}}]', "", [("get_weather", {"at": "{}"})]),
        (
            '{"name": "now", "arguments": {"x": {"name": "now", "arguments": {}}}}',
            "",
            [("now", {"x": {"name": "now", "arguments": {}}})],
        ),
        ('{"name": "now", "arguments": {}} and more', "and more", [CALL]),
        ('{"type": "function", "function": {"name": "now", "arguments": {}}}', "", [CALL]),
        ('{"name": "now", "arguments": {"x": "\\ud800ä"}}', "", [("now", {"x": "\ud800ä"})]),
        ('{"name": "now", "arguments": {"x": NaN}}', None, []),
        ('{"name": "now", "arguments": {"x": 1e999}}', None, []),
        ('{"example": {"name": "now", "arguments": {}}}', None, []),
        ('{"name": "later", "arguments": {}}', None, []),
        ('{"name": "now", "arguments": "none"}', None, []),
        ('{"name": ["now"], "arguments": {}}', None, []),
        ('{"name": "now", "arguments": {}', None, []),
        ("{" * 5000, None, []),
        ('{"a":' * 5000, None, []),
        ("  two [brackets] <b>\n", None, []),
    ],
)
def test_calls_are_read_out_of_a_text(text: str, said: str | None, calls: list[tuple[str, Any]]) -> None:
    found, read = TOOLS.read(text)
    assert found == (text if said is None else said)
    assert [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in read] == calls
    json.dumps(read, ensure_ascii=False).encode()  # as a stream writes it
    assert len({each["id"] for each in read}) == len(calls)
    assert Tools().read(text) == (text, [])


@pytest.mark.parametrize("blank", [" ", "\n,", "<a", "[A", "</|"])
def test_a_long_text_behind_a_call_is_read_at_once(blank: str) -> None:
    """In which a hostile prompt has the model write blanks, the server answers others all the same."""
    behind, start = blank * 30_000 + "x", time.perf_counter()
    said, (call,) = TOOLS.read('{"name": "now", "arguments": {}} so' + behind)
    assert said == "so" + behind
    assert call["function"]["name"] == "now"
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": "now"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": 3}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": []}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "description": 3}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "more": 3}}]}, "tools"),
        ({"tool_choice": ""}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "later"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "tools"),
        (
            {"tool_choice": "required", "tools": [{**NOW, "function": {"name": "x", "parameters": {"type": 3}}}]},
            "tools",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{"}}]}]},
            "messages",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 3}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "3"}]}, "messages"),
    ],
)
def test_what_is_wrong_is_named(client: openai.OpenAI, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **change)
    assert refused.value.param == param
    assert "\n" not in refused.value.message


def test_a_template_that_knows_no_tools_is_not_asked(found: Opened) -> None:
    with TestClient(application(found, "tiny", Limits(longest=900))) as http:
        bare = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http, max_retries=0)
        with pytest.raises(openai.BadRequestError, match="the chat template knows no tools, and would leave them out"):
            ask(bare)


def test_calls_in_messages_have_arguments_as_templates_want_them() -> None:
    given = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    assert read_calls(given, "messages[0]")[0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert read_calls([{"function": {"name": "f", "arguments": ""}}], "messages[0]")[0]["function"]["arguments"] == {}
    with pytest.raises(Refusal, match=r"messages\[0\].tool_calls must be a list"):
        read_calls([{"function": {"name": "f", "arguments": "3"}}], "messages[0]")
