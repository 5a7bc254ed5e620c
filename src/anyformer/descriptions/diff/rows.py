"""The rows of an architecture as a reader of papers would name them: what each says of a specification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anyformer.descriptions import words
from anyformer.descriptions.facts import head_sharing, is_tied, maps, norm_places, position_parts
from anyformer.descriptions.grouping import in_words
from anyformer.layers import AttentionSpec, GQASpec, MLASpec, MoESpec, SegmentsSpec, TokensSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.feed_forward import ExpertSpec
from anyformer.layers.norm import NormSpec
from anyformer.spec import BlockSpec, HeadSpec, MapSpec, ModelSpec, ScaleSpec, StackSpec, SublayerSpec
from anyformer.variants.parts import attentions, feeds, layers, mixers, norms, role

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


def _by_stack(spec: ModelSpec, read: Callable[[StackSpec], str]) -> str:
    said = {name: read(stack) for name, stack in spec.stacks.items()}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{name}: {text}" for name, text in said.items())


def _by_layer(read: Callable[[BlockSpec], str]) -> Reading:
    def reading(spec: ModelSpec) -> str:
        def of(stack: StackSpec) -> str:
            known: dict[int, str] = {}  # a layer that is tiled is read once
            return in_words([known.setdefault(id(block), read(block)) for block in stack.blocks])

        return _by_stack(spec, of)

    return reading


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
            said.append(f"tokens{narrow}{factor}")
        elif isinstance(term, SegmentsSpec):
            said.append(f"{term.n_segments} segments")
    text = " + ".join(said)
    text += f", of width {embedding.width:,}, projected" if embedding.width else ""
    text += f", then {words.norm(embedding.norm, exact=True)}" if embedding.norm else ""
    return text + (", padding at 0" if embedding.masked else "")


def _positions(stack: StackSpec) -> str:
    terms = [words.position(t) for t in stack.embedding.terms if not isinstance(t, TokensSpec | SegmentsSpec)]

    def of(block: BlockSpec) -> str:
        parts = (part for attention in attentions(block) for part in position_parts(attention))
        return words.each(map(words.position, parts), " + ") or "none"

    layers = in_words([of(block) for block in stack.blocks])
    return " + ".join([*terms, *([layers] if layers != "none" or not terms else [])])


def _norms(stack: StackSpec) -> str:
    found = [words.norm(value, exact=True) for value in norms(stack)]
    return words.each(found) or "none"


def _placement(stack: StackSpec) -> str:
    layers = in_words([words.each(placed(sublayer) for sublayer in block.sublayers) for block in stack.blocks])
    final = "no final norm" if stack.norm is None else "final norm"
    other = "" if stack.norm is None or isinstance(stack.norm, NormSpec) else f" ({words.phrase(stack.norm)})"
    return f"{layers}; {final}{other}"


def placed(sublayer: SublayerSpec) -> str:
    """Where the norms of a sublayer are, and the other maps that stand there."""
    said = words.placement(norm_places(sublayer))
    if len(sublayer.branches) > 1 and isinstance(sublayer.norm_in, NormSpec):
        said += ", one for all branches"
    others = (words.phrase(value) for _, value in maps(sublayer) if not isinstance(value, NormSpec))
    return " with ".join([said, *dict.fromkeys(others)])


def _wiring(block: BlockSpec) -> str:
    steps = [" beside ".join(role(branch.mixer) for branch in sublayer.branches) for sublayer in block.sublayers]
    kind = "parallel" if any(len(sublayer.branches) > 1 for sublayer in block.sublayers) else "serial"
    return f"{', then '.join(step for step in steps if step != 'cross-attention')} ({kind})"


def _attention(block: BlockSpec) -> str:
    return words.each(_projection(a) for a in attentions(block)) or "none"


def _projection(attention: AttentionSpec) -> str:
    projection = attention.projection
    if isinstance(projection, MLASpec):
        queries = f", queries from {projection.query_rank:,}" if projection.query_rank else ""
        norms = words.norm(projection.norm_kv, exact=True) if projection.norm_kv else "no norm"
        return f"multi-head latent (MLA), keys and values from {projection.kv_rank:,}{queries}, {norms} of latents"
    sharing = head_sharing(projection)
    if sharing is None or not isinstance(projection, GQASpec):
        return words.phrase(projection)
    said = f"{words.SHARING[sharing]} ({sharing})"
    return said + (f", {projection.kv_heads} key/value heads" if sharing == "GQA" else "")


def _qk_norm(block: BlockSpec) -> str:
    over = {"head": "of each head", "heads": "of each head, a weight each", "projection": "of all heads as one"}

    def of(attention: AttentionSpec) -> str:
        projection = attention.projection
        if not isinstance(projection, GQASpec) or not (projection.norm_query or projection.norm_key):
            return "none"
        both = words.each(words.norm(value, exact=True) for value in (projection.norm_query, projection.norm_key))
        return f"{both}, {over[projection.norm_over]}"

    return words.each(of(a) for a in attentions(block)) or "none"


def _scores(block: BlockSpec) -> str:
    def of(attention: AttentionSpec) -> str:
        usual = attention.scale == ScaleSpec()
        width = "head_dim" if isinstance(attention.projection, GQASpec) else "width of a query"
        said = ["not scaled" if usual else f"× {words.scale(attention.scale, width)}"]
        said += [f"capped at {words.number(attention.softcap)}"] if attention.softcap is not None else []
        said += ["a sink for each head"] if attention.sink else []
        said += [f"× log n beyond {attention.logn:,} tokens"] if attention.logn is not None else []
        clip = getattr(attention.projection, "clip", None)
        return ", ".join([*said, *([f"q, k, v within ±{words.number(clip)}"] if clip is not None else [])])

    return words.each(of(a) for a in attentions(block, reads=None)) or "none"


def _biases(block: BlockSpec) -> str:
    flags: dict[str, bool] = {}
    for mixer in mixers(block):
        for value in mixer.nested():
            if not isinstance(value, MapSpec):
                for name, on in value.values().items():
                    if name in BIASES and isinstance(on, bool):
                        flags[name] = flags.get(name, False) or on
    on = [BIASES[name] for name in BIASES if flags.get(name)]
    return "none" if not on else "everywhere" if all(flags.values()) else ", ".join(on)


def _head(spec: ModelSpec) -> str:
    def of(head: HeadSpec) -> str:
        said = [words.of_a_head(head.layers)] if head.layers else []
        said += [f"of {words.phrase(head.pool)}"] if head.pool else []
        said += [f"after {words.phrase(head.transform)}"] if head.transform else []
        said += ["bias"] if head.bias else []
        said += [f"logits × {words.scale(head.scale, 'd_model')}"] if head.scale else []
        said += [f"capped at {words.number(head.softcap)}"] if head.softcap is not None else []
        return f"{head.name}: {', '.join(said) or 'a plain product'}"

    ahead = [words.phrase(module) for module in spec.ahead]
    return (
        "; ".join([of(head) for head in spec.heads] + [f"{len(ahead)} ahead: {words.each(ahead)}"] * bool(ahead))
        or "none"
    )


def _tying(spec: ModelSpec) -> str:
    heads = [head for head in spec.heads if head.table is not None]
    return (
        words.each("tied to the embedding" if is_tied(h, spec) else "a table of its own" for h in heads) or "no table"
    )


def _others(block: BlockSpec) -> str:
    known = [m for m in mixers(block) if not isinstance(m, AttentionSpec | ExpertSpec | MoESpec)]
    return words.each(words.phrase(m) for m in known) or "none"


def _sharing(stack: StackSpec) -> str:
    """Which weights are used more than once, tables of tokens apart."""
    own = [block.shared for block in stack.blocks if block.shared is not None]
    said = [f"{len(own)} layers of {len(set(own))} set{'s' * (len(set(own)) > 1)} of weights"] if own else []
    inner = (value for block in layers(stack) for value in block.nested() if value is not block)
    kinds = dict.fromkeys(words.kind(v) for v in inner if getattr(v, "shared", None) is not None)
    return "; ".join([*said, *(f"{kind} of all layers" for kind in kinds)]) or "none"


def _sizes(names: Iterable[str]) -> Reading:
    """What reads these fields of mixers, those of one kind of layer after those of another."""

    def of(block: BlockSpec) -> str:
        found: dict[str, None] = {}
        for mixer in mixers(block):
            for value in mixer.nested():
                found |= {words.number(n): None for name in names if (n := getattr(value, name, None)) is not None}
        return " / ".join(found) or "none"

    return _by_layer(of)


def _heads(block: BlockSpec) -> str:
    said = [f"{n}" for a in attentions(block, reads=None) if (n := getattr(a.projection, "n_heads", None)) is not None]
    return words.each(said) or "none"


def _head_dims(spec: ModelSpec) -> str:
    def of(projection: Any) -> str:
        n_heads, head_dim = getattr(projection, "n_heads", 1), getattr(projection, "head_dim", None)
        said = [f"{head_dim or spec.stack.d_model // n_heads}"]
        said += [f"{n} that rotate" for n in [getattr(projection, "rotary_dim", None)] if n]
        said += [f"values {n}" for n in [getattr(projection, "value_dim", None)] if n not in (None, head_dim)]
        return ", ".join(said)

    return _by_layer(lambda block: words.each(of(a.projection) for a in attentions(block, reads=None)) or "none")(spec)


ROWS: Mapping[str, Reading] = {
    "stacks": _stacks,
    "vocabulary": lambda spec: f"{spec.vocab_size:,}",
    "context": lambda spec: "not said" if spec.context is None else f"{spec.context:,}",
    "embedding": lambda spec: _by_stack(spec, _embedding),
    "positions": lambda spec: _by_stack(spec, _positions),
    "norm": lambda spec: _by_stack(spec, _norms),
    "norm placement": lambda spec: _by_stack(spec, _placement),
    "wiring": _by_layer(_wiring),
    "attention": _by_layer(_attention),
    "who sees whom": _by_layer(lambda block: words.each(words.seen(a.mask) for a in attentions(block)) or "none"),
    "QK-norm": _by_layer(_qk_norm),
    "scores": _by_layer(_scores),
    "activation": _by_layer(lambda block: words.each(words.activation(m) for m in feeds(block)) or "none"),
    "experts": _by_layer(lambda block: words.each(words.experts(m) for m in feeds(block)) or "none"),
    "biases": _by_layer(_biases),
    "other parts": _by_layer(_others),
    "sharing": lambda spec: _by_stack(spec, _sharing),
    "output": _head,
    "tying": _tying,
    "residual": lambda spec: _by_stack(spec, lambda stack: words.phrase(stack.residual)),
    "start of weights": lambda spec: words.start(spec.init),
    "layers": lambda spec: _by_stack(spec, lambda stack: f"{len(stack.blocks)}"),
    "d_model": lambda spec: _by_stack(spec, lambda stack: f"{stack.d_model:,}"),
    "heads": _by_layer(_heads),
    "head_dim": _head_dims,
    "d_ff": _sizes(["d_ff"]),
}
SIZES = ("vocabulary", "context", "layers", "d_model", "heads", "head_dim", "d_ff")
