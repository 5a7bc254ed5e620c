"""`anyformer train`: an architecture, text and a recipe in; a run's directory out. The same command goes on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.amounts import Amount
from anyformer.cli.contrasted import contrast_data, found_after
from anyformer.cli.inputs import HeldOut, Sources, held_out_of, objective_for, pair_data, read_recipe, text_data
from anyformer.cli.labelled import figures_after, in_words, labelled_data, with_truncation
from anyformer.cli.names import PresetName, import_option
from anyformer.disk.run_layout import is_run
from anyformer.errors import CheckpointError, UsageError
from anyformer.recipe import OBJECTIVES, Contrastive, Labelled
from anyformer.spec import label

if TYPE_CHECKING:
    import torch

    from anyformer.recipe import Recipe
    from anyformer.spec import ModelSpec, Recompute
    from anyformer.training.data.feed import TrainingData
    from anyformer.training.run import TrainingResult

JSON_VERSION = 1
FILE = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("spec", type=PresetName())
@click.option("--data", metavar="TEXT", help="A file, a folder, or stdlib: the text to train on.")
@click.option("--source", type=FILE, help="For translation: a file of sentences, one a line.")
@click.option("--target", type=FILE, help="Their translations, line by line.")
@click.option(
    "--validation", default=0.05, show_default=True, help="Share of the text that is set aside to validate on."
)
@click.option("--validation-data", metavar="TEXT", help="A text of its own to validate on, instead of a share.")
@click.option("--validation-source", type=FILE, help="Sentences to validate on, for translation.")
@click.option("--validation-target", type=FILE, help="Their translations.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Directory of the run; made, or gone on with."
)
@click.option(
    "--recipe", "recipe_name", default="small", show_default=True, metavar="NAME", help="A recipe, or its file."
)
@click.option(
    "--objective",
    type=click.Choice(list(OBJECTIVES)),
    help="What to learn from the text.  [default: the recipe's, or what suits the architecture]",
)
@click.option("--params", type=Amount(), help="Resize the architecture to so many parameters.")
@click.option("--vocab", type=Amount(), help="Tokens of the vocabulary.  [default: 4096 for a new tokenizer]")
@click.option(
    "--tokenizer", "tokenizer_path", type=FILE, help="A tokenizer.json or its directory; one is trained otherwise."
)
@click.option("--tokens", type=Amount(), help="Train on so many tokens in all.")
@click.option("--seq-len", type=Amount(), help="Tokens a row.")
@click.option(
    "--memory", type=Amount(), help="Rows go on, and see so many tokens before them, as Transformer-XL's segments do."
)
@click.option("--batch-tokens", type=Amount(), help="Tokens an optimiser step.")
@click.option("--lr", type=float, help="Peak learning rate.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the weights, the order of the text and dropout.")
@click.option("--precision", type=click.Choice(["float32", "bf16"]), help="Of matrix products.")
@click.option(
    "--micro-tokens", type=Amount(), help="Tokens computed at once, to need less memory; the result is the same."
)
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    default="none",
    show_default=True,
    help="What the backward pass makes again to need less memory: attention, or whole layers; the result is the same.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Processes that prepare rows ahead of the step; the result is the same.",
)
@click.option("--compile", "compiled", is_flag=True, help="Compile the model first.")
@click.option("--device", help="cpu, cuda, mps …; the best there is by default.")
@click.option("--init", type=click.Path(path_type=Path), help="Directory of weights to start from.")
@click.option(
    "--truncate", is_flag=True, help="Cut labelled texts, or pairs, longer than a row, instead of refusing them."
)
@click.option("--resume", is_flag=True, help="Refuse to start anew where --out holds no run.")
@click.option("--dry-run", is_flag=True, help="Say what it would take, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the result on stdout.")
@import_option
def command(
    spec: str,
    data: str | None,
    source: Path | None,
    target: Path | None,
    validation: float,
    validation_data: str | None,
    validation_source: Path | None,
    validation_target: Path | None,
    out: Path | None,
    recipe_name: str,
    objective: str | None,
    params: int | None,
    vocab: int | None,
    tokenizer_path: Path | None,
    tokens: int | None,
    seq_len: int | None,
    memory: int | None,
    batch_tokens: int | None,
    lr: float | None,
    seed: int | None,
    precision: str | None,
    micro_tokens: int | None,
    recompute: Recompute,
    workers: int,
    compiled: bool,
    device: str | None,
    init: Path | None,
    truncate: bool,
    resume: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train SPEC, a preset or the file of a specification, on text.

    `--json` gives version, out, objective, n_params, steps, tokens, seconds, tokens_per_second, flops_per_token, loss (of
    the last step, nats a token), validation (loss, perplexity, bits_per_byte, unigram_loss) and best (the checkpoint
    that did best on the validation text, or null); with `--dry-run`, the fields of the plan instead.

      anyformer train bert-base --params 3M --objective masked-lm --data my-texts/ --out runs/bert
    """
    if out is None and not dry_run:
        raise UsageError("--out is missing: name a directory for the run")
    if resume and (out is None or not is_run(out)):
        raise CheckpointError(f"--resume: there is no run in {out}; leave --resume out to start one")
    given = Sources(data, source, target)
    held_out = held_out_of(given.reads, validation, validation_data, validation_source, validation_target)
    changes = {"tokens": tokens, "seq_len": seq_len, "batch_tokens": batch_tokens, "seed": seed, "precision": precision}
    changes |= {"memory": memory}
    from anyformer.hub import load_spec

    named = load_spec(spec)
    goal = objective_for(objective, recipe_name, named, given.reads)
    chosen = read_recipe(recipe_name, changes | {"objective": goal})
    if lr is not None:
        chosen = chosen.but(optimizer=chosen.optimizer.but(lr=lr))
    chosen = with_truncation(chosen) if truncate else chosen
    kept = out / "tokenizer" if out is not None and (out / "tokenizer" / "tokenizer.json").is_file() else None
    text, trained = _data(chosen, given, held_out, tokenizer_path or kept, out, init, vocab)
    # Given weights have the rows that they have, be they more than the tokenizer's tokens.
    follows = params or (init is None and (trained or kept))
    architecture = _fitted(_resized(named, params, vocab or (text.vocab_size if follows else None)), chosen, text)

    from anyformer.training.objectives.contrastive.data import ContrastData
    from anyformer.training.objectives.labelled.data import LabelledData
    from anyformer.training.run import RunOptions, plan_run, train
    from anyformer.training.run.progress import live_view
    from anyformer.training.step.device import choose_device

    options = RunOptions(
        device=choose_device(device),
        compiled=compiled,
        micro_tokens=micro_tokens,
        recompute=recompute,
        workers=workers,
        peak=_peak,
    )
    if dry_run:
        plan = plan_run(architecture, chosen, text, out=out, init=init, options=options)
        click.echo(
            json.dumps({"version": JSON_VERSION, **vars(plan)}, indent=1) if as_json else "\n".join(plan.lines())
        )
        return
    result = train(
        architecture, chosen, text, out=out, init=init, options=options, watcher=live_view(), name=label(spec)
    )
    figures = figures_after(result, text, chosen) if isinstance(text, LabelledData) else {}
    figures |= found_after(result, text, chosen) if isinstance(text, ContrastData) else {}
    report, sentence = _report(result, chosen, out, figures), _sentence(result, chosen, out, figures)
    click.echo(json.dumps(report, indent=1) if as_json else sentence)


