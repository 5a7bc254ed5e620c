"""`anyformer generate`: continue a prompt, on the screen as it is written."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import (
    ONE_FILE_OF_TEXTS,
    SEED,
    Amount,
    Number,
    as_option,
    cache_option,
    chat_template_option,
    compile_option,
    device_option,
    form_options,
    guess_options,
    json_option,
    language_options,
    sampling_options,
    weights_option,
)
from anyformer.cli.terminal import compiled_step, refuse_guesses, refuse_search, tell, what_is_released
from anyformer.errors import UsageError
from anyformer.screen import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyformer.generation import Continuation
    from anyformer.inference.opened import Opened

JSON_VERSION = 1
SEARCH = ("beams", "length_penalty", "stopping")


@click.command()
@click.argument("prompt", default="")
@click.option("--suffix", metavar="TEXT", help="Write what stands between PROMPT and this; for models trained to.")
@click.option("--model", required=True, metavar="DIR", help="A model's directory: Hugging Face's, ours, or a run's.")
@click.option(
    "--max-new-tokens",
    type=Amount(0, 10**9),
    help="Tokens to write.  [default: 50; with --data, by the length of the sources]",
)
@sampling_options(temperature=0.0)
@click.option("--seed", type=SEED, default=0, show_default=True, help="The same seed writes the same text.")
@form_options
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. May be given several times.")
@click.option(
    "--beams", type=Amount(most=10**4), help="Search so many continuations side by side.  [default: 1, greedy]"
)
@click.option(
    "--length-penalty",
    type=Number(-100, 100),
    help="Beams are compared by log-probability / length to this power: 0 favours short texts.  [default: 1]",
)
@click.option(
    "--stopping",
    type=click.Choice(("estimate", "first", "bound")),
    help="A search ends when no beam seems to get better, when as many have ended as there are beams, or when none can.  "
    "[default: estimate]",
)
@click.option(
    "--data", **ONE_FILE_OF_TEXTS, help="A file of lines to translate, each to one line; for encoder–decoders."
)
@click.option("--chat", is_flag=True, help="PROMPT is what a user says: put it as the checkpoint's chat template does.")
@click.option("--system", metavar="TEXT", help="With --chat: what the model is told before.")
@chat_template_option
@guess_options
@language_options
@device_option
@weights_option
@cache_option
@compile_option
@json_option(help="Print one JSON object when all is written.")
@as_option
@import_option
def command(
    prompt: str,
    suffix: str | None,
    model: str,
    data: Path | None,
    chat: bool,
    system: str | None,
    chat_template: Path | None,
    guesses: dict[str, Any],
    source_language: str | None,
    target_language: str | None,
    device: str | None,
    dtype: Any,  # of torch's, or a packing's name
    cache_dtype: Any,
    compiled: bool,
    as_json: bool,
    sampling: dict[str, Any],
    as_released: bool,
    forms: dict[Any, Any],
    **given: Any,
) -> None:
    """Continue PROMPT with a model; without one, begin a text. A model with an encoder reads PROMPT and answers.

    The text goes to stdout as it is written, with control characters spelled out. `--json` has them as they are; it
    gives version, prompt, suffix, text, token_ids, ended_by ("length", "end_of_text" or "stop"), passes (null without guesses),
    seconds, tokens_per_second.

    With `--data` it answers a file line by line, in batches, `--json` then giving version, lines, seconds:

      anyformer generate --model RUN --data source.txt --beams 4 --length-penalty 0.6

    With `--suffix` what stands between PROMPT and that is written, by a model that was trained to fill in the middle:

      anyformer generate "def area(r):" --suffix "    return a" --model RUN

    With `--chat` PROMPT is answered, by the chat template of the checkpoint or the one that is named.

    With `--draft`, `--lookup` or `--ahead` a pass checks several guesses: the greedy text is the same, a drawn one is another of
    the same distribution. How many tokens came of a pass is said on stderr.

    With `--json-schema`, `--regex` or `--grammar` only tokens are written by which the text can still become one of that form.

    With `--compile` the tokens after the first are written by a compiled graph; the text is the same.
    """
    from anyformer.generation import DRAWING, lay_out_for_decoding
    from anyformer.inference.conversation import Conversation
    from anyformer.inference.guessing import guessing
    from anyformer.inference.opened import opened
    from anyformer.inference.writing import USUAL, refuse_too_few
    from anyformer.text.filling import prompt_between

    searched = {name: value for name in SEARCH if (value := given.pop(name)) is not None}
    said = what_is_released(model, as_released)
    how, search = said.chosen(sampling, searched)
    if (chat or guesses or compiled) and not searched:
        refuse_search(search, "give --beams 1, or leave --as-released out")
    if data is not None and how.draws and not sampling.keys() & DRAWING:
        raise UsageError(
            "the model's files draw tokens, and every line is answered by the likeliest text; give --temperature 0, or leave "
            "--as-released out"
        )
    if data is not None and (prompt or given["stop"] or how.draws):
        raise UsageError(
            "--data takes no PROMPT, --stop or --temperature: every line is answered by the likeliest text"
        )
    if system is not None and not chat:
        raise UsageError("--system is said in a conversation; give --chat too, or put it into PROMPT")
    if chat_template is not None and not chat:
        raise UsageError("--chat-template writes a conversation; give --chat too, or leave it out")
    if suffix is not None and (chat or data is not None):
        raise UsageError(
            "--suffix is what stands behind one PROMPT and a gap; leave --chat and --data out, or --suffix"
        )
    if chat and (search is not None or data is not None):
        raise UsageError("--chat answers one PROMPT token by token; leave --beams and --data out")
    if guesses and (search is not None or data is not None):
        raise UsageError("--draft, --lookup and --ahead continue one PROMPT; leave --beams and --data out")
    if compiled and (search is not None or data is not None):
        raise UsageError("--compile writes a token a pass; leave --beams and --data out, or --compile")
    refuse_guesses(guesses, compiled)
    several = bool(guesses) or search is not None or data is not None
    prepare = partial(lay_out_for_decoding, several=several, compiled=compiled)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "prepare": prepare}
    found = opened(model, **options).between(source_language, target_language).by_template(chat_template)
    found.model.cache_dtype = cache_dtype
    read: str | list[int] = prompt
    if suffix is not None:
        found = found.filling()
        read = prompt_between(found.tokenizer, prompt, suffix)
    said = said.of_new_tokens() if chat else said
    here = said
    if as_released and not chat:
        here = said.behind(*found.before([read]), given["max_new_tokens"])
        how, search = here.chosen(sampling, searched)
    if given["max_new_tokens"] is None:
        given["max_new_tokens"] = USUAL if here.most is None and data is None else here.most
    if (most := given["max_new_tokens"]) is not None:
        refuse_too_few(sampling.get("min_new_tokens"), most)
    how = replace(how, grammar=found.grammar(forms))
    if as_released:
        say(f"as released: {said}", stderr=True)
    guessed = guessing(found, options, **guesses)
    step = compiled_step(found.model) if compiled else None
    given |= {"sampling": how}
    if data is not None:
        _answer(data, found, {"search": search, "sampling": how, "max_new_tokens": given["max_new_tokens"]}, as_json)
    elif chat:
        with Conversation(found, system, step, guessing=guessed) as conversation:
            _write(prompt, None, partial(conversation.answer, prompt, **given), [], as_json)
    else:
        given |= {"search": search, "guessing": guessed, "compiled": step}
        begun = [prompt] if found.model.encoder is None else []
        _write(prompt, suffix, partial(_continued, found, read, **given), begun, as_json)


def _continued(found: Opened, prompt: str | list[int], **given: Any) -> Continuation:
    """What follows a prompt."""
    from anyformer.generation import generate_text

    return generate_text(found.model, found.tokenizer, [prompt], **given)[0]


def _write(
    prompt: str, suffix: str | None, write: Callable[..., Continuation], begun: list[str], as_json: bool
) -> None:
    """Print a text as it is written, behind what it is begun with and before the suffix; or all of it as JSON."""

    def show(_: int, piece: str) -> None:
        if not as_json:
            say("".join([*begun, piece]), end="")
            begun.clear()  # said with the first token: a refusal says nothing else

    start = time.perf_counter()
    written = write(on_text=show)
    seconds, n = time.perf_counter() - start, len(written.token_ids)
    show(0, "")
    if as_json:
        told = {"prompt": prompt, "suffix": suffix, **vars(written), "seconds": round(seconds, 3)}
        tell({**told, "tokens_per_second": round(n / seconds, 1)}, as_json, version=JSON_VERSION)
        return
    say(suffix or "")
    if written.passes:
        say(f"{n} tokens in {written.passes} passes, {n / written.passes:.2f} a pass", stderr=True)


def _answer(data: Path, found: Opened, how: dict[str, Any], as_json: bool) -> None:
    """Print a line for each line of a file."""
    from anyformer.inference import translate
    from anyformer.text.parallel import read_lines

    start = time.perf_counter()
    lines = translate(found.model, found.tokenizer, read_lines(data), **how)
    if as_json:
        tell({"lines": lines, "seconds": round(time.perf_counter() - start, 3)}, as_json, version=JSON_VERSION)
        return
    for line in lines:
        say(line)
