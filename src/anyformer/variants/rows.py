"""The rows of a diff by the keys that a variant names them by, and what their values mean: `norm=LayerNorm`.

A value stands for a model that has the part and little else, from which the part is transplanted as from any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from anyformer.errors import SpecError, among, did_you_mean
from anyformer.families.compose import block, changed, language_model, pre_norm, repeat
from anyformer.layers import (
    ActivationSpec,
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    GroupsSpec,
    LearnedPositionsSpec,
    Mask,
    MLASpec,
    MoESpec,
    Prefix,
    ReLU,
    RMSNormSpec,
    RotarySpec,
    ScoreSpec,
    TokensSpec,
)
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.feed_forward import ExpertSpec
from anyformer.layers.norm import NormSpec
from anyformer.resizing import cut
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    InitSpec,
    Length,
    MixerSpec,
    ModelSpec,
    Place,
    Spec,
    SublayerSpec,
    TermSpec,
    Vocab,
    Width,
    encode,
    period,
)
from anyformer.spec.ranges import MOST_LAYERS
from anyformer.variants import change as models
from anyformer.variants import layers
from anyformer.variants.change import Change, StackChange
from anyformer.variants.layers import BIASES, LayerChange, only
from anyformer.variants.parts import GATED, attentions, feeds, mixing, norms
from anyformer.variants.parts import layers as distinct
from anyformer.variants.values import folded, read, text_of

Put = Callable[[ModelSpec, Any], ModelSpec]
Text = Callable[[ModelSpec], str]
NORM, HEADS = RMSNormSpec(), GQASpec(n_heads=Count(1))
ATTENTION, FEED = AttentionSpec(projection=HEADS), FeedForwardSpec(d_ff=Width(1), activation=ReLU())
GATES = {name.lower(): activation for activation, name in GATED.items()}
SCHEMES = ("none", "rope", "alibi", "sinusoidal", "learned")
POSITIONS = {"rope": "Rotary", "sinusoidal": "Sinusoid", "learned": "LearnedPositions"}
# Where norms stand, as fields of a sublayer and of a branch, and whether there is one at the end.
PLACEMENTS: Mapping[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "pre": ({"norm_in": NORM}, {}, True),
    "post": ({"norm_sum": NORM}, {}, False),
    "sandwich": ({"norm_in": NORM}, {"norm_out": NORM}, True),
    "after": ({}, {"norm_out": NORM}, True),  # each branch (OLMo 2)
    "none": ({}, {}, False),
}


def _model(
    a: ModelSpec,
    attention: AttentionSpec = ATTENTION,
    feed: Any = FEED,
    norm: NormSpec | None = NORM,
    layer: BlockSpec | None = None,
    **fields: Any,
) -> ModelSpec:
    """A model of one layer of these parts, of two stacks where a has two."""
    layer = layer or block(pre_norm(norm or NORM, attention), pre_norm(norm or NORM, feed))
    model = language_model(**{"vocab_size": 1, "d_model": 1, "blocks": (layer,), "norm": norm, "tied": False, **fields})
    return model.but(encoder=a.encoder and model.stack)


def _word(data: Any, words: Mapping[Any, Any] | tuple[str, ...]) -> Any:
    """The word, of those that there are."""
    word = {None: "none", True: "true", False: "false"}.get(data, data) if not isinstance(data, dict | list) else "?"
    if word not in words:
        raise SpecError(f"{word!r} is none of {', '.join(map(str, words))}{did_you_mean(str(word), map(str, words))}")
    return word


def _norm(a: ModelSpec, data: Any) -> ModelSpec:
    return _model(a, norm=read(data, NormSpec, "norm"))


def _positions(a: ModelSpec, data: Any) -> ModelSpec:
    if data is None:
        return _model(a)
    data = folded(POSITIONS.get(data, data) if isinstance(data, str) else data)
    name = data if isinstance(data, str) else data["kind"] if isinstance(data, dict) else data
    declared = {k: c for k, c in Spec.kinds.items() if issubclass(c, RotarySpec | ScoreSpec | TermSpec)}
    declared = {k: c for k, c in declared.items() if not c.abstract and not issubclass(c, TokensSpec | GroupsSpec)}
    if not isinstance(name, str) or name not in declared:
        words = [*POSITIONS, "none", *declared]
        raise SpecError(f"{name!r} is no kind of positions{among(name, words)}")
    if declared[name] is LearnedPositionsSpec and a.context is not None:
        data = {"n_positions": a.context, **(data if isinstance(data, dict) else {"kind": data})}
    value = read(data, declared[name], "positions")
    if isinstance(value, RotarySpec):
        return _model(a, ATTENTION.but(projection=HEADS.but(rotary=value)))
    if isinstance(value, ScoreSpec):
        return _model(a, ATTENTION.but(scores=(value,)))
    return _model(a, positions=(value,))


def _placement(a: ModelSpec, data: Any) -> ModelSpec:
    around, inner, final = PLACEMENTS[_word(data, PLACEMENTS)]
    each = (SublayerSpec(branches=(BranchSpec(mixer=mixer, **inner),), **around) for mixer in (ATTENTION, FEED))
    return _model(a, layer=block(*each), norm=NORM if final else None)


def _wiring(a: ModelSpec, data: Any) -> ModelSpec:
    if _word(data, ("serial", "parallel")) == "serial":
        return _model(a)
    return _model(a, layer=block(pre_norm(NORM, ATTENTION, FEED)))


def _attention(a: ModelSpec, data: Any) -> ModelSpec:
    first = next((each.projection for layer in a.stack.blocks for each in attentions(layer)), None)
    n_heads = {"n_heads": getattr(first, "n_heads", Count(1))}
    if isinstance(data, str):
        data = {"MHA": "GQA", "MQA": {"kind": "GQA", "n_kv_heads": 1}}.get(data.upper(), data)
    data = folded(data)
    options = dict(data) if isinstance(data, dict) else {"kind": data}
    kind = options.pop("kind", data)
    if kind not in ("GQA", "MLA"):
        raise SpecError(
            f"{kind!r} is none of MHA, MQA, GQA, MLA; mask, positions, heads and mixer have keys of their own"
        )
    if kind == "GQA" and (others := set(options) - {"n_kv_heads"}):
        raise SpecError(f"GQA takes n_kv_heads here; say {', '.join(sorted(others))} as a change of its own")
    if "n_heads" in options:
        raise SpecError("MLA takes the heads there are; say n_heads as a change of its own")
    value: Any = read({"kind": kind, **n_heads, **options}, MLASpec if kind == "MLA" else GQASpec, "attention")
    rotary = getattr(first, "rotary", None)
    if kind == "MLA" and value.rotary_dim and rotary and "rotary" not in options:
        value = value.but(rotary=rotary.but(fraction=1.0))
    return _model(a, ATTENTION.but(projection=value))


def _mixer(a: ModelSpec, data: Any) -> ModelSpec:
    """One kind in all layers, or a list that is repeated; heads are attention's, where they are not said."""
    attention = next((each for layer in a.stack.blocks for each in attentions(layer)), None)
    sizes: dict[str, Any] = {}
    if attention is not None:
        n, width, of_values = attention.projection.sizes(attention.inner(Place(a.stack.d_model)))
        of_keys = {"key_dim": width, "state_dim": width, "n_groups": getattr(attention.projection, "kv_heads", n)}
        sizes = {"n_heads": n, "n_key_heads": n, "value_dim": of_values, "head_dim": of_values, **of_keys}

    def one(said: Any) -> MixerSpec:
        if said == "attention":
            if attention is None:
                raise SpecError("there is no attention in any layer to stay; name a model whose attention is taken")
            return attention
        fields = folded({"kind": said} if isinstance(said, str) else said)
        kind = Spec.kinds.get(str(fields["kind"]), Spec) if isinstance(fields, dict) else Spec
        fitting = {name: size for name, size in sizes.items() if name in kind.types()}
        made = read(fitting | fields if isinstance(fields, dict) else fields, MixerSpec, "mixer")
        if isinstance(made, AttentionSpec) and attention is not None:
            raise SpecError("attention stays as it is; say attention, and mask, positions and heads by their own keys")
        if made.job != "mixing":
            counted = f"{made.kind}, counted as {made.counted_as}, mixes no tokens"
            raise SpecError(f"{counted}; say attention for that of the model, or a kind with a state")
        return made

    said = data if isinstance(data, list) else [data]
    if not said:
        raise SpecError("the list is empty; name what mixes tokens in each layer of the pattern")
    pattern = [block(pre_norm(NORM, one(each)), pre_norm(NORM, FEED)) for each in said]
    return _model(a, blocks=repeat(pattern, a.n_layers)).but(encoder=None)


