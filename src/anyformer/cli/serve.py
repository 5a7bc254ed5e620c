"""`anyformer serve`: a model behind OpenAI's interface."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import (
    PATH,
    Amount,
    Nbytes,
    Number,
    as_option,
    as_released_option,
    cache_option,
    chat_template_option,
    device_option,
    language_options,
    weights_option,
)
from anyformer.cli.terminal import refuse_search, what_is_released
from anyformer.errors import UsageError
from anyformer.screen import say

EXTRA = ("starlette", "uvicorn")


@click.command()
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 is every network.")
@click.option("--port", type=Amount(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--name", help="What requests call the model.  [default: the directory's name]")
@click.option("--api-key", envvar="ANYFORMER_API_KEY", show_envvar=True, help="What requests to /v1 must bring.")
@click.option("--max-length", type=Amount(), help="Tokens of a prompt and its answer.  [default: the model's context]")
@click.option("--max-tokens", type=Amount(), default=4096, show_default=True, help="New tokens of an answer.")
@click.option("--max-rows", type=Amount(most=4096), default=32, show_default=True, help="Texts that grow at once.")
@click.option("--max-waiting", type=Amount(most=10**6), default=256, show_default=True, help="Texts that wait.")
@click.option(
    "--prefix-cache",
    type=Nbytes(least=0),
    help="Bytes of what was read and stays, for prompts that begin alike; 0: nothing stays.  [default: a quarter of free memory]",
)
@click.option("--max-body", type=Nbytes(), default=4 * 10**6, show_default=True, help="Bytes of a request.")
@click.option("--rate", type=Amount(), help="Requests a minute of one client.  [default: any number]")
@click.option("--timeout", type=Number(0.1, 10**6), default=600.0, show_default=True, help="Seconds of an answer.")
@click.option("--grace", type=Amount(0, 86400), default=30, show_default=True, help="Seconds to end in.")
@chat_template_option
@as_released_option
@language_options
@device_option
@weights_option
@cache_option
@as_option
@import_option
def command(
    directory: Path,
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    max_length: int | None,
    max_tokens: int,
    max_rows: int,
    max_waiting: int,
    prefix_cache: int | None,
    max_body: int,
    rate: int | None,
    timeout: float,
    grace: int,
    chat_template: Path | None,
    as_released: bool,
    source_language: str | None,
    target_language: str | None,
    device: str | None,
    dtype: Any,  # of torch's, or a packing's name
    cache_dtype: Any,
) -> None:
    """Serve the model in DIR as OpenAI's interface has it: completions, chats, embeddings, models; /health, /metrics.
    Its address in a browser is a page to try it on, token by token.

    Requests grow in one batch, which they join and leave between two tokens; each is answered as it would be alone.

      anyformer serve runs/shakespeare --port 8000

      curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "ROMEO:", "max_tokens": 40}'
    """
    missing = [package for package in EXTRA if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"{' and '.join(missing)} are missing; install the extra: pip install 'anyformer[serve]'")
    if api_key == "":
        raise UsageError("--api-key is empty; give one, or leave it out and listen on this machine alone")
    from anyformer.generation import lay_out_for_decoding
    from anyformer.inference.opened import opened
    from anyformer.serving import USUAL, Limits, application, serve

    said = what_is_released(directory, as_released).of_new_tokens()._replace(most=None)  # requests say it
    usual, search = said.chosen({}, {}, USUAL)
    refuse_search(search)
    found = opened(directory, device=device, dtype=dtype, prepare=partial(lay_out_for_decoding, several=True))
    found = found.between(source_language, target_language).by_template(chat_template)
    found.model.cache_dtype = cache_dtype
    if as_released:
        say(f"as released: {said}", stderr=True)
    limits = Limits(max_length, max_tokens, max_rows, max_waiting, max_body, rate, timeout, prefix_cache)
    served = application(found, name or directory.resolve().name, limits, api_key, usual)
    serve(served, host, port, grace_seconds=grace)
