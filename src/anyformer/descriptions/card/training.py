"""The rows of a card that say how a model was trained: a published recipe in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from anyformer.descriptions import words
from anyformer.descriptions.card.stack import CardRow
from anyformer.recipe import Recipe
from anyformer.recipe.schedule import Constant, PieceSpec, Warmup, factor_at, lengths


def training_rows(recipe: Recipe, d_model: int) -> Iterator[CardRow]:
    """The recipe's rows for a model of this width."""
    yield _said("objective", words.phrase(recipe.objective))
    steps, peak = lengths(recipe.schedule, recipe.steps, recipe.batch_tokens), recipe.optimizer.peak(d_model)
    lows = [peak * factor_at(end, recipe.schedule, steps) for end in accumulate(steps)]  # at the end of each piece
    pieces = list(zip(recipe.schedule, steps, lows, strict=True))
    tail = pieces.pop() if _anneals(recipe.schedule) else None
    annealing_tokens = tail[0].tokens or tail[1] * recipe.batch_tokens if tail else 0
    yield _row("tokens", "pretraining tokens", recipe.tokens - annealing_tokens)
    yield _row("batch_tokens", "batch", recipe.batch_tokens, f"{recipe.batch_tokens:,} tokens")
    yield _row("training_seq_len", "sequence length in training", recipe.seq_len)
    for piece, n, _ in pieces:
        if isinstance(piece, Warmup):
            yield _row("warmup_steps", "warm-up", n, f"{n:,} steps from {words.number(peak * piece.start)}")
    yield _row("peak_lr", "peak learning rate", peak, f"{peak:.3g}")
    if main := [(piece, low) for piece, _, low in pieces if not isinstance(piece, Warmup)]:
        yield _row("min_lr", "minimum learning rate", main[-1][1], f"{main[-1][1]:.3g}")
        yield _said("schedule", ", then ".join(_piece(piece) for piece, _ in main))
    if tail:
        yield _row("annealing_tokens", "annealing tokens", annealing_tokens)
        yield _said("annealing_schedule", _piece(tail[0]), "annealing schedule")
        yield _row("annealing_min_lr", "annealing minimum", tail[2], f"{tail[2]:.3g}")
    yield from _optimizer(recipe)
    yield from _losses(recipe)
    yield _said("precision", recipe.precision)
    yield _said("gradient_dtype", "float32, as always here", "gradient reduction")
    yield _said("state_dtype", "float32, as always here", "optimiser state")
    if recipe.memory is not None:
        yield _said("memory", words.number(recipe.memory))


def _said(key: str, said: str, name: str | None = None) -> CardRow:
    return CardRow("training", key, name or key, said)


def _row(key: str, name: str, value: float, said: str | None = None) -> CardRow:
    return CardRow("training", key, name, said or words.number(value), value)


def _anneals(schedule: tuple[PieceSpec, ...]) -> bool:
    """Whether the last piece decays anew after another decay and says how long it is."""
    decays, last = [piece for piece in schedule if not isinstance(piece, Warmup | Constant)], schedule[-1]
    return len(decays) > 1 and last is decays[-1] and {last.steps, last.tokens, last.share} != {None}


def _piece(piece: PieceSpec) -> str:
    names = {"CosineDecay": "cosine", "LinearDecay": "linear", "InverseSqrtDecay": "1/√step", "Constant": "constant"}
    name = names.get(piece.kind, piece.kind)
    return f"{name} to {words.number(piece.to)} of the peak" if hasattr(piece, "to") else name  # type: ignore[attr-defined]


def _optimizer(recipe: Recipe) -> Iterator[CardRow]:
    yield _said("optimizer", recipe.optimizer.kind, "optimiser")
    named = {"beta1": "beta 1", "beta2": "beta 2", "weight_decay": "weight decay", "l2": "l2", "momentum": "momentum"}
    usual = recipe.optimizer.__dataclass_fields__
    for field, value in recipe.optimizer.values().items():
        # What there is none of, as usual, is not told.
        if field != "lr" and isinstance(value, int | float) and (value or value != usual[field].default):
            key, name = (field, named[field]) if field in named else (f"optimizer_{field}", f"optimiser {field}")
            yield _row(key, name, value)
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
