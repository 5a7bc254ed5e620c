"""What the laws are tried on: every preset at its least size, with weights that leave nothing near its default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from anyformer.families import PRESETS
from anyformer.families.compose import changed
from anyformer.layers import BlanksSpec, BySegmentSpec, LanguagesSpec, LSHAttentionSpec, MarkedKeys, S6Spec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.init import distinct
from anyformer.layers.part import Part
from anyformer.model import Output, Transformer, build
from anyformer.resizing import shrink
from anyformer.spec import HeadSpec, ModelSpec, Place, TableSpec, Vocab, Window, tensors
from tests.laws.tolerance import FLOAT32, distance
from tests.laws.weights import drawn_lengths
from tests.sample import is_one_of_few, sampled


def shrunk() -> dict[str, ModelSpec]:
    """Return each distinct shrunk preset under the names of those that shrink to it."""
    names: dict[ModelSpec, list[str]] = {}
    for preset in PRESETS.values():
        names.setdefault(_least(preset.spec), []).append(preset.name)
    return {" = ".join(group): spec for spec, group in names.items()}


@cache
def shrunk_once(spec: ModelSpec) -> ModelSpec:
    """Return the shrunk model, which takes some hundredths of a second, for all who ask."""
    return shrink(spec)


def _least(spec: ModelSpec) -> ModelSpec:
    """Return the shrunk model; where a norm reads a step, with 8 features: of 2, a sixteenth of its width, little may be left.

    One that makes vectors of texts alone predicts words instead: laws of vectors are in test_embedding.py and test_sentences.py.
    """
    least = shrunk_once(spec)
    if not any(head.table for head in least.heads):
        least = least.but(heads=(HeadSpec(table=TableSpec(rows=Vocab(least.vocab_size))),))
    normed = any(isinstance(part, S6Spec) and part.norm for part in least.nested())
    return changed(least, S6Spec, step_rank=8) if normed else least


SHRUNK = shrunk()
SOURCE = 7  # tokens that an encoder is given beside a decoder's


def of_one_stack(specs: Mapping[str, ModelSpec], *, seeing_ahead: bool) -> dict[str, ModelSpec]:
    """Return the models without a second stack whose tokens see what comes after them, or those whose do not."""
    alone = {name: spec for name, spec in specs.items() if spec.encoder is None}
    return {name: spec for name, spec in alone.items() if (later_tokens_seen(spec.stack) is not None) == seeing_ahead}


DECODERS, ENCODERS = (of_one_stack(SHRUNK, seeing_ahead=ahead) for ahead in (False, True))
WRITERS = {name: spec for name, spec in SHRUNK.items() if name not in ENCODERS}


# For laws that take seconds a model: those that together use every part, and the rest among the slow tests.
every_preset_few_fast = pytest.mark.parametrize("spec", sampled(SHRUNK, is_one_of_few))
every_preset, every_writer, every_encoder, every_of_one_stack = (
    pytest.mark.parametrize("spec", sampled(specs)) for specs in (SHRUNK, WRITERS, ENCODERS, DECODERS | ENCODERS)
)


def randomised(spec: ModelSpec, seed: int = 0) -> Transformer:
    """Build a model whose every number is random: attention far from uniform, logits spread, no gain 1 and no bias 0."""
    model = build(spec, seed=None)
    generator, (longer, query) = torch.Generator().manual_seed(seed), drawn_lengths(spec)
    named = dict(model.named_parameters())
    for path, weight in tensors(spec, Place()):
        if weight.below is not None:
            named[path].data.copy_(distinct(weight, generator))
            continue
        noise = torch.randn(weight.shape, generator=generator)
        if weight.fill is not None:
            value = torch.tensor(weight.fill) + 0.3 * noise
        else:
            value = noise * (1.0 if weight.role == "table" else longer * weight.shape[-1] ** -0.5)
        named[path].data.copy_(value * query if weight.role == "query" else value)
    return model


def per_token(spec: ModelSpec) -> list[str]:
    """Return the heads with an answer for each token: those that can be asked of packed documents."""
    return [head.name for head in spec.heads if head.pool is None]


def ids_for(spec: ModelSpec, batch: int, n: int, seed: int = 1) -> Tensor:
    """Return random token ids [batch, n]."""
    return torch.randint(0, spec.vocab_size, (batch, n), generator=torch.Generator().manual_seed(seed))


def told(spec: ModelSpec, ids: Tensor) -> dict[str, Any]:
    """Return what models read beside `runner`'s tokens: marks on every seventh, where some are singled out, two
    segments, two languages."""
    ids = ids if spec.encoder is None else ids[:, :SOURCE]
    kinds, found, at = {type(value) for value in spec.nested()}, {}, torch.arange(ids.shape[1], device=ids.device)
    if kinds & {MarkedKeys, BlanksSpec}:
        found["facts"] = {"mark": (at % 7 == 2).long().expand(ids.shape)}
    if LanguagesSpec in kinds:
        found["facts"] = {"language": (at % 2).expand(ids.shape)}
    if BySegmentSpec in kinds:
        found["token_type_ids"] = (at % 3 == 0).long().expand(ids.shape)
    return found


def runner(model: Transformer) -> Callable[..., Output]:
    """Return a call that takes the decoder's tokens, whatever the architecture; an encoder reads fixed ones."""

    def run(ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Output:
        if model.spec.encoder is None:
            return model(ids, attention_mask, **options)
        options.pop("position_ids", None)
        source = ids_for(model.spec, 1, SOURCE, seed=2).to(ids.device).expand(ids.shape[0], -1)
        mask = None if attention_mask is None else attention_mask.amax(1, keepdim=True).expand(-1, SOURCE)
        return model(source, mask, decoder_input_ids=ids, decoder_attention_mask=attention_mask, **options)

    return run


def same(spec: ModelSpec, a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal to the bit, or but for rounding where a part says that it rounds by company."""
    vector = any(head.table and head.table.rows == 1 for head in spec.heads)  # rounds by where it lies in memory
    return distance(a, b) < FLOAT32 if vector or waives(spec, "bits") else torch.equal(a, b)


def waives(spec: ModelSpec, law: str) -> bool:
    """Return whether a part of the specification says that it cannot obey the law."""
    return any(caveat.law == law for value in spec.nested() for caveat in value.caveats())


def solving(system: Any, right: Any, *_: Any, **__: Any) -> int:
    """FLOPs of triangular systems, from shapes: as of products of the whole squares, which PyTorch's counter leaves out."""
    return 2 * math.prod(system) * right[-1]


def hashing(vectors: Any, _: Any, buckets: Any, n_hashes: int, *__: Any, **___: Any) -> int:
    """FLOPs of the directions that tokens [batch, heads, token, head_dim] are sorted by: one for every two buckets."""
    return math.prod(vectors) * n_hashes * sum(buckets)


def one_chunk(spec: ModelSpec) -> ModelSpec:
    """Return the model whose rows are one chunk: what laws hold for where several waive them."""
    return changed(spec, LSHAttentionSpec, chunk=Window(64))


def waiving(model: nn.Module, law: str) -> set[str]:
    """Return the names of the parameters of parts that say they cannot obey the law."""
    parts = {name: module for name, module in model.named_modules() if isinstance(module, Part)}
    those = [f"{name}." for name, part in parts.items() if any(caveat.law == law for caveat in part.spec.caveats())]
    return {name for name, _ in model.named_parameters() if name.startswith(tuple(those))} if those else set()


def flop_counter() -> FlopCounterMode:
    """PyTorch's counter of FLOPs, which is told what products of groups of rows and triangular systems take."""

    def products(rows: Any, matrices: Any, *_: Any, **__: Any) -> int:
        return 2 * rows[0] * matrices[1] * matrices[2]

    def recurrent(x: Any, weight: Any, *_: Any, **__: Any) -> int:
        return 2 * x[0] * x[1] * weight[0] * weight[1]

    ours = torch.ops.anyformer
    told = {
        ours.sorted_by_bucket: hashing,
        ours.lstm: recurrent,
        ours.gru: recurrent,
        ours.grouped_products: products,
        torch.ops.aten.linalg_solve_triangular: solving,
    }
    return FlopCounterMode(display=False, custom_mapping=told)
