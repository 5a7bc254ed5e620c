"""The generator of an encoder: a narrower one that fills in hidden words. Clark et al. 2020, arXiv:2003.10555, section 3.2."""

from __future__ import annotations

from anyformer.families.electra import generator
from anyformer.layers import LinearSpec
from anyformer.resizing import cut
from anyformer.spec import ModelSpec, Sizes, Spec, Width


class Narrower(Sizes):
    """A share of each width and of the depth; heads stay as wide as they are, and are fewer (table 6)."""

    def __init__(self, old: ModelSpec, width: float, depth: float) -> None:
        self.share, self.depth = width, depth
        self.old_width, self.d_model = old.stack.d_model, self.width(old.stack.d_model)

    def width(self, old: int) -> int:
        return old if self.share == 1 else max(8, 8 * round(old * self.share / 8))

    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int | None) -> tuple[int, int, int | None]:
        if self.share == 1:
            return n_heads, n_kv_heads, head_dim
        ideal = self.d_model / (self.old_width / n_heads) if head_dim is None else n_heads * self.share
        counts = range(1, n_heads + 1)
        fitting = [n for n in counts if head_dim is not None or self.d_model % (2 * n) == 0]
        heads = min(fitting, key=lambda n: abs(n - ideal))
        groups = [n for n in range(1, heads + 1) if heads % n == 0]
        return heads, min(groups, key=lambda n: abs(n / heads - n_kv_heads / n_heads)), head_dim

    def layers(self, blocks: tuple[Spec, ...]) -> tuple[Spec, ...]:
        return cut(blocks, max(1, round(len(blocks) * self.depth)))


def generator_for(model: ModelSpec, width: float, depth: float = 1.0) -> ModelSpec:
    """The generator of an encoder: a share of its width and depth, the same embedding, projected (section 3.2).

    Raises SpecError for an encoder whose embedding makes no head for masked words.
    """
    smaller = model.but(heads=()).resized(Narrower(model, width, depth))
    stack, embedding = smaller.stack, model.stack.embedding
    e = embedding.width or model.stack.d_model
    if e == stack.d_model:
        embedding = embedding.but(width=None, projection=None)
    else:
        embedding = embedding.but(width=Width(e), projection=embedding.projection or LinearSpec(bias=True))
    return generator(smaller.but(stack=stack.but(embedding=embedding)))
