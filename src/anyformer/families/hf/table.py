"""A class of transformers as data: the model it computes, written once, and which setting stands where in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

from anyformer.families.compose import changed
from anyformer.families.hf.layout import Modules, decoder_links, deviation, link, rows_of, table_rows
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one
from anyformer.families.hf.rotary import THETA, rotary, rotary_settings
from anyformer.families.hf.settings import ACTIVATIONS, REQUIRED, Settings, spelling
from anyformer.layers import (
    ActivationSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LearnedPositionsSpec,
    Normal,
    RotarySpec,
    SlidingWindow,
    TokensSpec,
)
from anyformer.spec import BlockSpec, ModelSpec, ScaleSpec, Spec, StackSpec, TableSpec, Window

SLIDING, FULL = "sliding_attention", "full_attention"
PROJECTION, FEED = "0.branches.0.mixer.projection", "1.branches.0.mixer"
BESIDE = "0.branches.1.mixer"  # a feed-forward that reads what attention reads
QKV = tuple(f"{PROJECTION}.{x}" for x in "qkv")


class ExpertRows(NamedTuple):
    """The rows of routers and experts, as a class holds them and as it writes them to files."""

    held: Callable[[ModelSpec], Iterable[TensorRow]]
    filed: Callable[[ModelSpec], Iterable[TensorRow]]


class Pair(NamedTuple):
    """One or a few settings and their place in the model, both ways."""

    read: Callable[[Settings, ModelSpec], ModelSpec]  # the model with what the settings say; raises CheckpointError
    write: Callable[[ModelSpec], Mapping[str, Any]]  # the settings that say it; raises SpecError where a part lacks


def at(
    name: str,
    kind: type[Any],
    part: type[Spec],
    *fields: str,
    default: Any = REQUIRED,
    nullable: bool = False,
    into: Callable[[Any], Any] = lambda value: value,
    out: Callable[[Any], Any] = lambda value: value,
) -> Pair:
    """The setting of these fields of every `part` in the model; `into` and `out` translate its value.

    An absent setting is the default; so is null, unless `nullable` keeps it.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        value = (settings.nullable if nullable else settings.take)(name, kind, default)
        value = None if value is None else into(value)
        return changed(spec, part, **dict.fromkeys(fields, value))

    def write(spec: ModelSpec) -> dict[str, Any]:
        value = getattr(one(spec, part, part.kind), fields[0])
        return {name: None if value is None and nullable else out(value)}

    return Pair(read, write)


def together(part: type[Spec], settings: Mapping[str, tuple[str, type[Any], Any]]) -> Pair:
    """Settings that are (field, type, default) of every `part`, set at once: a part checks its fields against each other."""

    def read(found: Settings, spec: ModelSpec) -> ModelSpec:
        return changed(
            spec, part, **{own: found.take(name, kind, default) for name, (own, kind, default) in settings.items()}
        )

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, part, part.kind)
        return {name: getattr(found, own) for name, (own, *_) in settings.items()}

    return Pair(read, write)


def activation(name: str, default: str, part: type[Spec], meant: Mapping[str, str] | None = None) -> Pair:
    """The setting that names the activation of every `part`; `meant` gives words that mean another one."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        word = settings.take(name, str, default)
        found = settings.activation(name, default) if word not in (meant or {}) else ACTIVATIONS[(meant or {})[word]]
        return changed(spec, part, activation=found)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found: ActivationSpec = one(spec, part, part.kind).values()["activation"]
        return {name: spelling(found) or default}

    return Pair(read, write)


def starts(default: float = 0.02, name: str = "initializer_range") -> Pair:
    """The deviation of the normal distribution that all weights are drawn from."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        return spec.but(init=changed(spec.init, Normal, scale=settings.take(name, float, default)))

    return Pair(read, lambda spec: {name: deviation(spec)})


def tables(tied: bool, start: float = 0.02) -> Pair:
    """Whether the head shares the embedding's table, and the deviation that weights start with."""
    init = starts(start)

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        shared = "tokens" if settings.take("tie_word_embeddings", bool, tied) else None
        return init.read(settings, changed(spec, TableSpec, shared=shared))

    def write(spec: ModelSpec) -> dict[str, Any]:
        return {"tie_word_embeddings": any(head.tied for head in spec.heads), **init.write(spec)}

    return Pair(read, write)


