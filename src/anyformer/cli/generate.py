"""`anyformer generate`: continue a prompt, on the screen as it is written."""

import json
import time
from pathlib import Path

import click

from anyformer.cli.names import catalogue, import_option
from anyformer.cli.terminal import visible
from anyformer.errors import UsageError

JSON_VERSION = 1
DTYPES = ("float32", "bfloat16", "float16")


@click.command()
@click.argument("prompt", default="")
@click.option("--model", required=True, metavar="DIR", help="A model's directory: Hugging Face's, ours, or a run's.")
@click.option("--max-new-tokens", default=50, show_default=True, type=click.IntRange(min=0), help="Tokens to write.")
@click.option(
    "--temperature", default=0.0, show_default=True, help="0 takes the likeliest token; 1 draws as the model says."
)
@click.option("--top-k", type=int, help="Draw from the k likeliest tokens.")
@click.option("--top-p", type=float, help="Draw from the likeliest tokens that have this probability together.")
@click.option("--seed", default=0, show_default=True, help="The same seed writes the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. May be given several times.")
@click.option("--device", default=None, help="cpu, cuda, mps …; the best there is by default.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of weights and cache; as the weights are stored by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when all is written.")
@import_option
def command(
    prompt: str,
    model: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    stop: tuple[str, ...],
    device: str | None,
    dtype: str | None,
    as_json: bool,
) -> None:
    """Continue PROMPT with a model; without one, begin a text.

    The text goes to stdout as it is written, with control characters spelled out. `--json` has them as they are; it
    gives version, prompt, text, token_ids, ended_by ("length", "end_of_text" or "stop"), seconds, tokens_per_second.
    """
    if not Path(model).exists() and any(model == preset["name"] for preset in catalogue()):
        raise UsageError(f"{model} is an architecture without weights; give the directory of a trained model")
    import torch

    from anyformer.generation import generate_text, lay_out_for_decoding
    from anyformer.hub import load
    from anyformer.train.device import choose_device

    place = choose_device(device)
    transformer, tokenizer = load(Path(model), device=place, dtype=None if dtype is None else getattr(torch, dtype))
    if tokenizer is None:
        raise UsageError(
            f"--model {model} has no tokenizer, so it cannot read a prompt; put a tokenizer.json beside it"
        )
    if not as_json:
        click.echo(visible(prompt), nl=False)

    def show(row: int, piece: str) -> None:
        if not as_json:
            click.echo(visible(piece), nl=False)

    start = time.perf_counter()
    (written,) = generate_text(
        lay_out_for_decoding(transformer),
        tokenizer,
        [prompt],
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        on_text=show,
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
