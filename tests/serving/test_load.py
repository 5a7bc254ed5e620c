"""Many at once, some of whom hang up: nobody's text is lost or another's, and nothing is kept."""

from __future__ import annotations

import asyncio
import json
import random
import time

import httpx
import psutil
import pytest

from anyformer.generation import Sampling, generate_text
from tests.serving.conftest import Running, Start

WORDS = ("if x", "the fox", "Größe 東", "return", "🙂 and", "naïve café")


def asked(i: int) -> dict[str, object]:
    chance = random.Random(i)
    prompt = " ".join(chance.choices(WORDS, k=chance.randint(1, 4))) + f" {i}"
    drawn = {"temperature": 1.0, "top_p": 0.9, "seed": i} if i % 2 else {"temperature": 0.0, "seed": 0}
    return {"prompt": prompt, "max_tokens": chance.randint(4, 16), **drawn}


async def one(client: httpx.AsyncClient, url: str, i: int, hang_up: bool) -> str:
    """The text of a request, streamed or whole; what was heard of it by who hangs up after two events."""
    if i % 3 == 0 and not hang_up:
        answer = await client.post(url, json=asked(i))
        return answer.json()["choices"][0]["text"]
    text = ""
    async with client.stream("POST", url, json={**asked(i), "stream": True}) as answer:
        assert answer.status_code == 200
        heard = 0
        async for line in answer.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            heard += 1
            if hang_up and heard == 2:
                break
    return text


async def all_at_once(server: Running, n: int, n_gone: int) -> list[str]:
    gone = set(random.Random(0).sample(range(n), n_gone))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=300) as client:
        return await asyncio.gather(*(one(client, f"{server.v1}/completions", i, i in gone) for i in range(n)))


def expected(server: Running, i: int) -> str:
    request = asked(i)
    (found,) = generate_text(
        server.found.model,
        server.found.tokenizer,
        [str(request["prompt"])],
        max_new_tokens=request["max_tokens"],  # type: ignore[arg-type]
        sampling=Sampling(request["temperature"], top_p=request.get("top_p")),  # type: ignore[arg-type]
        seed=request["seed"],  # type: ignore[arg-type]
    )
    return found.text


def check(server: Running, n: int, n_gone: int) -> None:
    gone = set(random.Random(0).sample(range(n), n_gone))
    for i, text in enumerate(asyncio.run(all_at_once(server, n, n_gone))):
        whole = expected(server, i)
        assert whole.startswith(text) if i in gone else text == whole, i
    until = time.monotonic() + 20  # who hung up is gone from the batch as well
    while (still := httpx.get(f"{server.url}/metrics").text) and time.monotonic() < until:
        if "anyformer_growing 0\nanyformer" in still.replace("# HELP", "anyformer"):
            break
        time.sleep(0.05)
    lines = dict(line.rsplit(" ", 1) for line in still.splitlines() if not line.startswith("#"))
    assert lines["anyformer_growing"] == lines["anyformer_waiting"] == "0"


def test_24_of_whom_5_hang_up(start: Start) -> None:
    with start() as server:
        check(server, 24, 5)


@pytest.mark.slow
def test_200_of_whom_20_hang_up(start: Start) -> None:
    """And memory is flat: after the first time, six more take no more than the allocator's slack."""
    with start() as server:
        check(server, 200, 20)
        before = psutil.Process().memory_info().rss
        for _ in range(6):
            asyncio.run(all_at_once(server, 200, 20))
        assert psutil.Process().memory_info().rss - before < 30 << 20


def test_who_hangs_up_leaves_the_batch(start: Start) -> None:
    """Before the answer begins, too: a request for a whole text ends when its client does."""
    with start() as server:
        long = {"prompt": "if x", "max_tokens": 180, "n": 20, "temperature": 1, "seed": 0}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.v1}/completions", json=long, timeout=0.3)
        until = time.monotonic() + 10
        engine = server.app.state.service.engine  # type: ignore[attr-defined]
        while (engine.growing or engine.waiting) and time.monotonic() < until:
            time.sleep(0.02)
        assert not engine.growing
        assert not engine.waiting
        while engine.batch.cache is not None and time.monotonic() < until:
            time.sleep(0.02)
        assert engine.batch.cache is None, "an idle engine keeps nothing"
        told = httpx.get(f"{server.url}/metrics").text
        assert "anyformer_hung_up_total 1\n" in told
        written = next(line for line in told.splitlines() if 'kind="completion"' in line)
        assert float(written.rsplit(" ", 1)[1]) < 20 * 180
