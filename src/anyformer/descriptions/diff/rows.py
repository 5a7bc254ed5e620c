"""The rows of an architecture as a reader of papers would name them: what each says of a specification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from anyformer.descriptions import feed_forwards, options, words
from anyformer.descriptions.facts import head_sharing, maps, norm_places, position_parts
from anyformer.descriptions.grouping import by_layer, in_words
from anyformer.layers import AttentionSpec, GQASpec, GroupsSpec, MLASpec, MoASpec, TokensSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.linear import shared_width
from anyformer.layers.norm import NormSpec
from anyformer.spec import BlockSpec, BranchSpec, HeadSpec, MapSpec, ModelSpec, ScaleSpec, StackSpec, SublayerSpec
from anyformer.variants.parts import attentions, feeds, is_tied, layers, mixing, norms, role

Reading = Callable[[ModelSpec], str]
BIASES = {
    "bias_query": "queries",
    "bias_key": "keys",
    "bias_value": "values",
    "bias_output": "attention's output",
    "bias_in": "feed-forward in",
    "bias_out": "feed-forward out",
    "bias_down": "latents",
    "bias": "router",
}


def _by_stack(read: Callable[[StackSpec], str]) -> Reading:
    """What reads a stack, of an encoder–decoder each where they differ."""

    def reading(spec: ModelSpec) -> str:
        said = {name: read(stack) for name, stack in spec.stacks.items()}
        alike = len(set(said.values())) == 1
        return next(iter(said.values())) if alike else "; ".join(f"{name}: {text}" for name, text in said.items())

    return reading


def _by_layer(read: Callable[[BlockSpec], Iterable[str | None]]) -> Reading:
    """What reads layers, different phrases of one layer once each; a layer that is tiled is read once."""
    return _by_stack(lambda stack: in_words(by_layer(stack, lambda block: words.each(read(block)) or "none")))


def _by_attention(say: Callable[[AttentionSpec], str | None], *, reads: str | None = "self") -> Reading:
    return _by_layer(lambda block: map(say, attentions(block, reads=reads)))


def _stacks(spec: ModelSpec) -> str:
    if spec.encoder is not None:
        return "encoder and decoder"
    return "encoder" if later_tokens_seen(spec.stack, after_prefix=True) else "decoder"


def _embedding(stack: StackSpec) -> str:
    embedding, said = stack.embedding, []
    for term in embedding.terms:
        if isinstance(term, TokensSpec):
            factor = f" × {words.scale(term.scale, 'd_model')}" if term.scale else ""
            narrow = f" of width {term.table.width:,}, projected" if term.table.width else ""
            narrow += f", {term.span} side by side" if term.span > 1 else ""
            dropped = f", {words.phrase(term.dropout)}" if term.dropout else ""
            said.append(f"tokens{narrow}{factor}{dropped}")
        elif isinstance(term, GroupsSpec):
            said.append(f"{term.n} {term.called}")
    text = " + ".join(said)
    text += f", of width {embedding.width:,}, projected" if embedding.width else ""
    text += f", then {words.norm(embedding.norm, exact=True)}" if embedding.norm else ""
    return text + (", padding at 0" if embedding.masked else "")


def _positions(stack: StackSpec) -> str:
    terms = [words.position(t) for t in stack.embedding.terms if not isinstance(t, TokensSpec | GroupsSpec)]

    def of(block: BlockSpec) -> str:
        parts = (part for attention in attentions(block) for part in position_parts(attention))
        return words.each(map(words.position, parts), " + ") or "none"

    said = in_words(by_layer(stack, of))
    return " + ".join([*terms, *([said] if said != "none" or not terms else [])])


def _placement(stack: StackSpec) -> str:
    said = in_words(by_layer(stack, lambda block: words.each(map(placed, block.sublayers))))
    final = "no final norm" if stack.norm is None else "final norm"
    other = "" if stack.norm is None or isinstance(stack.norm, NormSpec) else f" ({words.phrase(stack.norm)})"
    return f"{said}; {final}{other}"


def placed(sublayer: SublayerSpec) -> str:
    """Where the norms of a sublayer are, and the other maps that stand there."""
    said = words.PLACEMENTS[norm_places(sublayer)]
    if len(sublayer.branches) > 1 and isinstance(sublayer.norm_in, NormSpec):
        said += ", one for all branches"
    others = [words.phrase(value) for at, value in maps(sublayer) if at != "skip" and not isinstance(value, NormSpec)]
    others += [f"{words.phrase(sublayer.skip)} on the way around"] if sublayer.skip else []
    return " with ".join([said, *dict.fromkeys(others)])


def _step(branch: BranchSpec) -> str:
    then = "" if branch.then is None else f" with {words.phrase(branch.then)}"
    return role(branch.mixer) + then + (" written when the layer ends" if branch.late else "")


def _wiring(block: BlockSpec) -> Iterator[str]:
    steps = [" beside ".join(map(_step, sublayer.branches)) for sublayer in block.sublayers]
    kind = "parallel" if any(len(sublayer.branches) > 1 for sublayer in block.sublayers) else "serial"
    yield f"{', then '.join(step for step in steps if step != 'cross-attention')} ({kind})"


def _attention(attention: AttentionSpec) -> str:
    projection = attention.projection
    if isinstance(projection, MLASpec):
        queries = f", queries from {projection.query_rank:,}" if projection.query_rank else ""
        norm = words.norm(projection.norm_kv, exact=True) if projection.norm_kv else "no norm"
        said = f"multi-head latent (MLA), keys and values from {projection.kv_rank:,}{queries}, {norm} of latents"
        return ", ".join([said, *words.scale_correction(projection)])
    if isinstance(projection, MoASpec):
        said = ["mixture of heads (MoA)", f"{projection.kv_heads} key/value heads", *options.of_heads(projection)]
        return ", ".join([*said, *(["a bias"] if projection.bias else [])])
    sharing = head_sharing(projection)
    if sharing is None or not isinstance(projection, GQASpec):
        return words.phrase(projection)
    said = [f"{words.SHARING[sharing]} ({sharing})"]
    said += [f"{projection.kv_heads} key/value heads"] if sharing == "GQA" else []
    return ", ".join(filter(None, [*said, *options.of_heads(projection), options.keys(attention)]))


def _scores(attention: AttentionSpec) -> str:
    width = "head_dim" if isinstance(attention.projection, GQASpec) else "width of a query"
    said = ["not scaled" if attention.scale == ScaleSpec() else f"× {words.scale(attention.scale, width)}"]
    said += [f"capped at {words.number(attention.softcap)}"] if attention.softcap is not None else []
    said += ["a sink for each head"] if attention.sink else []
    said += [options.query_scale(attention.query_scale)] if attention.query_scale else []
    said += [options.difference(attention.difference)] if attention.difference else []
    indexer = attention.indexer
    said += filter(None, [options.blocks(attention)])
    said += [options.indexer(indexer)] if indexer else []
    said += [f"{words.norm(indexer.norm_key, exact=True)} of its keys"] if indexer and indexer.norm_key else []
    said += filter(None, [options.output(attention)])
    value = getattr(attention.projection, "norm_value", None)
    said += [f"{words.norm(value, exact=True)} of values"] if value else []
    said += [f"{words.norm(attention.norm, exact=True)} of all heads' values"] if attention.norm else []
    clip = getattr(attention.projection, "clip", None)
    return ", ".join([*said, *([f"q, k, v within ±{words.number(clip)}"] if clip is not None else [])])


def _biases(block: BlockSpec) -> Iterator[str]:
    flags: dict[str, bool] = {}
    for value in (value for mixer in block.mixers for value in mixer.nested() if not isinstance(value, MapSpec)):
        for name, on in value.values().items():
            if name in BIASES and isinstance(on, bool):
                flags[name] = flags.get(name, False) or on
    on = [BIASES[name] for name in BIASES if flags.get(name)]
    yield "everywhere" if on and all(flags.values()) else ", ".join(on)


def _head(spec: ModelSpec) -> str:
    def of(head: HeadSpec) -> str:
        said = [words.of_a_head(head.layers)] if head.layers else []
        said += [f"of {words.phrase(head.pool)}"] if head.pool else []
        said += [f"after {words.phrase(head.transform)}"] if head.transform else []
        said += ["features beside the table's"] if head.beside else []
        said += ["bias"] if head.bias else []
        said += [f"logits × {words.scale(head.scale, 'd_model')}"] if head.scale else []
        said += [f"capped at {words.number(head.softcap)}"] if head.softcap is not None else []
        return f"{head.name}: {', '.join(said) or 'a plain product'}"

    ahead = [f"{len(spec.ahead)} ahead: {words.each(map(words.phrase, spec.ahead))}"] if spec.ahead else []
    return "; ".join([*map(of, spec.heads), *ahead]) or "none"


def _tying(spec: ModelSpec) -> str:
    tied = (is_tied(head, spec) for head in spec.heads if head.table is not None)
    return words.each("tied to the embedding" if each else "a table of its own" for each in tied) or "no table"


def _mixer(block: BlockSpec) -> Iterator[str]:
    return ("attention" if isinstance(m, AttentionSpec) else words.phrase(m) for m in mixing(block))


def _others(block: BlockSpec) -> Iterator[str]:
    own = [*mixing(block), *feeds(block)]
    return (words.phrase(m) for m in block.mixers if m not in own and not isinstance(m, AttentionSpec))


def _residual(stack: StackSpec) -> str:
    """How layers write to the stream, and how they are connected to streams side by side."""
    said = words.phrase(stack.residual) if stack.residual.n_streams == 1 else words.residual(stack.residual)
    connections = in_words(
        by_layer(stack, lambda block: words.phrase(block.connection) if block.connection else "none")
    )
    return said if connections == "none" else f"{said}, {connections}"


def _sharing(stack: StackSpec) -> str:
    """Which weights are used more than once, tables of tokens apart."""
    own = [block.shared for block in stack.blocks if block.shared is not None]
    said = [f"{len(own)} layers of {len(set(own))} set{'s' * (len(set(own)) > 1)} of weights"] if own else []
    inner = (value for block in layers(stack) for value in block.nested() if value is not block)
    kinds = dict.fromkeys(words.kind(v) for v in inner if getattr(v, "shared", None) is not None)
    return "; ".join([*said, *(f"{kind} of all layers" for kind in kinds)]) or "none"


def _d_ff(block: BlockSpec) -> Iterator[str]:
    """The widths of feed-forwards, those of experts among them."""
    values = (value for mixer in block.mixers for value in mixer.nested())
    return (words.number(n) for value in values if (n := getattr(value, "d_ff", None)) is not None)


def _head_dims(spec: ModelSpec) -> str:
    def of(attention: AttentionSpec) -> str:
        projection: Any = attention.projection
        n_heads, head_dim = getattr(projection, "n_heads", 1), getattr(projection, "head_dim", None)
        said = [f"{head_dim or shared_width(spec.stack.d_model, getattr(projection, 'share', None)) // n_heads}"]
        turned = "that rotate" if getattr(projection, "rotary", None) else "for all heads"
        said += [f"{n} {turned}" for n in [getattr(projection, "rotary_dim", None)] if n]
        said += [f"values {n}" for n in [getattr(projection, "value_dim", None)] if n not in (None, head_dim)]
        return ", ".join(said)

    return _by_attention(of, reads=None)(spec)


ROWS: Mapping[str, Reading] = {
    "stacks": _stacks,
    "vocabulary": lambda spec: f"{spec.vocab_size:,}",
    "context": lambda spec: "not said" if spec.context is None else f"{spec.context:,}",
    "embedding": _by_stack(_embedding),
    "positions": _by_stack(_positions),
    "norm": _by_stack(lambda stack: words.each(words.norm(value, exact=True) for value in norms(stack)) or "none"),
    "norm placement": _by_stack(_placement),
    "wiring": _by_layer(_wiring),
    "mixer": _by_layer(_mixer),
    "attention": _by_attention(_attention),
    "who sees whom": _by_attention(lambda attention: words.seen(attention.mask)),
    "QK-norm": _by_attention(lambda attention: options.qk_norm(attention, exact=True) or "none"),
    "scores": _by_attention(_scores, reads=None),
    "activation": _by_layer(lambda block: map(feed_forwards.activation, feeds(block))),
    "experts": _by_layer(lambda block: map(feed_forwards.experts, feeds(block))),
    "biases": _by_layer(_biases),
    "other parts": _by_layer(_others),
    "sharing": _by_stack(_sharing),
    "output": _head,
    "tying": _tying,
    "residual": _by_stack(_residual),
    "start of weights": lambda spec: words.start(spec.init),
    "layers": _by_stack(lambda stack: f"{len(stack.blocks)}"),
    "d_model": _by_stack(lambda stack: f"{stack.d_model:,}"),
    "heads": _by_attention(lambda attention: f"{getattr(attention.projection, 'n_heads', '')}", reads=None),
    "head_dim": _head_dims,
    "d_ff": _by_layer(_d_ff),
}
SIZES = ("vocabulary", "context", "layers", "d_model", "heads", "head_dim", "d_ff")
