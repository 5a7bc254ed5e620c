"""What the classes of transformers for encoders share: several classes of one family, each the encoder with other heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.headings import HeadNames
from anyformer.families.hf.layout import Laid, Modules, Theirs, of_layers, rows_of, within
from anyformer.families.hf.mapping import Family, TensorFiles, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings
from anyformer.layers import (
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LearnedPositionsSpec,
    LinearSpec,
    LocalAndGlobalSpec,
    SegmentsSpec,
)
from anyformer.spec import EmbeddingSpec, HeadSpec, Length, ModelSpec, StackSpec, TableSpec

Links = Callable[[ModelSpec], Laid]


def encoder_family(
    hf_type: str,
    template: ModelSpec,
    pairs: Iterable[table.Pair],
    heads: HeadNames,
    links: Links,
    *,
    further: Callable[[ModelSpec], Iterable[TensorRow]] = lambda spec: (),
    tokens: str = "embeddings.word_embeddings",
    buffers: tuple[str, ...] = ("embeddings.position_ids",),
    ignored: tuple[str, ...] = (),
    filed: tuple[Links, HeadNames] | None = None,
    of_heads: tuple[table.Pair, ...] = (),
) -> Family:
    """The family of classes that put heads on one encoder; `links` are the encoder's modules, without the prefix.

    The head for masked words has the tokens' table where the template's is shared. `further` are rows of the encoder's that are
    no links; `buffers` are what old files hold and nobody needs; `ignored` settings change no number. `filed` are the links and
    heads of files that are laid out otherwise; `of_heads` are settings of the heads.
    """
    tied = one(template.stack.embedding, TableSpec).shared is not None
    usual = {
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": tied,
        "position_embedding_type": "absolute",
    }

    def unread(settings: Settings, spec: ModelSpec) -> ModelSpec:
        """What no pair asked for must be as in most."""
        for name in settings.untaken(usual):
            settings.require(name, usual[name])
        return spec

    all_pairs = (*pairs, table.Pair(unread), table.Pair(heads.read), *of_heads)
    to_spec, write = table.both_ways(template, all_pairs, ignored)

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        found = {**write(spec.but(heads=())), **heads.written(spec)}
        for pair in of_heads:
            found |= pair.write(spec)
        return found

    def rows(spec: ModelSpec, links: Links = links, heads: HeadNames = heads) -> list[TensorRow]:
        stripped = {head.name for head in spec.heads} <= set(heads.classes.get(heads.bare, ()))
        shared = one(spec.stack.embedding, TableSpec).shared
        ours = f"shared.{shared}" if tied else "stack.embedding.terms.0.table"
        places = {ours: Theirs(heads.prefix + tokens, also=heads.of_tokens() if tied else ()), **heads.links(spec)}
        found = [_aliased(row) for row in rows_of(spec, places | within(links(spec), theirs=heads.prefix))]
        found += [row._replace(theirs=tuple(heads.prefix + name for name in row.theirs)) for row in further(spec)]
        taken = {name for row in found for name in (*row.theirs, *row.also)}
        spare = (name for name in heads.tensors() if name not in taken)
        old = (heads.prefix + name for name in buffers)
        found.append(dropped(*spare, *(name for name in old if name not in taken)))
        return [_bare(row, heads.prefix) for row in found] if stripped else found

    def of_files(spec: ModelSpec, files: TensorFiles) -> ModelSpec:
        """The encoder without its pooler where the files of the bare class have none."""
        if not any(head.name == "pooler" for head in spec.heads):
            return spec
        names = [f"{module.name}.weight" for module in within(heads.headings["pooler"].modules).values()]
        held = any(name in files or name.removeprefix(heads.prefix) in files for name in names)
        return spec if held else spec.but(heads=tuple(head for head in spec.heads if head.name != "pooler"))

    def head(spec: ModelSpec, n: int, name: str) -> HeadSpec | None:
        return heads.headings[name].make(spec.but(heads=()), n) if name in heads.headings else None

    files = None if filed is None else lambda spec: rows(spec, *filed)
    headless = () in heads.classes.values()
    return Family(
        hf_type, next(iter(heads.classes)), heads.prefix, to_spec, to_config, rows, files, of_files, head, headless
    )


def _aliased(row: TensorRow) -> TensorRow:
    """The row with what old files call a norm's weight and bias."""
    module, _, end = row.theirs[0].rpartition(".")
    old = {"weight": "gamma", "bias": "beta"}
    aliases = (f"{module}.{old[end]}",) if module.endswith("LayerNorm") else ()
    return row._replace(also=(*row.also, *aliases))


