"""What a block diagram of a model shows: the embedding below, a frame for each kind of layer, the heads on top."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from anyformer.descriptions import feed_forwards, options, words
from anyformer.descriptions.diagram.grid import (
    GAP,
    Box,
    Diagram,
    FigurePart,
    added,
    beside,
    box,
    figure,
    framed,
    stacked,
    summed,
    wrapped,
)
from anyformer.descriptions.facts import (
    head_sharing,
    head_sizes,
    looks_up,
    n_shared_experts,
    place_in,
    position_parts,
)
from anyformer.descriptions.grouping import by_layer, pattern, places
from anyformer.layers import (
    AddSpec,
    AsideSpec,
    AttentionSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    MLASpec,
    MoESpec,
    NormSpec,
    RMSNormSpec,
    RotarySpec,
    ShortenedSpec,
    TokensSpec,
)
from anyformer.spec import (
    Architecture,
    BlockSpec,
    BranchSpec,
    HeadSpec,
    MapSpec,
    ModelSpec,
    Place,
    StackSpec,
    SublayerSpec,
    specification,
)
from anyformer.variants.parts import is_tied

WIDTH = 26  # characters of a line in a box
NOTE = 36  # characters of a line beside a frame
SHOWN = 5  # kinds of layers that are drawn; more are counted


def diagram(model: Architecture) -> Diagram:
    """The figure of a model. Raises SpecError for what has no specification."""
    spec = specification(model)
    encoder = spec.encoder and _stack(spec.encoder, place_in(spec, spec.encoder), "encoder's tokens")
    main = _stack(spec.stack, place_in(spec, spec.stack), "decoder's tokens" if spec.encoder else "tokens")
    heads = [_head(head, spec) for head in spec.heads]
    if heads:
        main = stacked([main, beside(heads, joined=False)])
    return figure(main, encoder)


def _stack(stack: StackSpec, place: Place, reads: str) -> FigurePart:
    pieces = [box([reads], "input"), *_embedding(stack), *_layers(stack, place)]
    return stacked([*pieces, *_maps(stack.norm)])


def _embedding(stack: StackSpec) -> Iterator[FigurePart]:
    embedding = stack.embedding
    width = embedding.width or stack.d_model
    terms = [box(_term(term, width), "embedding") for term in embedding.terms]
    yield terms[0] if len(terms) == 1 else summed(beside(terms, fed=[looks_up(term) for term in embedding.terms]))
    yield from _maps(embedding.norm)
    if embedding.projection is not None:
        yield box([f"{words.step(embedding.projection)} to {stack.d_model:,}"], "embedding")


def _term(term: Any, width: int) -> list[str]:
    if isinstance(term, TokensSpec):
        scale = [f"× {words.scale(term.scale, 'd_model')}"] if term.scale else []
        own = term.table.width or width
        said = ["Token embedding", f"{term.table.rows:,} × {own:,}", *scale]
        said += ["masked tokens dropped"] if term.dropout else []
        return said + ([f"{words.step(term.projection)} to {width:,}"] if term.projection else [])
    if isinstance(term, LearnedPositionsSpec):
        return ["Learned positions", f"{term.n_positions + term.offset:,} × {width:,}"]
    first, *rest = wrapped(words.position(term).split(", "), WIDTH)
    return [first[:1].upper() + first[1:], *rest]


def _layers(stack: StackSpec | ShortenedSpec, place: Place) -> Iterator[FigurePart]:
    """A frame for each stretch of alike layers, or for each kind where the stretches are too many."""
    around = getattr(stack.residual, "scale", 1.0) != 0.0
    drawn = by_layer(stack, lambda block: _layer(block, block.inner(place), around))
    found, n = pattern(drawn), len(drawn)
    notes, kinds = _notes(stack), sorted(dict.fromkeys(drawn), key=lambda kind: -drawn.count(kind))
    outlines = {tuple(each.kind for each in _boxes(kind)) for kind in kinds}
    if 1 < len(kinds) <= SHOWN and len(outlines) == 1:
        others = ((places(i for i, piece in enumerate(drawn) if piece == kind), kind) for kind in kinds[1:])
        told = [wrapped([f"{where}: {_difference(kinds[0], kind)}"], NOTE) for where, kind in others]
        yield framed(kinds[0], [f"× {n}", *notes, *(line for lines in told for line in lines)])
    elif len(found.runs) == 1:
        yield framed(drawn[0], [f"× {n}", *notes])
    elif not found.whole and len(found.runs) == len(kinds):
        inner = [framed(piece, [f"× {times}"]) for piece, times in found.runs]  # type: ignore[arg-type]
        over = f"× {n // found.period}" if n % found.period == 0 else f"repeats to {n} layers"
        yield framed(stacked(inner), [over, *notes])
    elif found.whole and len(found.runs) <= SHOWN and len(found.runs) == len(kinds):
        start = 0
        for piece, times in found.runs:
            where = places(range(start, start + times))
            yield framed(piece, [f"× {times}, {where}", *notes])  # type: ignore[arg-type]
            start += times
    else:
        kinds = list(dict.fromkeys(drawn))  # in their order
        for kind in kinds[:SHOWN]:
            yield framed(kind, [places(i for i, piece in enumerate(drawn) if piece == kind), *notes])
        if len(kinds) > SHOWN:
            yield framed(box([f"{len(kinds) - SHOWN} more kinds of layers"], "other"), [])


def _boxes(piece: FigurePart) -> list[Box]:
    return [mark for mark in piece.marks if isinstance(mark, Box)]


def _difference(drawn: FigurePart, other: FigurePart) -> str:
    """What the boxes of a layer say that those of the one that is drawn do not, and the other way round."""
    said = []
    for ours, theirs in zip(_boxes(drawn), _boxes(other), strict=True):
        before, after = (", ".join(each.lines).split(", ") for each in (ours, theirs))
        said += [phrase for phrase in after if phrase not in before]
        replaced = set(map(_subject, after))
        said += [f"no {phrase}" for phrase in before if _subject(phrase) not in replaced]
    return ", ".join(said)


def _subject(phrase: str) -> str:
    """The first word of a phrase: "RoPE" of "RoPE θ 10,000", "heads" of "32 heads on 8"."""
    found = re.search(r"[A-Za-z]+", phrase)
    return found[0] if found else phrase


def _notes(stack: StackSpec | ShortenedSpec) -> list[str]:
    """What holds of all layers and has no box."""
    said = []
    if not isinstance(stack.residual, AddSpec):
        said.append(f"residual: {stack.residual.kind}")
    elif stack.residual != AddSpec() and stack.residual.scale:
        said.append(f"⊕: {words.residual(stack.residual)}")
    if len({id(block) for block in stack.blocks}) == 1 and stack.blocks[0].shared and len(stack.blocks) > 1:
        said.append("one set of weights")
    return said


def _layer(block: BlockSpec, place: Place, around: bool) -> FigurePart:
    """A layer; what it computes aside, one sublayer on another, is added to what the next one reads."""
    if not isinstance(block.connection, AsideSpec):
        return _sublayers(block.sublayers, place, around)
    n = block.connection.n
    aside = added(_sublayers(block.sublayers[:n], place, around=False))
    return _sublayers(block.sublayers[n:], place, around, aside)


def _sublayers(
    sublayers: Sequence[SublayerSpec], place: Place, around: bool, first: FigurePart | None = None
) -> FigurePart:
    """Sublayers in turn, and late branches from where they begin to the end, past those. `first`: what makes what they read."""
    pieces = []
    for i, sublayer in enumerate(sublayers):
        late = [branch for branch in sublayer.branches if branch.late]
        if late:
            at_once = sublayer.but(branches=tuple(branch for branch in sublayer.branches if not branch.late))
            rest = _sublayers([at_once, *sublayers[i + 1 :]], place, around, None if i else first)
            past = [stacked([*_maps(sublayer.norm_in), _branch(branch, place)]) for branch in late]
            return stacked([*pieces, summed(beside([rest, *past]))], 0)
        pieces.append(_sublayer(sublayer, place, around, None if i else first))
    return stacked(pieces, 0 if around else GAP)


def _branch(branch: BranchSpec, place: Place) -> FigurePart:
    then = [] if branch.then is None else [_mixer(branch.then, place)]
    return stacked([*_maps(branch.norm_in), _mixer(branch.mixer, place), *_maps(branch.norm_out), *then])


def _sublayer(sublayer: SublayerSpec, place: Place, around: bool, first: FigurePart | None) -> FigurePart:
    """A sublayer, with the way around it where there is one."""
    branches = beside([_branch(branch, place) for branch in sublayer.branches])
    inner = stacked([*filter(None, [first]), *_maps(sublayer.norm_in), branches, *_maps(sublayer.norm_out)])
    inner = added(inner, *_maps(sublayer.skip)) if around else inner
    return stacked([inner, *_maps(sublayer.norm_sum)])


def _maps(value: MapSpec | None) -> list[FigurePart]:
    if value is None:
        return []
    known = isinstance(value, LayerNormSpec | RMSNormSpec)
    kind = "norm" if isinstance(value, NormSpec) else "map"
    return [box(wrapped([value.kind if known else words.phrase(value)], WIDTH), kind)]


def _mixer(mixer: Any, place: Place) -> FigurePart:
    if isinstance(mixer, AttentionSpec):
        return box(_attention(mixer, place), "attention", reads=mixer.reads_memory)
    if isinstance(mixer, MoESpec):
        return _mixture(mixer)
    if isinstance(mixer, ShortenedSpec):
        return _shortened(mixer, place)
    if mixer.kept_as() == "state":
        return box(_state(mixer, place), "state")
    first, *rest = _feed(mixer)
    if rest:
        return box([f"FFN, {first}", *wrapped(rest, WIDTH)], "feed-forward")
    name, _, inside = first.partition(" (")
    return box([first] if len(first) <= WIDTH else [name, *wrapped(inside[:-1].split(", "), WIDTH)], "other")


def _shortened(mixer: ShortenedSpec, place: Place) -> FigurePart:
    """Its layers, between what makes one vector of a block of tokens and what gives each token one."""
    into, out = (words.phrase(each) if each else None for each in (mixer.pool, mixer.spread))
    pooled = box([f"{mixer.every:,} tokens to 1 vector", into or "mean"], "map")
    spread = box([f"1 vector to {mixer.every:,} tokens", out or "the same to each"], "map")
    return stacked([pooled, *_layers(mixer, mixer.inner(place)), *_maps(mixer.norm), spread])


def _state(mixer: Any, place: Place) -> list[str]:
    """A mixer with a state: its sizes, its convolution, and the state that one row keeps."""
    name, convolution = words.kind(mixer), getattr(mixer, "convolution", None)
    said = words.phrase(mixer, name, without=("convolution",)).removeprefix(name)[2:-1]
    phrases = said.split(", ") if said else []
    phrases += [f"convolution of {convolution.size}"] if convolution is not None else []
    shapes = [shape for part, shape in mixer.cache_shapes(place).items() if convolution is None or part != "tail"]
    phrases += ["state " + " + ".join(" × ".join(f"{size:,}" for size in shape) for shape in shapes)] if shapes else []
    return [f"{name[:1].upper()}{name[1:]}", *wrapped(phrases, WIDTH)]


def _feed(mixer: Any) -> list[str]:
    """A feed-forward by its activation and its width; any other mixer in one phrase."""
    if not hasattr(mixer, "activation") or not hasattr(mixer, "d_ff"):
        return [words.phrase(mixer)]
    return [*feed_forwards.activation(mixer).split(", "), f"d_ff {mixer.d_ff:,}"]


def _mixture(mixer: MoESpec) -> FigurePart:
    router, shared = mixer.router, mixer.shared_expert
    groups = [f"best {router.top_groups} of {router.n_groups} groups"] if router.n_groups > 1 else []
    of = " and\n".join(feed_forwards.choices(router)).splitlines()
    chooses = box(["Router", f"{router.top_k} of {of[0]}", *of[1:], *groups], "router")
    experts = box([f"{router.n_experts:,} experts", *wrapped(_feed(mixer.expert), WIDTH)], "feed-forward")
    routed = stacked([chooses, experts])
    if shared is None:
        return routed
    n = n_shared_experts(mixer)
    gate = ["× σ(w·x)"] if mixer.shared_gate else []
    name = "Shared expert" if n == 1 else f"{n} shared experts"
    return summed(beside([routed, box([name, *wrapped(_feed(shared), WIDTH), *gate], "feed-forward")]))


def _attention(mixer: AttentionSpec, place: Place) -> list[str]:
    projection, cross = mixer.projection, mixer.reads == "memory"
    name = words.heads(projection)
    title = "Cross-attention" if cross else f"{name[:1].upper()}{name[1:]} attention"
    said = [*_heads(mixer, place)]
    said += [] if cross else words.seen(mixer.mask).split(", ")
    for part in position_parts(mixer):
        rotary = part if isinstance(part, RotarySpec) else None
        said += [f"RoPE θ {words.number(rotary.theta)}"] if rotary else [words.kind(part)]
        said += [words.kind(rotary.scaling)] if rotary and rotary.scaling else []
    if not isinstance(projection, MLASpec) and getattr(projection, "norm_query", None) is not None:
        said.append("QK-norm")
    said += options.of_heads(projection)
    said += [f"softcap {mixer.softcap:g}"] if mixer.softcap is not None else []
    said += ["sink"] if mixer.sink else []
    blocks = mixer.compressor or mixer.transient
    said += [f"blocks of {blocks.every:,}"] if blocks else []
    said += [f"{options.best(mixer.indexer)} by an indexer"] if mixer.indexer else []
    said += ["differences of pairs"] if mixer.difference else []
    said += ["convolved values"] if mixer.convolution else []
    said += ["output gate"] if mixer.gate else []
    said += ["the encoder's tokens too"] if mixer.memory else []
    said += ["reads the embedding"] if mixer.reads == "input" else []
    said += [] if head_sharing(projection) else [words.phrase(projection)]
    return [title, *wrapped(said, WIDTH)]


def _heads(mixer: AttentionSpec, place: Place) -> Iterator[str]:
    projection = mixer.projection
    if isinstance(projection, MLASpec):
        yield f"{projection.n_heads} heads × ({projection.head_dim} + {projection.turning})"
        yield f"latent {projection.kv_rank:,}"
    elif sizes := head_sizes(projection, place):
        n_heads, width, _ = sizes
        n_kv = getattr(projection, "kv_heads", n_heads)
        yield f"{n_heads} heads × {width}" if n_kv == n_heads else f"{n_heads} heads on {n_kv} × {width}"


def _head(head: HeadSpec, spec: ModelSpec) -> FigurePart:
    said = [words.of_a_head(head.layers)] if head.layers else []
    said += [words.phrase(head.pool)] if head.pool else []
    said += map(words.step, head.transform)
    if head.table is not None:
        said.append(f"{head.table.rows:,} logits")
        said += ["tied"] if is_tied(head, spec) else []
    said += [f"× {words.scale(head.scale, 'd_model')}"] if head.scale else []
    said += [f"softcap {head.softcap:g}"] if head.softcap is not None else []
    return box([f"{head.name} head", *wrapped(said, WIDTH)], "head")
