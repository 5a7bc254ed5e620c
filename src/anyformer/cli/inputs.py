"""What commands are given to read: text or pairs of texts with a tokenizer, a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyformer.errors import UsageError
from anyformer.spec import is_path

if TYPE_CHECKING:
    from anyformer.recipe import ObjectiveSpec, Recipe
    from anyformer.spec import ModelSpec
    from anyformer.text import Corpus, ParallelCorpus, Tokenizer
    from anyformer.training.data.text import TextData
    from anyformer.training.objectives.seq2seq.data import PairData

TOKENIZER_NBYTES = 10_000_000  # of text are enough to learn a vocabulary from
VOCAB_SIZE = 4096  # of a tokenizer that is trained on the way


def read_recipe(name: str, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of a name or a file, with the fields changed that are not None."""
    from anyformer import recipe

    chosen = recipe.read(name) if is_path(name) else recipe.named(name)
    return chosen.but(**{field: value for field, value in changes.items() if value is not None})


def objective_for(
    named: str | None, recipe_name: str, spec: ModelSpec, reads: Literal["text", "pairs"]
) -> ObjectiveSpec | None:
    """The objective of that name, else None where the recipe says one that fits, else the architecture's usual one."""
    from anyformer.recipe import OBJECTIVES
    from anyformer.training.objectives.architecture import usual

    if named is not None:
        return OBJECTIVES[named]
    said = _said_objective(recipe_name)
    return None if said is not None and fits(said, reads) else usual(spec, reads)


def fits(objective: ObjectiveSpec, reads: Literal["text", "pairs"]) -> bool:
    """Whether an objective is for pairs where there are pairs; labelled text is given as text is."""
    return (objective.reads == "pairs") == (reads == "pairs")


def _said_objective(recipe_name: str) -> ObjectiveSpec | None:
    """The objective that a recipe names, None where it leaves that open."""
    import yaml

    from anyformer import recipe

    if not is_path(recipe_name):
        said = recipe.named(recipe_name).objective
        return said if said != recipe.Recipe().objective else None
    said = recipe.read(recipe_name).objective  # raises what is wrong with it
    return said if "objective" in yaml.safe_load(Path(recipe_name).read_text(encoding="utf-8")) else None


@dataclass(frozen=True)
class Sources:
    """What is read, as a command is told it: one text, or a file of lines and one of what they become.

    Raises UsageError unless it is either; the options are named with `prefix`.
    """

    data: str | None
    source: Path | None
    target: Path | None
    prefix: str = ""

    def __post_init__(self) -> None:
        data, source, target = (f"--{self.prefix}{name}" for name in ("data", "source", "target"))
        if (self.source is None) != (self.target is None):
            raise UsageError(f"{source} and {target} go together: line n of one translates line n of the other")
        if (self.data is None) == (self.source is None):
            raise UsageError(f"give either {data}, or {source} and {target}")

    @property
    def reads(self) -> Literal["text", "pairs"]:
        """Which kind it is, as `ObjectiveSpec.reads`."""
        return "text" if self.source is None else "pairs"

    def corpus(self) -> Corpus:
        """The text."""
        from anyformer.text import read_corpus

        assert self.data is not None
        return read_corpus(self.data)

    def pairs(self) -> ParallelCorpus:
        """The pairs of lines."""
        from anyformer.text import read_parallel

        assert self.source is not None
        assert self.target is not None
        return read_parallel(self.source, self.target)


HeldOut = float | Sources
"""What a run is validated on: a share of what it reads, set aside, or a text, or pairs, of its own."""


def held_out_of(reads: str, share: float, data: str | None, source: Path | None, target: Path | None) -> HeldOut:
    """The validation text or pairs where they are named, else the share. Raises UsageError for another kind."""
    if data is None and source is None and target is None:
        return share
    named = Sources(data, source, target, prefix="validation-")
    if named.reads != reads:
        wanted = "--validation-data" if reads == "text" else "--validation-source and --validation-target"
        raise UsageError(f"a run on {reads} is validated on {reads}: use {wanted}")
    return named


def new_tokenizer(texts: Iterable[str], vocab_size: int | None, objective: ObjectiveSpec | None = None) -> Tokenizer:
    """Return a tokenizer trained on texts; the special tokens of the objective are among its `vocab_size`."""
    from anyformer.text import Tokenizer

    roles, specials = (objective.roles, objective.specials) if objective else ({}, ())
    plain = Tokenizer.train(texts, (vocab_size or VOCAB_SIZE) - len(roles) - len(specials))
    return plain.with_specials(specials, roles) if roles or specials else plain


def text_data(
    corpus: Corpus,
    held_out: HeldOut,
    tokenizer: Tokenizer | None,
    vocab_size: int | None,
    objective: ObjectiveSpec | None = None,
) -> TextData:
    """Return a corpus, split unless it has a validation text beside it, and encoded.

    Without a tokenizer, by one that is trained on its training part.
    """
    from anyformer.text import encode_corpus
    from anyformer.training.data.text import TextData

    texts, unseen = (corpus, held_out.corpus()) if isinstance(held_out, Sources) else corpus.split(held_out)
    own = tokenizer or new_tokenizer(texts.sample(TOKENIZER_NBYTES), vocab_size, objective)
    return TextData(encode_corpus(texts, own), encode_corpus(unseen, own), own)


def pair_data(
    corpus: ParallelCorpus, held_out: HeldOut, tokenizer: Tokenizer | None, vocab_size: int | None
) -> PairData:
    """Sentences and their translations, split unless others are there to validate on.

    Without a tokenizer, with one that is trained on both sides.
    """
    from anyformer.text import split_pairs
    from anyformer.training.objectives.seq2seq.data import PairData

    pairs, unseen = (corpus, held_out.pairs()) if isinstance(held_out, Sources) else split_pairs(corpus, held_out)
    return PairData(pairs, unseen, tokenizer or new_tokenizer(pairs.texts(), vocab_size))
