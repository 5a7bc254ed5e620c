"""The rows of a card that say how a model was trained: a published recipe in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from anyformer.descriptions import words
from anyformer.descriptions.card.stack import CardRow
from anyformer.recipe import Recipe
from anyformer.recipe.schedule import Constant, PieceSpec, Warmup, factor_at, lengths

LONG = frozenset(("objective", "optimizer", "schedule", "dropout", "router", "precision", "label_smoothing", "z_loss"))
SHOWN = LONG | {"tokens", "batch_tokens", "seq_len", "clip", "seed"}  # the fields that have rows of their own


def training_rows(recipe: Recipe, d_model: int) -> Iterator[CardRow]:
    """The recipe's rows for a model of this width."""
    yield CardRow("training", "objective", "objective", words.phrase(recipe.objective))
    steps = lengths(recipe.schedule, recipe.steps, recipe.batch_tokens)
    tail = _annealing(recipe.schedule)
    annealed = sum(n for n, piece in zip(steps, recipe.schedule, strict=True) if tail is not None and piece is tail)
    annealing_tokens = tail.tokens or annealed * recipe.batch_tokens if tail is not None else 0
    yield _row("tokens", "pretraining tokens", recipe.tokens - annealing_tokens)
    yield _row("batch_tokens", "batch", recipe.batch_tokens, f"{recipe.batch_tokens:,} tokens")
    yield _row("training_seq_len", "sequence length in training", recipe.seq_len)
    peak = recipe.optimizer.peak(d_model)
    factors = [factor_at(end, recipe.schedule, steps) for end in accumulate(steps)]
    for piece, n in zip(recipe.schedule, steps, strict=True):
        if isinstance(piece, Warmup):
            yield _row("warmup_steps", "warm-up", n, f"{n:,} steps from {words.number(peak * piece.start)}")
    yield _row("peak_lr", "peak learning rate", peak, f"{peak:.3g}")
    main = [
        (p, f) for p, f in zip(recipe.schedule, factors, strict=True) if not isinstance(p, Warmup) and p is not tail
    ]
    if main:
        yield _row("min_lr", "minimum learning rate", peak * main[-1][1], f"{peak * main[-1][1]:.3g}")
        yield CardRow("training", "schedule", "schedule", ", then ".join(_piece(piece) for piece, _ in main))
    if tail is not None:
        yield _row("annealing_tokens", "annealing tokens", annealing_tokens)
        yield CardRow("training", "annealing_schedule", "annealing schedule", _piece(tail))
        yield _row("annealing_min_lr", "annealing minimum", peak * factors[-1], f"{peak * factors[-1]:.3g}")
    yield from _optimizer(recipe)
    yield from _losses(recipe)
    yield CardRow("training", "precision", "precision", recipe.precision)
    for name, kind in (("gradient_dtype", "gradient reduction"), ("state_dtype", "optimiser state")):
        if name not in recipe.values():  # version 1 of the language has nothing else
            yield CardRow("training", name, kind, "float32, as always here")
    default = Recipe()
    for name, value in recipe.values().items():
        if name not in SHOWN and value != getattr(default, name, None):
            said = ", ".join(map(words.phrase, value)) if isinstance(value, tuple) else words.phrase(value)
            yield CardRow("training", name, name.replace("_", " "), said)


def _row(key: str, name: str, value: float, said: str | None = None) -> CardRow:
    return CardRow("training", key, name, said or words.number(value), value)


def _annealing(schedule: tuple[PieceSpec, ...]) -> PieceSpec | None:
    """The last piece where it decays anew after another decay and says how long it is."""
    decays = [piece for piece in schedule if not isinstance(piece, Warmup | Constant)]
    last = schedule[-1]
    given = any(getattr(last, name) is not None for name in ("steps", "tokens", "share"))
    return last if len(decays) > 1 and last is decays[-1] and given else None


def _piece(piece: PieceSpec) -> str:
    names = {"CosineDecay": "cosine", "LinearDecay": "linear", "InverseSqrtDecay": "1/√step", "Constant": "constant"}
    name = names.get(piece.kind, piece.kind)
    return f"{name} to {words.number(piece.to)} of the peak" if hasattr(piece, "to") else name  # type: ignore[attr-defined]


def _optimizer(recipe: Recipe) -> Iterator[CardRow]:
    yield CardRow("training", "optimizer", "optimiser", recipe.optimizer.kind)
    named = {"beta1": ("beta1", "beta 1"), "beta2": ("beta2", "beta 2"), "eps": ("optimizer_eps", "optimiser eps")}
    for field, value in recipe.optimizer.values().items():
        if field != "lr" and isinstance(value, int | float):
            yield _row(*named.get(field, (field, field.replace("_", " "))), value)
    if recipe.clip is not None:
        yield _row("clip", "gradient clipping", recipe.clip, f"norm of all gradients at most {recipe.clip:g}")


def _losses(recipe: Recipe) -> Iterator[CardRow]:
    router = recipe.router
    named = (
        ("label_smoothing", "label smoothing", recipe.label_smoothing),
        ("z_loss", "z-loss weight", recipe.z_loss),
        *((f"loss_{loss.kind}", f"{loss.kind} weight", loss.weight) for loss in router.losses),
        ("router_correction_speed", "router's correction a step", router.correction_speed),
        ("router_jitter", "router jitter", router.jitter),
        *((f"dropout_{name}", f"dropout ({name})", rate) for name, rate in recipe.dropout.values().items()),
    )
    yield from (_row(*row) for row in named if row[2])
