"""`anyformer evaluate`: what a model's predictions cost on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from anyformer.cli.amounts import Amount
from anyformer.cli.contrasted import evaluated as pairs_found
from anyformer.cli.inputs import Sources, fits
from anyformer.cli.labelled import evaluated, in_words
from anyformer.cli.names import import_option
from anyformer.errors import UsageError

if TYPE_CHECKING:
    from anyformer.measure.bleu import Bleu
    from anyformer.model import Transformer
    from anyformer.recipe import Contrastive, Labelled, ObjectiveSpec, Precision, Recipe
    from anyformer.spec import ModelSpec
    from anyformer.text import Tokenizer
    from anyformer.training.data.feed import Validation

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
    precision: Precision,
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

    from anyformer.hub import load
    from anyformer.recipe import Contrastive, FramedTexts, Labelled, of_run
    from anyformer.text import Tokenizer
    from anyformer.training.step.device import choose_device

    place = choose_device(device)
    transformer, tokenizer = load(model, device=place)
    if tokenizer_path is not None:
        tokenizer = Tokenizer.load(tokenizer_path)
    if tokenizer is None:
        raise UsageError(f"{model} has no tokenizer; give one with --tokenizer")
    trained = of_run(model)
    goal = _goal(transformer.spec, trained, given)
    if isinstance(goal, FramedTexts):
        goal = goal.but(truncate=goal.truncate or truncate)
    asked = Asked(given, held_out, seq_len, memory, precision, (beams, length_penalty) if with_bleu else None)
    if isinstance(goal, Labelled):
        told, plain = _labels(transformer, tokenizer, goal, trained, asked)
    elif isinstance(goal, Contrastive):
        told, plain = _pairs(transformer, tokenizer, goal, trained, asked)
    else:
        told, plain = _text(transformer, tokenizer, goal, trained, asked, model)
    click.echo(json.dumps({"version": JSON_VERSION, **told}, indent=1) if as_json else plain)


class Asked(NamedTuple):
    """What the command says beside the model."""

    given: Sources
    held_out: float | None
    seq_len: int | None
    memory: int | None
    precision: Precision
    bleu: tuple[int, float] | None  # beams and length penalty


Told = tuple[dict[str, Any], str]  # the fields of `--json`, and the same in words


def _goal(spec: ModelSpec, trained: Recipe | None, given: Sources) -> ObjectiveSpec:
    """What a model is judged by: what it was trained by, if on such data, else what suits it."""
    from anyformer.training.objectives.architecture import usual

    return trained.objective if trained and fits(trained.objective, given.reads) else usual(spec, given.reads)


def _labels(model: Transformer, tokenizer: Tokenizer, goal: Labelled, trained: Recipe | None, asked: Asked) -> Told:
    if asked.memory is not None:
        raise UsageError("--memory is for texts that are read in windows; leave it out with labelled text")
    assert asked.given.data is not None
    longest = asked.seq_len or (trained.seq_len if trained else None)
    told = evaluated(model, tokenizer, asked.given.data, asked.held_out, goal, longest, asked.precision)
    plain = f"{told['loss']:.4f} {goal.unit}, {in_words(told)} ({told['examples']:,} examples, {told['cut']:,} cut)"
    return told, plain


def _pairs(model: Transformer, tokenizer: Tokenizer, goal: Contrastive, trained: Recipe | None, asked: Asked) -> Told:
    if asked.bleu is not None:
        raise UsageError("--bleu compares translations, and this model makes vectors of texts; leave it out")
    from anyformer.recipe import Recipe

    options = Recipe(objective=goal, seq_len=_length(model.spec, trained, asked))
    options = options.but(batch_tokens=trained.batch_tokens) if trained else options
    told = pairs_found(model, tokenizer, asked.given, asked.held_out, options, asked.precision)
    losses = f"{told['loss']:.4f} {goal.unit} ({told['chance_loss']:.4f} by chance)"
    return told, f"{losses}, {in_words(told)} ({told['pairs']:,} pairs)"


def _text(
    model: Transformer, tokenizer: Tokenizer, goal: ObjectiveSpec, trained: Recipe | None, asked: Asked, directory: Path
) -> Told:
    from anyformer.hub import load_auxiliary
    from anyformer.recipe import Recipe
    from anyformer.training.objectives.objective import objective_of
    from anyformer.training.run.checks import check_positions, check_vocabulary
    from anyformer.training.run.evaluation import evaluate
    from anyformer.training.step.memories import check_memory

    spec = model.spec
    objective, length = objective_of(goal, spec), _length(spec, trained, asked)
    check_vocabulary(spec, tokenizer.vocab_size)
    check_positions(spec, length)
    options = Recipe(objective=goal, seq_len=length, batch_tokens=length, seed=trained.seed if trained else 0)
    memory = asked.memory
    if memory is None and trained and asked.given.reads == "text":
        memory = trained.memory
    if memory:
        options = options.but(memory=memory)
        check_memory(spec, options)
    validation = _validation(asked.given, asked.held_out, tokenizer, options)
    device = next(model.parameters()).device
    beside = load_auxiliary(directory, device=device) if objective.auxiliary() is not None else None
    found = evaluate(model, objective, validation, precision=asked.precision, auxiliary=beside)
    told: dict[str, Any] = {
        "objective": goal.kind,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte if goal.whole else None,
        "nats": found.nats,
        "tokens": found.tokens,
        "nbytes": found.nbytes,
        "documents": len(found.documents),
        "seq_len": length,
        "parts": {name: part._asdict() for name, part in found.parts.items()},
    }
    told |= {} if memory is None else {"memory": memory}
    bits = f"{found.bits_per_byte:.4f} bits a byte" if goal.whole else f"by {goal.kind}"
    lines = [
        f"{found.loss:.4f} nats a token, perplexity {found.perplexity:.3f}, {bits} "
        f"({found.tokens:,} tokens, {found.nbytes:,} bytes, {len(found.documents):,} documents, rows of {length}"
        + (f", a memory of {memory})" if memory is not None else ")")
    ]
    for name, part in found.parts.items():
        right = "" if part.accuracy is None else f", {part.accuracy:.1%} right"
        lines.append(f"{name}: {part.loss:.4f} nats{right} ({part.labels:,} labels)")
    if asked.bleu is not None:
        beams, length_penalty = asked.bleu
        score = _bleu(model, tokenizer, validation, beams, length_penalty)
        told |= {"bleu": score.score, "bleu_signature": score.signature}
        lines.append(f"BLEU {score.score:.2f} ({score.signature}), beams {beams}, length penalty {length_penalty:g}")
    return told, "\n".join(lines)


def _length(spec: ModelSpec, trained: Recipe | None, asked: Asked) -> int:
    """The tokens of a row."""
    return asked.seq_len or (trained.seq_len if trained else min(spec.context or LONGEST, LONGEST))


def _bleu(model: Transformer, tokenizer: Tokenizer, validation: Validation, beams: int, length_penalty: float) -> Bleu:
    from anyformer.generation import BeamSearch, lay_out_for_decoding, translate
    from anyformer.measure.bleu import bleu
    from anyformer.training.objectives.seq2seq.data import PairValidation

    assert isinstance(validation, PairValidation)
    sources, references = zip(*validation.corpus.pairs, strict=True)
    options = BeamSearch(beams, length_penalty)
    found = translate(lay_out_for_decoding(model), tokenizer, sources, search=options if beams > 1 else None)
    return bleu(found, references)


def _validation(given: Sources, held_out: float | None, tokenizer: Tokenizer, recipe: Recipe) -> Validation:
    from anyformer.text import EncodedPairs, encode_corpus, split_pairs
    from anyformer.training.data.text import text_validation
    from anyformer.training.objectives.seq2seq.data import PairValidation

    if given.reads == "pairs":
        pairs = given.pairs()
        pairs = pairs if held_out is None else split_pairs(pairs, held_out)[1]
        return PairValidation(pairs, EncodedPairs(pairs, tokenizer))
    corpus = given.corpus()
    corpus = corpus if held_out is None else corpus.split(held_out)[1]
    return text_validation(encode_corpus(corpus, tokenizer), tokenizer, recipe)
