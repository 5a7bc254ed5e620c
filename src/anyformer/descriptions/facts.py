"""Facts of a specification, each stated once: card, diff, history, diagram and check are views of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import torch

from anyformer.descriptions.grouping import distinct_layers, places
from anyformer.errors import InputError
from anyformer.layers import (
    AttentionSpec,
    GroupsSpec,
    LocalAndGlobalSpec,
    MLASpec,
    MoESpec,
    NormSpec,
)
from anyformer.layers.causality import HEADS, POSITIONS
from anyformer.layers.mask import Mask, visible
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.spec import MapSpec, ModelSpec, Place, Spec, StackSpec, SublayerSpec, TableSpec, TermSpec

PROBE = 17  # tokens on which masks are compared head by head: odd, so that patterns of blocks and strides don't fit
Where = Literal["in", "out", "sum", "skip"]  # before a branch, after it, after the sum, on the way around


class AttentionFacts(NamedTuple):
    """One attention of one kind of layer."""

    stack: str  # "", or encoder and decoder where there are both
    at: tuple[int, ...]  # layers, counted from 0
    spec: AttentionSpec
    place: Place

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Heads, widths of a query and of a value."""
        return head_sizes(self.spec.projection, self.place)


def head_sizes(projection: Any, place: Place) -> tuple[int, int, int] | None:
    """Heads, widths of a query and of a value; None for a user's own projection, which need not say."""
    try:
        return projection.sizes(place)
    except TypeError:
        return None


def head_sharing(projection: Any) -> Literal["MHA", "GQA", "MQA", "MLA"] | None:
    """How query heads share keys and values; None where a projection of a user's own does not say.

    Each head its own (Vaswani et al. 2017), groups of heads one (Ainslie et al. 2023), all of them one (Shazeer 2019), or all
    of them a latent from which each head makes its own (DeepSeek-AI 2024).
    """
    if isinstance(projection, MLASpec):
        return "MLA"
    if isinstance(projection, LocalAndGlobalSpec):
        return "MHA"
    n_heads, n_kv = getattr(projection, "n_heads", None), getattr(projection, "kv_heads", None)
    if n_heads is None or n_kv is None:
        return None
    return "MHA" if n_heads == n_kv else "MQA" if n_kv == 1 else "GQA"


def place_in(spec: ModelSpec, stack: StackSpec) -> Place:
    """The place of a stack's mixers."""
    d_source = spec.encoder.width if spec.encoder else stack.d_model
    return Place(stack.d_model, (stack.d_model,), d_source, n_streams=stack.residual.n_streams)


def maps(sublayer: SublayerSpec) -> Iterator[tuple[Where, MapSpec]]:
    """The norms and other maps around the branches of a sublayer, with where they stand."""
    standing: dict[Where, list[MapSpec | None]] = {
        "in": [sublayer.norm_in, *(branch.norm_in for branch in sublayer.branches)],
        "out": [sublayer.norm_out, *(branch.norm_out for branch in sublayer.branches)],
        "sum": [sublayer.norm_sum],
        "skip": [sublayer.skip],
    }
    return ((place, value) for place, found in standing.items() for value in found if value is not None)


def norm_places(sublayer: SublayerSpec) -> frozenset[Where]:
    """Where norms stand: "in" alone is pre-norm, "sum" alone post-norm."""
    return frozenset(at for at, value in maps(sublayer) if isinstance(value, NormSpec) and at != "skip")


def looks_up(term: Spec) -> bool:
    """Whether a term of an embedding has a table of rows for ids, tokens or others."""
    return any(term.nested(TableSpec))


def position_terms(stack: StackSpec) -> list[TermSpec]:
    """The terms of an embedding that tell positions."""
    return [t for t in stack.embedding.terms if not looks_up(t) and not isinstance(t, GroupsSpec)]


def position_parts(attention: AttentionSpec) -> list[Spec]:
    """What in an attention tells positions: rotary embedding, scores, what is added to the values."""
    found = (getattr(attention.projection, "rotary", None), *attention.scores, attention.relative_values)
    return [part for part in found if part is not None]


def n_shared_experts(mixture: MoESpec) -> int:
    """How many experts serve every token: a shared one that is as wide as several counts for as many."""
    one, several = getattr(mixture.expert, "d_ff", None), getattr(mixture.shared_expert, "d_ff", None)
    scored = mixture.router.n_shared
    if mixture.shared_expert is None:
        return scored
    return scored + (several // one if one and several and several % one == 0 else 1)


def reduced(spec: ModelSpec) -> ModelSpec:
    """The same model with one layer of each kind."""

    def few(stack: StackSpec) -> StackSpec:
        return stack.but(blocks=tuple(layers.block for layers in distinct_layers(stack)))

    stack = few(spec.stack)
    heads = tuple(head.within(len(stack.blocks)) for head in spec.heads)
    return spec.but(stack=stack, encoder=spec.encoder and few(spec.encoder), heads=heads)


def parts(spec: ModelSpec) -> Iterator[Spec]:
    """Every value in a model, those of equal layers once."""
    return reduced(spec).nested()


def own_parts(spec: ModelSpec) -> tuple[str, ...]:
    """The kinds of the parts that a user has defined."""
    return tuple(dict.fromkeys(v.kind for v in parts(spec) if not type(v).__module__.startswith("anyformer.")))


def every_attention(spec: ModelSpec) -> Iterator[AttentionFacts]:
    """Every attention of every kind of layer, those of a layer to its own stack first."""
    for name, stack in spec.stacks.items():
        for layers in distinct_layers(stack):
            found = layers.block.nested(AttentionSpec)
            for value in sorted(found, key=lambda attention: attention.reads == "memory"):
                yield AttentionFacts(name, layers.at, value, layers.block.inner(place_in(spec, stack)))


def where(found: Iterable[AttentionFacts], spec: ModelSpec) -> str:
    """The layers in which attentions stand: "all layers", "layers 0–2 of the decoder"."""
    said = []
    for name, stack in spec.stacks.items():
        at = sorted({i for attention in found if attention.stack == name for i in attention.at})
        if at:
            which = "all layers" if len(at) == len(stack.blocks) else places(at)
            said.append(f"{which} of the {name}" if name else which)
    return " and ".join(said)


def shows_nothing(mask: Mask) -> bool:
    """Whether a mask hides every key from every token, of a prefix or behind one, as far as neighbours and far ones tell."""
    positions = torch.tensor([POSITIONS], device="cpu")
    tokens = Tokens(positions, segment=positions % 2)
    seen = visible(mask, tokens, tokens, HEADS)
    return seen is not None and not seen.any()


def masks_by_head(attention: AttentionFacts) -> int:
    """For how many heads a mask is another: 1 where it is the same for all."""
    tokens = plain_tokens(PROBE, torch.device("cpu"))
    try:
        seen = visible(attention.spec.mask, tokens, tokens, attention.sizes[0] if attention.sizes else 1)
    except InputError:
        return 1
    return 1 if seen is None else seen.shape[1]