def heads(n_kv_heads: int | None = None, head_dim: int | None = None) -> Pair:
    """The sizes of attention; the arguments go where nothing is said, None and null being n_heads and d_model's share."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        d_model, n_heads = spec.stack.d_model, settings.take("num_attention_heads", int)
        kv_heads = settings.nullable("num_key_value_heads", int, n_kv_heads)
        width = settings.optional("head_dim", int) or head_dim
        if n_heads < 1 or (width is None and d_model % n_heads):
            raise settings.refusal("num_attention_heads", f"does not divide hidden_size = {d_model}; set head_dim")
        return changed(
            spec,
            GQASpec,
            n_heads=n_heads,
            n_kv_heads=None if kv_heads == n_heads else kv_heads,
            head_dim=None if (width or 0) * n_heads == d_model else width,
        )

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, GQASpec, "grouped-query attention")
        return {
            "num_attention_heads": found.n_heads,
            "num_key_value_heads": found.kv_heads,
            "head_dim": found.head_dim or spec.stack.d_model // found.n_heads,
        }

    return Pair(read, write)


def positions(
    plain: RotarySpec | None = None,
    *,
    theta: str = THETA,
    fraction: str | None = None,
    context: int = 2048,
    magnitudes: bool = False,
) -> Pair:
    """The rotary positions and the context; for the arguments see `rotary.rotary`."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        length = settings.take("max_position_embeddings", int, context)
        found = rotary(settings, length, plain=plain, theta=theta, fraction=fraction, magnitudes=magnitudes)
        return changed(spec, RotarySpec, **found.values()).but(context=length)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, RotarySpec, "rotary positions")
        said = rotary_settings(found, theta=theta, fraction=fraction, magnitudes=magnitudes)
        return {"max_position_embeddings": spec.context or context, **said}

    return Pair(read, write)


def learned(name: str, default: int) -> Pair:
    """The learned positions, which are the context."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        length = settings.take(name, int, default)
        return changed(spec, LearnedPositionsSpec, n_positions=length).but(context=length)

    return Pair(read, lambda spec: {name: one(spec, LearnedPositionsSpec, "learned positions").n_positions})


def context(name: str, default: int) -> Pair:
    """The context of a model whose positions do not end with it."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        return spec.but(context=settings.take(name, int, default))

    return Pair(read, lambda spec: {name: spec.context or default})


def d_ff(name: str) -> Pair:
    """The width of feed-forwards, four times that of the stream where nothing is said."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        return changed(spec, FeedForwardSpec, d_ff=settings.take(name, int, 4 * spec.stack.d_model))

    return Pair(read, lambda spec: {name: one(spec, FeedForwardSpec, "feed-forward without a gate").d_ff})


def fixed(**settings: Any) -> Pair:
    """Settings that are always written so, and change nothing or are taken elsewhere."""
    return Pair(lambda _, spec: spec, lambda spec: settings)


def only(**allowed: Any) -> Pair:
    """Settings whose other values are refused: they would change what is computed."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        for name, value in allowed.items():
            settings.require(name, value)
        return spec

    return Pair(read, lambda spec: {})


def repeated(name: str, fact: Callable[[ModelSpec], Any]) -> Pair:
    """A setting that may say once more what others have said, and nothing else."""
    return Pair(lambda settings, spec: (settings.require(name, fact(spec)), spec)[1], lambda spec: {})


def scaled_tokens(name: str, scale: ScaleSpec) -> Pair:
    """Whether the tokens' vectors are multiplied by `scale`."""
    into = {True: scale, False: None}.get
    return at(name, bool, TokensSpec, "scale", default=False, into=into, out=lambda found: found is not None)


def window(default: int | None) -> Pair:
    """The window of every layer; null is none, and `default` goes where nothing is said."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        size = settings.nullable("sliding_window", int, default)
        if size is None:
            return spec
        return changed(spec, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(size)))

    return Pair(read, lambda spec: {"sliding_window": window_of(spec)})


def window_of(spec: Spec) -> int | None:
    """The size of the first window in a model or a part; None without one."""
    return next((value.size for value in spec.nested() if isinstance(value, SlidingWindow)), None)


def layers(name: str = "num_hidden_layers") -> Pair:
    """The depth of a model whose layers are alike."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        return spec.but(stack=spec.stack.but(blocks=spec.stack.blocks * settings.take(name, int)))

    return Pair(read, lambda spec: {name: spec.n_layers})


def two_kinds(model: ModelSpec) -> ModelSpec:
    """The template of a model with sliding layers and full ones: the first of each."""
    first = dict(reversed([*zip(types_of(model), model.stack.blocks, strict=True)]))
    return model.but(stack=model.stack.but(blocks=(first[SLIDING], first[FULL])))


