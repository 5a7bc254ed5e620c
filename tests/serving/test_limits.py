"""What a server refuses, how it says so, and what it counts."""

from __future__ import annotations

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from anyformer.errors import InputError
from anyformer.inference.opened import Opened
from anyformer.serving import Limits
from anyformer.serving.limits import Refusal, RequestRates
from tests.serving.conftest import LONGEST, Running, Start

ASK = {"prompt": "if x", "max_tokens": 3, "temperature": 0}


def refused(answer: httpx.Response, status: int, code: str | None = None) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error["message"]


def test_a_wrong_key(start: Start) -> None:
    with start(Limits(longest=LONGEST), api_key="secret") as server:
        for key in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret2"}):
            refused(httpx.post(f"{server.v1}/completions", json=ASK, headers=key), 401, "invalid_api_key")
        good = {"Authorization": "Bearer secret"}
        assert httpx.post(f"{server.v1}/completions", json=ASK, headers=good).status_code == 200
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}


def test_bodies(start: Start) -> None:
    with start(Limits(longest=LONGEST, body_nbytes=6000)) as server:
        where, json = f"{server.v1}/completions", {"Content-Type": "application/json"}
        assert "longer than 6,000 bytes" in refused(httpx.post(where, json={"prompt": "x" * 7000}), 413)
        refused(httpx.post(where, content=(b"[" for _ in range(7000)), headers=json), 413)
        refused(httpx.post(where, content=b"{", headers=json), 400)
        refused(httpx.post(where, content=b"[" * 900, headers=json), 400)
        refused(httpx.post(where, content=b"[1]", headers=json), 400)
        refused(httpx.post(where, content=b'{"prompt": "a", "temperature": NaN}', headers=json), 400)
        refused(httpx.post(where, content=b'{"prompt": "\\ud800"}', headers=json), 400)
        refused(httpx.post(where, content=b'{"prompt": "a", "\\ud800": 1}', headers=json), 400, "unknown_parameter")
        for name in ("temperature", "top_p"):
            refused(
                httpx.post(where, content=b'{"prompt": "a", "%s": 1%s}' % (name.encode(), b"0" * 400), headers=json),
                400,
            )
        told = refused(httpx.post(where, content=b'{"prompt": "a", "seed": 1%s}' % (b"0" * 5000), headers=json), 400)
        assert "no JSON" not in told
        assert "a number of more than 4,300 digits, which no field takes" in told
        for token in (-1, 2**40, 10**30):
            refused(httpx.post(where, json={"prompt": [token]}), 400)
        refused(httpx.post(where, data={"prompt": "a"}), 415)
        refused(httpx.get(where), 405)
        refused(httpx.get(f"{server.v1}/nothing"), 404)
        assert httpx.post(where, json=ASK).status_code == 200


def test_too_often(start: Start) -> None:
    with start(Limits(longest=LONGEST, rate=3)) as server:
        for _ in range(3):
            assert httpx.get(f"{server.v1}/models").status_code == 200
        answer = httpx.get(f"{server.v1}/models")
        refused(answer, 429, "rate_limit_exceeded")
        # A place comes back every 20 s, and the three were asked for in less than 10.
        wait = int(answer.headers["retry-after"])
        assert 10 <= wait <= 20
        assert f"wait {wait} s" in answer.text


def test_who_waits_as_long_as_is_said_is_answered() -> None:
    rates = RequestRates(6)
    for _ in range(6):
        rates.take("here", 100.0)
    with pytest.raises(Refusal) as caught:
        rates.take("here", 103.5)
    assert caught.value.seconds == 7  # of the 10 s in which one comes back, 3.5 are over
    rates.take("here", 103.5 + caught.value.seconds)


def test_too_many_waiting(start: Start) -> None:
    """What waits makes others wait; what could never grow is another thing."""
    go = threading.Event()
    with start(Limits(longest=LONGEST, rows=1, waiting=2)) as server, ThreadPoolExecutor(1) as other:
        engine, where = server.app.state.service.engine, f"{server.v1}/completions"  # type: ignore[attr-defined]
        told = refused(httpx.post(where, json={**ASK, "n": 4}), 400)
        assert "4 texts are more than the 3" in told
        engine.between_steps(lambda: go.wait(20))
        before, until = other.submit(httpx.post, where, json=ASK), time.monotonic() + 20
        while not engine.waiting and time.monotonic() < until:
            time.sleep(0.01)
        refused(httpx.post(where, json={**ASK, "n": 3}), 429, "too_many_waiting")
        go.set()
        assert before.result().status_code == 200
        assert httpx.post(where, json={**ASK, "n": 3}).status_code == 200


def test_more_tokens_than_there_is_room_for_are_refused_by_what_is_the_less(start: Start) -> None:
    asked = {**ASK, "max_tokens": 10**6}
    for limits, says in (
        (Limits(longest=LONGEST), "context is 200 tokens"),
        (Limits(LONGEST, 50), "than the 50 of an"),
    ):
        with start(limits) as server:
            assert says in httpx.post(f"{server.v1}/completions", json=asked).json()["error"]["message"]


