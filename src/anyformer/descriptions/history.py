"""The field's table: norms, wiring, positions, activations and tricks for stability, a row a generation of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anyformer.descriptions.diff import words as words
from anyformer.descriptions.diff.parts import attentions, feeds, layers, norms
from anyformer.families import PRESETS, Preset
from anyformer.families.tree import TREE
from anyformer.layers import (
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    MLASpec,
    MoESpec,
    SegmentsSpec,
    TokensSpec,
)
from anyformer.layers.norm import NormSpec
from anyformer.spec import BlockSpec, ModelSpec, SublayerSpec, parameters

SHORT = {
    "Sinusoid": "sinusoids",
    "LearnedPositions": "learned",
    "FactorisedPositions": "learned by row and column",
    "RelativeBuckets": "learned by distance (T5)",
    "RelativeSinusoid": "relative sinusoids (Transformer-XL)",
    "ContentToPosition": "disentangled",
    "PositionToContent": "disentangled",
    "ShawKeys": "learned by distance (Shaw)",
    "BySegment": "the same segment or not",
    "FirstBlockAgain": "the first block counted again",
    "ReLU2": "squared ReLU",
    "SiLU": "SiLU",
}


@dataclass(frozen=True)
class Mark:
    """Where published versions of the table print another cell."""

    column: str
    printed: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """One generation."""

    year: int
    model: str  # the preset that it is known by
    parameters: int
    cells: Mapping[str, str]  # by column
    marks: tuple[Mark, ...]
    source: str


@dataclass(frozen=True)
class History:
    """The table, by year."""

    columns: tuple[str, ...]
    entries: tuple[Entry, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data; keys are stable within a `version`."""
        return {"version": 1, "columns": list(self.columns), "entries": [asdict(entry) for entry in self.entries]}


def history() -> History:
    """The table of every lineage of the family tree, read off the preset that it is known by."""
    entries = []
    for line in TREE.values():
        preset = PRESETS[line.known]
        cells = {name: read(preset) for name, read in COLUMNS.items()}
        marks = tuple(Mark(m.column, m.printed, m.reason) for m in line.misprints)
        size = parameters(preset.spec).total
        entries.append(Entry(line.year, preset.name, size, cells, marks, preset.source))
    order = list(TREE)
    of = {line.known: line.name for line in TREE.values()}
    entries.sort(key=lambda entry: (entry.year, order.index(of[entry.model])))
    return History(tuple(COLUMNS), tuple(entries))


def _norm(preset: Preset) -> str:
    def of(norm: NormSpec) -> str:
        layer = isinstance(norm, LayerNormSpec)
        weight, bias = getattr(norm, "weight", True), getattr(norm, "bias", True)
        kept = ["no weights" if not bias else "no weight"] if not weight else ["no bias"] if layer and not bias else []
        return ", ".join([norm.kind, *kept])

    return words.each(of(norm) for stack in preset.spec.stacks.values() for norm in norms(stack)) or "none"


def _blocks(spec: ModelSpec) -> Iterable[BlockSpec]:
    return (block for stack in spec.stacks.values() for block in layers(stack))


def _branches(preset: Preset) -> str:
    sublayers = [s for block in _blocks(preset.spec) for s in block.sublayers]
    return "parallel" if any(len(s.branches) > 1 for s in sublayers) else "serial"


def _place(preset: Preset) -> str:
    def of(sublayer: SublayerSpec) -> str:
        inner = [place for branch in sublayer.branches for place in (branch.norm_in,)]
        before = any(isinstance(place, NormSpec) for place in [sublayer.norm_in, *inner])
        out = any(isinstance(branch.norm_out, NormSpec) for branch in sublayer.branches)
        names = {"pre": before and not out, "pre and output": before and out, "output": out and not before}
        return " and ".join([name for name, on in (*names.items(), ("post", sublayer.norm_sum is not None)) if on])

    return words.each(of(s) or "none" for block in _blocks(preset.spec) for s in block.sublayers)