def _bare(row: TensorRow, prefix: str) -> TensorRow:
    theirs, also = (tuple(name.removeprefix(prefix) for name in names) for names in (row.theirs, row.also))
    return row._replace(theirs=theirs, also=also)


def laid_out(
    modules: Modules,
    *,
    terms: tuple[str, ...] = ("position", "token_type"),
    layer: str = "encoder.layer",
    outside: Mapping[str, str] | None = None,
) -> Links:
    """The modules of every `layer`.i, ours within it → theirs; the embedding's tables after the tokens', and its norm."""

    tables = {f"stack.embedding.terms.{i}": f"embeddings.{name}_embeddings" for i, name in enumerate(terms, 1)}
    rest = within({**tables, "stack.embedding.norm": "embeddings.LayerNorm", **(outside or {})})
    return lambda spec: {**rest, **of_layers(spec.stack, layer, modules)}


def width(default: int | None, *, always: bool, name: str = "embedding_size") -> table.Pair:
    """The width of the embedding, by its `name`, which is projected to d_model `always`, or only from another width (ELECTRA).

    Where nothing is said it is the default, None being d_model.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        found = settings.positive(name, int, default or spec.stack.d_model)
        projected = always or found != spec.stack.d_model
        projection = LinearSpec(bias=True) if projected else None
        return changed(spec, EmbeddingSpec, width=found if projected else None, projection=projection)

    return table.Pair(read, lambda spec: {name: spec.stack.embedding.width or spec.stack.d_model})


def n_positions(offset_by_padding: bool = False, default: int = 512) -> table.Pair:
    """The learned positions, which are the context; the default goes where nothing is said.

    `offset_by_padding`: the row of the padding's id is the padding's, and the first token's comes after (RoBERTa).
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        rows = settings.positive("max_position_embeddings", int, default)
        padding = settings.take("pad_token_id", int, 1) if offset_by_padding else None
        offset = 0 if padding is None else padding + 1
        if rows <= offset:
            raise settings.refusal("max_position_embeddings", f"leaves no position after the first {offset} rows")
        spec = changed(spec, LearnedPositionsSpec, n_positions=Length(rows - offset), offset=offset, padding=padding)
        return spec.but(context=Length(rows - offset))

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, LearnedPositionsSpec)
        padding = {"pad_token_id": found.padding} if found.padding is not None else {}
        return {"max_position_embeddings": found.n_positions + found.offset, **padding}

    return table.Pair(read, write)


def sizes(
    d_model: str = "hidden_size",
    d_ff: str = "intermediate_size",
    n_heads: str = "num_attention_heads",
    activation: str = "hidden_act",
    n_layers: str = "num_hidden_layers",
    *,
    heads: type[GQASpec | LocalAndGlobalSpec] = GQASpec,
    feed: type[FeedForwardSpec | GatedFeedForwardSpec] = FeedForwardSpec,
    usual: str = "gelu",
    even: table.Pair = table.EVEN,
) -> tuple[table.Pair, ...]:
    """The sizes of an encoder, by a class's names for them; `even` refuses `heads` that do not divide the width.

    The activation of every `feed` is the `usual` one where nothing is said.
    """
    return (
        table.VOCABULARY,
        table.at(d_model, int, StackSpec, "d_model"),
        table.at(d_ff, int, feed, "d_ff"),
        table.at(n_heads, int, heads, "n_heads"),
        even,
        table.activation(activation, usual, feed),
        table.starts(),
        table.layers(n_layers),
    )


def causal(name: str) -> table.Pair:
    """Whether tokens see those before them alone."""
    return table.choice(name, AttentionSpec, "mask", {True: Causal(), False: Everything()}, False)


SIZES = sizes()
SEGMENTS = table.at("type_vocab_size", int, SegmentsSpec, "n_segments", default=2)
