"""Parts of a specification in the words of papers, which tell any two apart: what differs is never said alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from anyformer.descriptions import words
from anyformer.descriptions.words import GATED
from anyformer.layers import (
    GELU,
    And,
    ByRole,
    Causal,
    Everything,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    MoESpec,
    Normal,
    RotarySpec,
    RouterSpec,
    SiLU,
    SlidingWindow,
    SymmetricWindow,
)
from anyformer.spec import InitSpec, MapSpec, MixerSpec, ScaleSpec, Spec

KINDS = {
    "Sinusoid": "sinusoids",
    "LearnedPositions": "learned",
    "FactorisedPositions": "learned by row and column",
    "RelativeBuckets": "learned by distance (T5's buckets)",
    "RelativeSinusoid": "sinusoids of the distance (Transformer-XL's)",
    "ReLU2": "squared ReLU",
    "Llama3Scaling": "Llama 3's stretch",
    "LinearScaling": "linear stretch",
    "ShawKeys": "learned by distance, of keys (Shaw's)",
    "ShawValues": "learned by distance, of values (Shaw's)",
    "ContentToPosition": "content on distance (disentangled)",
    "PositionToContent": "distance on content (disentangled)",
    "RelativeTable": "vectors of distances",
    "Add": "x + y",
    "Reversible": "reversible, two streams",
    "Everything": "all tokens",
}
FIELDS = {
    "n_positions": "positions",
    "n_buckets": "buckets",
    "n_segments": "segments",
    "factor": "×",
    "theta": "theta",
    "weight_offset": "weights stored less",
    "cast": "cast",
}


def number(value: float) -> str:
    """Return a number for reading, a millionth as 1e-6."""
    return words.number(value).replace("e-0", "e-").replace("e+0", "e")


def each(said: Iterable[str]) -> str:
    """Different phrases once each."""
    return " / ".join(dict.fromkeys(said))


def pattern(said: Sequence[str]) -> str:
    """What the layers say, one phrase a layer: once if all say the same, else by runs, or as what comes in turn."""
    n = len(said)
    period = next(p for p in range(1, n + 1) if all(text == said[i % p] for i, text in enumerate(said)))
    if period == 1:
        return said[0]
    in_turn = 2 * period <= n
    runs = [(text, len(list(run))) for text, run in groupby(said[:period] if in_turn else said)]
    if in_turn:
        return ", ".join(f"{count} × {text}" for text, count in runs) + ", in turn"
    if len(runs) == 2:
        return f"first {runs[0][1]}: {runs[0][0]}; then {runs[1][1]}: {runs[1][0]}"
    if len(runs) <= 4:
        return "; ".join(f"{count} × {text}" for text, count in runs)
    return "; ".join(f"{said.count(text)} × {text}" for text in dict.fromkeys(said))


def phrase(value: Any, *, without: Sequence[str] = ()) -> str:
    """Any value in words: its kind, and every field that is not at its default; `without` are said elsewhere."""
    if isinstance(value, bool) or not isinstance(value, Spec | tuple | int | float):
        return str(value)
    if isinstance(value, tuple):
        if len(value) > 4 and all(isinstance(item, int | float) for item in value):
            return f"{len(value)} numbers from {number(min(value))} to {number(max(value))}"
        return " & ".join(phrase(item) for item in value)
    if not isinstance(value, Spec):
        return number(value)
    said = []
    for name, part in value.values().items():
        default = type(value).__dataclass_fields__[name].default  # type: ignore[attr-defined]
        if name in without or name == "shared" or part == default:
            continue
        title = FIELDS.get(name, name.replace("_", " "))
        if isinstance(part, bool):
            said.append(title if part else f"no {title}")
        elif part is None:
            said.append(f"no {title}")
        elif isinstance(part, Spec):
            said.append(phrase(part) if name in ("scaling", "rotary") else f"{title} {scale(part) or phrase(part)}")
        else:
            said.append(phrase(part) if name in ("masks", "maps") else f"{title} {phrase(part)}")
    kind = KINDS.get(value.kind, value.kind)
    return f"{kind} ({', '.join(said)})" if said else kind


def scale(value: Any, width: str = "width") -> str:
    """Return a constant that may follow from a width; an empty string for anything else."""
    return words.scale(value, width) if isinstance(value, ScaleSpec) else ""


def start(value: InitSpec) -> str:
    """How weights start."""
    if not isinstance(value, ByRole):
        return phrase(value)
    same = {"tables": value.table, "matrices": value.matrix}
    same |= {"outputs": value.output} if value.output else {}
    same |= {"inner matrices": value.inner} if value.inner else {}
    if len(set(same.values())) == 1:
        return _drawn(value.matrix)
    return "; ".join(f"{name} {_drawn(drawn)}" for name, drawn in same.items())


def _drawn(value: Spec) -> str:
    if isinstance(value, Normal):
        powers = ((value.fan_in_power, "fan-in"), (value.depth_power, "branches"))
        said = [scale(ScaleSpec(power=power), name) for power, name in powers if power]
        return f"normal, {' · '.join([number(value.scale)] * (value.scale != 1 or not said) + said)}"
    return phrase(value)


def norm(value: MapSpec | None) -> str:
    """Return a norm: its kind and eps first."""
    if value is None:
        return "none"
    eps = getattr(value, "eps", None)
    said = phrase(value, without=("eps",))
    if eps is None:
        return said
    kind, bracket, rest = said.partition(" (")
    return f"{kind} (eps {number(eps)}{f', {rest}' if bracket else ')'}"


def mask(value: Spec) -> str:
    """Who sees whom."""
    if isinstance(value, Causal):
        return "causal"
    if isinstance(value, SlidingWindow):
        return f"window of {value.size:,}"
    if isinstance(value, SymmetricWindow):
        return f"window of {value.radius:,} to each side"
    if isinstance(value, And):
        return ", ".join(mask(item) for item in value.masks)
    return "all tokens" if isinstance(value, Everything) else phrase(value)


def rotary(value: RotarySpec) -> str:
    """Rotary positions: theta always, the rest where it is not usual."""
    said = [f"theta {number(value.theta)}"]
    if value.fraction != 1:
        said.append(f"{number(100 * value.fraction)} % of each head")
    if value.layout != "half":
        said.append(f"{value.layout} pairs")
    if value.where != "first":
        said.append(f"the {value.where} features")
    if value.scaling is not None:
        said.append(phrase(value.scaling))
    return f"rotary (RoPE; {', '.join(said)})"


def activation(mixer: MixerSpec) -> str:
    """Return a feed-forward's activation with its gate: ReLU, GELU (tanh), SwiGLU."""
    if isinstance(mixer, MoESpec):
        parts = [mixer.expert, *([mixer.shared_expert] if mixer.shared_expert else [])]
        return each(activation(part) for part in parts)
    if not isinstance(mixer, FeedForwardSpec | GatedFeedForwardSpec):
        return phrase(mixer)
    value = mixer.activation
    form = "" if not isinstance(value, GELU) or value.form == "erf" else f" ({value.form})"
    kind = value.kind if isinstance(value, GELU | SiLU) else phrase(value)
    if isinstance(mixer, FeedForwardSpec):
        return kind + form
    said = [GATED.get(kind, f"gated {kind}") + form]
    said += [f"gate and up within ±{number(mixer.limit)}"] if mixer.limit is not None else []
    said += [f"up + {number(mixer.up_offset)}"] if mixer.up_offset else []
    return ", ".join(said)


def experts(mixer: MixerSpec) -> str:
    """Return a mixture of experts: how many, how they are chosen; "none" for a dense layer."""
    if not isinstance(mixer, MoESpec):
        return "none"
    router = mixer.router
    said = [f"{router.n_experts} experts, {router.top_k} for a token"]
    if mixer.shared_expert is not None:
        own = getattr(mixer.expert, "d_ff", 0)
        n, left = divmod(getattr(mixer.shared_expert, "d_ff", 0), own) if own else (1, 0)
        shared = f"{n} shared" if n and not left else "one shared"
        said.append(shared + (" behind a gate" if mixer.shared_gate else ""))
    chosen = phrase(router, without=("n_experts", "top_k")).partition(" (")[2].removesuffix(")")
    default = RouterSpec(n_experts=router.n_experts, top_k=1).score
    said.append(chosen if router.score != default else ", ".join(filter(None, (router.score, chosen))))
    if mixer.capacity is not None:
        said.append(phrase(mixer.capacity))
    return "; ".join(said)