def test_long_prompts_hold_nobody_up(start: Start, found: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that no tokens could spell is not read; while another is, the server answers."""
    reads, on, encode = threading.Event(), threading.Event(), found.tokenizer.encode

    def slow(text: str, *, specials: bool = False) -> list[int]:
        reads.set()
        assert on.wait(20)
        return encode(text, specials=specials)

    monkeypatch.setattr(found.tokenizer, "encode", slow)
    with start(Limits(longest=LONGEST)) as server, ThreadPoolExecutor(1) as other:
        where = f"{server.v1}/completions"
        told = refused(httpx.post(where, json={"prompt": "x" * 10**6}), 400, "context_length_exceeded")
        assert "the prompt has 1,000,000" in told
        assert not reads.is_set()
        answer = other.submit(httpx.post, where, json=ASK)
        assert reads.wait(20)
        try:
            assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
        finally:
            on.set()
        assert answer.result().status_code == 200


def test_too_slow(start: Start) -> None:
    with start(Limits(longest=LONGEST, seconds=0.05)) as server:
        slow = {**ASK, "max_tokens": 150, "n": 8, "temperature": 1, "seed": 1}
        refused(httpx.post(f"{server.v1}/completions", json=slow), 408, "timeout")
        with httpx.stream("POST", f"{server.v1}/completions", json={**slow, "stream": True}) as answer:
            events = [line for line in answer.iter_lines() if line]
        assert '"timeout"' in events[-1]
        until = time.monotonic() + 20  # and nothing goes on behind it
        engine = server.app.state.service.engine  # type: ignore[attr-defined]
        while (engine.growing or engine.waiting) and time.monotonic() < until:
            time.sleep(0.02)
        assert not engine.growing
        assert not engine.waiting


def test_a_chat_that_its_template_refuses(running: Running) -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    told = refused(httpx.post(f"{running.v1}/chat/completions", json={"messages": [message]}), 400)
    assert "parts that are no text" in told
    assert "not be empty" not in told
    refused(httpx.post(f"{running.v1}/chat/completions", json={"messages": []}), 400)


def test_who_hangs_up_in_the_midst_of_a_body(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    with start() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            client.sendall(head.encode())
            time.sleep(0.2)
        metrics, until = server.app.state.service.metrics, time.monotonic() + 20  # type: ignore[attr-defined]
        while not metrics.requests and time.monotonic() < until:
            time.sleep(0.01)
        assert (dict(metrics.requests), metrics.hung_up) == ({("/v1/completions", 499): 1}, 1)
    assert "error" not in capfd.readouterr().err


def test_counts(start: Start) -> None:
    with start() as server:
        httpx.post(f"{server.v1}/completions", json=ASK)
        httpx.post(f"{server.v1}/completions", json={**ASK, "temperature": -1})
        told = httpx.get(f"{server.url}/metrics")
        assert told.headers["content-type"].startswith("text/plain")
        lines = dict(line.rsplit(" ", 1) for line in told.text.splitlines() if not line.startswith("#"))
        assert lines['anyformer_requests_total{path="/v1/completions",status="200"}'] == "1"
        assert lines['anyformer_requests_total{path="/v1/completions",status="400"}'] == "1"
        assert lines['anyformer_tokens_total{kind="completion"}'] == "3"
        assert lines['anyformer_request_seconds_bucket{le="+Inf"}'] == lines["anyformer_request_seconds_count"] == "2"
        assert lines["anyformer_growing"] == lines["anyformer_waiting"] == "0"


def test_a_stream_is_counted_at_its_end(start: Start) -> None:
    go, body = threading.Event(), {**ASK, "max_tokens": 150, "temperature": 1, "seed": 1, "stream": True}
    with start() as server:
        service = server.app.state.service  # type: ignore[attr-defined]
        with httpx.stream("POST", f"{server.v1}/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            service.engine.between_steps(lambda: go.wait(20))
            time.sleep(0.3)
            assert not service.metrics.requests
            go.set()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        until = time.monotonic() + 20
        while not service.metrics.requests and time.monotonic() < until:
            time.sleep(0.01)
        (seconds,) = re.findall(r"request_seconds_sum (\S+)", httpx.get(f"{server.url}/metrics").text)
        assert float(seconds) > 0.3


def test_a_length_that_the_model_has_no_positions_for(found: object) -> None:
    from anyformer.text import Tokenizer
    from tests.laws.models import SHRUNK, randomised

    gpt2 = randomised(next(spec for name, spec in SHRUNK.items() if "gpt2-xl" in name))
    assert isinstance(found, Opened)
    assert isinstance(found.tokenizer, Tokenizer)
    with pytest.raises(InputError, match="learned positions"):
        Limits(longest=10**6).context(Opened(gpt2, found.tokenizer, None))
