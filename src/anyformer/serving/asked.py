"""What a request asks, read strictly from its JSON: what would change the answer and is not done here is refused by name."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anyformer.generation import Form, Sampling
from anyformer.inference.embedding import Pooling
from anyformer.serving.limits import Refusal
from anyformer.serving.tools import Tools, read_calls, read_tools

MOST_STOPS, MOST_LIKELIEST, MOST_CHOICES, MOST_TEXTS = 16, 20, 64, 2048
USUAL = Sampling(temperature=1.0)  # as OpenAI has it
MOST_ID = 2**31 - 1  # which numbers of tensors and of tokenizers hold; the model says which of them it has
# Fields that change nothing with these values, and are refused with any other.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    "tools": ([],),  # of completions
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "dimensions": (),
}
# Fields that speak of the one who asks, not of the answer.
IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention"),
)


def parsed(content: bytes | bytearray) -> Any:
    """The JSON of a body. Raises Refusal."""
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal("the body is no JSON") from None
    except ValueError:  # of Python, which reads no longer ones
        raise Refusal(
            f"the body has a number of more than {sys.get_int_max_str_digits():,} digits, which no field takes"
        ) from None


class Fields:
    """The fields of a body, each taken with its type and range; what is taken is known. Raises Refusal, which names the field."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise Refusal("the body must be a JSON object")
        self.body: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
        self.known = {"model"}  # which is asked for before all others

    def refuse_others(self, *more: str) -> None:
        """Refuse fields that were not taken, nor will be, as the `more` are, unless they change nothing."""
        self.known.update(more)
        for name, value in self.body.items():
            if name in NEUTRAL and name not in self.known:
                if value not in NEUTRAL[name]:
                    raise Refusal(f"{name} is not supported here; leave it out", param=name, code="unsupported_value")
            elif name not in self.known and name not in IGNORED:
                raise Refusal(
                    f"{name} is unknown here; leave it out. There are {', '.join(sorted(self.known))}",
                    param=name[:100],
                    code="unknown_parameter",
                )

    def given(self, name: str, default: Any = None) -> Any:
        """What it says, whatever that is."""
        self.known.add(name)
        return self.body.get(name, default)

    def whole(self, name: str, default: int | None, least: int, most: int) -> int | None:
        """A whole number."""
        value = self.given(name, default)
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise Refusal(f"{name} must be a whole number from {least} to {most}", param=name)
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A number."""
        value = self.given(name, default)
        if type(value) not in (int, float) or not least <= value <= most:
            raise Refusal(f"{name} must be a number from {least:g} to {most:g}", param=name)
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.given(name, default)
        if type(value) is not bool:
            raise Refusal(f"{name} must be true or false", param=name)
        return value

    def word(self, name: str, default: str, among: Sequence[str]) -> str:
        """One of some words."""
        value = self.given(name, default)
        if value not in among:
            raise Refusal(f"{name} must be one of {', '.join(among)}", param=name)
        return value


@dataclass(frozen=True)
class Asked:
    """How texts are to go on, whatever they are."""

    sampling: Sampling
    seed: int
    stop: tuple[str, ...]
    stream: bool
    usage: bool  # a stream ends with how many tokens there were
    n: int
    max_tokens: int | None
    limit: str  # the field that says how many
    likeliest: int | None  # tokens told of beside each chosen one; None: no probabilities
    form: dict[Form, Any]  # that texts are held to, one or none
    tools: Tools = field(default_factory=Tools)
    echo: bool = False
    suffix: str | None = None  # behind a gap that is to be filled


def read_way(
    fields: Fields,
    usual: Sampling,
    likeliest: int | None,
    max_tokens: int | None,
    limit: str = "max_tokens",
    *,
    echo: bool = False,
) -> Asked:
    """The fields that completions and chats share; what none says of choosing is as `usual`."""
    top_p = fields.number("top_p", usual.top_p or 1.0, 0, 1)
    if not top_p:
        raise Refusal("top_p must be above 0", param="top_p")
    top_k = fields.whole("top_k", usual.top_k, -1, 10**9)  # -1 and 0, as others have it: all
    sampling = replace(
        usual,
        temperature=fields.number("temperature", usual.temperature, 0, 100),
        top_k=None if top_k is None or top_k < 1 else top_k,
        top_p=None if top_p == 1 else top_p,
        min_p=fields.number("min_p", usual.min_p or 0, 0, 1),
        repetition_penalty=fields.number("repetition_penalty", usual.repetition_penalty, 0.01, 100),
        presence_penalty=fields.number("presence_penalty", usual.presence_penalty, -2, 2),
        frequency_penalty=fields.number("frequency_penalty", usual.frequency_penalty, -2, 2),
        bias=_bias(fields),
        no_repeat_ngram_size=fields.whole("no_repeat_ngram_size", usual.no_repeat_ngram_size, 0, 10**9) or 0,
        min_new_tokens=fields.whole("min_tokens", usual.min_new_tokens, 0, 10**9) or 0,
    )
    if "min_tokens" in fields.body and max_tokens is not None and sampling.min_new_tokens > max_tokens:
        raise Refusal(f"min_tokens is more than the {max_tokens:,} of {limit}; give fewer", param="min_tokens")
    seed = fields.whole("seed", None, -(2**63), 2**63 - 1)
    return Asked(
        sampling=sampling,
        seed=secrets.randbits(62) if seed is None else seed % 2**62,
        stop=_stops(fields),
        stream=fields.flag("stream"),
        usage=_usage(fields),
        n=fields.whole("n", 1, 1, MOST_CHOICES) or 1,
        max_tokens=max_tokens,
        limit=limit,
        likeliest=likeliest,
        form=_form(fields),
        echo=echo,
    )


def read_completion(body: Any, usual: Sampling = USUAL) -> tuple[Asked, list[str | list[int]]]:
    """(how, the prompts: each a text or token ids) of a request for completions."""
    fields = Fields(body)
    likeliest = fields.whole("logprobs", None, 0, MOST_LIKELIEST)
    max_tokens = fields.whole("max_tokens", 16, 0, 10**9)
    echo = fields.flag("echo")
    asked = read_way(fields, usual, likeliest, max_tokens, echo=echo)
    if fields.given("best_of", asked.n) != asked.n:
        raise Refusal("best_of is not supported here, but as many as n; leave it out", param="best_of")
    if echo and asked.stream:
        raise Refusal("echo comes with the whole answer; leave stream out", param="echo")
    prompts = _texts(fields, "prompt", "")
    asked = replace(asked, suffix=_suffix(fields, prompts, echo))
    fields.refuse_others()
    if len(prompts) * asked.n > MOST_CHOICES * 4:
        raise Refusal(f"a request may ask for {MOST_CHOICES * 4} texts at most; send several", param="prompt")
    return asked, prompts


def read_chat(body: Any, usual: Sampling = USUAL) -> tuple[Asked, list[dict[str, Any]]]:
    """(how, the conversation) of a request for an answer."""
    fields = Fields(body)
    likeliest = fields.whole("top_logprobs", 0, 0, MOST_LIKELIEST)
    told = fields.flag("logprobs")
    if likeliest and not told:
        raise Refusal("top_logprobs needs logprobs: true", param="top_logprobs")
    limits = {name: fields.whole(name, None, 1, 10**9) for name in ("max_completion_tokens", "max_tokens")}
    limit = next((name for name, n in limits.items() if n), "max_tokens")
    asked = read_way(fields, usual, likeliest if told else None, limits[limit], limit)
    parallel = fields.flag("parallel_tool_calls", default=True)
    tools = read_tools(fields.given("tools", []), fields.given("tool_choice"), parallel)
    if tools.callable and asked.form:
        raise Refusal("an answer that may call tools is held to no response_format; leave one out", param="tools")
    asked = replace(asked, tools=tools, form=tools.form() if tools.must else asked.form)
    fields.refuse_others("messages")
    messages = fields.given("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal("messages must be a list of {'role', 'content'}, and not empty", param="messages")
    return asked, [_message(each, i) for i, each in enumerate(messages)]


def read_embedding(body: Any) -> tuple[list[str | list[int]], bool, Pooling]:
    """(texts or token ids, whether the vectors are to be base64, how they are made) of a request for embeddings."""
    fields = Fields(body)
    coded = fields.word("encoding_format", "float", ("float", "base64")) == "base64"
    dimensions = fields.whole("dimensions", None, 1, 10**9)
    name = fields.given("prompt_name")
    fields.refuse_others("input")
    texts = _texts(fields, "input", None)
    if len(texts) > MOST_TEXTS:
        raise Refusal(f"a request may have {MOST_TEXTS:,} texts at most; send several", param="input")
    if name is not None and not isinstance(name, str):
        raise Refusal("prompt_name must be a text", param="prompt_name")
    if name is not None and not all(isinstance(each, str) for each in texts):
        raise Refusal(
            "prompt_name goes before texts, and token ids are read as they are; leave it out", param="prompt_name"
        )
    return texts, coded, Pooling(prompt_name=name, dimensions=dimensions, may_cut=False)


def _message(given: Any, number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise Refusal(f"{where} must be an object with role and content", param="messages")
    more = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}.get(given["role"], ())
    known = ("role", "content", *more)
    if wrong := sorted(name for name, value in given.items() if value and name not in known):
        message = f"{where}.{wrong[0]} is not supported here; such a message has {', '.join(known)}"
        raise Refusal(message, param="messages")
    said = {name: given[name] for name in more if given.get(name)}
    if "tool_calls" in said:
        said["tool_calls"] = read_calls(said["tool_calls"], where)
    elif wrong := [name for name, value in said.items() if not isinstance(value, str)]:
        raise Refusal(f"{where}.{wrong[0]} must be a text", param="messages")
    content = given.get("content")
    if content is None and given["role"] == "assistant":  # who said nothing, as OpenAI writes it
        content = ""
    if isinstance(content, list):  # parts, of which texts are one kind
        if not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in content
        ):
            raise Refusal(f"{where}.content has parts that are no text; this model reads text alone", param="messages")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise Refusal(f"{where}.content must be a text", param="messages")
    return {"role": given["role"], "content": content, **said}


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.given("stop", [])
    stops = [given] if isinstance(given, str) else given
    if (
        not isinstance(stops, list)
        or not all(isinstance(each, str) and each for each in stops)
        or len(stops) > MOST_STOPS
    ):
        raise Refusal(f"stop must be a text that is not empty, or a list of at most {MOST_STOPS}", param="stop")
    return tuple(stops)


def _suffix(fields: Fields, prompts: Sequence[str | list[int]], echo: bool) -> str | None:
    """What stands behind a gap; None, and an empty one as OpenAI has it: there is no gap."""
    suffix = fields.given("suffix", "")
    if not isinstance(suffix, str):
        raise Refusal("suffix must be a text", param="suffix")
    if suffix and (echo or not all(isinstance(each, str) for each in prompts)):
        raise Refusal("suffix goes with prompts that are texts, without echo; leave one out", param="suffix")
    return suffix or None


def _bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    given = fields.given("logit_bias", {})
    if (
        not isinstance(given, dict)
        or not all(
            token.isdecimal() and token.isascii() and len(token) < 11 and int(token) <= MOST_ID for token in given
        )
        or not all(type(more) in (int, float) and -100 <= more <= 100 for more in given.values())
    ):
        raise Refusal(
            "logit_bias must be an object of token ids, each with a number from -100 to 100", param="logit_bias"
        )
    return tuple((int(token), float(more)) for token, more in given.items())


def _form(fields: Fields) -> dict[Form, Any]:
    """What a response format holds texts to: nothing, any JSON object, values of a schema, or a grammar's texts."""
    given = fields.given("response_format", {"type": "text"})
    match given:
        case {"type": "text", **rest} if not rest:
            return {}
        case {"type": "json_object", **rest} if not rest:
            return {"json_schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json_schema": schema}
        case {"type": "grammar", "syntax": "regex" | "lark" as syntax, "definition": str(definition)}:
            return {"regex" if syntax == "regex" else "grammar": definition}
    raise Refusal(
        "response_format must be {'type': 'text'} or {'type': 'json_object'}, {'type': 'json_schema', 'json_schema': "
        "{'name': …, 'schema': {…}}}, or {'type': 'grammar', 'syntax': 'regex' or 'lark', 'definition': …}",
        param="response_format",
    )


def _usage(fields: Fields) -> bool:
    """Whether a stream ends with how many tokens there were."""
    options = fields.given("stream_options", {})
    if not isinstance(options, dict):
        raise Refusal("stream_options must be an object such as {'include_usage': true}", param="stream_options")
    for name, value in options.items():
        where = f"stream_options.{name}"[:100]
        if name == "include_usage" and type(value) is not bool:
            raise Refusal(f"{where} must be true or false", param=where)
        if name != "include_usage" and (name, value) != ("include_obfuscation", False):
            raise Refusal(f"{where} is not supported here; leave it out", param=where, code="unsupported_value")
    return options.get("include_usage", False)


def _texts(fields: Fields, name: str, default: str | None) -> list[str | list[int]]:
    """What a field gives to be read, each a text or token ids."""
    given = fields.given(name, default)
    if isinstance(given, str) or (isinstance(given, list) and given and all(type(each) is int for each in given)):
        given = [given]
    if not isinstance(given, list) or not given or not all(isinstance(each, str) or _is_ids(each) for each in given):
        raise Refusal(f"{name} must be a text, token ids (from 0), or a list of either", param=name)
    return given


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int and 0 <= each <= MOST_ID for each in value)