def _mixer_text(a: ModelSpec) -> str:
    """The shortest pattern of the layers."""
    each = [
        "attention" if isinstance(m := only(mixing(layer)), AttentionSpec) else text_of(m) for layer in a.stack.blocks
    ]
    n = period(each)
    return each[0] if n == 1 else f"[{','.join(each[:n])}]"


def _mask(a: ModelSpec, data: Any) -> ModelSpec:
    """What does not say whether later tokens are seen leaves that as it is in each stack."""
    mask = read(data, Mask, "mask")
    said = any(mask.nested(Causal, Everything, Prefix))

    def stack(own: Any) -> Any:
        whole = Causal() & mask if later_tokens_seen(own, after_prefix=True) is None and not said else mask
        return _model(a, ATTENTION.but(mask=whole)).stack

    return _model(a).but(stack=stack(a.stack), encoder=a.encoder and stack(a.encoder))


def _qk_norm(a: ModelSpec, data: Any) -> ModelSpec:
    norm = read(data, NormSpec | None, "qk-norm")
    return _model(a, ATTENTION.but(projection=HEADS.but(norm_query=norm, norm_key=norm)))


def _activation(a: ModelSpec, data: Any) -> ModelSpec:
    """SwiGLU and its like have a gate, an activation by its own name has none."""
    fields = {"kind": data} if isinstance(data, str) else data
    kind = str(fields["kind"]).lower() if isinstance(fields, dict) else ""
    gated = kind in GATES
    value = read({**fields, "kind": GATES[kind]} if gated else data, ActivationSpec, "activation")
    return _model(a, feed=(GatedFeedForwardSpec if gated else FeedForwardSpec)(d_ff=Width(1), activation=value))


