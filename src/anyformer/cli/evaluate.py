"""`anyformer evaluate`: what a model's predictions cost on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import (
    ONE_FILE,
    ONE_TEXT,
    PATH,
    SHARE,
    Amount,
    Number,
    as_option,
    device_option,
    json_option,
    judging_options,
    language_options,
    pair_options,
    precision_option,
    reward_options,
    weights_option,
)
from anyformer.cli.terminal import tell, what_is_released
from anyformer.errors import UsageError

OF_TEXTS = (  # options that no task has
    *("data", "source", "target", "held_out", "memory", "truncate", "objective", "chat_template"),
    *("source_language", "target_language", "rewards", "max_new_tokens", "stop"),
)
YAML = (".yaml", ".yml")
BEAMS = 4


@click.command()
@click.argument("model", metavar="DIR", type=PATH)
@click.option("--data", **ONE_TEXT, help="A file, a folder, or stdlib.")
@pair_options
@click.option("--tasks", type=ONE_FILE, help="Questions with known answers: .jsonl, or .yaml as lm-eval reads it.")
@click.option("--held-out", type=SHARE, metavar="SHARE", help="Only what training with --validation SHARE sets aside.")
@click.option("--seq-len", type=Amount(), help="Tokens a row; a longer text is read in windows.  [default: as trained]")
@click.option(
    "--memory",
    type=Amount(least=0),
    help="Windows of one text see so many tokens before them, as Transformer-XL's do.  [default: as trained]",
)
@judging_options
@reward_options
@language_options
@precision_option
@weights_option
@device_option
@click.option(
    "--bleu", "with_bleu", is_flag=True, help="Translate --source too, and compare with --target (sacrebleu)."
)
@click.option(
    "--beams",
    type=Amount(most=10**4),
    help=f"For --bleu: search so many translations side by side.  [default: {BEAMS}]",
)
@click.option("--length-penalty", type=Number(-100, 100), help="For --bleu: as of `anyformer generate`.  [default: 1]")
@click.option("--as-released", is_flag=True, help="For --bleu: as the model's generation_config.json says.")
@json_option(help="One JSON object on stdout.")
@as_option
@import_option
def command(
    model: Path,
    tasks: Path | None,
    with_bleu: bool,
    beams: int | None,
    length_penalty: float | None,
    as_released: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Nats a token, perplexity and bits a byte of the model in DIR (a run, an HF directory) on a text.

    A run is judged by the objective that it was trained by, any other model by the one that suits its architecture, or by
    `--objective`.

    `--json` gives version, objective, loss (nats a token), perplexity, bits_per_byte (null where what is predicted is not
    the whole text), nats, tokens, nbytes, documents and seq_len;
    parts, what is predicted beside it by name: loss, labels, accuracy (null where not counted);
    with a memory also memory, with `--bleu` also bleu and bleu_signature:

      anyformer evaluate RUN --source test.de --target test.en --bleu --beams 4 --length-penalty 0.6

    With `--tasks` instead of a text: how many questions are answered right, by the likelihood of each choice:

      anyformer evaluate RUN --tasks questions.jsonl
    """
    from anyformer.generation import BeamSearch
    from anyformer.inference import evaluate, evaluate_task

    searched = beams is not None or length_penalty is not None
    if not with_bleu and (searched or as_released):
        raise UsageError(
            "--beams, --length-penalty and --as-released are for translations; give --bleu too, or leave them out"
        )
    if searched and as_released:
        raise UsageError(
            "--as-released has the model's files say how to search; leave --beams and --length-penalty out"
        )
    if tasks is not None:
        others = [name for name in OF_TEXTS if given.pop(name)] + ["bleu"] * with_bleu
        if others:
            named = ", ".join(f"--{name.replace('_', '-').replace('rewards', 'reward')}" for name in others)
            raise UsageError(f"--tasks asks questions, and {named} is for texts; leave one of them out")
        if tasks.suffix.lower() in YAML:
            try:
                from anyformer.integrations.lm_evaluation import evaluate_task
            except ImportError as error:
                remedy = "pip install 'anyformer[evaluate]', or write the questions as .jsonl"
                raise UsageError(f"{tasks} is for lm-eval, which is not to be imported ({error}); {remedy}") from None
        tell(evaluate_task(model, tasks, **given), as_json)
        return
    search = BeamSearch(beams or BEAMS, 1.0 if length_penalty is None else length_penalty) if with_bleu else None
    if as_released:
        search = what_is_released(model, as_released)
    tell(evaluate(model, bleu=search, **given), as_json)
