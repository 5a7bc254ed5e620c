"""The heads of transformers' classes: how each is made, which modules of a class hold it, which classes have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from anyformer.errors import SpecError, did_you_mean
from anyformer.families.compose import untied
from anyformer.families.heads import last_token_classes, masked_words, pooler, row_classes, token_classes
from anyformer.families.hf.layout import Laid, Modules, Theirs, rows_of, within
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GatedFeedForwardSpec, TokensSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import HeadSpec, MapSpec, ModelSpec, PoolSpec, TableSpec

Activation = Callable[[ModelSpec], MapSpec | None]  # of the model without heads; None is the head's usual one
Rows = Callable[[ModelSpec], list[TensorRow]]
LABELS = 2  # what a class of transformers takes where nothing is said


class Heading(NamedTuple):
    """A head of a family: how it is made, and which modules of a class hold it."""

    make: Callable[[ModelSpec, int], HeadSpec]  # of the model without heads, and the number of labels
    modules: Modules  # ours within the head → theirs; "" is the head itself: its table and its bias
    labelled: bool = False  # its rows are the labels


class HeadNames(NamedTuple):
    """The heads of a family's classes."""

    prefix: str  # of the encoder's tensors in every class but the bare one
    bare: str  # the class of the encoder itself
    headings: Mapping[str, Heading]  # by the head's name
    classes: Mapping[str, tuple[str, ...]]  # class → names of its heads; the first is meant where nothing is said
    # heads that are others where no token sees a later one: what an encoder hides is what a decoder comes to
    of_decoders: Mapping[str, str] = {}

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
        return spec.but(heads=tuple(self.headings[name].make(spec, n) for name in self._names(found, spec)))

    def _names(self, architecture: str, spec: ModelSpec) -> tuple[str, ...]:
        """The names of a class's heads on this model."""
        names = self.classes[architecture]
        if later_tokens_seen(spec.stack) is not None:
            return names
        return tuple(self.of_decoders.get(name, name) for name in names)

    def written(self, spec: ModelSpec) -> dict[str, Any]:
        """The settings that say which heads there are. Raises SpecError where no class has them."""
        architecture = self.architecture(spec)
        labelled = [head.table.rows for head in spec.heads if head.table and self.headings[head.name].labelled]
        return {"architectures": [architecture], **(numbered_labels(labelled[0]) if labelled else {})}

    def architecture(self, spec: ModelSpec) -> str:
        """The class with the heads of a model. Raises SpecError."""
        names = tuple(head.name for head in spec.heads)
        for architecture in self.classes:
            if self._names(architecture, spec) == names:
                return architecture
        known = "; ".join(" and ".join(found) or "none" for found in self.classes.values())
        raise SpecError(f"no class of this family has the heads {' and '.join(names) or 'none'}; there are {known}")

    def links(self, spec: ModelSpec) -> Laid:
        """The modules of the heads, but not their tables that are the embedding's."""
        each = ((i, within(self.headings[head.name].modules)) for i, head in enumerate(spec.heads))
        return {f"heads.{i}.{ours}".rstrip("."): name for i, modules in each for ours, name in modules.items()}

    def of_tokens(self) -> tuple[str, ...]:
        """What heads without a table of their own call the embedding's in files."""
        tied = (
            each.modules[""] for each in self.headings.values() if "" in each.modules and "table" not in each.modules
        )
        alike = (place for module in tied for place in within({"": module}).values())
        return tuple(dict.fromkeys(name for place in alike for name in (place.name, *place.also)))

    def tensors(self) -> list[str]:
        """The names that the tensors of any head may have; a class's files often hold those of heads it leaves out."""
        modules = [place for heading in self.headings.values() for place in within(heading.modules).values()]
        every = dict.fromkeys(name for place in modules for name in (place.name, *place.also))
        return [f"{name}.{end}" for name in every for end in ("weight", "bias")]


