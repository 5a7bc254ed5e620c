"""Questions to an architecture about what it can learn: which tokens it sees, what its first head says, its usual objective."""

from __future__ import annotations

from anyformer.families.heads import EMBEDDING
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.causality import has_prefix, later_tokens_seen
from anyformer.layers.two_streams import BlanksSpec, TwoStreams
from anyformer.recipe import (
    CausalLM,
    Classification,
    Contrastive,
    Denoising,
    MaskedLM,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Reads,
    Regression,
    ReplacedTokens,
    Seq2Seq,
    SpanCorruption,
    TokenClassification,
)
from anyformer.spec import HeadSpec, ModelSpec
from anyformer.text import Tokenizer
from anyformer.training.data.vocabulary import serves

# What an encoder and a decoder learn from text: T5's way, and BART's.
RESTORED: tuple[ObjectiveSpec, ...] = (SpanCorruption(), Denoising())


def usual(spec: ModelSpec, reads: Reads = "text", tokenizer: Tokenizer | None = None) -> ObjectiveSpec:
    """The objective for an architecture where none is named: what its kind of model is known to be trained by.

    Of several, the first that a `tokenizer` has the tokens for: a model that was trained elsewhere has those of its objective.
    """
    if reads == "pairs":
        head = head_called(EMBEDDING, spec)
        return Contrastive() if spec.encoder is None and head is not None and head.pool is not None else Seq2Seq()
    if (said := _of_head(spec)) is not None:
        return said
    if reads == "labelled":
        return Classification()
    if spec.encoder is not None:
        return next((each for each in RESTORED if tokenizer and serves(tokenizer, each)), RESTORED[0])
    if has_two_streams(spec):
        return PermutedLM()
    if has_prefix(spec):
        return PrefixLM()
    if later_tokens_seen(spec.stack) is None:
        return CausalLM()
    return ReplacedTokens() if no_token_score(spec) is None else MaskedLM()


def _of_head(spec: ModelSpec) -> ObjectiveSpec | None:
    """The objective of the first head, where that is one for labels."""
    head = spec.heads[0] if spec.heads else None
    if head is None or head.table is None:
        return None
    if head.name == TokenClassification.head:
        return TokenClassification()
    if head.name == Classification.head:
        return Regression() if head.table.rows == 1 else Classification()
    return None


def head_called(name: str, spec: ModelSpec) -> HeadSpec | None:
    return next((head for head in spec.heads if head.name == name), None)


def not_an_encoder(spec: ModelSpec) -> str | None:
    """Why a model does not read a text from both sides, or None."""
    if spec.encoder is not None:
        return "it is an encoder and a decoder; use SpanCorruption or Denoising, which write what was hidden"
    if has_prefix(spec):
        return "its masks have a prefix, after which they are causal; use PrefixLM"
    if later_tokens_seen(spec.stack) is None:
        return "its masks are causal, so that no token sees what comes after it; use CausalLM"
    return None


def has_two_streams(spec: ModelSpec) -> bool:
    """Whether blanks are embedded, and every attention keeps them from being seen."""
    masks = [value.mask for value in spec.stack.nested(AttentionSpec)]
    blanks = any(spec.stack.embedding.nested(BlanksSpec))
    return blanks and all(any(mask.nested(TwoStreams)) for mask in masks)


def no_vocabulary_head(spec: ModelSpec, name: str = "lm") -> str | None:
    """Why a model's first head predicts no tokens, or None; `name` is what such a head is called."""
    if not spec.heads:
        return f"it has no head that predicts tokens; give the model one over its vocabulary, called {name}"
    head, put = spec.heads[0], f"put one over its vocabulary, called {name}, first"
    if head.name == EMBEDDING:
        return f"its first head makes vectors of texts, which pairs say are alike; give --source and --target, or {put}"
    if head.pool is not None or head.table is None or head.table.rows < spec.vocab_size:
        return f"its first head, {head.name!r}, does not predict tokens; {put}"
    return None


def no_token_score(spec: ModelSpec) -> str | None:
    """Why a model's first head does not give one score a token, or None."""
    if not spec.heads:
        return "it has no head; give it one that scores tokens: spec.but(heads=(families.electra.replaced(),))"
    head = spec.heads[0]
    if head.pool is not None or head.table is None or head.table.rows != 1:
        return (
            f"its first head, {head.name!r}, does not give one score a token; "
            "put one that does first, as spec.but(heads=(families.electra.replaced(),))"
        )
    return None
