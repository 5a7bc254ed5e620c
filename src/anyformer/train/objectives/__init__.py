"""Objectives: each is one file, a function from batch and model to losses, and what it asks of an architecture."""

from __future__ import annotations

from anyformer.errors import UsageError
from anyformer.recipe import CausalLM, ObjectiveSpec, Seq2Seq
from anyformer.spec import ModelSpec
from anyformer.train.objectives.causal import CausalObjective
from anyformer.train.objectives.objective import Forward, Losses, Objective, Rows
from anyformer.train.objectives.seq2seq import Seq2SeqObjective

OBJECTIVES: dict[type[ObjectiveSpec], Objective] = {CausalLM: CausalObjective(), Seq2Seq: Seq2SeqObjective()}


def objective_of(objective: ObjectiveSpec, spec: ModelSpec) -> Objective:
    """Return the objective's function. Raises UsageError, with the reason, for an architecture that cannot do it."""
    chosen = OBJECTIVES.get(type(objective))
    if chosen is None:
        known = ", ".join(kind.kind for kind in OBJECTIVES)
        raise UsageError(f"objective {objective.kind} has no function; there are {known}")
    reason = chosen.refuses(spec)
    if reason is not None:
        raise UsageError(f"{objective.kind} cannot train this architecture: {reason}")
    return chosen


__all__ = ["OBJECTIVES", "Forward", "Losses", "Objective", "Rows", "objective_of"]