def _feed(a: ModelSpec) -> Any:
    """The first feed-forward, of experts one of them."""
    found = next((feed for layer in a.stack.blocks for feed in feeds(layer)), FEED)
    return found.expert if isinstance(found, MoESpec) else found


def _experts(a: ModelSpec, data: Any) -> ModelSpec:
    if data is None:
        return _model(a, feed=FEED.but(d_ff=_feed(a).d_ff))
    fields = {"kind": data} if isinstance(data, str) else data
    if isinstance(fields, dict) and {"expert", "shared_expert"} & set(fields):
        raise SpecError("an expert is what the feed-forward was; say feed-forward=MoE(…) for another")
    whole = {**fields, "expert": _encoded(_feed(a))} if isinstance(fields, dict) else fields
    return _model(a, feed=read(whole, MoESpec, "experts"))


def _feed_forward(a: ModelSpec, data: Any) -> ModelSpec:
    """What a feed-forward must say and does not is as in the first that there is."""
    data, own = folded(data), _feed(a)
    fields = dict(data) if isinstance(data, dict) else {"kind": data}
    kind = Spec.kinds.get(str(fields["kind"]), Spec)
    if issubclass(kind, MoESpec):
        return _model(a, feed=read({"expert": _encoded(own)} | fields, MoESpec, "feed-forward"))
    said = _encoded(own) if issubclass(kind, ExpertSpec) else {}
    said = {n: v for n, v in said.items() if n in ("d_ff", "activation") and n in kind.types()}
    return _model(a, feed=read(said | fields, ExpertSpec, "feed-forward"))


