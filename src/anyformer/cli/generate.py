"""`anyformer generate`: continue a prompt, on the screen as it is written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anyformer.cli.names import catalogue, import_option
from anyformer.cli.terminal import visible
from anyformer.errors import UsageError

if TYPE_CHECKING:
    from anyformer.generation import BeamSearch, Stopping
    from anyformer.model import Transformer
    from anyformer.text import Tokenizer

JSON_VERSION = 1
DEFAULT = 50  # new tokens
DTYPES = ("float32", "bfloat16", "float16")


@click.command()
@click.argument("prompt", default="")
@click.option("--model", required=True, metavar="DIR", help="A model's directory: Hugging Face's, ours, or a run's.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=0),
    help="Tokens to write.  [default: 50; with --data, by the length of the sources]",
)
@click.option(
    "--temperature", default=0.0, show_default=True, help="0 takes the likeliest token; 1 draws as the model says."
)
@click.option("--top-k", type=int, help="Draw from the k likeliest tokens.")
@click.option("--top-p", type=float, help="Draw from the likeliest tokens that have this probability together.")
@click.option("--seed", default=0, show_default=True, help="The same seed writes the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. May be given several times.")
@click.option("--beams", default=1, show_default=True, help="Search so many continuations side by side; 1 is greedy.")
@click.option(
    "--length-penalty",
    default=1.0,
    show_default=True,
    help="Beams are compared by log-probability / length to this power: 0 favours short texts.",
)
@click.option(
    "--stopping",
    type=click.Choice(["estimate", "first", "bound"]),
    default="estimate",
    show_default=True,
    help="A search ends when no beam seems to get better, when as many have ended as there are beams, or when none can.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of lines to translate, each to one line; for models with an encoder.",
)
@click.option("--device", default=None, help="cpu, cuda, mps …; the best there is by default.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of weights and cache; as the weights are stored by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when all is written.")
@import_option
def command(
    prompt: str,
    model: str,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    stop: tuple[str, ...],
    device: str | None,
    dtype: str | None,
    as_json: bool,
    beams: int,
    length_penalty: float,
    stopping: Stopping,
    data: Path | None,
) -> None:
    """Continue PROMPT with a model; without one, begin a text. A model with an encoder reads PROMPT and answers.

    The text goes to stdout as it is written, with control characters spelled out. `--json` has them as they are; it
    gives version, prompt, text, token_ids, ended_by ("length", "end_of_text" or "stop"), seconds, tokens_per_second.

    With `--data` it answers a file line by line, in batches, `--json` then giving version, lines, seconds:

      anyformer generate --model RUN --data source.txt --beams 4 --length-penalty 0.6
    """
    if not Path(model).exists() and any(model == preset["name"] for preset in catalogue()):
        raise UsageError(f"{model} is an architecture without weights; give the directory of a trained model")
    import torch

    from anyformer.generation import BeamSearch, generate_text, lay_out_for_decoding
    from anyformer.hub import load
    from anyformer.training.step.device import choose_device

    options = BeamSearch(beams, length_penalty, stopping)
    search = options if beams > 1 else None
    if search is not None and (temperature, top_k, top_p) != (0.0, None, None):
        raise UsageError(
            "--beams takes the likeliest text and draws nothing; leave --temperature, --top-k and --top-p out"
        )
    if data is not None and (prompt or stop or temperature):
        raise UsageError(
            "--data takes no PROMPT, --stop or --temperature: every line is answered by the likeliest text"
        )
    place = choose_device(device)
    transformer, tokenizer = load(Path(model), device=place, dtype=None if dtype is None else getattr(torch, dtype))
    if tokenizer is None:
        raise UsageError(
            f"--model {model} has no tokenizer, so it cannot read a prompt; put a tokenizer.json beside it"
        )
    if data is not None:
        _answer(data, lay_out_for_decoding(transformer), tokenizer, search, max_new_tokens, as_json)
        return
    if not as_json and transformer.encoder is None:
        click.echo(visible(prompt), nl=False)

    def show(row: int, piece: str) -> None:
        if not as_json:
            click.echo(visible(piece), nl=False)

    start = time.perf_counter()
    (written,) = generate_text(
        lay_out_for_decoding(transformer),
        tokenizer,
        [prompt],
        max_new_tokens=DEFAULT if max_new_tokens is None else max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        on_text=show,
        search=search,
    )
    seconds = time.perf_counter() - start
    if not as_json:
        click.echo()
        return
    answer = {
        "version": JSON_VERSION,
        "prompt": prompt,
        "text": written.text,
        "token_ids": written.token_ids,
        "ended_by": written.ended_by,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(len(written.token_ids) / seconds, 1),
    }
    click.echo(json.dumps(answer, ensure_ascii=False))


def _answer(
    data: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    search: BeamSearch | None,
    max_new_tokens: int | None,
    as_json: bool,
) -> None:
    """Print a line for each line of a file."""
    from anyformer.generation import translate
    from anyformer.text.parallel import read_lines

    start = time.perf_counter()
    lines = translate(model, tokenizer, read_lines(data), search=search, max_new_tokens=max_new_tokens)
    if not as_json:
        for line in lines:
            click.echo(visible(line))
        return
    seconds = round(time.perf_counter() - start, 3)
    click.echo(json.dumps({"version": JSON_VERSION, "lines": lines, "seconds": seconds}, ensure_ascii=False))
