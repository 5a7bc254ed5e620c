"""A class of transformers as data: the model it computes, written once, and which setting stands where in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

from anyformer.families.compose import changed
from anyformer.families.hf.layout import Link, deviation, rows_of, table_rows
from anyformer.families.hf.mapping import Family, TensorRow, dropped, one, shapes
from anyformer.families.hf.rotary import rotary, rotary_settings
from anyformer.families.hf.settings import ACTIVATIONS, REQUIRED, Settings, spelling
from anyformer.layers import ActivationSpec, AttentionSpec, ByRole, Causal, GQASpec, Normal, RotarySpec, SlidingWindow
from anyformer.spec import BlockSpec, ModelSpec, Spec, StackSpec, TableSpec, Window

SLIDING, FULL = "sliding_attention", "full_attention"
# Of a layer: ours → theirs; several of ours lie side by side in theirs.
Modules = Mapping[str, str] | Mapping[str | tuple[str, ...], str]


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


def tables(tied: bool, start: float = 0.02) -> Pair:
    """Whether the head shares the embedding's table, and the deviation that weights start with."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        shared = "tokens" if settings.take("tie_word_embeddings", bool, tied) else None
        drawn = Normal(scale=settings.take("initializer_range", float, start))
        return changed(spec, TableSpec, shared=shared).but(init=ByRole(table=drawn, matrix=drawn))

    def write(spec: ModelSpec) -> dict[str, Any]:
        shared = any(head.tied for head in spec.heads)
        return {"tie_word_embeddings": shared, "initializer_range": deviation(spec)}

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
    plain: RotarySpec | None = None, *, fraction: str | None = None, context: int = 2048, magnitudes: bool = False
) -> Pair:
    """The rotary positions and the context; for the arguments see `rotary_hf.rotary`."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        length = settings.take("max_position_embeddings", int, context)
        found = rotary(settings, length, plain=plain, fraction=fraction, magnitudes=magnitudes)
        return changed(spec, RotarySpec, **found.values()).but(context=length)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, RotarySpec, "rotary positions")
        said = rotary_settings(found, fraction=fraction, magnitudes=magnitudes)
        return {"max_position_embeddings": spec.context or context, **said}

    return Pair(read, write)


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


VOCABULARY = at("vocab_size", int, TableSpec, "rows")
D_MODEL = at("hidden_size", int, StackSpec, "d_model")
EVEN = Pair(_even, lambda spec: {})
BIASES = at("attention_bias", bool, GQASpec, *(f"bias_{x}" for x in ("query", "key", "value", "output")), default=False)


def family(
    hf_type: str,
    architecture: str,
    template: ModelSpec,
    pairs: Iterable[Pair],
    modules: Modules,
    *,
    norm: str = "model.norm",
    experts: ExpertRows | None = None,
    ignored: tuple[str, ...] = (),
) -> Family:
    """The family of a class: pairs are read in order, and `ignored` are settings that change no number of it.

    A module of ours that a model lacks, or whose bias it lacks, has no row.
    """
    pairs = tuple(pairs)

    def to_spec(settings: Settings) -> ModelSpec:
        settings.ignore(*ignored)
        spec = reduce(lambda found, pair: pair.read(settings, found), pairs, template)
        settings.close()
        return spec

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        return {name: value for pair in pairs for name, value in pair.write(spec).items()}

    def usual(spec: ModelSpec) -> list[TensorRow]:
        old = (f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(spec.n_layers))
        found = [*table_rows(spec, "model.embed_tokens", "lm_head"), dropped(*old)]
        links = [Link(("stack.norm",), norm), *_links(spec, modules)]
        return [*found, *rows_of(spec, links)]

    if experts is None:
        return Family(hf_type, architecture, "model.", to_spec, to_config, usual)
    held, filed = (lambda spec, more=more: [*usual(spec), *more(spec)] for more in experts)
    return Family(hf_type, architecture, "model.", to_spec, to_config, held, filed)


def _links(spec: ModelSpec, modules: Modules) -> Iterator[Link]:
    sizes = shapes(spec)
    for i in range(spec.n_layers):
        for one_or_more, theirs in modules.items():
            each = (one_or_more,) if isinstance(one_or_more, str) else one_or_more
            ours = tuple(f"stack.blocks.{i}.sublayers.{name}" for name in each)
            shares = tuple(sizes[f"{module}.weight"][0] for module in ours) if len(ours) > 1 else ()
            yield Link(ours, f"model.layers.{i}.{theirs}", shares)
