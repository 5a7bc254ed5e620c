"""What an inspection found: figures of layers and heads on a text, and one row of it read token by token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from anyformer.notebook import ShowsItself
from anyformer.screen import printed
from anyformer.surgery import Importance

VERSION = 1


@dataclass(frozen=True)
class BranchFigures:
    """What a branch does for the loss."""

    kind: str  # attention, feed-forward, experts …
    without: float  # what the loss grows by where it writes nothing


@dataclass(frozen=True)
class LayerFigures:
    """What a layer does for the loss, and to the stream."""

    stack: str  # "encoder", "decoder", "" where there is one stack, or the head whose layers these are
    layer: int
    ended: float | None  # the loss were the layers behind it passed over; None: not of the main stack
    without: float  # what the loss grows by where this layer alone is passed over
    turned: float  # 1 - the cosine of the stream's vectors before and behind it, the mean over tokens
    branches: tuple[BranchFigures, ...]


@dataclass(frozen=True)
class HeadFigures:
    """Where a head looks, the mean over its queries, and how much it matters."""

    stack: str
    layer: int
    kind: str  # of its branch
    head: int
    importance: float | None  # in units of the loss, by the gradient; None where its map is not told apart by heads
    entropy: float  # of its weights, as a share of that of even weights: 0 looks at one token, 1 at all alike
    # shares of its weights, and how far back they lie in tokens; None where it reads no tokens of the row's own
    itself: float | None = None
    previous: float | None = None
    first: float | None = None
    distance: float | None = None
    # in a text of random tokens said twice, the share that is on the token behind the last occurrence of the one that is read
    induction: float | None = None


@dataclass(frozen=True)
class PartsFigures:
    """How much the neurons, or the experts, of one map matter, as heads do."""

    stack: str
    layer: int
    kind: str  # of its branch
    parts: str  # "neurons" or "experts"
    importance: Tensor  # of each, in units of the loss, by the gradient

    def share_with(self, of_all: float) -> float:
        """The least share of them that has a share of what all matter together: 0.9 if all matter alike, and 0.9 is asked."""
        sums = self.importance.sort(descending=True).values.cumsum(0)
        return (int((sums < of_all * sums[-1]).sum()) + 1) / len(sums) if sums[-1] > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data, in which each of them is not said again."""
        own = {name: getattr(self, name) for name in ("stack", "layer", "kind", "parts")}
        return {**own, "n": len(self.importance), "half": self.share_with(0.5), "nine_tenths": self.share_with(0.9)}


@dataclass(frozen=True)
class LayerAnswer:
    """What the model would say if it ended behind some layer, at each token of a row."""

    layer: str  # its number, or "embedding"
    says: tuple[str, ...]  # the likeliest token
    probability: tuple[float, ...]  # of that
    right: tuple[float | None, ...]  # the probability of the token that is right; None where none is known


@dataclass(frozen=True)
class Map:
    """Where the heads of one branch look in one row."""

    stack: str
    layer: int
    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Tensor  # [heads, query, key]


@dataclass(frozen=True)
class Reading:
    """One row, token by token."""

    tokens: tuple[str, ...]  # at which the main stack answers
    right: tuple[str | None, ...]  # the token that is right at each: the next one, or what was hidden
    answers: tuple[LayerAnswer, ...]  # from the embedding's to the last layer's
    maps: tuple[Map, ...]  # of attention in all stacks, in the order of a pass


@dataclass(frozen=True)
class Inspection(ShowsItself):
    """What is inside a trained model."""

    objective: str
    unit: str  # of the loss, and of all that is a change of it
    loss: float
    labels: int  # that the loss is the mean of
    layers: tuple[LayerFigures, ...]
    heads: tuple[HeadFigures, ...]
    parts: tuple[PartsFigures, ...]
    importance: Importance
    reading: Reading | None  # None: the model predicts no tokens

    def __str__(self) -> str:
        from anyformer.inspection.printed import sections

        return printed(*sections(self))

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the maps of the row that is read, which are large."""
        told = {name: getattr(self, name) for name in ("objective", "unit", "loss", "labels")}
        told |= {"layers": [asdict(each) for each in self.layers], "heads": [asdict(each) for each in self.heads]}
        told["parts"] = [each.as_json() for each in self.parts]
        importance = {
            name: {axis: each.tolist() for axis, each in axes.items()} for name, axes in self.importance.items()
        }
        read = self.reading and {name: each for name, each in asdict(self.reading).items() if name != "maps"}
        return {"version": VERSION, **told, "importance": importance, "reading": read}
