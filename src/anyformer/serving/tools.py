"""Tools of a request: functions that an answer may call, and the calls that are read out of what a model writes."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

from anyformer.generation import Form, spaced
from anyformer.serving.limits import Refusal
from anyformer.text.chat import Tool

MOST_TOOLS = 128
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# What stands around calls: blanks, a list's brackets, and marks such as <tool_call>, <|tool_call|> or [TOOL_CALLS].
AROUND = r"[\s,]|</?\|?[\w-]{1,40}\|?>|\[/?[A-Z_]{1,40}\]|[\[\]]"
HALF = re.compile("[\ud800-\udfff]")  # of a character, which UTF-8 has no bytes for; JSON spells it
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True)
class Tools:
    """The functions that a conversation tells of, those of them that its answer may call, and whether it must call one."""

    told: tuple[Tool, ...] = ()
    callable: tuple[str, ...] = ()
    must: bool = False

    def form(self) -> dict[Form, Any]:
        """What an answer that must call one is held to: an object of its name and of arguments that have its schema."""
        lines = ["start: " + " | ".join(f"call{i}" for i in range(len(self.callable)))]
        schemas = {each["function"]["name"]: each["function"].get("parameters") for each in self.told}
        for i, name in enumerate(self.callable):
            begun, schema = json.dumps({"name": name})[:-1], spaced({"type": "object", **(schemas[name] or NOTHING)})
            lines.append(f"""call{i}: {json.dumps(begun + ', "arguments": ')} arguments{i} "}}" """)
            lines.append(f"arguments{i}: %json {json.dumps(schema)}")
        return {"grammar": "\n".join(lines)}

    def read(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """(what an answer says beside its calls, the calls as OpenAI's interface has them).

        A call is a JSON object that has the name of a function, and its arguments (or "parameters"), or has these as its
        "function": alone, in a list, or between marks. Within another object it is none.
        """
        calls, said, end, read = list[dict[str, Any]](), "", 0, 0
        for start in (found.start() for found in re.finditer(r"\{", text) if self.callable):
            if start < read:  # within an object that is read already
                continue
            try:
                value, read = json.JSONDecoder().raw_decode(text, start)
                value = value["function"] if isinstance(value.get("function"), dict) else value
                given = next((value[name] for name in ARGUMENTS if isinstance(value.get(name), dict)), None)
                if value.get("name") not in self.callable or given is None:
                    continue
                arguments = json.dumps(given, ensure_ascii=False, allow_nan=False)
            except (ValueError, RecursionError):
                continue
            arguments = HALF.sub(lambda half: json.dumps(half[0])[1:-1], arguments)
            function = {"name": value["name"], "arguments": arguments}
            calls.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
            said += text[end:start]
            end = read
        if not calls:
            return text, []
        said += text[end:]
        words = [found for found in re.finditer(rf"{AROUND}|(.)", said) if found[1]]
        return said[words[0].start() : words[-1].end()] if words else "", calls


def read_tools(tools: Any, choice: Any, parallel: bool) -> Tools:
    """The tools of a request, by its fields `tools`, `tool_choice` and `parallel_tool_calls`. Raises Refusal."""
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise Refusal(f"tools must be a list of at most {MOST_TOOLS} functions", param="tools")
    for i, each in enumerate(tools):
        match each:
            case {"type": "function", "function": {"name": str(name), **rest}} if NAME.fullmatch(name):
                if all(value is None or _fits(more, value) for more, value in rest.items()):
                    continue
        raise Refusal(
            f"tools[{i}] must be {{'type': 'function', 'function': {{'name': …, 'description': …, 'parameters': {{…}}}}}}, "
            "its name of letters, digits, _ and -, the parameters a schema of an object",
            param="tools",
        )
    names = tuple(dict.fromkeys(each["function"]["name"] for each in tools))
    match ("auto" if names else "none") if choice is None else choice:
        case "none":
            return Tools(tuple(tools))
        case "auto" if names and not parallel:
            raise Refusal(
                "how many tools are called is the model's here; leave parallel_tool_calls out, or require a call",
                param="parallel_tool_calls",
            )
        case "auto" | "required" as word if names:
            return Tools(tuple(tools), names, must=word == "required")
        case {"type": "function", "function": {"name": name}} if name in names:
            return Tools(tuple(tools), (name,), must=True)
        case "auto":
            return Tools()
    raise Refusal(
        "tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': …}}, of one of the tools",
        param="tool_choice",
    )


def _fits(field: str, value: Any) -> bool:
    """Whether a function may have this beside its name."""
    match field, value:
        case ("description", str()) | ("strict", bool()):
            return True
        case "parameters", dict():
            return value.get("type", "object") == "object"
    return False


def read_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """The calls in a message of the assistant, with arguments as objects, as templates want them. Raises Refusal."""
    found = []
    for each in calls if isinstance(calls, list) else [None]:
        match each:
            case {"function": {"name": str(name), "arguments": arguments}}:
                try:
                    read = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
                except (ValueError, RecursionError):
                    read = None
                if isinstance(read, dict):
                    found.append({**each, "function": {"name": name, "arguments": read}})
                    continue
        raise Refusal(
            f"{where}.tool_calls must be a list of {{'id', 'type', 'function': {{'name', 'arguments'}}}}, the arguments JSON "
            "of an object",
            param="messages",
        )
    return found
