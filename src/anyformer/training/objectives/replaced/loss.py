"""Replaced-token detection. Clark et al. 2020 (ELECTRA), arXiv:2003.10555; He et al. 2021 (DeBERTaV3), arXiv:2111.09543."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import SpecError
from anyformer.families.electra import replaced
from anyformer.families.heads import with_masked_words
from anyformer.layers import LinearSpec
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.layers.head import Head, chunks_of, rows_at_once
from anyformer.layers.router import RouterSpec
from anyformer.resizing import cut
from anyformer.spec import ModelSpec, Place, Sizes, Spec, Weight, Width, Workload, tensors
from anyformer.text import NOT_PREDICTED, Batch, Tokenizer
from anyformer.training.data.feed import Rows
from anyformer.training.data.noise import Noise, check_hides
from anyformer.training.data.vocabulary import special, token_of_role
from anyformer.training.objectives.architecture import (
    has_two_streams,
    head_called,
    no_token_score,
    no_vocabulary_head,
    not_an_encoder,
)
from anyformer.training.objectives.masked import MaskedLM
from anyformer.training.objectives.masked.loss import MaskedNoise
from anyformer.training.objectives.objective import Auxiliary, LossContext, Losses, LossPart, Objective, inputs_of, on
from anyformer.training.objectives.replaced import ReplacedTokens


class ReplacedRows(NamedTuple):
    """Rows of tokens; fields are [batch, token] but for the last.

    What replaces a hidden token is known when the generator has spoken; all that chance has to do with it is in `draw`.
    """

    input_ids: np.ndarray  # as the generator sees them
    labels: np.ndarray  # the text's own tokens, NOT_PREDICTED at padding: each is judged
    document: np.ndarray
    positions: np.ndarray
    source: np.ndarray
    hidden: np.ndarray  # bool: the generator fills it in
    draw: np.ndarray  # float32 from 0 to below 1: where in the generator's distribution the token lies
    judged_per_hidden: np.ndarray  # [batch, 1]: tokens of the whole batch by hidden ones, the same in each row


@dataclass(frozen=True, eq=False)
class ReplacedNoise(Noise):
    """Hides tokens of each row, never special ones; documents stay apart as they were packed."""

    masks: MaskedNoise

    @classmethod
    def of(cls, said: ReplacedTokens, seq_len: int, tokenizer: Tokenizer) -> ReplacedNoise:
        """Raises TextError for a tokenizer without a mask, UsageError where nothing would be hidden."""
        check_hides(said, said.rate, seq_len)
        hidden = MaskedLM(rate=said.rate, mask_share=said.mask_share, random_share=0.0)
        return cls(MaskedNoise(hidden, token_of_role(tokenizer, "mask_token", said), special(tokenizer), None))

    def __call__(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> ReplacedRows:
        shown = self.masks(batch, rngs)
        hidden, judged = shown.labels != NOT_PREDICTED, batch.document > 0
        draw = np.stack([rng.random(hidden.shape[1], dtype=np.float32) for rng in rngs])
        share = np.full((len(hidden), 1), judged.sum() / max(1, hidden.sum()))
        originals = np.where(judged, batch.input_ids, NOT_PREDICTED)
        return ReplacedRows(shown.input_ids, originals, *batch[2:], hidden, draw, share)


class ReplacedObjective(Objective[ReplacedTokens]):
    """For encoders with one score a token first among their heads; rows are `ReplacedRows`.

    `each` is the model's cross-entropy of every token, special ones too, as in the authors' code. Parts are the generator's,
    and the model's of the tokens that were replaced, which are few.
    Smoothing of labels is for both, the z-loss for the generator.
    """

    noise = ReplacedNoise.of

    def refuses(self) -> str | None:
        spec = self.spec
        if has_two_streams(spec):
            return "it is a model of two streams; use PermutedLM"
        if reason := not_an_encoder(spec) or no_token_score(spec):
            return reason
        try:
            generator = self._generator()
        except SpecError as error:
            return f"no generator can be made of it: {error}; give the objective one as `generator`"
        if reason := not_an_encoder(generator) or no_vocabulary_head(generator, "mlm"):
            return f"of its generator: {reason}"
        if any(generator.nested(RouterSpec)):
            return (
                "its generator has experts, whose load nothing would keep even; give the objective another `generator`"
            )
        if generator.vocab_size != spec.vocab_size:
            return (
                f"its generator has a vocabulary of {generator.vocab_size}, and the model one of {spec.vocab_size}; "
                "resize either"
            )
        if self.said.embeddings == "separate":
            return None
        mine, theirs = ([weight.shape for _, weight in _embedding(each)] for each in (spec, generator))
        if mine != theirs:
            return (
                f"tensors of {mine} in its embedding and of {theirs} in its generator's cannot be shared; "
                "give the generator the same embedding, or use embeddings: separate"
            )
        return None

    def auxiliary(self) -> Auxiliary:
        """The generator, and what of its embedding is the model's: tables and norm (ELECTRA), or tables (DeBERTaV3)."""
        generator = self._generator()
        pairs = list(zip(_embedding(generator), _embedding(self.spec), strict=False))
        match self.said.embeddings:
            case "shared":
                return Auxiliary(generator, tied={ours: theirs for (ours, _), (theirs, _) in pairs})
            case "disentangled":
                tables = {ours: theirs for (ours, weight), (theirs, _) in pairs if weight.role == "table"}
                return Auxiliary(generator, disentangled=tables)
            case "separate":
                return Auxiliary(generator)

    def auxiliary_flops(self, load: Workload) -> float:
        """The generator's FLOPs: its head answers for what is hidden, and once more to be drawn from."""
        generator = self._generator()
        body = generator.but(heads=()).cost(Place(), load).flops
        hidden = dataclasses.replace(load, query=round(self.said.rate * load.query))
        head = generator.cost(Place(), hidden).flops - generator.but(heads=()).cost(Place(), hidden).flops
        return 3 * body + 4 * head

    @classmethod
    def with_head(cls, said: ReplacedTokens, spec: ModelSpec, labels: Sequence[str] | None) -> ModelSpec:
        # Alone: a head for masked words would stay untrained.
        return spec if head_called("rtd", spec) else spec.but(heads=(replaced(),))

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        assert by.auxiliary is not None, "replaced tokens are the work of a generator, and none came along"
        inputs, originals, hidden = inputs_of(rows, by.device), on(by.device, rows.labels), on(by.device, rows.hidden)
        ids = inputs["input_ids"]
        assert ids is not None
        beside = by.auxiliary
        out = beside.forward(**inputs, output_logits=False, dropout=beside.dropout)
        read = out.read_by(beside.head)[hidden]
        of_generator, nats = cross_entropy(beside.head, read, originals[hidden], beside.options)
        drawn = sampled(beside.head, read, on(by.device, rows.draw)[hidden], self.said.temperature)
        filled = ids.masked_scatter(hidden, drawn)
        real = originals != NOT_PREDICTED
        swapped = (filled != originals) & hidden  # one that happens to be the text's own counts as the text's
        out = by.forward(**inputs | {"input_ids": filled}, output_logits=False, dropout=by.dropout)
        scores = by.head(out.read_by(by.head))[..., 0].float()
        each = F.binary_cross_entropy_with_logits(scores, swapped.float(), reduction="none") * real
        smoothing = by.options.label_smoothing
        learnt = each
        if smoothing:
            wanted = swapped.float() * (1 - smoothing) + smoothing / 2
            learnt = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none") * real
        # The sum is going to be divided by the number of tokens in the batch; the generator's mean is over hidden ones.
        total = self.said.weight * learnt.sum() + float(rows.judged_per_hidden[0, 0]) * of_generator
        parts = {
            "generator": LossPart(nats.sum(), hidden.sum()),
            "replaced": LossPart(each.detach()[swapped].sum(), swapped.sum(), (scores[swapped] > 0).sum()),
        }
        return Losses(total, each.detach(), out.notes, parts, torch.where(real, swapped.long(), NOT_PREDICTED))

    def _generator(self) -> ModelSpec:
        said = self.said
        return said.generator or generator_for(self.spec, said.generator_width, said.generator_depth)


