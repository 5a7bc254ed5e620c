"""What a head says of conversations as wholes: a reward model's number for an answer, or a classifier's scores."""

from __future__ import annotations

import numpy as np
import torch

from anyformer.layers.execution import exact
from anyformer.model import Transformer
from anyformer.text import Tokenizer
from anyformer.text.conversations import ExchangeCorpus
from anyformer.training.data.examples import ExampleValidation
from anyformer.training.objectives.reward_model.data import EncodedAnswers
from anyformer.training.objectives.reward_model.loss import asked_of_answers

BATCH_TOKENS = 4096


def scored_exchanges(
    model: Transformer,
    tokenizer: Tokenizer,
    corpus: ExchangeCorpus,
    *,
    longest: int | None = None,
    truncate: bool = False,
) -> np.ndarray:
    """What the head for texts says of exchanges with an answer each [exchange, row], in float32, as of it alone.

    Of an answer that begins beyond the tokens of a row it is NaN. Raises TextError as `EncodedExchanges` does.
    """
    examples = EncodedAnswers(corpus, tokenizer, longest, truncate=truncate)
    device, said = next(model.parameters()).device, list[tuple[np.ndarray, np.ndarray]]()
    for rows, source in ExampleValidation(examples).batches(BATCH_TOKENS):
        with torch.no_grad():
            out = model(**asked_of_answers(rows, device))
        said.append((source[:, 0], exact(out.logits).cpu().numpy()))
    found = np.full((len(corpus.rows), said[0][1].shape[1]), np.nan, dtype=np.float32)
    for numbers, scores in said:
        found[numbers] = scores
    return found
