"""`anyformer classify`: what a trained model says of texts, a class or a number each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.terminal import visible
from anyformer.errors import UsageError

if TYPE_CHECKING:
    from anyformer.inference import Prediction
    from anyformer.recipe import Precision
    from anyformer.text import LabelledRow

JSON_VERSION = 1


@click.command()
@click.option(
    "--model", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A run, or an HF directory."
)
@click.option("--text", "texts", multiple=True, help="A text. May be given several times.")
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of texts, one a line, or .jsonl, .csv or .tsv with text (and text_pair), or tokens; labels are not read.",
)
@click.option("--truncate", is_flag=True, help="Cut texts that the model has no room for.  [default: as trained]")
@click.option("--device", help="cpu, cuda, mps …; the best there is by default.")
@click.option("--precision", type=click.Choice(["float32", "bf16"]), default="float32", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@import_option
def command(
    model: Path,
    texts: tuple[str, ...],
    data: Path | None,
    truncate: bool,
    device: str | None,
    precision: Precision,
    as_json: bool,
) -> None:
    """Say of each text what the model in DIR was trained to say: its class with the probability, or a number.

    Of words, each is printed on a line with its class, and a blank line follows each text. `--json` gives version, labels
    and results, one a text: label and probabilities, or value; of words, words, each with word, label and probabilities.

      anyformer classify --model runs/reviews --text "What a film."
    """
    if (data is None) != bool(texts):
        raise UsageError("give either --data, or --text once or several times")
    from anyformer.hub import load
    from anyformer.inference.labelling import said_of
    from anyformer.inference.scores import labelled_objective
    from anyformer.recipe import Labelled, of_run
    from anyformer.text import LabelledRow
    from anyformer.training.step.device import choose_device

    transformer, tokenizer = load(model, device=choose_device(device))
    if tokenizer is None:
        raise UsageError(f"--model {model} has no tokenizer, so it cannot read a text; put a tokenizer.json beside it")
    words = labelled_objective(transformer.spec).said.labels == "words"
    if data is not None:
        rows, where = _rows(data, words), str(data)
    else:
        split = [tuple(text.split()) if words else (text,) for text in texts]
        rows, where = [LabelledRow(each, None, i) for i, each in enumerate(split, 1)], "--text"
    blank = next((row.line for row in rows if not row.texts or not all(text.strip() for text in row.texts)), None)
    if blank is not None:
        raise UsageError(f"{where}, line {blank}: the text is empty; leave it out")
    trained, longest = of_run(model), None
    if trained is not None and isinstance(trained.objective, Labelled):
        longest, truncate = trained.seq_len, truncate or trained.objective.truncate
    found = said_of(transformer, tokenizer, rows, where, longest=longest, truncate=truncate, precision=precision)
    if as_json:
        results = [_result(row, said, words) for row, said in zip(rows, found, strict=True)]
        told = {"version": JSON_VERSION, "labels": list(transformer.labels or ()), "results": results}
        click.echo(json.dumps(told, ensure_ascii=False, indent=1))
        return
    for row, said in zip(rows, found, strict=True):
        for word, each in zip(row.texts if words else ("",), said, strict=True):
            click.echo("\t".join([visible(word)] * words + _cells(each)))
        if words:
            click.echo()


def _rows(data: Path, words: bool) -> list[LabelledRow]:
    from anyformer.text import LabelledRow, read_labelled
    from anyformer.text.labelled_files import SUFFIXES
    from anyformer.text.parallel import read_lines

    if Path(data.name.removesuffix(".gz")).suffix.lower() in SUFFIXES:
        corpus = read_labelled(data, unlabelled=True)
        if (corpus.kind == "words") != words:
            wanted = "words (tokens)" if words else "texts (text, and text_pair)"
            raise UsageError(f"{data}: this model says something of {wanted}, and what is given is none")
        return [row._replace(label=None) for row in corpus.rows]
    lines = enumerate(read_lines(data), 1)
    return [LabelledRow(tuple(line.split()) if words else (line,), None, i) for i, line in lines]


def _cells(said: Prediction) -> list[str]:
    if said.value is not None:
        return [f"{said.value:.6g}"]
    if said.label is None:
        return ["", ""]  # a word that was cut away
    return [visible(said.label), f"{said.probabilities[said.label]:.4f}"]


def _result(row: LabelledRow, said: list[Prediction], words: bool) -> dict[str, Any]:
    if words:
        each = zip(row.texts, said, strict=True)
        return {"words": [{"word": word, **_object(answer)} for word, answer in each]}
    return _object(said[0])


def _object(said: Prediction) -> dict[str, Any]:
    if said.value is not None:
        return {"value": said.value}
    return {"label": said.label, "probabilities": said.probabilities or None}