def usual_classes(
    name: str, prefix: str, headings: Mapping[str, Heading], first: Mapping[str, tuple[str, ...]] | None = None
) -> HeadNames:
    """The classes that most encoders have, as far as their heads are given: `name`Model, `name`ForMaskedLM and so on.

    `first` are those that come before them, by what their names end with.
    """
    usual = {
        "ForMaskedLM": ("mlm",),
        "Model": ("pooler",) if "pooler" in headings else (),
        "ForSequenceClassification": ("classes",),
        "ForTokenClassification": ("token_classes",),
        "ForQuestionAnswering": ("span",),
    }
    classes = {f"{name}{end}": names for end, names in {**(first or {}), **usual}.items()}
    known = {architecture: names for architecture, names in classes.items() if set(names) <= set(headings)}
    return HeadNames(prefix, f"{name}Model", headings, known)


def poolerless(name: str, prefix: str, words: Heading) -> HeadNames:
    """The heads of classes of which that for texts has two layers of its own."""
    texts = row_labels(*TWO_LAYERS, of_feed_forwards)
    return usual_classes(name, prefix, {"mlm": words, "classes": texts, **LABELLED})


def of_feed_forwards(spec: ModelSpec) -> MapSpec:
    """The activation of the feed-forwards, which hidden_act gives to some heads too."""
    return next(spec.stack.nested(FeedForwardSpec, GatedFeedForwardSpec)).activation


def words(
    dense: str | Theirs, norm: str | Theirs, table: str | Theirs, activation: Activation = lambda spec: None
) -> Heading:
    """Masked words: a layer, its norm, and the bias of the embedding's table; GELU where nothing is said."""
    modules = {"transform.0": dense, "transform.2": norm, "": table}
    return Heading(lambda spec, n: masked_words(spec, activation(spec)), modules)


def row_labels(
    dense: str, table: str, activation: Activation = lambda spec: None, pool: PoolSpec | None = None
) -> Heading:
    """Labels of a text, by a layer on the first token's vector; tanh where nothing is said."""
    modules = {"transform.0": dense, "table": table, "": table}
    return Heading(lambda spec, n: row_classes(n, pool=pool, activation=activation(spec)), modules, labelled=True)


def of_pairs(name: str, dense: str, table: str) -> Heading:
    """Whether a second sentence follows, or which of two came first."""
    return Heading(lambda spec, n: row_classes(2, name), {"transform.0": dense, "table": table, "": table})


def pooled(dense: str) -> Heading:
    """The first token's vector through a layer and tanh."""
    return Heading(lambda spec, n: pooler(), {"transform.0": dense})


TOKEN_CLASSES = Heading(lambda spec, n: token_classes(n), {"table": "classifier", "": "classifier"}, labelled=True)
# Where the answer to a question begins, and where it ends.
SPAN = Heading(lambda spec, n: token_classes(2, "span"), {"table": "qa_outputs", "": "qa_outputs"})
# A classifier of rows that has a hidden layer of its own, rather than a pooler's.
TWO_LAYERS = ("classifier.dense", "classifier.out_proj")
LABELLED = {"token_classes": TOKEN_CLASSES, "span": SPAN}


