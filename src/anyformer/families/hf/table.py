"""A class of transformers as data: the model it computes, written once, and which setting stands where in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NewType

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf.layout import Modules, Theirs, of_layers, rows_of, tokens_and_head, within
from anyformer.families.hf.mapping import Family, TensorFiles, TensorRow, dropped, one, width_of_head
from anyformer.families.hf.rotary import THETA, rotary, rotary_settings
from anyformer.families.hf.settings import ACTIVATIONS, REQUIRED, Settings
from anyformer.layers import (
    ActivationSpec,
    ByRole,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    Normal,
    RMSNormSpec,
    RotarySpec,
)
from anyformer.spec import ModelSpec, Spec, StackSpec, TableSpec

MIXER, FEED = "0.branches.0.mixer", "1.branches.0.mixer"
PROJECTION = f"{MIXER}.projection"
LENGTH = "max_position_embeddings"
BESIDE = "0.branches.1.mixer"  # a feed-forward that reads what attention reads
QKV = tuple(f"{PROJECTION}.{x}" for x in "qkv")
Layout = Modules | Callable[[ModelSpec], Modules]  # of a layer; the second for what hangs on the model


class Pair(NamedTuple):
    """One or a few settings and their place in the model, both ways."""

    # the model with what the settings say; raises CheckpointError
    read: Callable[[Settings, ModelSpec], ModelSpec] = lambda settings, spec: spec
    # the settings that say it; raises SpecError where a part lacks
    write: Callable[[ModelSpec], Mapping[str, Any]] = lambda spec: {}


def at(
    name: str,
    kind: type[Any],
    part: type[Spec],
    *fields: str,
    default: Any = REQUIRED,
    nullable: bool = False,
    positive: bool = False,
    into: Callable[[Any], Any] = lambda value: value,
    out: Callable[[Any], Any] = lambda value: value,
) -> Pair:
    """The setting of these fields of every `part` in the model; `into` and `out` translate its value.

    An absent setting is the default; so is null, unless `nullable` keeps it. One that is `positive`, or a size, is above 0.
    """

    above = positive or isinstance(part.types()[fields[0]], NewType)  # Width, Count and the like

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        value = (settings.nullable if nullable else settings.positive if above else settings.take)(name, kind, default)
        value = None if value is None else into(value)
        return changed(spec, part, **dict.fromkeys(fields, value))

    def write(spec: ModelSpec) -> dict[str, Any]:
        value = getattr(one(spec, part), fields[0])
        return {name: None if value is None and nullable else out(value)}

    return Pair(read, write)


def together(part: type[Spec], settings: Mapping[str, tuple[str, type[Any], Any]]) -> Pair:
    """Settings that are (field, type, default) of every `part`, set at once: a part checks its fields against each other."""

    def read(found: Settings, spec: ModelSpec) -> ModelSpec:
        return changed(
            spec, part, **{own: found.take(name, kind, default) for name, (own, kind, default) in settings.items()}
        )

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, part)
        return {name: getattr(found, own) for name, (own, *_) in settings.items()}

    return Pair(read, write)


def choice(name: str, part: type[Spec], field: str, values: Mapping[Any, Any], default: Any) -> Pair:
    """The setting whose words, or whose being on, stand for values of a field of every `part`."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        return changed(spec, part, **{field: values[settings.word(name, values, default)]})

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = getattr(one(spec, part), field)
        return {name: next((word for word, value in values.items() if value == found), default)}

    return Pair(read, write)


def activation(name: str, default: str, part: type[Spec], values: Mapping[str, ActivationSpec] = ACTIVATIONS) -> Pair:
    """The setting that names the activation of every `part`; `values` are what a class means by its words."""
    return choice(name, part, "activation", values, default)


def starts(default: float = 0.02, name: str = "initializer_range") -> Pair:
    """The deviation of the normal distribution that all weights are drawn from; 0.02 where it is more than a number."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        return spec.but(init=changed(spec.init, Normal, scale=settings.take(name, float, default)))

    def write(spec: ModelSpec) -> dict[str, Any]:
        matrix = spec.init.matrix if isinstance(spec.init, ByRole) else None
        return {name: matrix.scale if isinstance(matrix, Normal) and not matrix.fan_in_power else 0.02}

    return Pair(read, write)


def tables(tied: bool, start: float = 0.02, name: str = "initializer_range") -> Pair:
    """Whether the head shares the embedding's table, and the deviation that weights start with."""
    init = starts(start, name)

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        shared = "tokens" if settings.take("tie_word_embeddings", bool, tied) else None
        return init.read(settings, changed(spec, TableSpec, shared=shared))

    def write(spec: ModelSpec) -> dict[str, Any]:
        return {"tie_word_embeddings": any(head.tied for head in spec.heads), **init.write(spec)}

    return Pair(read, write)


