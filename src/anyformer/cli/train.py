"""`anyformer train`: an architecture, text and a recipe in; a run's directory out. The same command goes on with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import (
    ABOVE_ZERO,
    DIRECTORY,
    FILE,
    ONE_TEXT,
    PATH,
    RECOMPUTE,
    SHARE,
    VOCABULARY,
    Amount,
    Number,
    as_option,
    choice,
    device_option,
    json_option,
    language_options,
    minutes_option,
    pair_options,
    params_option,
    reward_options,
)
from anyformer.cli.recipe_options import recipe_options
from anyformer.cli.terminal import tell
from anyformer.errors import UsageError

LOGS = ("tensorboard", "wandb", "mlflow", "csv")
HOW = ("compiled", "micro_tokens", "recompute", "workers", "save", "save_every", "keep_last")  # fields of RunOptions
# Fields of a recipe, or of its objective, beside `recipe_options`.
OF_RECIPE = (
    *("lora", "distillation", "source_language", "target_language"),
    *("rewards", "max_new_tokens", "stop", "group", "updates"),
)


@click.command()
@click.argument("spec", type=PresetName())
@click.option(
    "--data",
    metavar="TEXT",
    multiple=True,
    help="A file, a folder, an address (s3://…), or stdlib: the text to train on. Several with weights, --data a/=0.7 --data "
    "b.jsonl=0.3, or the .yaml of a mixture.",
)
@pair_options
@language_options
@click.option(
    "--validation", type=SHARE, default=0.05, show_default=True, help="Share of the text set aside to validate on."
)
@click.option("--validation-data", **ONE_TEXT, help="A text of its own to validate on, instead of a share.")
@click.option("--validation-source", type=FILE, help="Sentences to validate on, for translation.")
@click.option("--validation-target", type=FILE, help="Their translations.")
@click.option("--out", type=DIRECTORY, help="Directory of the run; made, or gone on with.")
@click.option("--recipe", default="small", show_default=True, metavar="NAME", help="A recipe, or its file.")
@params_option
@click.option(
    "--vocab", "vocab_size", type=VOCABULARY, help="Tokens of the vocabulary.  [default: 4096 for a new tokenizer]"
)
@click.option("--tokenizer", type=FILE, help="A tokenizer.json or its directory; one is trained otherwise.")
@recipe_options
@minutes_option
@click.option("--lr", type=ABOVE_ZERO, help="Peak learning rate.")
@click.option(
    "--micro-tokens",
    type=Amount(),
    help="Tokens computed at once, to need less memory; the result is the same, but for what dropout draws.",
)
@choice(
    "--recompute",
    RECOMPUTE,
    "none",
    "What the backward pass makes again to need less memory: attention, or whole layers; the result is the same.",
)
@click.option(
    "--workers",
    type=Amount(0, 1000),
    default=0,
    show_default=True,
    help="Processes that prepare rows ahead of the step; the result is the same.",
)
@choice(
    "--save",
    ("now", "async"),
    "now",
    "Write checkpoints between two steps, or while steps go on, from a copy in memory.",
)
@click.option(
    "--save-every", metavar="STEPS", type=Amount(), help="Steps between checkpoints.  [default: an eighth of the run]"
)
@click.option(
    "--keep",
    "keep_last",
    type=Amount(most=10**6),
    default=2,
    show_default=True,
    help="Checkpoints that stay, the last ones; beside them the one of the lowest validation loss.",
)
@click.option("--nproc", type=Amount(most=4096), help="Start so many processes here (torchrun) that share the run.")
@click.option(
    "--mesh",
    metavar="AXES",
    help="How processes share it: dp=2,fsdp=4, also tp, ep, cp, pp, and zero=2 or 3; auto.  [default: auto]",
)
@click.option(
    "--max-restarts",
    type=Amount(0, 10**6),
    default=0,
    show_default=True,
    help="With --nproc: go on by itself, from the last checkpoint, where a process dies.",
)
@click.option(
    "--time-limit",
    type=Number(1, 1e6),
    default=1800.0,
    show_default=True,
    help="Seconds that processes wait for one another.",
)
@click.option("--compile", "compiled", is_flag=True, help="Compile the layers, each kind once.")
@device_option
@click.option("--init", type=PATH, help="Directory of weights to start from.")
@click.option(
    "--lora",
    metavar="r=16,alpha=32,targets=attention,base=float32",
    help="Train an adapter of the weights in --init alone (LoRA, by PEFT): its rank, its factor, maps (attention, "
    "feed-forward, all, or names such as q,v), and what the weights are held in: float32, int8 or nf4.",
)
@click.option(
    "--teacher",
    "distillation",
    metavar="DIRECTORY,weight=1,temperature=1",
    help="Learn what a trained model says of each token (distillation), by a share of the loss, at a temperature.",
)
@reward_options
@click.option("--group", type=Amount(2, 2**16), help="Answers that are written to a prompt and compared.")
@click.option("--updates", type=Amount(most=64), help="Of the weights, by the same answers.")
@click.option(
    "--chat-template", type=PATH, help="Jinja file that writes conversations.  [default: what the tokenizer brings]"
)
@click.option("--truncate", is_flag=True, help="Cut examples that are longer than a row, instead of refusing them.")
@click.option("--resume", is_flag=True, help="Refuse to start anew where --out holds no run.")
@click.option(
    "--log", multiple=True, type=click.Choice(LOGS), help="Show the figures there too. May be given several times."
)
@click.option("--dry-run", is_flag=True, help="Say what it would take, and write nothing.")
@json_option(help="One JSON object with the result on stdout.")
@as_option
@import_option
def command(
    spec: str,
    out: Path | None,
    dry_run: bool,
    as_json: bool,
    data: tuple[str, ...],
    nproc: int | None,
    mesh: str | None,
    max_restarts: int,
    time_limit: float,
    changes: dict[str, Any],
    **given: Any,
) -> int:
    """Train SPEC, a preset or the file of a specification, on text.

    `--json` gives version, out, objective, n_params, steps, tokens, seconds, tokens_per_second, flops_per_token, loss (of
    the last step, nats a token), validation (loss, perplexity, bits_per_byte, unigram_loss) and best (the checkpoint
    that did best on the validation text, or null); with `--dry-run`, the fields of the plan instead.

      anyformer train bert-base --params 3M --objective masked-lm --data my-texts/ --out runs/bert

      torchrun --nproc-per-node 4 -m anyformer train llama3-8b --params 10M --data my-texts/ --mesh dp=4 --out runs/first
    """
    if out is None and not dry_run:
        raise UsageError("--out is missing: name a directory for the run")
    from anyformer.training.cluster.joining import joined, started

    if nproc is not None and not started():
        from anyformer.training.cluster.launch import launch

        check_mesh(mesh, nproc)
        return launch(nproc, ["-m", "anyformer", *sys.argv[1:]], max_restarts=max_restarts)
    if max_restarts and not started():
        raise UsageError("--max-restarts is for several processes; give --nproc, or torchrun its own --max-restarts")
    with joined(mesh, time_limit) as world:
        from anyformer.study.train import prepare_training
        from anyformer.training.run import RunOptions

        if nproc not in (None, world.size):
            raise UsageError(f"--nproc {nproc}: torchrun has started {world.size} processes; leave --nproc out")
        options = RunOptions(world=world, **{name: given.pop(name) for name in HOW})
        written = {name: given.pop(name) for name in OF_RECIPE}
        changes |= {name: text for name, text in written.items() if text is not None}
        training = prepare_training(spec, data or None, out=out, options=options, **given, **changes)
        if dry_run:
            plan = training.plan()
            tell({"version": 1, **vars(plan)} if as_json else "\n".join(plan.lines()), as_json)
        else:
            tell(training.run(), as_json)
    return 0


def check_mesh(mesh: str | None, processes: int) -> None:
    """Raise UsageError, before any process is started, for a mesh of another number of them."""
    from anyformer.training.cluster.mesh import AUTO, parse

    if mesh not in (None, AUTO):
        parse(mesh, processes)
