"""What the classes of transformers for encoders share: several classes of one family, each the encoder with other heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

from anyformer.errors import SpecError, did_you_mean
from anyformer.families.compose import changed
from anyformer.families.heads import token_classes
from anyformer.families.hf.layout import Link, deviation, rows_of
from anyformer.families.hf.mapping import Family, Files, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.template import D_MODEL, EVEN, VOCABULARY, Pair, activation, at, layers
from anyformer.layers import ByRole, FeedForwardSpec, GQASpec, LayerNormSpec, LearnedPositionsSpec, Normal, SegmentsSpec
from anyformer.spec import HeadSpec, Length, ModelSpec, TableSpec

LABELS = 2  # what a class of transformers takes where nothing is said


class Heading(NamedTuple):
    """A head of a family: how it is made, and which modules of a class hold it."""

    make: Callable[[ModelSpec, int], HeadSpec]  # of the model without heads, and the number of labels
    modules: Mapping[str, str]  # ours within the head → theirs; "" is the head itself: its table and its bias
    labelled: bool = False  # its rows are the labels


TOKEN_CLASSES = Heading(lambda spec, n: token_classes(n), {"table": "classifier", "": "classifier"}, labelled=True)
# Where the answer to a question begins, and where it ends.
SPAN = Heading(lambda spec, n: token_classes(2, "span"), {"table": "qa_outputs", "": "qa_outputs"})
# The modules of a classifier of rows that has a hidden layer of its own, rather than a pooler's.
CLASSIFIER_OF_TWO = {"transform.0": "classifier.dense", "table": "classifier.out_proj", "": "classifier.out_proj"}


class HeadNames(NamedTuple):
    """The heads of a family's classes."""

    prefix: str  # of the encoder's tensors in every class but the bare one
    bare: str  # the class of the encoder itself
    headings: Mapping[str, Heading]  # by the head's name
    classes: Mapping[str, tuple[str, ...]]  # class → names of its heads; the first is meant where nothing is said

    def read(self, settings: Settings, spec: ModelSpec) -> ModelSpec:
        """The encoder with the heads of the class that `architectures` names. Raises CheckpointError."""
        named = settings.strings("architectures") or (next(iter(self.classes)),)
        found = next((name for name in named if name in self.classes), None)
        if found is None:
            hint = did_you_mean(named[0], self.classes)
            raise settings.refusal(
                "architectures", f"has no class that is read here{hint}; {', '.join(self.classes)} are"
            )
        n = labels_of(settings)
        return spec.but(heads=tuple(self.headings[name].make(spec, n) for name in self.classes[found]))

    def written(self, spec: ModelSpec) -> dict[str, Any]:
        """The settings that say which heads there are. Raises SpecError where no class has them."""
        labelled = [h.table.rows for h in spec.heads if h.table and self.labelled(h.name)]
        return {"architectures": [self.architecture(spec)], **(numbered_labels(labelled[0]) if labelled else {})}

    def architecture(self, spec: ModelSpec) -> str:
        """The class with the heads of a model. Raises SpecError."""
        names = tuple(head.name for head in spec.heads)
        for architecture, found in self.classes.items():
            if found == names:
                return architecture
        known = "; ".join(" and ".join(found) or "none" for found in self.classes.values())
        raise SpecError(f"no class of this family has the heads {' and '.join(names) or 'none'}; there are {known}")

    def labelled(self, name: str) -> bool:
        """Whether a head's rows are labels."""
        return name in self.headings and self.headings[name].labelled

    def links(self, spec: ModelSpec) -> Iterator[Link]:
        """The modules of the heads, but not their tables that are the embedding's."""
        for i, head in enumerate(spec.heads):
            for ours, theirs in self.headings[head.name].modules.items():
                yield Link((f"heads.{i}.{ours}" if ours else f"heads.{i}",), theirs)

    def tensors(self) -> list[str]:
        """The names that the tensors of any head may have; a class's files often hold those of heads it leaves out."""
        every = (theirs for heading in self.headings.values() for theirs in heading.modules.values())
        return [f"{theirs}.{end}" for theirs in dict.fromkeys(every) for end in ("weight", "bias")]


