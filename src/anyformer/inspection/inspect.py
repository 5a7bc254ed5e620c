"""What is inside a trained model, found out on a text: `inspect`."""

from __future__ import annotations

from pathlib import Path

from anyformer.errors import UsageError
from anyformer.inference.judging import judging
from anyformer.inference.opened import TrainedModel
from anyformer.inspection.attention import of_heads, refuse_wide_maps
from anyformer.inspection.effects import of_layers
from anyformer.inspection.importance import importance
from anyformer.inspection.parts import of_parts
from anyformer.inspection.reading import read
from anyformer.inspection.results import Inspection
from anyformer.inspection.subject import TOKENS, OneText, subject
from anyformer.text import Tokenizer
from anyformer.training.prepare import Sources


def inspect(
    model: TrainedModel,
    data: str | Path | None = None,
    *,
    text: str | None = None,
    source: str | Path | None = None,
    target: str | Path | None = None,
    tokens: int = TOKENS,
    seq_len: int | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    objective: str | None = None,
    chat_template: str | Path | None = None,
    truncate: bool = False,
    device: str | None = None,
) -> Inspection:
    """What layers, branches and heads of a model do on data of its kind, and one row of it token by token.

    Model, data and the other options are those of `evaluate`; `text` is a text itself, of which the row is then read, and the
    figures too where there is no data. Figures are means over about `tokens` tokens, always the same ones; each layer and each
    branch takes passes of its own over them, heads and neurons one backward pass. A model that is loaded is in float32.

    Raises UsageError for data and options that do not go together, for weights in few bits, and for
    rows so long that memory has no room for the weights of all their pairs; TextError, CheckpointError.
    """
    said = None if text is None else OneText(text=text)
    if data is source is target is None and said is None:
        raise UsageError("what is inside a model shows on a text: give --data, --text, or --source and --target")
    given = said if data is source is target is None and said is not None else Sources(data, source, target)
    with subject(
        model,
        given,
        tokens=tokens,
        seq_len=seq_len,
        tokenizer=tokenizer,
        objective=objective,
        chat_template=chat_template,
        truncate=truncate,
        device=device,
    ) as one:
        inner, judge, sites = one.model, one.judging, one.sites
        refuse_wide_maps(inner, judge, sites, tokens)
        matters = importance(inner, judge, tokens)
        labels, loss, layers = of_layers(inner, judge, sites, tokens)
        heads = of_heads(inner, judge, sites, tokens, matters)
        parts = of_parts(inner.spec, sites, matters)
        row = judge if said is None or said is given else judging(one.found, one.goal, said)
        reading = read(inner, one.found.tokenizer, row, sites)
    return Inspection(one.goal.kind, one.goal.unit, loss, labels, layers, heads, parts, matters, reading)
