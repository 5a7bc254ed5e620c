"""What is answered in a model's name, over one engine, with the limits that keep one client from taking all."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from anyformer.errors import AnyformerError
from anyformer.generation import Chosen, Sampling, Wanted
from anyformer.generation.text import encode_read
from anyformer.inference.embedding import prepared
from anyformer.inference.opened import Opened
from anyformer.screen import say
from anyformer.serving.answer import Answer, Route
from anyformer.serving.asked import Asked, parsed, read_chat, read_completion, read_embedding
from anyformer.serving.choice import Choice
from anyformer.serving.connection import Gone, unless_gone
from anyformer.serving.engine import Busy, Engine, Ticket, Told
from anyformer.serving.limits import Limits, Refusal, RequestRates
from anyformer.serving.metrics import ServerMetrics
from anyformer.text import Tokenizer
from anyformer.text.chat import Chat
from anyformer.text.filling import prompt_between

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")
HUNG_UP = 499  # what is counted for a client that is gone; nobody reads it


class Service:
    """A model, and what is answered in its name."""

    def __init__(self, found: Opened, name: str, limits: Limits, api_key: str | None, usual: Sampling) -> None:
        self.found, self.name, self.limits, self.api_key, self.usual = found, name, limits, api_key, usual
        self.longest = limits.context(found)
        self.most_characters = limits.characters(found)
        self.encoding = asyncio.Lock()
        self.engine = Engine(found.model, self.longest, limits.rows, limits.waiting, limits.prefixes(found.model))
        self.chat_template = Chat(found.tokenizer) if found.tokenizer.chat_template is not None else None
        self.metrics, self.begun = ServerMetrics(), int(time.time())
        self.rates = None if limits.rate is None else RequestRates(limits.rate)

    def close(self) -> None:
        """End the engine and the process of the chat template."""
        self.engine.close()
        if self.chat_template is not None:
            self.chat_template.close()

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await self._body(request)
        asked, given = read_completion(body, self.usual)
        self._check_model(body)
        encode = partial(encode_read, self.found.model, self.found.tokenizer)
        if asked.suffix is not None:
            encode = partial(prompt_between, self._tokenizer(asked), suffix=asked.suffix)
        behind = len(asked.suffix or "")
        prompts = [
            await self._encoded(encode, each, "prompt", behind) if isinstance(each, str) else each for each in given
        ]
        return await self._answer(request, "completion", asked, prompts, given)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await self._body(request)
        asked, messages = read_chat(body, self.usual)
        self._check_model(body)
        if self.chat_template is None:
            raise Refusal(
                "this model has no chat template; ask /v1/completions, or have it served with one (--chat-template)",
                code="no_chat_template",
            )
        text = await asyncio.to_thread(partial(self.chat_template.text, messages, tools=asked.tools.told))
        prompt = await self._encoded(partial(self.found.tokenizer.encode, specials=True), text, "messages")
        return await self._answer(request, "chat", asked, [prompt], [])

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        from starlette.responses import JSONResponse

        body = await self._body(request)
        texts, coded, way = read_embedding(body)
        way = replace(way, longest=self.longest)
        self._check_model(body)
        async with asyncio.timeout(self.limits.seconds):
            async with self.encoding:
                given = await asyncio.to_thread(partial(prepared, self.found, texts, way))
            parts = []
            for numbers in given.batches:  # each between two steps of texts that grow
                work = partial(self.engine.between_steps, partial(given.vectors, numbers))
                parts.append(await unless_gone(request, asyncio.wrap_future(self._or_busy(work))))
        rows = given.in_order(parts).numpy().astype("<f4")
        n = sum(map(len, given.ids))
        self.metrics.tokens["prompt"] += n
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": base64.b64encode(row.tobytes()).decode() if coded else row.tolist(),
            }
            for i, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": n, "total_tokens": n}
        return JSONResponse({"object": "list", "data": data, "model": self.name, "usage": usage})

    async def models(self, request: Request) -> Response:
        """GET /v1/models, and one of them."""
        from starlette.responses import JSONResponse

        asked = request.path_params.get("name", self.name)
        self._check_model({"model": asked})
        one = {"id": self.name, "object": "model", "created": self.begun, "owned_by": "anyformer"}
        return JSONResponse(one if "name" in request.path_params else {"object": "list", "data": [one]})

    async def health(self, request: Request) -> Response:
        """GET /health."""
        from starlette.responses import JSONResponse

        return JSONResponse({"status": "ok"})

    async def counts(self, request: Request) -> Response:
        """GET /metrics."""
        from starlette.responses import PlainTextResponse

        text = self.metrics.text(len(self.engine.growing), len(self.engine.waiting))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """A route whose requests are counted, have the key and keep to the rate, and whose errors are OpenAI's."""
        from starlette.responses import JSONResponse, StreamingResponse

        async def handle(request: Request) -> Response:
            request.state.begun = time.monotonic()
            try:
                self._admit(request)
                response = await handler(request)
            except (Exception, asyncio.CancelledError) as error:
                refusal = _refusal(error)
                self._count(request, refusal.status)
                if refusal.status == HUNG_UP:
                    self.metrics.hung_up += 1
                if isinstance(error, asyncio.CancelledError):
                    raise
                return JSONResponse(
                    refusal.as_json(),
                    refusal.status,
                    {"Retry-After": str(refusal.seconds)} if refusal.status == 429 else None,
                )
            if not isinstance(response, StreamingResponse):  # which is counted at its end
                self._count(request, response.status_code)
            return response

        return handle

    def _count(self, request: Request, status: int) -> None:
        self.metrics.answered(request.scope["route"].path, status, time.monotonic() - request.state.begun)

    def _admit(self, request: Request) -> None:
        """Raise Refusal for a request without the key, or beyond the rate."""
        if self.api_key is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self.api_key.encode()):
                raise Refusal(
                    "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
                    401,
                    code="invalid_api_key",
                )
        if self.rates is not None:
            self.rates.take(request.client.host if request.client else "", time.monotonic())

    async def _body(self, request: Request) -> Any:
        """The JSON of a request. Raises Refusal."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal("the body must be JSON: send `Content-Type: application/json`", 415)
        content = bytearray()
        async with asyncio.timeout(self.limits.seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > self.limits.body_nbytes:
                    raise Refusal(f"the body is longer than {self.limits.body_nbytes:,} bytes; send less", 413)
        return parsed(content)

    def _check_model(self, body: dict[str, Any]) -> None:
        asked = body.get("model", self.name)
        if asked != self.name:
            raise Refusal(
                f"there is no model {str(asked)[:200]!r}; this server has {self.name!r}",
                404,
                param="model",
                code="model_not_found",
            )

    def _tokenizer(self, asked: Asked) -> Tokenizer:
        """By which a text is encoded and ends. Raises what `Opened.filling` does."""
        return self.found.tokenizer if asked.suffix is None else self.found.filling().tokenizer

    async def _encoded(self, encode: Callable[[str], list[int]], text: str, param: str, behind: int = 0) -> list[int]:
        """The ids of a text, made beside the event loop, one text at a time; `behind` are characters that go with it.

        Raises Refusal for one that is too long.
        """
        if self.most_characters is not None and len(text) + behind > self.most_characters:
            raise Refusal(
                f"this model's context is {self.longest} tokens; they spell {self.most_characters:,} characters at most, "
                f"and the prompt has {len(text) + behind:,}",
                param=param,
                code="context_length_exceeded",
            )
        async with self.encoding:
            return await asyncio.to_thread(encode, text)

    def _or_busy(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Busy as error:
            raise Refusal(str(error), 429, code="too_many_waiting") from None

    async def _answer(
        self,
        request: Request,
        route: Route,
        asked: Asked,
        prompts: Sequence[list[int]],
        given: Sequence[str | list[int]],
    ) -> Response:
        """The answer to prompts, whole or as it grows; an echo says them as they were given."""
        from starlette.responses import JSONResponse, StreamingResponse

        asked = await self._held(asked)
        wanted = [
            self._wanted(route, asked, prompt, i * asked.n + j)
            for i, prompt in enumerate(prompts)
            for j in range(asked.n)
        ]
        most = self.engine.most_rows + self.engine.most_waiting
        if len(wanted) > most:
            raise Refusal(f"{len(wanted)} texts are more than the {most} that may grow and wait here; ask for fewer")
        answer = Answer(route, self.name, asked, self.found.tokenizer, prompts)
        reads = self.found.model.encoder is not None
        choices = [
            Choice(i, self._tokenizer(asked), () if reads else each.token_ids, asked.stop)
            for i, each in enumerate(wanted)
        ]
        echoed: dict[int, list[Chosen]] = {}
        growth = self._growth(wanted, choices, echoed)
        self.metrics.tokens["prompt"] += sum(map(len, prompts))
        if not asked.stream:
            await unless_gone(request, asyncio.ensure_future(_all(growth)))
            decode = partial(self.found.tokenizer.decode, specials=True)
            said = [each if isinstance(each, str) else decode(each) for each in given] if asked.echo else []
            whole = [(text, echoed.get(i, [])) for i, text in enumerate(text for text in said for _ in range(asked.n))]
            return JSONResponse(answer.whole(choices, whole))
        # What is refused is refused before the answer begins, with its own status.
        first = await unless_gone(request, asyncio.ensure_future(anext(growth)))
        pieces = self._pieces(request, answer, choices, first, growth)
        return StreamingResponse(pieces, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def _held(self, asked: Asked) -> Asked:
        """What is asked, its texts held to the form that it names. Raises Refusal for one that is none."""
        if not asked.form:
            return asked
        try:
            async with self.encoding:
                grammar = await asyncio.to_thread(self.found.grammar, asked.form)
        except AnyformerError as error:
            raise Refusal(str(error), param="tools" if asked.tools.must else "response_format") from None
        return replace(asked, sampling=replace(asked.sampling, grammar=grammar))

    def _wanted(self, route: Route, asked: Asked, prompt: list[int], number: int) -> Wanted:
        """A prompt with what is asked of it. Raises Refusal where there is no room."""
        reads = self.found.model.encoder is not None
        opening = self.found.tokenizer.answer_opening if reads else []
        held = len(opening) if reads else len(prompt)
        n = asked.max_tokens
        n = max(1, min(self.limits.max_tokens, self.longest - held)) if n is None else n
        if n > self.limits.max_tokens and self.limits.max_tokens < self.longest:
            raise Refusal(
                f"{n} new tokens are more than the {self.limits.max_tokens} of an answer here", param=asked.limit
            )
        if held + n > self.longest or len(prompt) > self.longest:
            raise Refusal(
                f"this model's context is {self.longest} tokens; the prompt has {len(prompt)}, and {n} are asked for",
                param=asked.limit if n > self.longest else "messages" if route == "chat" else "prompt",
                code="context_length_exceeded",
            )
        tokenizer, n_ids = self._tokenizer(asked), self.found.model.spec.vocab_size
        if wrong := [token for token, _ in asked.sampling.bias if token >= n_ids]:
            says = f"logit_bias: there is no token {wrong[0]}; this model has those from 0 to {n_ids - 1}"
            raise Refusal(says, param="logit_bias")
        seed = (asked.seed + number) % 2**62
        return Wanted(
            tuple(prompt), n, asked.sampling, seed, tokenizer.closing_ids, tuple(opening), asked.likeliest, asked.echo
        )

    async def _growth(
        self, wanted: Sequence[Wanted], choices: Sequence[Choice], echoed: dict[int, list[Chosen]]
    ) -> AsyncIterator[Choice]:
        """Each choice whenever it has grown. Raises Refusal, and what the engine says; left early, it takes all back."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Told]]()
        until = loop.time() + self.limits.seconds

        def tell(number: int, told: Told) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, (number, told))

        tickets = [Ticket(each, partial(tell, i)) for i, each in enumerate(wanted)]
        self._or_busy(partial(self.engine.submit, tickets))
        left = len(tickets)
        try:
            while left:
                async with asyncio.timeout_at(until):
                    number, told = await queue.get()
                choice = choices[number]
                if choice.ended:
                    continue
                if isinstance(told, Exception):
                    raise told
                if isinstance(told, list):
                    echoed[number] = told
                    continue
                if told is not None:
                    if not choice.n_written:
                        choice.n_known = tickets[number].known
                        self.metrics.tokens["cached"] += choice.n_known
                    choice.push(told)
                    self.metrics.tokens["completion"] += 1
                if told is None or choice.done:
                    choice.finish()
                    self.engine.leave([tickets[number]])
                    left -= 1
                yield choice
        finally:
            self.engine.leave(tickets)

    async def _pieces(
        self, request: Request, answer: Answer, choices: Sequence[Choice], first: Choice, growth: AsyncIterator[Choice]
    ) -> AsyncIterator[str]:
        """An answer as server-sent events."""

        def event(data: dict[str, Any] | None) -> str:
            return "" if data is None else f"data: {json.dumps(data, ensure_ascii=False)}\n\n"

        try:
            begun = set[int]()
            choice: Choice | None = first
            while choice is not None:
                said = "" if choice.index in begun else event(answer.begin(choice))
                begun.add(choice.index)
                if said := said + event(answer.piece(choice)):
                    yield said
                choice = await anext(growth, None)
            if answer.asked.usage:
                yield event(answer.last(choices))
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.metrics.hung_up += 1
            raise
        except Exception as error:
            yield event(_refusal(error).as_json())
        finally:
            self._count(request, 200)
            with suppress(RuntimeError):  # it is running, and ends by itself
                await growth.aclose()  # type: ignore[attr-defined]


async def _all(growth: AsyncIterator[Choice]) -> None:
    try:
        async for _ in growth:
            pass
    finally:
        await growth.aclose()  # type: ignore[attr-defined]


def _refusal(error: BaseException) -> Refusal:
    """What is said of an error: of the request's own what it is, of ours nothing but that it is one."""
    from starlette.requests import ClientDisconnect

    match error:
        case Refusal():
            return error
        case Gone() | ClientDisconnect() | asyncio.CancelledError():
            return Refusal("the client is gone", HUNG_UP)
        case TimeoutError():
            return Refusal("this took longer than an answer may take here", 408, code="timeout")
        case AnyformerError():
            return Refusal(str(error))
    say(f"error: {type(error).__name__}: {' '.join(str(error).split())}", stderr=True)
    return Refusal("the server failed at this request; its log says why", 500)