def _encoded(value: Spec) -> dict[str, Any]:
    return {"kind": value.kind, **encode(value, type(value))}


def _biases(a: ModelSpec, data: Any) -> ModelSpec:
    on = _word(data, ("all", "none")) == "all"
    heads = HEADS.but(**{name: on for name in BIASES if name in HEADS.values()})
    return _model(a, ATTENTION.but(projection=heads), FEED.but(bias_in=on, bias_out=on))


def _sharing(a: ModelSpec, data: Any) -> ModelSpec:
    name = "layer" if _word(data, ("all", "none")) == "all" else None
    return _model(a, layer=block(pre_norm(NORM, ATTENTION), pre_norm(NORM, FEED)).but(shared=name))


def _tied(a: ModelSpec, data: Any) -> ModelSpec:
    return _model(a, tied=_word(data, ("true", "false")) == "true")


def _n_layers(a: ModelSpec, data: Any) -> ModelSpec:
    n = read(data, Count, "n_layers")
    if n > MOST_LAYERS:
        raise SpecError(f"n_layers = {n} must be at most {MOST_LAYERS:,}")
    for stack in a.stacks.values():
        if (fitted := len(cut(stack.blocks, n))) != n:
            raise SpecError(f"the pattern of {len(stack.blocks)} layers can be cut to {fitted}, not to {n}")
    return _model(a, blocks=_model(a).stack.blocks * n)


def _n_heads(a: ModelSpec, data: Any) -> ModelSpec:
    return _model(a, ATTENTION.but(projection=HEADS.but(n_heads=read(data, Count, "n_heads"))))


def _vocab_size(a: ModelSpec, data: Any) -> ModelSpec:
    return _model(a, vocab_size=read(data, Vocab, "vocab_size"))


def _context(a: ModelSpec, data: Any) -> ModelSpec:
    """The model; learned positions that are as many as the context go with it."""
    n, old = read(data, Length | None, "context"), a.context
    fits = any(each.n_positions == old for each in a.nested(LearnedPositionsSpec))
    return (changed(a, LearnedPositionsSpec, n_positions=n) if fits and n else a).but(context=n)


def _texts(find: Callable[[BlockSpec], list[Any]], field: str | None = None) -> Text:
    """Reads a field of each part of this sort, or the part itself, as the value that would give it."""
    take = attrgetter(field) if field else lambda part: part
    return lambda a: text_of(only(take(part) for layer in distinct(a.stack) for part in find(layer)))


def _positions_text(a: ModelSpec) -> str:
    terms = [t for t in a.stack.embedding.terms if not isinstance(t, TokensSpec | GroupsSpec)]
    own = [attention for layer in distinct(a.stack) for attention in attentions(layer)]
    rotary = [value for attention in own if (value := getattr(attention.projection, "rotary", None))]
    return text_of(only([*terms, *rotary, *(score for attention in own for score in attention.scores)]))


def _activation_text(a: ModelSpec) -> str:
    feed: Any = only(feed.but(d_ff=1) for layer in distinct(a.stack) for feed in feeds(layer))
    kind, bracket, options = text_of(feed.activation).partition("(")
    return f"{GATED[kind].lower() if isinstance(feed, GatedFeedForwardSpec) else kind}{bracket}{options}"


def _init(a: ModelSpec, data: Any) -> ModelSpec:
    return read(data, InitSpec, "init").begun(a)


FIELDS = ("d_model", "head_dim", "d_ff", "residual")  # rows that are a field of the same name


@dataclass(frozen=True)
class VariantRow:
    """A row of a diff that a variant may name."""

    part: str  # as diff calls it
    change: Change
    put: Put | None = None  # (a, data) → a with what the data mean; None: the key is a field, or takes models alone
    words: tuple[str, ...] = ()  # the values that are words
    # the part of a model as the value that gives it; raises SpecError, AttributeError or KeyError where it is not one kind
    text: Text | None = None


