"""What the classes of transformers for encoder–decoders share: two stacks, their layers, what files alone can say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from anyformer.errors import SpecError
from anyformer.families.hf.mapping import TensorRow, fused
from anyformer.layers import AttentionSpec
from anyformer.spec import MixerSpec, ModelSpec, StackSpec


class Side(NamedTuple):
    """One of the two stacks, and what each side calls it."""

    theirs: str
    ours: str
    stack: StackSpec


class Placed(NamedTuple):
    """A mixer, the layer it is in, and the sublayer of ours that holds it as its only branch."""

    mixer: MixerSpec
    layer: int
    sublayer: str
    number: int  # of the sublayer in its layer

    @property
    def path(self) -> str:
        """The mixer's own name."""
        return f"{self.sublayer}.branches.0.mixer"


def sides(spec: ModelSpec) -> tuple[Side, Side]:
    """Encoder and decoder. Raises SpecError for a model that has one stack."""
    if spec.encoder is None:
        raise SpecError("the model has no encoder")
    return Side("encoder", "encoder", spec.encoder), Side("decoder", "stack", spec.stack)


def placed(side: Side) -> Iterator[Placed]:
    """Each mixer of a stack, layer by layer."""
    for i, block in enumerate(side.stack.blocks):
        for j, sublayer in enumerate(block.sublayers):
            yield Placed(sublayer.branches[0].mixer, i, f"{side.ours}.blocks.{i}.sublayers.{j}", j)


def feeds(stack: StackSpec) -> tuple[MixerSpec, ...]:
    """The mixer of each layer that is no attention, the last where there are several. Raises SpecError for none."""
    found = [[s.branches[0].mixer for s in block.sublayers] for block in stack.blocks]
    each = [[mixer for mixer in layer if not isinstance(mixer, AttentionSpec)] for layer in found]
    if not all(each):
        raise SpecError("a layer has no feed-forward")
    return tuple(layer[-1] for layer in each)


def first_attention(stack: StackSpec) -> AttentionSpec:
    """The first attention of a stack. Raises SpecError for none."""
    for value in stack.nested():
        if isinstance(value, AttentionSpec):
            return value
    raise SpecError("the model has no attention")


def shared_table_rows(spec: ModelSpec, tokens: str, head: str, aliases: Iterable[str] = ()) -> list[TensorRow]:
    """The rows of the table that both stacks read, and of the head's where it has its own."""
    table = "shared.tokens.weight"  # as `encoder_decoder` calls it
    if spec.heads and spec.heads[0].tied:
        return [fused((table,), tokens, also=(*aliases, head))]
    return [fused((table,), tokens, also=tuple(aliases)), fused(("heads.0.table.weight",), head)]
