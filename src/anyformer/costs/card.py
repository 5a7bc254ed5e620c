"""The card of an architecture: the field's rows, read off the specification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from anyformer.layers import MoESpec
from anyformer.spec import (
    BranchSpec,
    HeadSpec,
    MapSpec,
    MixerSpec,
    ModelSpec,
    Spec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    parameters,
)

SIZES = ("n_heads", "n_kv_heads", "head_dim", "rotary_dim", "value_dim", "query_rank", "kv_rank", "d_ff")


def card(spec: ModelSpec) -> dict[str, str]:
    """Return name → value in words, in the order in which they are shown; rows that do not apply are left out."""
    rows: dict[str, str] = {}
    for name, stack in (("encoder", spec.encoder), ("decoder" if spec.encoder else "", spec.stack)):
        if stack is not None:
            prefix = f"{name} " if name else ""
            rows |= {prefix + key: value for key, value in _stack(stack) if value}
    rows["heads"] = "; ".join(_head(head, spec) for head in spec.heads)
    rows["vocabulary"] = f"{spec.vocab_size:,}"
    if spec.context:
        rows["context"] = f"{spec.context:,} tokens"
    count = parameters(spec)
    rows["parameters"] = f"{count.total:,} ({count.embedding:,} in tables, {count.non_embedding:,} beside them)"
    if count.inactive:
        rows["active parameters"] = f"{count.active:,} (used by one token)"
    return rows


def words(value: Any) -> str:
    """Return a value in a few words: its kind, and the fields that are not at their defaults."""
    if not isinstance(value, Spec):
        return (
            f"{value:,}"
            if isinstance(value, int) and not isinstance(value, bool)
            else f"{value:g}"
            if isinstance(value, float)
            else str(value)
        )
    default = {name: field.default for name, field in type(value).__dataclass_fields__.items()}  # type: ignore[attr-defined]
    said = []
    for name, part in value.values().items():
        if isinstance(part, tuple) and part:
            said.append(" & ".join(words(item) for item in part))
        elif part != default[name]:
            said.append(name.replace("_", " ") if part is True else f"{name.replace('_', ' ')} {words(part)}")
    return f"{value.kind} ({', '.join(said)})" if said else value.kind


def _stack(stack: StackSpec) -> Iterator[tuple[str, str]]:
    yield "layers", f"{len(stack.blocks)}"
    yield "d_model", f"{stack.d_model:,}"
    mixers = [value for value in stack.nested() if isinstance(value, MixerSpec)]
    for name in SIZES:
        yield name, _each(v for m in mixers for value in m.nested() if (v := getattr(value, name, None)) is not None)
    for value in _distinct(v for m in mixers for v in m.nested() if hasattr(v, "n_heads") and v.head_dim is None):  # type: ignore[attr-defined]
        yield "head_dim", f"{stack.d_model // value.n_heads}"
    yield "attention", _pattern(m for m in mixers if hasattr(m, "mask"))
    yield "experts", _each(_mixture(m) for m in mixers if isinstance(m, MoESpec))
    yield "feed-forward", _each(f"{m.kind}, {words(m.activation)}" for m in mixers if hasattr(m, "activation"))  # type: ignore[attr-defined]
    yield (
        "norms",
        _each(words(v) for b in stack.blocks[:1] for v in b.nested() if isinstance(v, MapSpec) and "Norm" in v.kind),
    )
    yield "placement", _each(_placement(v) for b in stack.blocks for v in b.sublayers)
    yield "final norm", words(stack.norm) if stack.norm else "none"
    terms = [words(term) for term in stack.embedding.terms[1:]]
    rotary = [words(v) for m in mixers for p in m.nested() if (v := getattr(p, "rotary", None))]
    scores = [words(score) for m in mixers for score in getattr(m, "scores", ())]
    yield "positions", _each([*terms, *rotary, *scores]) or "none"
    yield (
        "biases",
        _each(
            n.replace("_", " ")
            for m in mixers
            for v in m.nested()
            for n, x in v.values().items()
            if "bias" in n and x is True
        )
        or "none",
    )
    yield "residual", words(stack.residual)


def _placement(sublayer: SublayerSpec) -> str:
    places = [name for name, on in (("pre", sublayer.norm_in), ("post", sublayer.norm_sum)) if on]
    branches: Iterable[BranchSpec] = sublayer.branches
    places += _distinct(
        place for b in branches for place, on in (("pre", b.norm_in), ("branch output", b.norm_out)) if on
    )
    parallel = f"{len(sublayer.branches)} in parallel" if len(sublayer.branches) > 1 else ""
    return ", ".join(filter(None, ("-norm and ".join(places) + "-norm" if places else "no norm", parallel)))


def _pattern(attentions: Iterable[Any]) -> str:
    masks = [f"{words(a.mask)}" + (" over the encoder's output" if a.reads == "memory" else "") for a in attentions]
    return "; ".join(f"{masks.count(mask)} × {mask}" for mask in _distinct(masks))


def _mixture(mixture: MoESpec) -> str:
    shared = " beside one for all tokens" if mixture.shared_expert else ""
    capacity = f", {words(mixture.capacity)}" if mixture.capacity else ""
    return f"{mixture.router.top_k} of {mixture.router.n_experts}{shared}, {words(mixture.router)}{capacity}"


def _head(head: HeadSpec, spec: ModelSpec) -> str:
    tables = {v.shared for v in spec.stack.embedding.nested() if isinstance(v, TableSpec)}
    tied = "tied to the embedding" if head.table.shared and head.table.shared in tables else "a table of its own"
    extra = [f"{name} {words(value)}" for name in ("scale", "softcap") if (value := getattr(head, name)) is not None]
    return ", ".join([head.name, tied, *(["bias"] if head.bias else []), *extra])


def _each(values: Iterable[Any]) -> str:
    return " / ".join(words(value) for value in _distinct(values))


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