def _positions(preset: Preset) -> str:
    found: dict[str, None] = {}
    for stack in preset.spec.stacks.values():
        terms = [t for t in stack.embedding.terms if not isinstance(t, TokensSpec | SegmentsSpec)]
        found |= {SHORT.get(term.kind, term.kind): None for term in terms}
        for block in layers(stack):
            for attention in attentions(block):
                rotary = getattr(attention.projection, "rotary", None)
                found |= {"RoPE": None} if rotary else {}
                found |= {SHORT.get(score.kind, score.kind): None for score in attention.scores}
                if not rotary and not attention.scores and not terms:
                    found["none in some layers"] = None
    return " + ".join(found) or "none"


def _activation(preset: Preset) -> str:
    def of(mixer: Any) -> str:
        if isinstance(mixer, MoESpec):
            return of(mixer.expert)
        if not isinstance(mixer, FeedForwardSpec | GatedFeedForwardSpec):
            return words.phrase(mixer)
        kind = mixer.activation.kind
        own = SHORT.get(kind, kind)
        return own if isinstance(mixer, FeedForwardSpec) else words.GATED.get(kind, f"gated {own}")

    return words.each(of(mixer) for block in _blocks(preset.spec) for mixer in feeds(block))


def _attention(preset: Preset) -> str:
    def of(projection: Any) -> str:
        if isinstance(projection, MLASpec):
            return "MLA"
        if not isinstance(projection, GQASpec):
            return projection.kind
        return "MHA" if projection.kv_heads == projection.n_heads else "MQA" if projection.kv_heads == 1 else "GQA"

    return words.each(of(a.projection) for block in _blocks(preset.spec) for a in attentions(block))


def _sees(preset: Preset) -> str:
    found: dict[str, None] = {}
    for block in _blocks(preset.spec):
        for attention in attentions(block):
            reach, kinds = attention.mask.reach(), {value.kind for value in attention.mask.nested()}
            if "SlidingWindow" in kinds and reach is not None:
                found[f"window of {reach:,}"] = None
            elif kinds - {"Causal", "Everything", "And"}:
                found["a sparse pattern"] = None
            else:
                found["all before" if "Causal" in kinds else "all"] = None
    return " / ".join(found)


def _experts(preset: Preset) -> str:
    found = [m.router for block in _blocks(preset.spec) for m in feeds(block) if isinstance(m, MoESpec)]
    return words.each(f"{router.top_k} of {router.n_experts}" for router in found) or "–"


def _tricks(preset: Preset) -> str:
    spec, said = preset.spec, []
    own = [a for block in _blocks(spec) for a in attentions(block)]
    projections = [a.projection for a in own]
    said += ["QK-norm"] if any(isinstance(p, GQASpec) and p.norm_query for p in projections) else []
    clips = dict.fromkeys(words.number(c) for p in projections if (c := getattr(p, "clip", None)) is not None)
    said += [f"q, k, v within ±{clip}" for clip in clips]
    caps = dict.fromkeys(words.number(a.softcap) for a in own if a.softcap is not None)
    said += [f"scores capped at {cap}" for cap in caps]
    said += ["sinks"] if any(a.sink for a in own) else []
    said += [f"logits capped at {words.number(h.softcap)}" for h in spec.heads if h.softcap is not None]
    said += [f"logits × {words.scale(h.scale, 'd_model')}" for h in spec.heads if h.scale is not None]
    embedding = spec.stack.embedding
    said += ["embedding norm"] if embedding.norm is not None else []
    residual = getattr(spec.stack.residual, "scale", 1.0)
    said += [f"residual × {words.number(residual)}"] if residual != 1 else []
    z_loss = preset.recipe.z_loss if preset.recipe else 0.0
    told = "" if z_loss else (preset.training or {}).get("z-loss", "")
    said += [f"z-loss {words.number(z_loss)}"] if z_loss else [f"z-loss {told}"] if told else []
    return ", ".join(said) or "–"


COLUMNS: Mapping[str, Callable[[Preset], str]] = {
    "norm": _norm,
    "branches": _branches,
    "norm placed": _place,
    "positions": _positions,
    "activation": _activation,
    "attention": _attention,
    "sees": _sees,
    "experts": _experts,
    "stability": _tricks,
}
