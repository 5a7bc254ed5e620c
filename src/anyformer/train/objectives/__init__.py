"""Objectives: each is one file, a function from batch and model to losses, and what it asks of an architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.errors import UsageError
from anyformer.recipe import (
    UL2,
    CausalLM,
    Denoising,
    MaskedLM,
    MultiToken,
    ObjectiveSpec,
    PrefixLM,
    Seq2Seq,
    SpanCorruption,
)
from anyformer.spec import ModelSpec
from anyformer.train.objectives.causal import CausalObjective
from anyformer.train.objectives.masked import MaskedObjective
from anyformer.train.objectives.multi_token import MultiTokenObjective
from anyformer.train.objectives.objective import Forward, Further, Losses, Objective, Rows
from anyformer.train.objectives.restored import RestoredObjective
from anyformer.train.objectives.seq2seq import Seq2SeqObjective

OBJECTIVES: dict[type[ObjectiveSpec], Callable[[Any], Objective]] = {
    CausalLM: lambda said: CausalObjective(),
    MaskedLM: lambda said: MaskedObjective(),
    MultiToken: lambda said: MultiTokenObjective(said.weight),
    Seq2Seq: lambda said: Seq2SeqObjective(),
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


__all__ = ["OBJECTIVES", "Forward", "Further", "Losses", "Objective", "Rows", "objective_of"]
