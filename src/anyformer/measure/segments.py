"""What a model's predictions cost on a text that it reads in segments, with a memory of the last. arXiv:1901.02860."""

from __future__ import annotations

import numpy as np
import torch

from anyformer.memory import SegmentMemory
from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.text import EncodedCorpus
from anyformer.train.cross_entropy import cross_entropy
from anyformer.train.device import autocast
from anyformer.train.evaluation import DocumentLoss, Evaluation


def evaluate_in_segments(
    model: Transformer, encoded: EncodedCorpus, seq_len: int, memory: int, *, precision: Precision = "float32"
) -> Evaluation:
    """Return the losses of every document, read `seq_len` tokens at a time, which see `memory` tokens before them too.

    With a memory as long as the document they are those of one pass over it. Raises CacheError where the model cannot have one.
    """
    device, head, found = next(model.parameters()).device, model.head(), []
    for i in range(encoded.n_documents):
        tokens = torch.from_numpy(np.asarray(encoded.document(i)).astype(np.int64)).to(device)[None]
        past, nats = SegmentMemory(model.spec, memory, device=device), 0.0
        for start in range(0, tokens.shape[1] - 1, seq_len):
            segment = tokens[:, start : start + seq_len + 1]
            with torch.no_grad(), autocast(precision, device):
                out = model(segment[:, :-1], cache=past, output_logits=False)
                nats += float(cross_entropy(head, out.last_hidden_state, segment[:, 1:])[1].double().sum())
        if tokens.shape[1] > 1:
            found.append(DocumentLoss(nats, tokens.shape[1] - 1, int(encoded.document_nbytes[i])))
    return Evaluation(tuple(found))
