"""Switch Transformers: T5 whose every second feed-forward is one of many experts: Fedus et al. 2021, arXiv:2101.03961."""

from __future__ import annotations

from anyformer.families.preset import Preset
from anyformer.families.t5 import TOKENIZER, dense, t5
from anyformer.layers import ExpertSpec, FixedCapacity, MoESpec, RouterSpec
from anyformer.spec import Count, MixerSpec, ModelSpec

CAPACITY = 64  # tokens of a sequence that an expert takes, in the released configurations


def sparse(expert: ExpertSpec, n_experts: int, capacity: int = CAPACITY) -> MoESpec:
    """Return a mixture of which each token sees one expert, weighed with its probability (section 2.1)."""
    router = RouterSpec(n_experts=Count(n_experts), top_k=1)
    return MoESpec(router=router, expert=expert, capacity=FixedCapacity(tokens=capacity))


def switch(
    *, n_layers: int, d_model: int, n_heads: int, expert: ExpertSpec, n_experts: int, every: int = 2
) -> ModelSpec:
    """The model; of `every` layers in turn the second is sparse, of one each."""
    pattern: list[MixerSpec] = [expert] * every
    pattern[1 % every] = sparse(expert, n_experts)
    feeds = tuple(pattern[i % every] for i in range(n_layers))
    return t5(d_model=d_model, n_heads=n_heads, encoder=feeds, decoder=feeds)


SOURCE = "Fedus et al. 2021, arXiv:2101.03961, table 9; ReLU and widths of the released checkpoints"
BASE = {"n_layers": 12, "d_model": 768, "n_heads": 12, "expert": dense(3072)}
LARGE = {"n_layers": 24, "d_model": 1024, "n_heads": 16, "expert": dense(4096)}
C = {"n_layers": 15, "d_model": 2080, "n_heads": 32, "expert": dense(6144), "every": 1}
SIZES = (
    ("base-8", 8, BASE, "619M"),
    ("base-16", 16, BASE, None),
    ("base-32", 32, BASE, None),
    ("base-64", 64, BASE, None),
    ("base-128", 128, BASE, "7B"),
    ("base-256", 256, BASE, None),
    ("large-128", 128, LARGE, "26B"),
    ("c-2048", 2048, C, "1571B"),
)
PRESETS = tuple(
    Preset(f"switch-{name}", "switch", switch(**sizes, n_experts=n), SOURCE, published, None, TOKENIZER)  # type: ignore[arg-type]
    for name, n, sizes, published in SIZES
)
