"""The page at the root: it loads nothing, runs its own script alone, and reads what the routes really answer."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import httpx
import pytest

from anyformer.inference.opened import Opened
from anyformer.serving import Limits, application
from anyformer.text import Tokenizer
from tests.laws.models import SHRUNK, randomised
from tests.serving.conftest import Running, Start

HOSTILE = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"


class Parsed(HTMLParser):
    """The elements of a page, and what stands in its scripts and styles."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.at = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        self.at = given.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self.at = ""

    def handle_data(self, data: str) -> None:
        self.inside[self.at] = self.inside.get(self.at, "") + data


def page_of(found: Opened, name: str = "tiny") -> tuple[Parsed, dict[str, str]]:
    app = application(found, name, Limits(longest=64))
    try:
        (route,) = (each for each in app.routes if getattr(each, "path", "") == "/")
        page = route.endpoint.__self__  # type: ignore[attr-defined]
        return Parsed(page.content), page.headers
    finally:
        app.state.service.close()


def test_it_loads_nothing_and_runs_its_own_script_alone(running: Running) -> None:
    told = httpx.get(running.url)
    page, policy = Parsed(told.text), told.headers["content-security-policy"]
    assert told.headers["content-type"].startswith("text/html")
    assert not [tag for tag, given in page.elements if given.keys() & {"src", "href", "style", "onclick"}]
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.inside[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_a_hostile_name_is_a_name(found: Opened) -> None:
    page, _ = page_of(found, HOSTILE)
    assert page.inside["h1"] == page.inside["title"] == HOSTILE
    assert json.loads(page.inside["facts"])["model"] == HOSTILE
    assert "img" not in {tag for tag, _ in page.elements}


def kinds(found: Opened) -> dict[str, tuple[Opened, list[str]]]:
    def other(preset: str) -> Opened:
        spec = next(spec for name, spec in SHRUNK.items() if preset in name.split(" = "))
        return Opened(randomised(spec), found.tokenizer, None)

    plain = Tokenizer(found.tokenizer._inner, {})
    return {
        "talks": (found, ["chat", "text"]),
        "goes on": (found._replace(tokenizer=plain), ["text"]),
        "answers": (other("t5-small"), ["answer"]),
        "writes nothing": (other("bert-base"), ["vectors"]),
    }


@pytest.mark.parametrize("kind", ["talks", "goes on", "answers", "writes nothing"])
def test_it_offers_what_the_model_can_do(found: Opened, kind: str) -> None:
    opened, ways = kinds(found)[kind]
    page, _ = page_of(opened)
    facts = json.loads(page.inside["facts"])
    assert facts["ways"] == ways
    assert facts["ends"] == [opened.tokenizer.spelling(token) for token in opened.tokenizer.closing_ids]
    assert 0 < facts["new_tokens"] <= 32  # a prompt has half the room
    ids = {given.get("id") for _, given in page.elements}
    sections = {"chat": "ask", "text": "write", "answer": "write", "vectors": "compare"}
    assert ids & set(sections.values()) == {sections[way] for way in ways}
    assert ("read" in ids) == ("text" in ways)  # an encoder's text is not written, so that it has no likelihood
    assert ("settings" in ids) == ("vectors" not in ways)


def test_the_page_has_no_key_and_needs_none(start: Start) -> None:
    with start(api_key="a secret of ours") as server:
        told = httpx.get(server.url)
        assert told.status_code == 200
        assert "a secret" not in told.text
        assert httpx.get(f"{server.v1}/models").status_code == 401


def in_node(expression: str, given: Any) -> Any:
    """What the page's script makes of `given`, by Node.js, with as much of a browser as it takes to load it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed, so that the page's script is not run")
    program = """
    const vm = require("node:vm");
    const { script, expression, given } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
    const element = { textContent: '{"ways": []}' };
    const document = { forms: [], getElementById: () => element, querySelector: () => null, querySelectorAll: () => [],
      addEventListener: () => {} };
    const context = vm.createContext({ document, TextDecoderStream, given, Response, ReadableStream });
    vm.runInContext(script, context);
    Promise.resolve(vm.runInContext(expression, context)).then((found) => console.log(JSON.stringify(found)));
    """
    script = files("anyformer.serving").joinpath("page.js").read_text(encoding="utf-8")
    sent = json.dumps({"script": script, "expression": expression, "given": given})
    told = subprocess.run([node, "-e", program], input=sent, capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


PROMPT, ASKED = "Größe, naïve 🙂", {"temperature": 0, "max_tokens": 40}


def test_the_tokens_of_a_completion_make_its_text(running: Running) -> None:
    body = {"prompt": PROMPT, "logprobs": 3, "echo": True, **ASKED}
    told = httpx.post(f"{running.v1}/completions", json=body, timeout=60).json()["choices"][0]
    tokens = in_node("completed(given)", told["logprobs"])
    starts = [each["at"] for each in tokens]
    assert starts == sorted(starts)
    assert starts[0] == 0
    pieces = [told["text"][a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert "".join(pieces) == told["text"]
    whole = [(piece, each) for piece, each in zip(pieces, tokens, strict=True) if "bytes:" not in each["text"]]
    assert len(whole) > 20
    for piece, each in whole:
        assert piece in (each["text"], "")  # a token that ends the text is not in it
        if each["logprob"] is not None:
            assert {"text": each["text"], "logprob": each["logprob"]} in each["tops"]


def test_the_tokens_of_a_chat_are_found_in_its_text(running: Running) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "logprobs": True, "top_logprobs": 2, **ASKED}
    told = httpx.post(f"{running.v1}/chat/completions", json=body, timeout=60).json()["choices"][0]
    content, said = told["message"]["content"], told["logprobs"]
    tokens, end = in_node("chatted(given.said, given.content, 0)", {"said": said, "content": content})
    assert len(tokens) > 20
    assert content[:end].endswith(tokens[-1]["text"])
    encoded = content.encode("utf-16-le")  # which JavaScript counts in
    for each, after in zip(tokens, [*(token["at"] for token in tokens[1:]), end], strict=True):
        assert encoded[2 * each["at"] : 2 * after].decode("utf-16-le").endswith(each["text"])


def test_a_token_that_a_chat_leaves_out_is_not_looked_for_further_on() -> None:
    said = {"content": [{"token": each, "logprob": -1.0, "top_logprobs": []} for each in ("a", "z", "b")]}
    tokens, end = in_node("chatted(given.said, given.content, 0)", {"said": said, "content": "a b, then z"})
    assert [each["text"] for each in tokens] == ["a", "b"]
    assert end == 3


def test_events_come_whole_however_they_are_cut(running: Running) -> None:
    body = {"prompt": PROMPT, "stream": True, **ASKED}
    sent = httpx.post(f"{running.v1}/completions", json=body, timeout=60).content
    expected = httpx.post(f"{running.v1}/completions", json={"prompt": PROMPT, **ASKED}, timeout=60).json()
    read = """(async () => {
      const body = new ReadableStream({ start(to) {
        for (let i = 0; i < given.length; i += 7) to.enqueue(Uint8Array.from(given.slice(i, i + 7)));
        to.close();
      } });
      let text = "";
      try { for await (const choice of events({ body })) text += choice.text; } catch (error) { return [text, error.message]; }
      return [text, null];
    })()"""
    assert in_node(read, list(sent)) == [expected["choices"][0]["text"], None]
    text, wrong = in_node(read, list(sent[: len(sent) // 2]))
    assert expected["choices"][0]["text"].startswith(text)
    assert wrong == "the server ended before the answer did"
