"""What the classes of transformers for encoder–decoders share: settings of one stack alone, rows of both."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from anyformer.errors import SpecError
from anyformer.families.compose import untied
from anyformer.families.hf.layout import Laid, Theirs, rows_of
from anyformer.families.hf.mapping import Family, TensorFiles, TensorRow, one, shapes
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import Pair, both_ways
from anyformer.spec import HeadSpec, ModelSpec, StackSpec, TableSpec

TWO_STACKS = "is_encoder_decoder"


def encoder_of(spec: ModelSpec) -> StackSpec:
    """The encoder. Raises SpecError for a model that has one stack."""
    if spec.encoder is None:
        raise SpecError("the model has no encoder")
    return spec.encoder


def in_encoder(pair: Pair) -> Pair:
    """The settings of the encoder alone."""

    def alone(spec: ModelSpec) -> ModelSpec:
        return spec.but(stack=encoder_of(spec), encoder=None, heads=())

    return Pair(
        lambda settings, spec: spec.but(encoder=pair.read(settings, alone(spec)).stack),
        lambda spec: pair.write(alone(spec)),
    )


def in_decoder(pair: Pair) -> Pair:
    """The settings of the decoder alone, and of the context."""
    return Pair(
        lambda settings, spec: pair.read(settings, spec.but(encoder=None)).but(encoder=spec.encoder),
        lambda spec: pair.write(spec.but(encoder=None)),
    )


def two_stacks(spec: ModelSpec) -> Iterator[tuple[str, str, StackSpec]]:
    """(our name, theirs, stack) of encoder and decoder. Raises SpecError for a model that has one stack."""
    yield "encoder", "encoder", encoder_of(spec)
    yield "stack", "decoder", spec.stack


def with_encoder_alone(family: Family, name: str) -> Family:
    """The family with the class of its encoder alone too, which is a model of one stack."""

    def to_spec(settings: Settings) -> ModelSpec:
        if name not in (settings.strings("architectures") or ()):
            settings.require(TWO_STACKS, True)
            return family.to_spec(settings)
        settings.ignore(TWO_STACKS)
        whole = family.to_spec(settings)
        return whole.but(stack=untied(encoder_of(whole)), encoder=None, heads=())

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        if spec.encoder is not None:
            return family.to_config(spec)
        return {**family.to_config(_doubled(spec)), "architectures": [name], TWO_STACKS: False}

    def rows(spec: ModelSpec) -> list[TensorRow]:
        if spec.encoder is not None:
            return family.rows(spec)
        own, whole = shapes(spec), to_spec(Settings(family.to_config(_doubled(spec)), family.hf_type))
        named = ((row, tuple(_alone(name, own) for name in row.ours)) for row in family.rows(whole))
        return [row._replace(ours=names) for row, names in named if own.keys() >= set(names)]

    return family._replace(to_spec=to_spec, to_config=to_config, rows=rows)


def _doubled(spec: ModelSpec) -> ModelSpec:
    """A model of two stacks, both as large as the one."""
    table = one(spec.stack, TableSpec).but(shared="tokens")
    return spec.but(encoder=spec.stack, heads=(HeadSpec(table=table),))


def _alone(name: str, own: Container[str]) -> str:
    """What a tensor of two stacks is called where the encoder is all: a table that nothing shares is where it stands."""
    side, _, rest = name.partition(".")
    if side == "shared":
        return name if name in own else "stack.embedding.terms.0.table.weight" if rest == "tokens.weight" else ""
    return f"stack.{rest}" if side == "encoder" else ""


def encoder_decoder_family(
    hf_type: str,
    architecture: str,
    template: ModelSpec,
    pairs: Iterable[Pair],
    links: Callable[[ModelSpec], Laid],
    *,
    prefix: str,
    tables: tuple[str, ...],
    further: Callable[[ModelSpec], Iterable[TensorRow]],
    of_files: Callable[[ModelSpec, TensorFiles], ModelSpec] | None = None,
    ignored: tuple[str, ...] = (),
) -> Family:
    """The family of a class of two stacks on one table of tokens; for the pairs see `table.both_ways`.

    `links` are the modules of both stacks, `further` rows that are no links; `tables` other names of the table in files.
    """
    to_spec, to_config = both_ways(template, pairs, ignored)

    def rows(spec: ModelSpec) -> list[TensorRow]:
        tied = bool(spec.heads and spec.heads[0].tied)
        table = Theirs(f"{prefix}shared", also=(*tables, "lm_head") if tied else tables)
        return [
            *rows_of(spec, {"shared.tokens": table, "heads.0.table": Theirs("lm_head"), **links(spec)}),
            *further(spec),
        ]

    return Family(hf_type, architecture, prefix, to_spec, to_config, rows, of_files=of_files)
