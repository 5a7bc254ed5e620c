"""One row read token by token: where its heads look, and what the model would say if it ended behind each layer.

The latter is the logit lens (nostalgebraist 2020; Belrose et al. 2023, arXiv:2303.08112, section 2): the stream behind a layer
goes through the final norm and the head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.inference.judging import Judging
from anyformer.inspection.effects import passes
from anyformer.inspection.results import LayerAnswer, Map, Reading
from anyformer.inspection.sites import Sites, watched
from anyformer.layers.block import Block, Branch, mapped
from anyformer.model import Transformer
from anyformer.text import NOT_PREDICTED, Tokenizer

MOST = 64  # tokens of a row that are read


def read(model: Transformer, tokenizer: Tokenizer, judging: Judging, sites: Sites) -> Reading | None:
    """The first tokens of the first row that a model is judged by; None where it is not judged by tokens that a head says."""
    head = model.head()
    if head.spec.table is None or head.spec.table.rows < tokenizer.vocab_size or not judging.objective.one_pass:
        return None
    if head.layers is not None or head.pool is not None:
        return None
    _, rows = next(passes(model, judging, MOST, apart=True))
    asked = _first_document(judging.objective.asked(rows, next(model.parameters()).device))
    main, states, maps = sites.main, [], []
    of_encoder, ids = asked["input_ids"], asked["decoder_input_ids" if model.spec.encoder else "input_ids"]

    def text(ids: Tensor) -> tuple[str, ...]:
        return tuple(tokenizer.decode([i], specials=True) for i in ids.flatten().tolist())

    def see_layer(i: int, given: tuple[Any, ...], made: Any) -> None:
        if i in main:
            state, residual, context, _ = given
            for each in (state, made[0]) if i == main.start else (made[0],):
                x = residual.close(each)[0]
                states.append(head(mapped(model.spec.stack.norm, model.stack.norm, x, context), context.tokens))

    def see_branch(i: int, given: tuple[Any, ...], made: Any) -> None:
        weights, site = made[1][0].get("attention"), sites.branches[i]
        if weights is not None and weights.shape[0] == 1:
            queries = text(of_encoder if site.stack == "encoder" else ids)
            keys = text(of_encoder) if site.reads_memory else queries
            if weights.shape[2:] == (len(queries), len(keys)):
                maps.append(Map(site.stack, site.layer, site.kind, queries, keys, weights[0].float().cpu()))

    with torch.no_grad(), watched(model, Block, see_layer), watched(model, Branch, see_branch):
        model(**asked, output_attentions=True)
    n = ids.shape[1]
    labels = rows.labels[0, :n].tolist() if rows.labels.shape[1] >= n else [NOT_PREDICTED] * n  # else not of each token
    right = [None if label == NOT_PREDICTED else label for label in labels]
    names = ("embedding", *(f"{sites.layers[i].layer}" for i in main))
    answers = tuple(_answer(*each, right, text) for each in zip(names, states, strict=True))
    known = tuple(None if each is None else text(torch.tensor(each))[0] for each in right)
    return Reading(text(ids), known, answers, tuple(maps))


def _first_document(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a pass is given of the first document of the first row, and no more than so many tokens of it."""

    def n(mask: Tensor | None) -> int:
        return MOST if mask is None else min(MOST, int((mask[0] == mask[0, 0]).sum()))

    lengths = {name: n(asked.get(f"{name}attention_mask")) for name in ("decoder_", "")}

    def cut(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {each: cut(name, inner) for each, inner in value.items()}
        length = lengths["decoder_" if name.startswith("decoder_") else ""]
        return value[:1, :length] if isinstance(value, Tensor) and value.dim() >= 2 else value

    return {name: cut(name, value) for name, value in asked.items()}


def _answer(
    layer: str, logits: Tensor, right: list[int | None], text: Callable[[Tensor], tuple[str, ...]]
) -> LayerAnswer:
    """What logits [1, token, vocab] say."""
    shares = logits[0].double().softmax(-1)
    best, says = shares.max(-1)
    of_right = tuple(None if each is None else float(shares[i, each]) for i, each in enumerate(right))
    return LayerAnswer(layer, text(says), tuple(best.tolist()), of_right)
