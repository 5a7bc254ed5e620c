"""Objectives: each is one file, a function from batch and model to losses, and what it asks of an architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.errors import UsageError
from anyformer.layers.attention import has_prefix
from anyformer.layers.causality import later_tokens_seen
from anyformer.recipe import (
    UL2,
    CausalLM,
    Classification,
    Contrastive,
    Denoising,
    MaskedLM,
    MultiToken,
    NextSentence,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Reads,
    Regression,
    ReplacedTokens,
    SentenceOrder,
    Seq2Seq,
    SpanCorruption,
    TokenClassification,
)
from anyformer.spec import ModelSpec
from anyformer.training.objectives.causal import CausalObjective
from anyformer.training.objectives.contrastive import ContrastiveObjective
from anyformer.training.objectives.labelled import LabelledObjective
from anyformer.training.objectives.masked import MaskedObjective
from anyformer.training.objectives.multi_token import MultiTokenObjective
from anyformer.training.objectives.objective import (
    Forward,
    LossContext,
    Losses,
    LossPart,
    Objective,
    Rows,
)
from anyformer.training.objectives.permuted import PermutedObjective, has_two_streams
from anyformer.training.objectives.prefix import PrefixObjective
from anyformer.training.objectives.replaced import ReplacedObjective, scores_tokens
from anyformer.training.objectives.restored import RestoredObjective
from anyformer.training.objectives.sentences import SentenceObjective
from anyformer.training.objectives.seq2seq import Seq2SeqObjective


def _restored(said: ObjectiveSpec, spec: ModelSpec) -> Objective:
    return PrefixObjective() if spec.encoder is None else RestoredObjective()


OBJECTIVES: dict[type[ObjectiveSpec], Callable[[Any, ModelSpec], Objective]] = {
    CausalLM: lambda said, spec: CausalObjective(),
    MaskedLM: lambda said, spec: MaskedObjective(),
    NextSentence: SentenceObjective,
    SentenceOrder: SentenceObjective,
    MultiToken: lambda said, spec: MultiTokenObjective(said.weight),
    Seq2Seq: lambda said, spec: Seq2SeqObjective(),
    PermutedLM: lambda said, spec: PermutedObjective(),
    ReplacedTokens: lambda said, spec: ReplacedObjective(said),
    SpanCorruption: _restored,
    PrefixLM: _restored,
    Denoising: _restored,
    UL2: _restored,
    Contrastive: lambda said, spec: ContrastiveObjective(said),
    Classification: LabelledObjective,
    Regression: LabelledObjective,
    TokenClassification: LabelledObjective,
}


def objective_of(objective: ObjectiveSpec, spec: ModelSpec) -> Objective:
    """The objective's function. Raises UsageError, with the reason, for an architecture that cannot do it."""
    if type(objective) not in OBJECTIVES:
        known = ", ".join(kind.kind for kind in OBJECTIVES)
        raise UsageError(f"objective {objective.kind} has no function; there are {known}")
    chosen = OBJECTIVES[type(objective)](objective, spec)
    reason = chosen.refuses(spec)
    if reason is not None:
        raise UsageError(f"{objective.kind} cannot train this architecture: {reason}")
    return chosen


def usual(spec: ModelSpec, reads: Reads = "text") -> ObjectiveSpec:
    """The objective for an architecture where none is named: what its kind of model is known to be trained by."""
    if reads == "pairs":
        return Seq2Seq() if ContrastiveObjective(Contrastive()).refuses(spec) else Contrastive()
    if reads == "labelled":
        return _of_head(spec) or Classification()
    if (said := _of_head(spec)) is not None:
        return said
    if spec.encoder is not None:
        return SpanCorruption()
    if has_two_streams(spec):
        return PermutedLM()
    if has_prefix(spec):
        return PrefixLM()
    if scores_tokens(spec):
        return ReplacedTokens()
    return CausalLM() if later_tokens_seen(spec.stack) is None else MaskedLM()


def _of_head(spec: ModelSpec) -> ObjectiveSpec | None:
    """What trains the first head, where that is one for labels."""
    head = spec.heads[0] if spec.heads else None
    if head is None or head.table is None:
        return None
    if head.name == TokenClassification.head:
        return TokenClassification()
    if head.name == Classification.head:
        return Regression() if head.table.rows == 1 else Classification()
    return None


__all__ = ["OBJECTIVES", "Forward", "LossPart", "Losses", "Objective", "LossContext", "Rows", "objective_of", "usual"]
