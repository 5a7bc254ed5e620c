"""Several texts as one: what share of a run's rows each gives, how often it is read at most, and when that changes, as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from anyformer.disk import plain
from anyformer.errors import SpecError, UsageError
from anyformer.recipe.schedule import Stretch, lengths
from anyformer.spec import NotNegative, Positive, Spec, decode_file

HEADER = "mixture"  # the first key of its file; its value is the version of the language
_SUFFIXES = (".yaml", ".yml")


class TextSource(Spec):
    """A text: a file, a folder, an address, `stdlib`. It gives rows in proportion to `weight`, until read `epochs` times."""

    text: str
    weight: NotNegative = 1.0
    epochs: Positive | None = None


class Stage(Stretch):
    """A stretch of the run with weights of its own, in the order of the texts; those of the texts where it has none."""

    weights: tuple[NotNegative, ...] | None = None


class Mixture(Spec):
    """Texts, and the stages of a curriculum one after the other; without stages the weights stay as they are."""

    texts: tuple[TextSource, ...]
    stages: tuple[Stage, ...] = ()
    version: ClassVar[int] = 1  # of the language of mixtures

    def __post_init__(self) -> None:
        self.require("texts", bool(self.texts), "is empty; name at least one text")
        names = [source.text for source in self.texts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise self.refusal("texts", f"names {twice} more than once; give it once, with its weight")
        for i, stage in enumerate(self.stages):
            wanted, given = len(self.texts), stage.weights
            if given is not None and len(given) != wanted:
                raise self.refusal("stages", f"has {len(given)} weights at {i}; there are {wanted} texts")
        for weights in self._weights():
            self.require("stages" if self.stages else "texts", any(weights), "has weights that are all 0")

    def _weights(self) -> list[tuple[float, ...]]:
        own = tuple(source.weight for source in self.texts)
        return [own if stage.weights is None else stage.weights for stage in self.stages] or [own]

    def by_step(self, run_steps: int, batch_tokens: int) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """(steps of a stage, its weights), in sequence. Raises SpecError for stages that do not fit the run."""
        n = lengths(self.stages, run_steps, batch_tokens, "mixture") if self.stages else (run_steps,)
        return tuple(zip(n, self._weights(), strict=True))


def read(path: str | Path) -> Mixture:
    """The mixture in a YAML file. Raises SpecError."""
    return decode_file(plain.read(path, "mixture"), str(path), HEADER, Mixture, "mixture")


def mixture_of(given: Sequence[str | Path]) -> Mixture | None:
    """The mixture of several `TEXT=WEIGHT`, or of one .yaml file; None for a single text, which is no mixture.

    Raises UsageError for weights that are no numbers, SpecError as `read` does.
    """
    if len(given) == 1 and str(given[0]).endswith(_SUFFIXES):
        return read(given[0])
    parts = [weighed(str(each)) for each in given]
    if len(parts) == 1 and parts[0][1] is None:
        return None
    known = [(text, weight) for text, weight in parts if weight is not None]
    if len(known) < len(parts):
        lacking = next(text for text, weight in parts if weight is None)
        raise UsageError(f"--data {lacking} has no weight; of several texts each has one, as in {lacking}=0.5")
    try:
        return Mixture(texts=tuple(TextSource(text=text, weight=weight) for text, weight in known))
    except SpecError as error:
        raise UsageError(f"--data: {error}") from None


def weighed(given: str) -> tuple[str, float | None]:
    """What lies left of the last =, and the number behind it; all of it and None without one, or where a file is called so."""
    text, equals, weight = given.rpartition("=")
    if not equals or Path(given).exists():
        return given, None
    try:
        return text, float(weight)
    except ValueError:
        return given, None