def numbered_labels(n: int, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The settings that count labels: by their names, LABEL_0 … where nobody gave any."""
    names = names or [f"LABEL_{i}" for i in range(n)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def labels_of(settings: Settings) -> int:
    """How many labels a configuration names or counts. Raises CheckpointError for names that are no table."""
    count, names = settings.take("num_labels", int, LABELS), settings.written("id2label")
    if names is None:
        return count
    if not isinstance(names, Mapping) or not names:
        raise settings.refusal("id2label", "must be a table of labels by number")
    return len(names)


# Of decoders: a text's labels are the last token's vector times a matrix without a bias, those of words each token's.
OF_DECODERS = {"classes": last_token_classes, "token_classes": token_classes}


def classifying(family: Family, classes: Mapping[str, tuple[str, str]]) -> Family:
    """A family of decoders that has these classes too, by their names: each with a head of these, held by a module."""
    by_head = {head: (name, module) for name, (head, module) in classes.items()}

    def judge(spec: ModelSpec) -> tuple[str, str] | None:
        return by_head.get(spec.heads[0].name) if len(spec.heads) == 1 else None

    def to_spec(settings: Settings) -> ModelSpec:
        spec = family.to_spec(settings)
        named = next((name for name in settings.strings("architectures") or () if name in classes), None)
        return spec if named is None else spec.but(heads=(OF_DECODERS[classes[named][0]](labels_of(settings)),))

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        found = judge(spec)
        if found is None or (labels := spec.heads[0].table) is None:
            return family.to_config(spec)
        return {**family.to_config(_writing(spec)), "architectures": [found[0]], **numbered_labels(labels.rows)}

    def labelled(rows: Rows) -> Rows:
        def found(spec: ModelSpec) -> list[TensorRow]:
            own = judge(spec)
            if own is None:
                return rows(spec)
            kept, _ = without_head(rows(_writing(spec)))
            return [*kept, *rows_of(spec, {"heads.0.table": own[1], "heads.0": own[1]})]

        return found

    return _laid_out(family._replace(to_spec=to_spec, to_config=to_config), labelled)


def _laid_out(family: Family, change: Callable[[Rows], Rows]) -> Family:
    """The family with the rows of each of its layouts changed."""
    files, released = (rows and change(rows) for rows in (family.files, family.released))
    return family._replace(rows=change(family.rows), files=files, released=released)


def stem(family: Family) -> str | None:
    """What the names of a decoder's classes begin with; None for what is no decoder's."""
    named = re.fullmatch("(.+)(ForCausalLM|LMHeadModel|ModelWithLMHead)", family.architecture)
    if named is None:
        return None
    return named[1].removesuffix("Text") + ("Text" if family.hf_type.endswith("_text") else "")


def bare(family: Family) -> Family:
    """A family with the class that has no head too; one that can predict by the embedding's table stays whole."""
    if (base := stem(family)) is None or family.headless:
        return family
    name = f"{base}Model"

    def to_spec(settings: Settings) -> ModelSpec:
        spec = family.to_spec(settings)
        if name not in (settings.strings("architectures") or ()):
            return spec
        kept = not writes_alone(spec) and later_tokens_seen(spec.stack) is None
        return spec if kept else spec.but(stack=untied(spec.stack), heads=(), ahead=())

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        if spec.heads:
            return family.to_config(spec)
        config = {**family.to_config(_writing(spec.but(stack=untied(spec.stack)))), "architectures": [name]}
        # What is null of a head that is not there may be none of the class's values.
        said = {key: value for key, value in config.items() if value is not None}
        alike = to_spec(Settings(said, family.hf_type)) == to_spec(Settings(config, family.hf_type))
        return said if alike else config

    def without(rows: Rows) -> Rows:
        def named(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name.removeprefix(family.prefix) for name in names)

        def found(spec: ModelSpec) -> list[TensorRow]:
            if spec.heads:
                return rows(spec)
            kept, head = without_head(rows(_writing(spec)))
            kept = [row._replace(theirs=named(row.theirs), also=named(row.also)) for row in kept]
            return [*kept, dropped(*(name for row in head for name in (*row.theirs, *row.also)))]

        return found

    return _laid_out(family._replace(to_spec=to_spec, to_config=to_config), without)


def writes_alone(spec: ModelSpec) -> bool:
    """Whether a model's one head predicts tokens by a table of its own."""
    return len(spec.heads) == 1 and spec.heads[0].table is not None and not spec.heads[0].tied


def without_head(rows: list[TensorRow]) -> tuple[list[TensorRow], list[TensorRow]]:
    """The rows of a model's stack, and those of its head."""
    head = [row for row in rows if any(name.startswith("heads.") for name in row.ours)]
    return [row for row in rows if row not in head], head


def _writing(spec: ModelSpec) -> ModelSpec:
    """The model with a head for tokens again, tied where the embedding's table could be."""
    table = one(spec.stack.embedding, TokensSpec).table
    own = table if table.shared else TableSpec(rows=table.rows)
    return spec.but(heads=(HeadSpec(table=own),))
