"""What the classes of transformers for encoders share: several classes of one family, each the encoder with other heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.headings import HeadNames
from anyformer.families.hf.layout import Link, link, of_layers, rows_of
from anyformer.families.hf.mapping import Family, Files, TensorRow, dropped, one
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GQASpec, LayerNormSpec, LearnedPositionsSpec, SegmentsSpec
from anyformer.spec import HeadSpec, Length, ModelSpec, TableSpec

Links = Callable[[ModelSpec], Iterable[Link]]


def copies(table: str, decoder: str) -> Mapping[str, tuple[str, ...]]:
    """The second names of the tied table and of its bias, which files hold as those of a `decoder` too."""
    return {f"{table}.weight": (f"{decoder}.decoder.weight",), f"{decoder}.bias": (f"{decoder}.decoder.bias",)}


def encoder_family(
    hf_type: str,
    template: ModelSpec,
    pairs: Iterable[table.Pair],
    heads: HeadNames,
    links: Links,
    *,
    further: Callable[[ModelSpec], Iterable[TensorRow]] = lambda spec: (),
    tokens: str = "embeddings.word_embeddings",
    twins: Mapping[str, tuple[str, ...]] | None = None,
    buffers: tuple[str, ...] = ("embeddings.position_ids",),
    ignored: tuple[str, ...] = (),
) -> Family:
    """The family of classes that put heads on one encoder; `links` are the encoder's modules, without the prefix.

    `further` are rows of the encoder's that are no links. `twins`: what files hold twice, by the first name: a tied table,
    a bias under two names. `buffers` are what old files hold and nobody needs; `ignored` settings change no number.
    """
    usual = table.only(
        is_decoder=False, add_cross_attention=False, tie_word_embeddings=True, position_embedding_type="absolute"
    )
    all_pairs = (usual, *pairs, table.Pair(heads.read, lambda spec: {}))
    to_spec, write = table.both_ways(template, all_pairs, ignored)

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        return {**write(spec.but(heads=())), **heads.written(spec)}

    def rows(spec: ModelSpec) -> list[TensorRow]:
        stripped = not spec.heads or heads.architecture(spec) == heads.bare
        table = one(spec.stack.embedding, TableSpec, "table of tokens")
        places = [Link((f"shared.{table.shared}",), tokens), *links(spec)]
        places = [each._replace(theirs=heads.prefix + each.theirs) for each in places]
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

    return Family(
        hf_type, next(iter(heads.classes)), heads.prefix, to_spec, to_config, rows, of_files=of_files, head=head
    )


def _aliased(row: TensorRow, twins: Mapping[str, tuple[str, ...]]) -> TensorRow:
    """The row with the other names of its tensor: twins, and what old files call a norm's weight and bias."""
    (name, *_), (module, _, end) = row.theirs, row.theirs[0].rpartition(".")
    old = {"weight": "gamma", "bias": "beta"}
    aliases = (f"{module}.{old[end]}",) if module.endswith("LayerNorm") else ()
    return row._replace(also=(*row.also, *twins.get(name, ()), *aliases))


def _bare(row: TensorRow, prefix: str) -> TensorRow:
    theirs, also = (tuple(name.removeprefix(prefix) for name in names) for names in (row.theirs, row.also))
    return row._replace(theirs=theirs, also=also)


def laid_out(
    modules: Mapping[str, str],
    *,
    terms: tuple[str, ...] = ("position", "token_type"),
    layer: str = "encoder.layer",
    outside: Mapping[str, str] | None = None,
) -> Links:
    """The modules of every `layer`.i, ours within it → theirs; the embedding's tables after the tokens', and its norm."""

    def links(spec: ModelSpec) -> Iterator[Link]:
        for i, name in enumerate(terms, 1):
            yield link(f"stack.embedding.terms.{i}", f"embeddings.{name}_embeddings")
        yield link("stack.embedding.norm", "embeddings.LayerNorm")
        yield from (link(ours, theirs) for ours, theirs in (outside or {}).items())
        yield from of_layers(spec.stack, layer, modules)

    return links


def n_positions(offset_by_padding: bool = False) -> table.Pair:
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

    return table.Pair(read, write)


SIZES = (
    table.VOCABULARY,
    table.D_MODEL,
    table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
    table.at("num_attention_heads", int, GQASpec, "n_heads"),
    table.EVEN,
    table.activation("hidden_act", "gelu", FeedForwardSpec),
    table.starts(),
    table.layers(),
)
SEGMENTS = table.at("type_vocab_size", int, SegmentsSpec, "n_segments", default=2)


def eps(default: float) -> table.Pair:
    """The norms' eps."""
    return table.at("layer_norm_eps", float, LayerNormSpec, "eps", default=default)