def _peak(dtype: torch.dtype, device: torch.device) -> float:
    """FLOPs a second of large products, measured the first time on a machine and then remembered."""
    from anyformer.measure import calibrate
    from anyformer.measure.calibrate import dtype_name

    return calibrate(device, (dtype,)).peak_flops_per_second[dtype_name(dtype)]


def _data(
    recipe: Recipe,
    given: Sources,
    held_out: HeldOut,
    tokenizer: Path | None,
    out: Path | None,
    init: Path | None,
    vocab: int | None,
) -> tuple[TrainingData, bool]:
    """The data, and whether its tokenizer was trained on it just now."""
    from anyformer.hub import load_tokenizer
    from anyformer.text import Tokenizer

    beside = load_tokenizer(init) if tokenizer is None and init is not None else None
    known = Tokenizer.load(tokenizer) if tokenizer is not None else beside
    if given.reads == "pairs" and isinstance(recipe.objective, Contrastive):
        pairs = contrast_data(given, held_out, known, vocab, recipe.objective)
        _say_cut(pairs.cut(recipe), recipe)
        return pairs, known is None
    if given.reads == "pairs":
        return pair_data(given.pairs(), held_out, known, vocab), known is None
    if isinstance(recipe.objective, Labelled):
        found = labelled_data(given, held_out, known, vocab, recipe.objective, out, init)
        _say_cut(found.cut(recipe), recipe)
        return found, known is None
    return text_data(given.corpus(), held_out, known, vocab, recipe.objective), known is None