def heads(n_kv_heads: int | None = None, head_dim: int | None = None) -> Pair:
    """The sizes of attention; the arguments go where nothing is said, None and null being n_heads and d_model's share."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        d_model, n_heads = spec.stack.d_model, settings.positive("num_attention_heads", int)
        kv_heads = settings.nullable("num_key_value_heads", int, n_kv_heads)
        width = settings.optional("head_dim", int) or head_dim
        if width is None and d_model % n_heads:
            raise settings.refusal("num_attention_heads", f"does not divide hidden_size = {d_model}; set head_dim")
        return changed(
            spec,
            GQASpec,
            n_heads=n_heads,
            n_kv_heads=None if kv_heads == n_heads else kv_heads,
            head_dim=None if (width or 0) * n_heads == d_model else width,
        )

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, GQASpec)
        return {
            "num_attention_heads": found.n_heads,
            "num_key_value_heads": found.kv_heads,
            "head_dim": width_of_head(spec),
        }

    return Pair(read, write)


def positions(
    plain: RotarySpec | None = None,
    *,
    theta: str = THETA,
    fraction: str | None = None,
    context: int = 2048,
    length: str = LENGTH,
    magnitudes: bool = False,
) -> Pair:
    """The rotary positions and the context, by the name `length` or the usual one; for the others see `rotary.rotary`."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n = settings.positive(length, int, settings.positive(LENGTH, int, context))
        found = rotary(settings, n, plain=plain, theta=theta, fraction=fraction, magnitudes=magnitudes)
        return changed(spec, RotarySpec, **found.values()).but(context=n)

    def write(spec: ModelSpec) -> dict[str, Any]:
        said = rotary_settings(one(spec, RotarySpec), theta=theta, fraction=fraction, magnitudes=magnitudes)
        return {length: spec.context or context, **said}

    return Pair(read, write)


def learned(name: str, default: int) -> Pair:
    """The learned positions, which are the context."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        length = settings.positive(name, int, default)
        return changed(spec, LearnedPositionsSpec, n_positions=length).but(context=length)

    return Pair(read, lambda spec: {name: one(spec, LearnedPositionsSpec).n_positions})


def context(name: str, default: int) -> Pair:
    """The context of a model whose positions do not end with it."""
    return Pair(
        lambda settings, spec: spec.but(context=settings.positive(name, int, default)),
        lambda spec: {name: spec.context or default},
    )


def eps(default: float, name: str = "layer_norm_eps") -> Pair:
    """The eps of all LayerNorms."""
    return at(name, float, LayerNormSpec, "eps", default=default)


def rms_eps(default: float, name: str = "rms_norm_eps") -> Pair:
    """The eps of all RMSNorms; that of the last is written, since those inside mixers may have another."""
    eps = at(name, float, RMSNormSpec, "eps", default=default)
    return Pair(eps.read, lambda spec: {name: one(spec.stack.norm or spec, RMSNormSpec).eps})


def d_ff(name: str, part: type[Any] = FeedForwardSpec) -> Pair:
    """The width of feed-forwards; where nothing is said, four times that of the stream."""
    return Pair(
        lambda settings, spec: changed(spec, part, d_ff=settings.positive(name, int, 4 * spec.stack.d_model)),
        lambda spec: {name: one(spec, part).d_ff},
    )


def fixed(**settings: Any) -> Pair:
    """Settings that are always written so, and change nothing or are taken elsewhere; a function is of the model."""
    return Pair(
        write=lambda spec: {name: value(spec) if callable(value) else value for name, value in settings.items()}
    )


def if_any(part: type[Spec], pair: Pair) -> Pair:
    """The pair, of which nothing is written where no layer has such a part."""
    return Pair(pair.read, lambda spec: pair.write(spec) if any(spec.nested(part)) else {})


def renamed(**names: str) -> Pair:
    """What files call settings too → their names, before all other pairs; where both are there the other one is meant."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        settings.rename(names)
        return spec

    return Pair(read)


def only(**allowed: Any) -> Pair:
    """Settings whose other values are refused: they would change what is computed.

    A tuple is several values, a function gives the one that follows from the model.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        for name, value in allowed.items():
            value = value(spec) if callable(value) else value
            settings.require(name, *(value if isinstance(value, tuple) else (value,)))
        return spec

    return Pair(read)


def switch(name: str, part: type[Spec], *fields: str, on: Callable[[ModelSpec], Any], default: bool = False) -> Pair:
    """Whether these fields of every `part` are what `on` makes of the model, or None."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        return changed(spec, part, **dict.fromkeys(fields, on(spec) if settings.take(name, bool, default) else None))

    return Pair(read, lambda spec: {name: getattr(one(spec, part), fields[0]) is not None})


def layers(name: str = "num_hidden_layers") -> Pair:
    """The depth of a model whose layers are alike."""
    return Pair(
        lambda settings, spec: with_layers(spec, spec.stack.blocks * settings.positive(name, int)),
        lambda spec: {name: spec.n_layers},
    )


