"""A given model at another width of the stream: what comes first where an architecture is wider or narrower.

Wider: each feature stands several times and is read by its share (Chen et al. 2016, arXiv:1511.05641, Net2WiderNet; of whole
Transformers Samragh et al. 2024, arXiv:2409.12903, HyperCloning, with its noise, which cancels, and by which copies come to
differ). Narrower: those features stay that matter most (Muralidharan et al. 2024, arXiv:2407.14679, section 2.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from anyformer.spec import Weight
from anyformer.surgery.anatomy import Anatomy, Standing
from anyformer.surgery.plans import Importance, those_that_matter

MAPS = ("matrix", "query", "inner", "output")  # roles of what reads its last axis
STREAM = ("d_model", "d_out", "d_in")  # axes that may be the stream's; where sizes change as its does, they are
LAYER = re.compile(r"\.blocks\.\d+\.")
NOISE = 0.1  # of a tensor's own deviation


class Widening:
    """A given model's tensors at another width of the stream, as a new architecture has it."""

    def __init__(self, new: Anatomy, old: Anatomy, given: Mapping[str, Tensor], n: int, n_given: int) -> None:
        """`given`: the state dict; n: features of the new stream, n_given: of the given one."""
        self.old, self.given, self.n, self.n_given = old, given, n, n_given
        shapes = {LAYER.sub(".blocks.*.", path): each.weight.shape for path, each in new.tensors.items()}
        self.dims: dict[str, list[int]] = {}  # which dimensions of a tensor are the stream's, by name
        for path, (name, weight) in old.tensors.items():
            others = shapes.get(LAYER.sub(".blocks.*.", path), ())
            of_heads = {int(heads.makes == "output") for start, heads in old.maps if path.startswith(start)}
            self.dims.setdefault(name, []).extend(
                dim
                for dim, (axis, size, other) in enumerate(zip(weight.axes, weight.shape, others, strict=False))
                if axis in STREAM and (size, other) == (n_given, n) and dim not in {*of_heads, *self.dims[name]}
            )

    def places(self, importance: Importance | None = None) -> tuple[Tensor, str]:
        """Which given features the stream begins as [n], and that in words: all again and again, or those that matter most.

        By how much those of the main stack matter, where that is known; else by their weight in what writes to the stream.
        """
        if self.n > self.n_given:
            words = f"a stream of {self.n:,} features, the given {self.n_given:,} again and again"
            return torch.arange(self.n) % self.n_given, words
        matters = (importance or {}).get("stack", {}).get("d_model")
        if matters is not None:
            plan = those_that_matter(self.n, matters, "features of the stream")
            return plan.places, plan.how
        words = f"the {self.n:,} of {self.n_given:,} features of the stream that weigh most"
        return self._weights().topk(self.n).indices.sort().values, words

    def _weights(self) -> Tensor:
        """How much each feature weighs: the square of its norm in what writes to the stream, tables and output maps."""
        total = torch.zeros(self.n_given)
        for name, weight in {each.name: each.weight for each in self.old.tensors.values()}.items():
            for dim in self.dims[name]:
                if weight.role == "table" or (weight.role == "output" and dim < len(weight.axes) - 1):
                    total += self.given[name].float().movedim(dim, 0).flatten(1).square().sum(1)
        return total

    def done(self, places: Tensor, seed: int) -> dict[str, Tensor]:
        """The state dict whose stream has the features at these places; the given anatomy's shapes become those.

        Where they stand equally often, the function stays, but for what goes by the width itself: residuals, embeddings and
        heads that are scaled by it.
        """
        times = torch.bincount(places, minlength=self.n_given)[places]
        generator, state, read = torch.Generator().manual_seed(seed), dict(self.given), self._tables_of_heads()
        written = {each.name for path, each in self.old.tensors.items() if not path.startswith("heads.")}
        weights: dict[str, Weight] = {}
        for path, (name, weight) in self.old.tensors.items():
            if name not in weights:
                tensor, shape = self.given[name], list(weight.shape)
                for dim in self.dims[name]:
                    tensor, shape[dim] = tensor.index_select(dim, places), self.n
                    reads = weight.axes[dim] == "d_in" or (weight.role in MAPS and dim == len(shape) - 1 > 0)
                    if times.max() > 1 and (reads or name in read - written):
                        tensor = _shared_out(tensor, dim, places, times, generator)
                weights[name], state[name] = replace(weight, shape=tuple(shape)), tensor
            self.old.tensors[path] = Standing(name, weights[name])
        for name in self._before_tied(read & written) if times.max() > 1 else ():
            fill = weights[name].fill  # a gain around 0 is one less than what it multiplies by
            beyond = 1 - fill if weights[name].role == "gain" and isinstance(fill, float) else 0
            state[name] = (beyond + state[name]) / times - beyond
        return state

    def _tables_of_heads(self) -> set[str]:
        """The tables by which heads read, tied ones among them."""
        each = self.old.tensors.items()
        return {name for path, (name, _) in each if path.startswith("heads.") and path.endswith(".table.weight")}

    def _before_tied(self, tied: set[str]) -> list[str]:
        """The gains and the shifts of the norms before tables that are the embedding's, too: these are read by their share."""
        found = dict[str, None]()
        for path, each in self.old.tensors.items():
            if each.name in tied and self.dims[each.name] and path.startswith("heads."):
                before = [
                    path.removesuffix("table.weight") + "transform.",
                    "stack.norm.",
                    r"stack\..*\.around\.norm_sum\.",
                ]
                norms = (self._last_gain(start) for start in before)
                norm = next(filter(None, norms), None)
                for own in (f"{norm}weight", f"{norm}bias"):
                    if own in self.old.tensors:
                        found[self.old.tensors[own].name] = None
        return list(found)

    def _last_gain(self, start: str) -> str | None:
        """The path of the last norm of the stream whose path begins like that."""
        gains = (path for path, each in self.old.tensors.items() if each.weight.role == "gain" and self.dims[each.name])
        last = [path for path in gains if re.match(start, path)][-1:]
        return last[0].removesuffix("weight") if last else None


def _shared_out(tensor: Tensor, dim: int, places: Tensor, times: Tensor, generator: torch.Generator) -> Tensor:
    """What reads features that stand several times: each by its share, and by noise that cancels among those alike."""
    shape = [-1 if i == dim else 1 for i in range(tensor.dim())]
    tensor = tensor / times.view(shape)
    noise = torch.randn(tensor.shape, generator=generator).movedim(dim, 0)
    sums = torch.zeros(int(places.max()) + 1, *noise.shape[1:]).index_add_(0, places, noise)
    noise = noise - sums[places] / times.view(-1, *[1] * (noise.dim() - 1))
    return tensor + NOISE * tensor.std() * noise.movedim(0, dim)
