"""`anyformer chat`: a conversation on the terminal."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import (
    ONE_FILE,
    PATH,
    SEED,
    Amount,
    as_option,
    cache_option,
    chat_template_option,
    compile_option,
    device_option,
    form_options,
    guess_options,
    sampling_options,
    weights_option,
)
from anyformer.cli.terminal import compiled_step, refuse_guesses, refuse_search, what_is_released
from anyformer.errors import AnyformerError
from anyformer.screen import say

if TYPE_CHECKING:
    from anyformer.inference.conversation import Conversation

COMMANDS = {
    "/reset": "forget the conversation",
    "/save FILE": "write it as JSON",
    "/tool RESULT": "what a tool gave that the answer called",
    "/exit": "end, as the end of input does",
}


@click.command()
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--system", metavar="TEXT", help="What the model is told before everything else.")
@chat_template_option
@click.option("--tools", type=ONE_FILE, help="JSON list of the tools that it may call, each the schema of a function.")
@click.option(
    "--max-new-tokens", type=Amount(most=10**9), help="Of an answer.  [default: 1024, or what there is room for]"
)
@sampling_options(temperature=0.7)
@form_options
@guess_options
@click.option("--seed", type=SEED, default=0, show_default=True, help="Answer i draws with this seed + i.")
@device_option
@weights_option
@cache_option
@as_option
@compile_option
@import_option
def command(
    directory: Path,
    system: str | None,
    chat_template: Path | None,
    tools: Path | None,
    max_new_tokens: int | None,
    sampling: dict[str, Any],
    as_released: bool,
    forms: dict[Any, Any],
    guesses: dict[str, Any],
    seed: int,
    device: str | None,
    dtype: Any,  # of torch's, or a packing's name
    cache_dtype: Any,
    compiled: bool,
) -> None:
    """Talk with the model in DIR, line by line, by the chat template that its checkpoint brings or that is named.

    Answers go to stdout as they are written. A line /reset forgets the conversation, /save FILE writes it as JSON,
    /tool RESULT is what a tool gave that the answer called, /exit ends.

      anyformer chat path/to/smollm2-instruct --system "Answer in one sentence."
    """
    from anyformer.generation import Sampling, lay_out_for_decoding
    from anyformer.inference.conversation import USUAL, Conversation
    from anyformer.inference.guessing import guessing
    from anyformer.inference.opened import opened
    from anyformer.inference.writing import refuse_too_few
    from anyformer.text.conversations import read_tools

    refuse_guesses(guesses, compiled)
    known = () if tools is None else read_tools(tools)
    said = what_is_released(directory, as_released).of_new_tokens()
    how, search = said.chosen(sampling, {}, Sampling(temperature=0.7))
    refuse_search(search)
    if max_new_tokens is None:
        max_new_tokens = said.most
    refuse_too_few(sampling.get("min_new_tokens"), USUAL if max_new_tokens is None else max_new_tokens)
    prepare = partial(lay_out_for_decoding, several=bool(guesses), compiled=compiled)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "prepare": prepare}
    found = opened(directory, **options).by_template(chat_template)
    found.model.cache_dtype = cache_dtype
    how = replace(how, grammar=found.grammar(forms))
    if as_released:
        say(f"as released: {said}", stderr=True)
    step = compiled_step(found.model) if compiled else None
    with Conversation(found, system, step, guessing=guessing(found, options, **guesses), tools=known) as conversation:
        answered = 0
        while (line := _line()) is not None:
            try:
                given = line.removeprefix("/tool ")
                if line == "/exit":
                    return
                if line.startswith("/") and given == line:
                    _obey(conversation, line)
                elif line:
                    conversation.answer(
                        given,
                        role="user" if given == line else "tool",
                        max_new_tokens=max_new_tokens,
                        sampling=how,
                        seed=seed + answered,
                        on_text=lambda _, piece: say(piece, end=""),
                    )
                    answered += 1
                    say()
            except AnyformerError as error:
                if not answered and not line.startswith("/"):
                    raise  # what fails at first will fail again
                say(f"error: {error}", stderr=True)


def _line() -> str | None:
    """The next line of input, "" for one that is no text; None at its end."""
    if sys.stdin.isatty():
        say("> ", end="", stderr=True)
    line = sys.stdin.readline()
    try:
        line.encode()
    except UnicodeEncodeError:
        say("error: that line is not UTF-8 text; convert it, or write it again", stderr=True)
        return ""
    return line.strip() if line else None


def _obey(conversation: Conversation, line: str) -> None:
    """Do what a line that begins with / says."""
    name, _, rest = line.partition(" ")
    if name == "/reset" and not rest:
        conversation.reset()
        say("the conversation begins anew", stderr=True)
    elif name == "/save" and rest.strip():
        conversation.save(Path(rest.strip()))
        say(f"saved in {rest.strip()}", stderr=True)
    else:
        known = "; ".join(f"{command}: {what}" for command, what in COMMANDS.items())
        say(f"there is no {name} so; {known}", stderr=True)
