"""`anyformer classify`: what a trained model says of texts, a class or a number each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import (
    ONE_FILE_OF_TEXTS,
    as_option,
    device_option,
    json_option,
    precision_option,
    run_option,
    truncate_option,
)
from anyformer.cli.terminal import tell
from anyformer.screen import say

if TYPE_CHECKING:
    from anyformer.inference import Prediction


@click.command()
@run_option
@click.option("--text", "texts", multiple=True, help="A text. May be given several times.")
@click.option(
    "--data",
    **ONE_FILE_OF_TEXTS,
    help="A file of texts, one a line, or .jsonl, .csv or .tsv with text (and text_pair), or tokens; labels are not read. Or "
    ".jsonl with messages, or prompt and completion.",
)
@truncate_option
@device_option
@precision_option
@json_option(help="One JSON object on stdout.")
@as_option
@import_option
def command(model: Path, texts: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Say of each text what the model in DIR was trained to say: its class with the probability, or a number.

    Of words, each is printed on a line with its class, and a blank line follows each text. `--json` gives version, labels
    and results, one a text: label and probabilities, or value; of words, words, each with word, label and probabilities.

      anyformer classify --model runs/reviews --text "What a film."
      anyformer classify --model runs/judge --data answers.jsonl
    """
    from anyformer.inference import predict

    found = predict(model, texts, **given)
    if as_json:
        tell(found, as_json)
        return
    for i, said in enumerate(found.found):
        for word, each in zip(found.rows[i].texts if found.of_words else ("",), said, strict=True):
            say("\t".join([word] * found.of_words + _cells(each)))
        if found.of_words:
            say()


def _cells(said: Prediction) -> list[str]:
    if said.value is not None:
        return [f"{said.value:.6g}"]
    if said.label is None:
        return ["", ""]  # it was cut away
    return [said.label, f"{said.probabilities[said.label]:.4f}"]
