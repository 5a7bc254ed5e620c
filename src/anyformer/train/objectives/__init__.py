"""Objectives: each is one file, a function from batch and model to losses, and what it asks of an architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from anyformer.errors import UsageError
from anyformer.recipe import (
    UL2,
    CausalLM,
    Denoising,
    MaskedLM,
    MultiToken,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Seq2Seq,
    SpanCorruption,
)
from anyformer.spec import ModelSpec
from anyformer.train.objectives.causal import CausalObjective
from anyformer.train.objectives.masked import MaskedObjective
from anyformer.train.objectives.multi_token import MultiTokenObjective
from anyformer.train.objectives.objective import Forward, Further, Losses, Objective, Pass, Rows, later_tokens_seen
from anyformer.train.objectives.permuted import PermutedObjective, has_two_streams
from anyformer.train.objectives.restored import RestoredObjective
from anyformer.train.objectives.seq2seq import Seq2SeqObjective

OBJECTIVES: dict[type[ObjectiveSpec], Callable[[Any], Objective]] = {
    CausalLM: lambda said: CausalObjective(),
    MaskedLM: lambda said: MaskedObjective(),
    MultiToken: lambda said: MultiTokenObjective(said.weight),
    Seq2Seq: lambda said: Seq2SeqObjective(),
    PermutedLM: lambda said: PermutedObjective(),
    SpanCorruption: lambda said: RestoredObjective(),
    PrefixLM: lambda said: RestoredObjective(),
    Denoising: lambda said: RestoredObjective(),
    UL2: lambda said: RestoredObjective(),
}


def objective_of(objective: ObjectiveSpec, spec: ModelSpec) -> Objective:
    """Return the objective's function. Raises UsageError, with the reason, for an architecture that cannot do it."""
    if type(objective) not in OBJECTIVES:
        known = ", ".join(kind.kind for kind in OBJECTIVES)
        raise UsageError(f"objective {objective.kind} has no function; there are {known}")
    chosen = OBJECTIVES[type(objective)](objective)
    reason = chosen.refuses(spec)
    if reason is not None:
        raise UsageError(f"{objective.kind} cannot train this architecture: {reason}")
    return chosen


def usual(spec: ModelSpec, reads: Literal["text", "pairs"] = "text") -> ObjectiveSpec:
    """Return the objective for an architecture where none is named: what its kind of model is known to be trained by."""
    if reads == "pairs":
        return Seq2Seq()
    if spec.encoder is not None:
        return SpanCorruption()
    if has_two_streams(spec):
        return PermutedLM()
    return CausalLM() if later_tokens_seen(spec.stack) is None else MaskedLM()


__all__ = ["OBJECTIVES", "Forward", "Further", "Losses", "Objective", "Pass", "Rows", "objective_of", "usual"]