class Narrower(Sizes):
    """A share of each width and of the depth; heads stay as wide as they are, and are fewer (table 6)."""

    def __init__(self, old: ModelSpec, width: float, depth: float) -> None:
        self.share, self.depth = width, depth
        self.old_width, self.d_model = old.stack.d_model, self.width(old.stack.d_model)

    def width(self, old: int) -> int:
        return old if self.share == 1 else max(8, 8 * round(old * self.share / 8))

    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int | None) -> tuple[int, int, int | None]:
        if self.share == 1:
            return n_heads, n_kv_heads, head_dim
        ideal = self.d_model / (self.old_width / n_heads) if head_dim is None else n_heads * self.share
        counts = range(1, n_heads + 1)
        fitting = [n for n in counts if head_dim is not None or self.d_model % (2 * n) == 0]
        heads = min(fitting, key=lambda n: abs(n - ideal))
        groups = [n for n in range(1, heads + 1) if heads % n == 0]
        return heads, min(groups, key=lambda n: abs(n / heads - n_kv_heads / n_heads)), head_dim

    def layers(self, blocks: tuple[Spec, ...]) -> tuple[Spec, ...]:
        return cut(blocks, max(1, round(len(blocks) * self.depth)))


def generator_for(model: ModelSpec, width: float, depth: float = 1.0) -> ModelSpec:
    """The generator of an encoder: a share of its width and depth, the same embedding, projected (section 3.2).

    Raises SpecError for an encoder whose embedding makes no head for masked words.
    """
    smaller = model.but(heads=()).resized(Narrower(model, width, depth))
    stack, embedding = smaller.stack, model.stack.embedding
    e = embedding.width or model.stack.d_model
    if e == stack.d_model:
        embedding = embedding.but(width=None, projection=None)
    else:
        embedding = embedding.but(width=Width(e), projection=embedding.projection or LinearSpec(bias=True))
    return with_masked_words(smaller.but(stack=stack.but(embedding=embedding)))


@torch.no_grad()
def sampled(head: Head, read: Tensor, draw: Tensor, temperature: float) -> Tensor:
    """A token for each of n vectors [n, width], drawn by a number from 0 to 1 each: the inverse of the distribution."""
    found = torch.empty(len(read), dtype=torch.long, device=read.device)
    if not len(read):
        return found
    rows = head.table.weight.shape[0]
    for here in chunks_of(len(read), rows_at_once(read, rows)):
        reached = (head(read[here]).float() / temperature).softmax(-1).cumsum(-1)
        # The last is 1 but for rounding.
        found[here] = torch.searchsorted(reached, draw[here, None] * reached[:, -1:], right=True)[:, 0]
    return found.clamp_(max=rows - 1)


def _embedding(spec: ModelSpec) -> list[tuple[str, Weight]]:
    """The tensors of the embedding by name, but for its projection."""
    stack = spec.stack
    every = tensors(stack.embedding, Place(stack.d_model, (stack.d_model,)), "stack.embedding")
    return [(name, weight) for name, weight in every if not name.startswith("stack.embedding.projection")]