def _row(part: str, change: Change, like: Put | None = None, *words: str, text: Text | None = None) -> VariantRow:
    """A row whose values stand for models to transplant from."""
    return VariantRow(part, change, like and (lambda a, data: change(a, like(a, data))), words, text)


def _of_layers(
    part: str, change: LayerChange, like: Put | None = None, *words: str, text: Text | None = None
) -> VariantRow:
    """A row of a layer, after the other model's layers of the same stack, or of its only one."""
    return _row(part, models.per_layer(change), like, *words, text=text)


def _of_stacks(
    part: str, change: StackChange, like: Put | None = None, *words: str, text: Text | None = None
) -> VariantRow:
    return _row(part, models.per_stack(change), like, *words, text=text)


KV_HEADS = _texts(attentions, "projection.kv_heads")
ROWS: Mapping[str, VariantRow] = {
    "n_layers": _row("layers", models.per_stack(models.depth, own=True), _n_layers, text=lambda a: f"{a.n_layers}"),
    "stacks": _row("stacks", models.stacks),
    "vocab_size": _row("vocabulary", models.vocabulary, _vocab_size, text=lambda a: f"{a.vocab_size}"),
    "context": VariantRow(
        "context", lambda a, b: a.but(context=b.context), _context, text=lambda a: text_of(a.context)
    ),
    "d_model": _of_stacks("d_model", lambda a, b: a.but(d_model=b.d_model), text=lambda a: f"{a.stack.d_model}"),
    "mixer": _row("mixer", models.per_layer(layers.mixer, own=True), _mixer, "attention", text=_mixer_text),
    "attention": _of_layers(
        "attention", layers.grouping, _attention, "MHA", "MQA", text=lambda a: f"GQA(n_kv_heads={KV_HEADS(a)})"
    ),
    "n_heads": _of_layers("heads", layers.heads, _n_heads, text=_texts(attentions, "projection.n_heads")),
    "head_dim": _of_layers("head_dim", layers.head_dim, text=_texts(attentions, "projection.head_dim")),
    "embedding": _of_stacks("embedding", models.embedding),
    "positions": _row("positions", models.positions, _positions, *SCHEMES, text=_positions_text),
    "wiring": _of_layers("wiring", layers.wiring, _wiring, "serial", "parallel"),
    "norm": _of_stacks("norm", models.norm, _norm, text=lambda a: text_of(only(norms(a.stack)))),
    "placement": _row("norm placement", models.placement, _placement, *PLACEMENTS),
    "mask": _row("who sees whom", models.per_layer(layers.mask, own=True), _mask, text=_texts(attentions, "mask")),
    "qk-norm": _of_layers(
        "QK-norm", layers.qk_norm, _qk_norm, "none", text=_texts(attentions, "projection.norm_query")
    ),
    "scores": _of_layers("scores", layers.scores),
    "experts": _of_layers("experts", layers.experts, _experts, "none"),
    "activation": _of_layers(
        "activation", layers.activation, _activation, "SwiGLU", "GeGLU", "ReGLU", text=_activation_text
    ),
    "d_ff": _of_layers("d_ff", layers.d_ff, text=_texts(feeds, "d_ff")),
    "feed-forward": _of_layers("feed-forward", layers.feed_forward, _feed_forward, text=_texts(feeds)),
    "biases": _of_layers("biases", layers.biases, _biases, "all", "none"),
    "sharing": _of_stacks("sharing", models.sharing, _sharing, "all", "none"),
    "output": _row("output", models.output),
    "tied": _row("tying", models.tying, _tied, "true", "false"),
    "residual": _of_stacks(
        "residual", lambda a, b: a.but(residual=b.residual), text=lambda a: text_of(a.stack.residual)
    ),
    "init": VariantRow("start of weights", lambda a, b: b.init.begun(a), _init, text=lambda a: text_of(a.init)),
}
"""By key, in the order in which a variant is best written: what others build on comes first."""
BY_PART = {row.part: row for row in ROWS.values()}
