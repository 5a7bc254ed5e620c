"""What the classes of transformers for encoder–decoders share: settings of one stack alone, rows of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from anyformer.errors import SpecError
from anyformer.families.hf.layout import Laid, Theirs, rows_of
from anyformer.families.hf.mapping import Family, Files, TensorRow
from anyformer.families.hf.table import Pair, both_ways
from anyformer.spec import ModelSpec, StackSpec


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
    of_files: Callable[[ModelSpec, Files], ModelSpec] | None = None,
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
