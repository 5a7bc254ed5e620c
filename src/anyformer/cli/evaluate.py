"""`anyformer evaluate`: what a model's predictions cost on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anyformer.cli.amounts import Amount
from anyformer.cli.contrasted import evaluated as pairs_found
from anyformer.cli.contrasted import pairs_goal
from anyformer.cli.inputs import Sources
from anyformer.cli.labelled import evaluated, in_words
from anyformer.cli.names import import_option
from anyformer.errors import UsageError

if TYPE_CHECKING:
    from anyformer.measure.bleu import Bleu
    from anyformer.model import Transformer
    from anyformer.recipe import Recipe
    from anyformer.spec import ModelSpec
    from anyformer.text import Tokenizer
    from anyformer.train.data import Validation

JSON_VERSION = 1
FILE = click.Path(exists=True, path_type=Path)
LONGEST = 1024  # tokens a row where the model says nothing


@click.command()
@click.argument("model", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--data", metavar="TEXT", help="A file, a folder, or stdlib.")
@click.option("--source", type=FILE, help="For translation: a file of sentences, one a line.")
@click.option("--target", type=FILE, help="Their translations, line by line.")
@click.option("--held-out", type=float, metavar="SHARE", help="Only what training with --validation SHARE sets aside.")
@click.option("--seq-len", type=Amount(), help="Tokens a row; a longer text is read in windows.  [default: as trained]")
@click.option(
    "--memory",
    type=Amount(least=0),
    help="Windows of one text see so many tokens before them, as Transformer-XL's do.  [default: as trained]",
)
@click.option("--tokenizer", "tokenizer_path", type=FILE, help="Where the model's directory has none.")
@click.option("--precision", type=click.Choice(["float32", "bf16"]), default="float32", show_default=True)
@click.option("--device", help="cpu, cuda, mps …; the best there is by default.")
@click.option(
    "--bleu", "with_bleu", is_flag=True, help="Translate --source too, and compare with --target (sacrebleu)."
)
@click.option("--beams", default=4, show_default=True, help="For --bleu: search so many translations side by side.")
@click.option("--length-penalty", default=1.0, show_default=True, help="For --bleu: as of `anyformer generate`.")
@click.option(
    "--truncate", is_flag=True, help="Cut labelled texts, or pairs, that are longer than a row.  [default: as trained]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@import_option
def command(
    model: Path,
    data: str | None,
    source: Path | None,
    target: Path | None,
    held_out: float | None,
    seq_len: int | None,
    memory: int | None,
    tokenizer_path: Path | None,
    precision: str,
    device: str | None,
    with_bleu: bool,
    beams: int,
    length_penalty: float,
    truncate: bool,
    as_json: bool,
) -> None:
    """Nats a token, perplexity and bits a byte of the model in DIR (a run, an HF directory) on a text.

    A run is judged by the objective that it was trained by, any other model by the one that suits its architecture.

    `--json` gives version, objective, loss (nats a token), perplexity, bits_per_byte (null where what is predicted is not
    the whole text), nats, tokens, nbytes, documents and seq_len;
    parts, what is predicted beside it by name: loss, labels, accuracy (null where not counted);
    with a memory also memory, with `--bleu` also bleu and bleu_signature:

      anyformer evaluate RUN --source test.de --target test.en --bleu --beams 4 --length-penalty 0.6
    """
    given = Sources(data, source, target)
    if with_bleu and source is None:
        raise UsageError("--bleu compares translations: give --source and --target")
    if memory is not None and source is not None:
        raise UsageError("--memory is for texts that are read in windows; leave it out with --source")

    from anyformer.hub import load, load_companion
    from anyformer.recipe import Contrastive, Labelled, Recipe
    from anyformer.text import Tokenizer
    from anyformer.train.checks import check_positions, check_vocabulary
    from anyformer.train.companion import companion_of
    from anyformer.train.device import choose_device
    from anyformer.train.evaluation import evaluate
    from anyformer.train.lanes import check_memory
    from anyformer.train.objectives import objective_of, usual

    place = choose_device(device)
    transformer, tokenizer = load(model, device=place)
    if tokenizer_path is not None:
        tokenizer = Tokenizer.load(tokenizer_path)
    if tokenizer is None:
        raise UsageError(f"{model} has no tokenizer; give one with --tokenizer")
    spec = transformer.spec
    trained = _trained(model)
    goal = (
        pairs_goal(spec, trained)
        if source
        else trained.objective
        if trained and trained.objective.reads != "pairs"
        else usual(spec)
    )
    if isinstance(goal, Labelled) and data is not None:
        if memory is not None:
            raise UsageError("--memory is for texts that are read in windows; leave it out with labelled text")
        goal, longest = goal.but(truncate=goal.truncate or truncate), seq_len or (trained.seq_len if trained else None)
        number = "bf16" if precision == "bf16" else "float32"
        told = evaluated(transformer, tokenizer, data, held_out, goal, longest, number)
        plain = f"{told['loss']:.4f} {goal.unit}, {in_words(told)} ({told['examples']:,} examples, {told['cut']:,} cut)"
        click.echo(json.dumps({"version": JSON_VERSION, **told}, indent=1) if as_json else plain)
        return
    if isinstance(goal, Contrastive):
        if with_bleu:
            raise UsageError("--bleu compares translations, and this model makes vectors of texts; leave it out")
        length = seq_len or (trained.seq_len if trained else _longest(spec))
        how = Recipe(objective=goal.but(truncate=goal.truncate or truncate), seq_len=length)
        how = how.but(batch_tokens=trained.batch_tokens) if trained else how
        told = pairs_found(transformer, tokenizer, given, held_out, how, "bf16" if precision == "bf16" else "float32")
        losses = f"{told['loss']:.4f} {goal.unit} ({told['chance_loss']:.4f} by chance)"
        plain = f"{losses}, {in_words(told)} ({told['pairs']:,} pairs)"
        click.echo(json.dumps({"version": JSON_VERSION, **told}, indent=1) if as_json else plain)
        return
    objective = objective_of(goal, spec)
    check_vocabulary(spec, tokenizer.vocab_size)
    length = seq_len or (trained.seq_len if trained else _longest(spec))
    check_positions(spec, length)
    how = Recipe(objective=goal, seq_len=length, batch_tokens=length, seed=trained.seed if trained else 0)
    memory = memory if memory is not None or source or not trained else trained.memory
    if memory:
        how = how.but(memory=memory)
        check_memory(spec, how)
    validation = _validation(given, held_out, tokenizer, how)
    number = "bf16" if precision == "bf16" else "float32"
    beside = load_companion(model, device=place) if companion_of(objective, spec) is not None else None
    found = evaluate(transformer, objective, validation, precision=number, companion=beside)
    score = _bleu(transformer, tokenizer, validation, beams, length_penalty) if with_bleu else None
    if as_json:
        figures = {
            name: getattr(found, name) for name in ("loss", "perplexity", "bits_per_byte", "nats", "tokens", "nbytes")
        }
        figures["bits_per_byte"] = figures["bits_per_byte"] if goal.whole else None
        told = {
            "version": JSON_VERSION,
            "objective": goal.kind,
            **figures,
            "documents": len(found.documents),
            "seq_len": length,
        }
        told["parts"] = {name: part._asdict() for name, part in found.parts.items()}
        told |= {} if memory is None else {"memory": memory}
        told |= {} if score is None else {"bleu": score.score, "bleu_signature": score.signature}
        click.echo(json.dumps(told, indent=1))
        return
    bits = f"{found.bits_per_byte:.4f} bits a byte" if goal.whole else f"by {goal.kind}"
    click.echo(
        f"{found.loss:.4f} nats a token, perplexity {found.perplexity:.3f}, {bits} "
        f"({found.tokens:,} tokens, {found.nbytes:,} bytes, {len(found.documents):,} documents, rows of {length}"
        + (f", a memory of {memory})" if memory is not None else ")")
    )
    for name, part in found.parts.items():
        right = "" if part.accuracy is None else f", {part.accuracy:.1%} right"
        click.echo(f"{name}: {part.loss:.4f} nats{right} ({part.labels:,} labels)")
    if score is not None:
        click.echo(f"BLEU {score.score:.2f} ({score.signature}), beams {beams}, length penalty {length_penalty:g}")


def _bleu(model: Transformer, tokenizer: Tokenizer, validation: Validation, beams: int, length_penalty: float) -> Bleu:
    from anyformer.generation import BeamSearch, lay_out_for_decoding, translate
    from anyformer.measure.bleu import bleu
    from anyformer.train.data import PairValidation

    assert isinstance(validation, PairValidation)
    sources, references = zip(*validation.corpus.pairs, strict=True)
    how = BeamSearch(beams, length_penalty)
    found = translate(lay_out_for_decoding(model), tokenizer, sources, search=how if beams > 1 else None)
    return bleu(found, references)


def _validation(given: Sources, held_out: float | None, tokenizer: object, recipe: Recipe) -> Validation:
    from anyformer.text import EncodedPairs, Tokenizer, encode_corpus
    from anyformer.train.data import PairValidation, split_pairs, text_validation

    assert isinstance(tokenizer, Tokenizer)
    if given.reads == "pairs":
        pairs = given.pairs()
        pairs = pairs if held_out is None else split_pairs(pairs, held_out)[1]
        return PairValidation(pairs, EncodedPairs(pairs, tokenizer))
    corpus = given.corpus()
    corpus = corpus if held_out is None else corpus.split(held_out)[1]
    return text_validation(encode_corpus(corpus, tokenizer), tokenizer, recipe)


def _trained(directory: Path) -> Recipe | None:
    from anyformer import recipe

    file = directory / "recipe.yaml"
    return recipe.read(file) if file.is_file() else None


def _longest(spec: ModelSpec) -> int:
    return min(spec.context or LONGEST, LONGEST)
