"""What a run is made of, from what a user names: text read, split and tokenized, a recipe changed, an architecture fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from anyformer.amounts import counted
from anyformer.capacity import refuse_beyond_memory
from anyformer.errors import UsageError
from anyformer.families import compose
from anyformer.hub import load_tokenizer
from anyformer.hub.labels import labels_of, read_labels
from anyformer.hub.source import find
from anyformer.layers import TokenDropoutSpec
from anyformer.recipe import (
    Contrastive,
    Labelled,
    Mixture,
    ObjectiveSpec,
    Reads,
    Recipe,
    mixture_of,
)
from anyformer.resizing import resize
from anyformer.screen import say
from anyformer.spec import ModelSpec
from anyformer.text import (
    Corpus,
    LabelledCorpus,
    ParallelCorpus,
    Tokenizer,
    encoded_when_read,
    read_corpus,
    read_labelled,
    read_parallel,
    split_labelled,
    split_pairs,
)
from anyformer.text.conversations import (
    ExchangeCorpus,
    read_conversations,
    read_preferences,
    read_prompts,
    split_exchanges,
)
from anyformer.text.labelled import Kind
from anyformer.text.learning import Lesson
from anyformer.text.schemes import ByteLevelBPE
from anyformer.text.sources import read_text, without_packing
from anyformer.training.chosen_recipe import read_recipe
from anyformer.training.data.examples import ExampleData
from anyformer.training.data.feed import TrainingData
from anyformer.training.data.mixed import MixedText
from anyformer.training.data.text import TextData
from anyformer.training.data.vocabulary import known_mask
from anyformer.training.objectives.answers.data import ConversationData
from anyformer.training.objectives.answers.preferences import PreferenceData
from anyformer.training.objectives.contrastive.data import ContrastData
from anyformer.training.objectives.labelled.data import LabelledData
from anyformer.training.objectives.objective import with_head_for
from anyformer.training.objectives.rewarded.data import PromptData
from anyformer.training.objectives.seq2seq import Seq2Seq
from anyformer.training.objectives.seq2seq.data import PairData

TOKENIZER_NBYTES = 10_000_000  # of text are enough to learn a vocabulary from
# Bytes of memory for each of a file, as texts and as tokens, as measured with words of five letters.
PAIRS_HELD, LABELLED_HELD = 5, 15
PACKED = 3  # bytes of text in one of a .gz or .zst
VOCAB_SIZE = 4096  # of a tokenizer that is trained on the way

# Exchanges by what objectives call them: how a file of them is read, and the data that they are.
EXCHANGES: Mapping[str, tuple[Callable[[str | Path], ExchangeCorpus], Callable[..., TrainingData[Any, Any]]]] = {
    "conversations": (read_conversations, ConversationData),
    "preferences": (read_preferences, PreferenceData),
    "prompts": (read_prompts, PromptData),
}

Say = Callable[[str], None]
T = TypeVar("T")

to_stderr: Say = partial(say, stderr=True)  # where what is worth knowing is said, unless another place is given


@dataclass(frozen=True)
class Sources:
    """What is read: one text, a mixture of several, or a file of lines and one of what they become.

    Raises UsageError unless it is one of them; the options are named with `prefix`.
    """

    data: str | Path | None = None
    source: str | Path | None = None
    target: str | Path | None = None
    prefix: str = ""
    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        data, source, target = (f"--{self.prefix}{name}" for name in ("data", "source", "target"))
        if (self.source is None) != (self.target is None):
            raise UsageError(f"{source} and {target} go together: line n of one translates line n of the other")
        if [self.data, self.source, self.mixture].count(None) != 2:
            raise UsageError(f"give either {data}, or {source} and {target}")

    @property
    def reads(self) -> Literal["text", "pairs"]:
        """Which kind it is, as `ObjectiveSpec.reads`."""
        return "text" if self.source is None else "pairs"

    def corpus(self) -> Corpus:
        assert self.data is not None
        return read_corpus(self.data)

    def pairs(self) -> ParallelCorpus:
        assert self.source is not None
        assert self.target is not None
        _refuse_large(PAIRS_HELD, self.source, self.target)
        return read_parallel(Path(self.source), Path(self.target))

    def labelled(self, kind: Kind) -> LabelledCorpus:
        assert self.data is not None
        _refuse_large(LABELLED_HELD, self.data)
        return read_labelled(self.data).as_kind(kind)

    def exchanges(self, reads: Reads) -> ExchangeCorpus:
        assert self.data is not None
        _refuse_large(LABELLED_HELD, self.data)
        return EXCHANGES[reads][0](self.data)


def _refuse_large(times: int, *files: str | Path) -> None:
    """Raise UsageError for files which as tokens, `times` their size, are more than the memory that is free."""
    there = [Path(file) for file in files if Path(file).is_file()]  # what is missing is for the reader to say
    nbytes = times * sum(
        path.stat().st_size * (PACKED if without_packing(path.name) != path.name else 1) for path in there
    )
    refuse_beyond_memory(
        nbytes, "cpu", f"holding {' and '.join(map(str, there))} in memory", "give fewer of the lines at once"
    )


def sources_of(
    data: str | Path | Sequence[str | Path] | Mixture | None,
    source: str | Path | None,
    target: str | Path | None,
    recipe: str | Path | Recipe,
) -> Sources:
    """What is named: a text, several with their weights, a mixture or its file, pairs; else the mixture of the recipe.

    Raises UsageError, and SpecError for a file that is no mixture.
    """
    if isinstance(data, Mixture):
        return Sources(None, source, target, mixture=data)
    if data is None:
        return Sources(None, source, target, mixture=read_recipe(recipe).mixture if source is None is target else None)
    named = (data,) if isinstance(data, str | Path) else tuple(data)
    mixture = mixture_of(named)
    return Sources(named[0] if mixture is None else None, source, target, mixture=mixture)


HeldOut = float | Sources
"""What a run is validated on: a share of what it reads, set aside, or a text, or pairs, of its own."""


def held_out_of(reads: str, share: float, named: Sources | None) -> HeldOut:
    """The validation text or pairs where they are named, else the share. Raises UsageError for another kind."""
    if named is None:
        return share
    if named.reads != reads:
        wanted = "--validation-data" if reads == "text" else "--validation-source and --validation-target"
        raise UsageError(f"a run on {reads} is validated on {reads}: use {wanted}")
    return named


class PreparedData(NamedTuple):
    """Data, and what it is in words."""

    data: TrainingData
    about: str


def read_data(
    recipe: Recipe,
    given: Sources,
    held_out: HeldOut,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    chat_template: str | Path | None = None,
    vocab_size: int | None = None,
    begun: Path | None = None,
    init: Path | None = None,
    say: Say = to_stderr,
) -> PreparedData:
    """What the recipe's objective reads, split unless other texts are there to validate on.

    Without a tokenizer, with that of the weights `init` or of a teacher, else with one of `vocab_size` tokens that is trained
    on the training part, the objective's special tokens among them. Conversations are written by the file `chat_template`,
    where it is named. Labels have the order of the run `begun` already, or of `init` where that tells the same ones apart.
    Raises TextError, UsageError and what `load_tokenizer` does.
    """
    if recipe.mixture != given.mixture:
        raise UsageError("the recipe has a mixture of texts, which `train` alone reads; take mixture: out of it")
    known = Tokenizer.load(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    init = init or (recipe.distillation and recipe.distillation.path)
    if known is None and init is not None:
        known = load_tokenizer(init)
    objective, wanted = recipe.objective, VOCAB_SIZE if vocab_size is None else vocab_size

    def trained(
        texts: Iterable[str], roles: Mapping[str, str] = objective.roles, specials: Sequence[str] = objective.specials
    ) -> Tokenizer:
        found = known
        if found is None:
            learned = Tokenizer.train(texts, wanted, len(roles) + len(specials))
            found = learned.with_specials(specials, roles) if roles or specials else learned
        return found if chat_template is None else found.with_chat_template(read_text(Path(chat_template)))

    if given.reads == "pairs":
        data, about = _pairs(given, held_out, objective, trained)
    elif isinstance(objective, Labelled):
        data, about = _labelled(given, held_out, objective.labels, trained, begun, init)
    elif objective.reads in EXCHANGES:
        data, about = _exchanges(given, held_out, objective, trained)
    elif given.mixture is not None:
        data, about = _mixed(given.mixture, held_out, trained)
    else:
        data, about = _plain(given.corpus(), held_out, trained)
    if isinstance(data, ExampleData) and (n_texts := data.cut(recipe)):
        say(f"{counted(n_texts, 'text is', 'texts are')} cut to {recipe.seq_len} tokens (--truncate)")
    return PreparedData(data, about)


# The tokenizer that is given, or one trained on texts, with the special tokens of the objective or with others.
Trained = Callable[..., Tokenizer]


def _parts(
    text: T, held_out: HeldOut, read: Callable[[Sources], T], split: Callable[[T, float], tuple[T, T]]
) -> tuple[T, T]:
    """(training, validation): all of a text where another is `read` to validate on, else both of its parts."""
    return (text, read(held_out)) if isinstance(held_out, Sources) else split(text, held_out)


def _pairs(given: Sources, held_out: HeldOut, objective: ObjectiveSpec, trained: Trained) -> PreparedData:
    pairs, unseen = _parts(given.pairs(), held_out, Sources.pairs, split_pairs)
    about = f"{counted(len(pairs.pairs), 'pair')}, sha256 {pairs.fingerprint[:16]}"
    if isinstance(objective, Contrastive):
        return PreparedData(ContrastData(pairs, unseen, trained(pairs.texts())), about)
    said = objective if isinstance(objective, Seq2Seq) else Seq2Seq()
    own = trained(pairs.texts(), {}, said.languages).between(said.source_language, said.target_language)
    return PreparedData(PairData(pairs, unseen, own), about)


def _labelled(
    given: Sources, held_out: HeldOut, kind: Kind, trained: Trained, begun: Path | None, init: Path | None
) -> PreparedData:
    examples = given.labelled(kind)
    texts, unseen = _parts(examples, held_out, lambda own: own.labelled(kind), split_labelled)
    names = None if kind == "numbers" else _labels(begun, init, set(examples.counts())) or examples.names()
    data = LabelledData(texts, unseen, trained(texts.texts()), names)
    what = counted(len(data.labels), "class", "classes") if data.labels else "numbers"
    return PreparedData(
        data, f"{counted(len(data.train.rows), 'example')} of {what}, sha256 {data.train.fingerprint[:16]}"
    )


def _exchanges(given: Sources, held_out: HeldOut, objective: ObjectiveSpec, trained: Trained) -> PreparedData:
    reads = objective.reads
    said, unseen = _parts(given.exchanges(reads), held_out, lambda own: own.exchanges(reads), split_exchanges)
    about = f"{counted(len(said.rows), 'conversation')}, sha256 {said.fingerprint[:16]}"
    return PreparedData(EXCHANGES[reads][1](said, unseen, trained(said.texts())), about)


def _mixed(mixture: Mixture, held_out: HeldOut, trained: Trained) -> PreparedData:
    parts = {each.text: read_corpus(each.text) for each in mixture.texts}
    text = Corpus.joined(parts)
    if isinstance(held_out, Sources):
        kept, rest = parts, held_out.corpus()
    else:
        halves = {name: corpus.split(held_out) for name, corpus in parts.items()}
        kept = {name: half for name, (half, _) in halves.items()}
        rest = Corpus.joined({name: half for name, (_, half) in halves.items()})
    own = trained(_lesson(Corpus.joined(kept)))
    data = MixedText([encoded_when_read(each, own) for each in kept.values()], encoded_when_read(rest, own), own)
    return PreparedData(data, f"{counted(len(parts), 'text')}, {_in_words(text)}")


def _plain(text: Corpus, held_out: HeldOut, trained: Trained) -> PreparedData:
    texts, rest = _parts(text, held_out, Sources.corpus, Corpus.split)
    own = trained(_lesson(texts))
    return PreparedData(TextData(encoded_when_read(texts, own), encoded_when_read(rest, own), own), _in_words(text))


def _lesson(texts: Corpus) -> Iterable[str]:
    """What a vocabulary is learnt from."""
    return Lesson(texts.sample(TOKENIZER_NBYTES), ByteLevelBPE.table).pieces()


def _in_words(text: Corpus) -> str:
    return f"{counted(len(text), 'document')}, {counted(text.nbytes, 'byte')}, sha256 {text.fingerprint[:16]}"


def _labels(begun: Path | None, init: Path | None, found: set[str]) -> tuple[str, ...] | None:
    """The labels that are known before the data is read, in the order of a head's rows."""
    if begun is not None and (kept := read_labels(begun)) is not None:
        return kept
    before = labels_of(find(init)) if init is not None else None
    return before if before is not None and found <= set(before) else None


def resized(spec: ModelSpec, n_params: float | None, vocab_size: int | None) -> ModelSpec:
    """The architecture at another size; the same where nothing else is asked for."""
    if n_params is None and vocab_size in (None, spec.vocab_size):
        return spec
    return resize(spec, n_params=None if n_params is None else int(n_params), vocab_size=vocab_size)


def with_head(spec: ModelSpec, recipe: Recipe, data: TrainingData) -> tuple[ModelSpec, str | None]:
    """The architecture with the tokenizer's mask and the objective's head, and where it gets one, a line that says so."""
    found = with_head_for(spec, recipe.objective, data.labels)
    if data.tokenizer is not None and (mask := known_mask(data.tokenizer)) is not None:
        found = compose.changed(found, TokenDropoutSpec, token=mask)
    new = [head.name for head in found.heads if head not in spec.heads]
    if not new:
        return found, None
    gone = ", ".join(repr(head.name) for head in spec.heads if head not in found.heads)
    place = f"in the place of {gone}" if gone else "which is added to the architecture"
    return found, f"{recipe.objective.kind} trains a head {new[0]!r}, {place}"