def _say_cut(n_texts: int, recipe: Recipe) -> None:
    if n_texts:
        click.echo(f"{n_texts:,} texts are cut to {recipe.seq_len} tokens (--truncate)", err=True)


def _resized(spec: ModelSpec, n_params: int | None, vocab_size: int | None) -> ModelSpec:
    from anyformer.resizing import resize

    if n_params is None and vocab_size in (None, spec.vocab_size):
        return spec
    return resize(spec, n_params=n_params, vocab_size=vocab_size)


def _fitted(spec: ModelSpec, recipe: Recipe, data: TrainingData) -> ModelSpec:
    """The architecture with the head that the objective trains; where it has none, say that it gets one."""
    from anyformer.training.objectives.objective import with_head_for

    found = with_head_for(spec, recipe.objective, data.labels)
    if new := [head.name for head in found.heads if head not in spec.heads]:
        gone = ", ".join(repr(head.name) for head in spec.heads if head not in found.heads)
        place = f"in the place of {gone}" if gone else "which is added to the architecture"
        click.echo(f"{recipe.objective.kind} trains a head {new[0]!r}, {place}", err=True)
    return found


def _report(
    result: TrainingResult, recipe: Recipe, out: Path | None, figures: dict[str, float | None]
) -> dict[str, Any]:
    evaluation = result.evaluation
    return {
        "version": JSON_VERSION,
        "out": str(out),
        "objective": recipe.objective.kind,
        "n_params": result.n_params,
        "steps": result.steps[-1].step if result.steps else 0,
        "tokens": result.tokens,
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
        "flops_per_token": result.flops_per_token,
        "loss": result.steps[-1].loss if result.steps else None,
        "validation": evaluation
        and {
            "loss": evaluation.loss,
            "perplexity": evaluation.perplexity if recipe.objective.in_nats else None,
            "bits_per_byte": evaluation.bits_per_byte if recipe.objective.whole else None,
            "unigram_loss": result.unigram_loss,
            **figures,
        },
        "best": result.best and str(result.best),
    }


def _sentence(result: TrainingResult, recipe: Recipe, out: Path | None, labelled: dict[str, float | None]) -> str:
    evaluation = result.evaluation
    validated = ""
    if evaluation is not None:
        figures = [f"{evaluation.loss:.4f} {recipe.objective.unit}"]
        figures += [in_words(labelled)] if labelled else [f"perplexity {evaluation.perplexity:.2f}"]
        if recipe.objective.whole:
            figures.append(f"{evaluation.bits_per_byte:.4f} bits a byte")
        if result.unigram_loss is not None:
            below = 1 - evaluation.loss / result.unigram_loss
            figures.append(
                f"{abs(below):.0%} {'below' if below >= 0 else 'above'} {recipe.objective.guess} ({result.unigram_loss:.4f})"
            )
        validated = "; validation " + ", ".join(figures)
    best = f"; best on the validation text: {result.best}" if result.best else ""
    return f"{result.tokens:,} tokens predicted in {result.seconds:,.0f} s{validated}; saved in {out}{best}"