def even(n_heads: str = "num_attention_heads", d_model: str = "hidden_size", part: type[Any] = GQASpec) -> Pair:
    """Refuse heads that do not divide d_model where the class does, be their width given or not."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        if spec.stack.d_model % one(spec, part).n_heads:
            raise settings.refusal(
                n_heads, f"does not divide {d_model} = {spec.stack.d_model}, which this class refuses"
            )
        return spec

    return Pair(read)


QKV_BIASES = tuple(f"bias_{x}" for x in ("query", "key", "value"))
ALL_BIASES = (*QKV_BIASES, "bias_output")
VOCABULARY = at("vocab_size", int, TableSpec, "rows")
D_MODEL = at("hidden_size", int, StackSpec, "d_model")
STREAM = VOCABULARY, D_MODEL
EVEN = even()
BIASES = at("attention_bias", bool, GQASpec, *ALL_BIASES, default=False)


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
        spec = template
        for pair in pairs:
            with settings.told():
                spec = pair.read(settings, spec)
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
    modules: Layout,
    *,
    stack: str = "model",
    layer: str = "layers",
    tokens: str = "embed_tokens",
    tokens_too: str | None = None,
    norm: str = "norm",
    outside: Layout = {},  # noqa: B006 — nobody writes to it
    buffers: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",),
    heads: tuple[str, ...] = ("lm_head",),
    unneeded: tuple[str, ...] = (),
    passed_over: int = 0,
    apart: tuple[Layout, Layout] | None = None,
    released: Layout | None = None,
    further: Callable[[ModelSpec], Iterable[TensorRow]] = lambda spec: (),
    ahead: Mapping[str | tuple[str, ...], str | Theirs] | None = None,
    ignored: tuple[str, ...] = (),
    fixed_masks: bool = False,
) -> Family:
    """The family of a class; for the pairs see `both_ways`.

    Theirs are below `stack`: `layer`.i with `modules` in it, the tables of `tokens`, which files may call `tokens_too`, the last
    `norm`, what is `outside` the layers, ours → theirs. Old files hold `buffers` in each layer, and `unneeded`, which nobody
    reads; `heads` are the head's names, the first the one that is written. A module of ours that a model lacks, or whose bias it
    lacks, has no row. `apart`: the modules that a layer has beside those in memory, and in files that are laid out otherwise;
    `released`: all that it has in files that the class reads and does not write. `further` are rows that are no modules. `ahead`:
    the modules around the layers that predict further tokens, if files have any; `passed_over`: how many the class has none of.
    """
    to_spec, to_config = both_ways(template, pairs, ignored)
    layers = f"{stack}.{layer}"

    def rows(spec: ModelSpec, *parts: Layout) -> list[TensorRow]:
        n = spec.n_layers
        around, *inside = (part(spec) if callable(part) else part for part in (outside, *parts))
        each = {ours: theirs for part in inside for ours, theirs in part.items()}
        links = within({"stack.norm": norm}, theirs=f"{stack}.") | within(around, theirs=f"{stack}.")
        links |= of_layers(spec.stack, layers, each)
        later = [f"{layers}.{n + k}." for k in range(len(spec.ahead))]  # which hold the tables again
        for k, place in enumerate(later):
            links |= within(each, f"ahead.{k}.block.sublayers.", place) | within(ahead or {}, f"ahead.{k}.", place)
        too = () if tokens_too is None else (f"{stack}.{tokens_too}",)
        table = Theirs(f"{stack}.{tokens}", also=(*too, *(f"{place}embed_tokens" for place in later)))
        head = Theirs(heads[0], also=(*heads[1:], *(f"{place}shared_head.head" for place in later)))
        old = (f"{layers}.{i}.{name}" for i in range(n + len(later)) for name in buffers)
        beyond = (f"{layers}.{n + k}.*" for k in range(passed_over))
        known = rows_of(spec, tokens_and_head(spec, table, head) | links)
        return [dropped(*old, *unneeded, *beyond), *known, *further(spec)]

    def where_held(spec: ModelSpec, files: TensorFiles) -> ModelSpec:
        """The model without the layers ahead where files hold no tensor around them, as those that transformers writes."""
        each = (place.name for place in within(ahead or {}).values())
        held = (f"{layers}.{spec.n_layers + k}.{name}.weight" in files for name in each for k in range(len(spec.ahead)))
        return spec if any(held) else spec.but(ahead=())

    in_memory, in_files = apart or ({}, {})
    return Family(
        hf_type,
        architecture,
        f"{stack.partition('.')[0]}.",
        to_spec,
        to_config,
        lambda spec: rows(spec, modules, in_memory),
        None if apart is None else lambda spec: rows(spec, modules, in_files),
        where_held if ahead else None,
        fixed_masks=fixed_masks,
        released=None if released is None else lambda spec: rows(spec, released),
    )
