"""The recipe of a run: a name, a file or itself, with what is changed of it, and the objective that suits what is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from anyformer import recipe as recipes
from anyformer.disk import plain
from anyformer.errors import SpecError, UsageError, among, did_you_mean
from anyformer.recipe import OBJECTIVES, OPTIMIZERS, Examples, ObjectiveSpec, Recipe, distillation_of, lora_of
from anyformer.spec import ModelSpec, is_path
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.rewarded import rewards_of

# Fields of a recipe that a text may say, which extends what the recipe has.
WRITTEN: Mapping[str, Callable[[str, Any], Any]] = {"lora": lora_of, "distillation": distillation_of}


def fits(objective: ObjectiveSpec, reads: Literal["text", "pairs"]) -> bool:
    """Whether an objective is for pairs where there are pairs; labelled text is given as text is."""
    return (objective.reads == "pairs") == (reads == "pairs")


def changed(recipe: str | Path | Recipe, changes: Mapping[str, Any], *, lr: float | None = None) -> Recipe:
    """The recipe of a name, a file or itself, with fields changed, its own or its objective's; `lr` is the optimiser's.

    An objective may be named, and rewards; `lora` and `distillation` may be written as on the command line. Raises SpecError, and
    UsageError for an objective or a rule that there is not, each with the nearest name.
    """
    chosen = read_recipe(recipe)
    types = Recipe.types()
    own = {name: value for name, value in changes.items() if name not in types}
    typed = {name: value for name, value in changes.items() if name in types}
    typed |= {name: _whole(value) for name, value in typed.items() if types[name] in (int, int | None)}
    if isinstance(named := typed.get("objective"), str):
        typed["objective"] = _named("objective", named, OBJECTIVES)
    said = {name: text for name in WRITTEN if isinstance(text := typed.get(name), str)}
    typed |= {name: WRITTEN[name](text, getattr(chosen, name)) for name, text in said.items()}
    if isinstance(rule := typed.get("optimizer"), str):
        typed["optimizer"] = chosen.optimizer.become(_named("optimizer", rule, OPTIMIZERS))
    if lr is not None:
        typed["optimizer"] = typed.get("optimizer", chosen.optimizer).but(lr=lr)
    chosen = chosen.but(**typed)
    if unknown := next((name for name in own if name not in chosen.objective.types()), None):
        fields = [*types, *chosen.objective.types()]
        neither = f"neither a recipe nor its objective, {chosen.objective.kind}, has a field {unknown!r}"
        raise SpecError(f"{neither}{did_you_mean(unknown, fields)}; leave it out")
    if "rewards" in own:
        own["rewards"] = rewards_of(own["rewards"])
    return chosen.but(objective=chosen.objective.but(**own)) if own else chosen


def _named(field: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UsageError(f"there is no {field} {name!r}{among(name, known)}")
    return known[name]


def _whole(number: Any) -> Any:
    """3e6 as the whole number that it is."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def read_recipe(recipe: str | Path | Recipe) -> Recipe:
    """The recipe of a name, a file or itself."""
    if isinstance(recipe, Recipe):
        return recipe
    return recipes.read(recipe) if is_path(recipe) else recipes.named(str(recipe))


def recipe_for(
    spec: ModelSpec,
    reads: Literal["text", "pairs"],
    recipe: str | Path | Recipe,
    changes: Mapping[str, Any],
    *,
    lr: float | None = None,
    truncate: bool = False,
) -> Recipe:
    """The changed recipe. Its objective is what is named, else the recipe's own if it fits, else the architecture's usual one."""
    if "objective" not in changes:
        said = _said_objective(recipe)
        if said is None or not fits(said, reads):
            changes = {**changes, "objective": usual(spec, reads)}
    chosen = changed(recipe, changes, lr=lr)
    refuse_row_length(chosen.objective, chosen.seq_len if "seq_len" in changes else None)
    return with_truncation(chosen) if truncate else chosen


def refuse_row_length(objective: ObjectiveSpec, seq_len: int | None) -> None:
    """Raise UsageError for a length of rows that are as long as their pairs."""
    if seq_len is not None and objective.reads == "pairs" and not isinstance(objective, Examples):
        raise UsageError(f"--seq-len {seq_len}: rows of {objective.kind} are as long as their pairs; leave it out")


def _said_objective(recipe: str | Path | Recipe) -> ObjectiveSpec | None:
    """The objective that a recipe names, None where it leaves that open."""
    said = read_recipe(recipe).objective  # raises what is wrong with it
    if not isinstance(recipe, Recipe) and is_path(recipe):
        return said if "objective" in plain.read(recipe, "recipe") else None
    return said if said != Recipe().objective else None


def with_truncation(recipe: Recipe) -> Recipe:
    """The recipe with inputs cut to the length of a row. Raises UsageError for an objective on other data."""
    if not isinstance(recipe.objective, Examples):
        raise UsageError(f"--truncate is for examples that a row holds whole, and {recipe.objective.kind} reads none")
    return recipe.but(objective=recipe.objective.but(truncate=True))
