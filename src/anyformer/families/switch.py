"""Switch Transformers: T5 whose every second feed-forward is one of many experts: Fedus et al. 2021, arXiv:2101.03961."""

from __future__ import annotations

from anyformer.families.lineage import Origin, Preset
from anyformer.families.t5 import TOKENIZER, dense, t5
from anyformer.layers import ExpertSpec, FixedCapacity, MoESpec, RouterSpec
from anyformer.spec import Count, MixerSpec, ModelSpec

CAPACITY = 64  # tokens of a sequence that an expert takes, in the released configurations


def sparse(expert: ExpertSpec, n_experts: int, capacity: int = CAPACITY) -> MoESpec:
    """A mixture of which each token sees one expert, weighed with its probability (section 2.1)."""
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


BASE = {"n_layers": 12, "d_model": 768, "n_heads": 12, "expert": dense(3072)}
LARGE = {"n_layers": 24, "d_model": 1024, "n_heads": 16, "expert": dense(4096)}
C = {"n_layers": 15, "d_model": 2080, "n_heads": 32, "expert": dense(6144), "every": 1}
SWITCH = Origin("switch", "t5", 2021, "arXiv:2101.03961, section 2").lineage(
    "experts for feed-forwards, one for a token; in every other layer of the base and the large",
    Preset("switch-base-8", switch(**BASE, n_experts=8), "619M", alias="switch"),
    Preset("switch-base-16", switch(**BASE, n_experts=16)),
    Preset("switch-base-32", switch(**BASE, n_experts=32)),
    Preset("switch-base-64", switch(**BASE, n_experts=64)),
    Preset("switch-base-128", switch(**BASE, n_experts=128), "7B"),
    Preset("switch-base-256", switch(**BASE, n_experts=256)),
    Preset("switch-large-128", switch(**LARGE, n_experts=128), "26B"),
    Preset("switch-c-2048", switch(**C, n_experts=2048), "1571B"),
    sizes="Fedus et al. 2021, arXiv:2101.03961, table 9; ReLU and widths of the released checkpoints",
    tokenizer=TOKENIZER,
    training={
        "source": "Fedus et al. 2021, arXiv:2101.03961, sections 2 and 5 (from memory)",
        "objective": "spans, 15 % of the tokens",
        "precision": "bfloat16, routers in float32",
        "auxiliary losses": "balance of the experts' load 0.01",
        "capacity": "1.25 times an even share in training; the preset has the released configurations' fixed one",
        "batch": "2^20 tokens",
        "corpus": "C4",
    },
)