def layer_types(full_every: int, size: int, setting: str | None = None) -> Pair:
    """The depth, each layer's type and the window, of a template of `two_kinds`.

    Where nothing is said every `full_every`-th layer is full, or as many as an older `setting` says, and `size` is the window.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n_layers = settings.take("num_hidden_layers", int)
        every = full_every if setting is None else settings.take(setting, int, full_every)
        by_number = tuple(SLIDING if (i + 1) % every else FULL for i in range(n_layers))
        found = settings.nullable("sliding_window", int, size)
        return typed(settings, spec, n_layers, settings.strings("layer_types") or by_number, found)

    def write(spec: ModelSpec) -> dict[str, Any]:
        return {"num_hidden_layers": spec.n_layers, "layer_types": types_of(spec), "sliding_window": window_of(spec)}

    return Pair(read, write)


def typed(settings: Settings, spec: ModelSpec, n_layers: int, types: tuple[str, ...], window: int | None) -> ModelSpec:
    """The template with a layer for each type and this window. Raises CheckpointError for types that are none."""
    blocks: dict[str, BlockSpec] = dict(zip((SLIDING, FULL), spec.stack.blocks, strict=True))
    if len(types) != n_layers or set(types) - set(blocks):
        raise settings.refusal("layer_types", f"must be {n_layers} times {SLIDING} or {FULL}")
    if window is None and SLIDING in types:
        raise settings.refusal("sliding_window", "leaves the sliding layers without a window, which this class refuses")
    spec = spec.but(stack=spec.stack.but(blocks=tuple(blocks[kind] for kind in types)))
    return spec if window is None else changed(spec, SlidingWindow, size=Window(window))


def types_of(spec: ModelSpec) -> list[str]:
    """Each layer's type."""
    return [FULL if window_of(block) is None else SLIDING for block in spec.stack.blocks]


def _even(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Refuse heads that do not divide d_model where the class does, be their width given or not."""
    n_heads = one(spec, GQASpec, "grouped-query attention").n_heads
    if spec.stack.d_model % n_heads:
        raise settings.refusal(
            "num_attention_heads", f"does not divide hidden_size = {spec.stack.d_model}, which this class refuses"
        )
    return spec


ALL_BIASES = tuple(f"bias_{x}" for x in ("query", "key", "value", "output"))
VOCABULARY = at("vocab_size", int, TableSpec, "rows")
D_MODEL = at("hidden_size", int, StackSpec, "d_model")
EVEN = Pair(_even, lambda spec: {})
BIASES = at("attention_bias", bool, GQASpec, *ALL_BIASES, default=False)
NO_DROPOUT = fixed(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def norms(attention: str, feed: str) -> dict[str, str]:
    """A layer's two norms, before its branches or after their sums, in turn or side by side."""
    places = ("0.norm_in", "1.norm_in"), ("0.norm_sum", "1.norm_sum"), ("0.branches.0.norm_in", "0.branches.1.norm_in")
    return {ours: theirs for pair in places for ours, theirs in zip(pair, (attention, feed), strict=True)}


def feeds(**names: str) -> dict[str, str]:
    """A layer's feed-forward, after attention or beside it: up="mlp.fc1" and so on."""
    return {f"{place}.{ours}": theirs for place in (FEED, BESIDE) for ours, theirs in names.items()}


def both_ways(
    template: ModelSpec, pairs: Iterable[Pair], ignored: tuple[str, ...] = ()
) -> tuple[Callable[[Settings], ModelSpec], Callable[[ModelSpec], dict[str, Any]]]:
    """A configuration as a model and back: pairs are read in order, and `ignored` are settings that change no number."""
    pairs = tuple(pairs)

    def to_spec(settings: Settings) -> ModelSpec:
        settings.ignore(*ignored)
        spec = reduce(lambda found, pair: pair.read(settings, found), pairs, template)
        settings.close()
        return spec

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        return {name: value for pair in pairs for name, value in pair.write(spec).items()}

    return to_spec, to_config


def family(
    hf_type: str,
    architecture: str,
    template: ModelSpec,
    pairs: Iterable[Pair],
    modules: Modules,
    *,
    stack: str = "model",
    layer: str = "layers",
    tokens: str = "embed_tokens",
    norm: str = "norm",
    outside: Mapping[str, str] | None = None,
    buffers: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",),
    heads: tuple[str, ...] = ("lm_head",),
    experts: ExpertRows | None = None,
    ignored: tuple[str, ...] = (),
) -> Family:
    """The family of a class; for the pairs see `both_ways`.

    Theirs are below `stack`: `layer`.i with `modules` in it, the tables of `tokens`, the last `norm`, what is `outside` the
    layers, ours → theirs. Old files hold `buffers` in each layer, which nobody needs; `heads` are the head's names, the first
    the one that is written. A module of ours that a model lacks, or whose bias it lacks, has no row.
    """
    to_spec, to_config = both_ways(template, pairs, ignored)

    def usual(spec: ModelSpec) -> list[TensorRow]:
        old = (f"{stack}.{layer}.{i}.{name}" for i in range(spec.n_layers) for name in buffers)
        found = [*table_rows(spec, f"{stack}.{tokens}", *heads), dropped(*old)]
        links = [link(ours, f"{stack}.{theirs}") for ours, theirs in {"stack.norm": norm, **(outside or {})}.items()]
        return [*found, *rows_of(spec, [*links, *decoder_links(spec, f"{stack}.{layer}", modules)])]

    prefix = f"{stack.partition('.')[0]}."
    if experts is None:
        return Family(hf_type, architecture, prefix, to_spec, to_config, usual)
    held, filed = (lambda spec, more=more: [*usual(spec), *more(spec)] for more in experts)
    return Family(hf_type, architecture, prefix, to_spec, to_config, held, filed)