def encoder_family(
    hf_type: str,
    template: ModelSpec,
    pairs: Iterable[Pair],
    heads: HeadNames,
    links: Callable[[ModelSpec], Iterable[Link]],
    *,
    further: Callable[[ModelSpec], Iterable[TensorRow]] = lambda spec: (),
    tokens: str = "embeddings.word_embeddings",
    twins: Mapping[str, tuple[str, ...]] | None = None,
    buffers: tuple[str, ...] = ("embeddings.position_ids",),
    ignored: tuple[str, ...] = (),
) -> Family:
    """The family of classes that put heads on one encoder; `links` are the encoder's, without the prefix.

    `further` are rows of the encoder's that are no links. `twins`: what files hold twice, by the first name: a tied table,
    a bias under two names. `buffers` are what old files hold and nobody needs; `ignored` settings change no number.
    """
    pairs, first = tuple(pairs), next(iter(heads.classes))

    def to_spec(settings: Settings) -> ModelSpec:
        settings.require("is_decoder", False)
        settings.require("add_cross_attention", False)
        settings.require("tie_word_embeddings", True)
        settings.require("position_embedding_type", "absolute")
        settings.ignore(*ignored)
        spec = reduce(lambda found, pair: pair.read(settings, found), pairs, template)
        spec = heads.read(settings, spec)
        settings.close()
        return spec

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        bare = spec.but(heads=())
        said = {name: value for pair in pairs for name, value in pair.write(bare).items()}
        return {**said, **heads.written(spec)}

    def rows(spec: ModelSpec) -> list[TensorRow]:
        stripped = not spec.heads or heads.architecture(spec) == heads.bare
        table = one(spec.stack.embedding, TableSpec, "table of tokens")
        places = [Link((f"shared.{table.shared}",), tokens), *links(spec)]
        places = [link._replace(theirs=heads.prefix + link.theirs) for link in places]
        every = [*rows_of(spec, [*places, *heads.links(spec)])]
        every += [row._replace(theirs=tuple(heads.prefix + name for name in row.theirs)) for row in further(spec)]
        found = [_aliased(row, twins or {}) for row in every]
        taken = {name for row in found for name in (*row.theirs, *row.also)}
        spare = [*heads.tensors(), *(name for both in (twins or {}).values() for name in both)]
        found.append(
            dropped(*(name for name in spare if name not in taken), *(heads.prefix + name for name in buffers))
        )
        return [_bare(row, heads.prefix) for row in found] if stripped else found

    def of_files(spec: ModelSpec, files: Files) -> ModelSpec:
        """The encoder without its pooler where the files of the bare class have none."""
        if [head.name for head in spec.heads] != ["pooler"]:
            return spec
        names = [f"{name}.weight" for name in heads.headings["pooler"].modules.values()]
        held = any(name in files or name.removeprefix(heads.prefix) in files for name in names)
        return spec if held else spec.but(heads=())

    def head(spec: ModelSpec, n: int, name: str) -> HeadSpec | None:
        return heads.headings[name].make(spec.but(heads=()), n) if name in heads.headings else None

    return Family(hf_type, first, heads.prefix, to_spec, to_config, rows, of_files=of_files, head=head)


def numbered_labels(n: int) -> dict[str, Any]:
    """The settings that count labels: by names, which nobody gave."""
    names = {str(i): f"LABEL_{i}" for i in range(n)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


def labels_of(settings: Settings) -> int:
    """How many labels a configuration names or counts. Raises CheckpointError for names that are no table."""
    count, names = settings.take("num_labels", int, LABELS), settings.written("id2label")
    settings.ignore("label2id")
    if names is None:
        return count
    if not isinstance(names, Mapping) or not names:
        raise settings.refusal("id2label", "must be a table of labels by number")
    return len(names)


def _aliased(row: TensorRow, twins: Mapping[str, tuple[str, ...]]) -> TensorRow:
    """The row with the other names of its tensor: twins, and what old files call a norm's weight and bias."""
    (name, *_), (module, _, end) = row.theirs, row.theirs[0].rpartition(".")
    old = {"weight": "gamma", "bias": "beta"}
    aliases = (f"{module}.{old[end]}",) if module.endswith("LayerNorm") else ()
    return row._replace(also=(*row.also, *twins.get(name, ()), *aliases))


def _bare(row: TensorRow, prefix: str) -> TensorRow:
    theirs, also = (tuple(name.removeprefix(prefix) for name in names) for names in (row.theirs, row.also))
    return row._replace(theirs=theirs, also=also)


def of_layers(spec: ModelSpec, stack: str, modules: Mapping[str, str]) -> Iterator[Link]:
    """The modules of every layer: ours within it → theirs within `stack`.i."""
    for i in range(spec.n_layers):
        for ours, theirs in modules.items():
            yield Link((f"stack.blocks.{i}.sublayers.{ours}",), f"{stack}.{i}.{theirs}")


def n_positions(offset_by_padding: bool = False) -> Pair:
    """The learned positions, which are the context.

    `offset_by_padding`: rows up to that of the padding's id are of no token, and the first token's comes after (RoBERTa).
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        rows, offset = settings.take("max_position_embeddings", int, 512), 0
        if offset_by_padding:
            offset = settings.take("pad_token_id", int, 1) + 1
        if rows <= offset:
            raise settings.refusal("max_position_embeddings", f"leaves no position after the first {offset} rows")
        spec = changed(spec, LearnedPositionsSpec, n_positions=Length(rows - offset), offset=offset)
        return spec.but(context=Length(rows - offset))

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, LearnedPositionsSpec, "learned positions")
        padding = {"pad_token_id": found.offset - 1} if offset_by_padding and found.offset else {}
        return {"max_position_embeddings": found.n_positions + found.offset, **padding}

    return Pair(read, write)


def starts(default: float = 0.02) -> Pair:
    """The deviation of the normal distribution that all weights are drawn from."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        drawn = Normal(scale=settings.take("initializer_range", float, default))
        return spec.but(init=ByRole(table=drawn, matrix=drawn))

    return Pair(read, lambda spec: {"initializer_range": deviation(spec)})


SIZES = (
    VOCABULARY,
    D_MODEL,
    at("intermediate_size", int, FeedForwardSpec, "d_ff"),
    at("num_attention_heads", int, GQASpec, "n_heads"),
    EVEN,
    activation("hidden_act", "gelu", FeedForwardSpec),
    starts(),
    layers(),
)
SEGMENTS = at("type_vocab_size", int, SegmentsSpec, "n_segments", default=2)


def eps(default: float) -> Pair:
    """The norms' eps."""
    return at("layer_norm_eps", float, LayerNormSpec, "eps", default=default)
