"""A.X-K1, DeepSeek-V3 with a norm behind its experts: SK Telecom 2026."""

from __future__ import annotations

from anyformer.families.compose import edited
from anyformer.families.deepseek import V3_ROUTER, deepseek
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import ByRole, MoESpec, RouterSpec
from anyformer.spec import BranchSpec, Count, ModelSpec


def normed_experts(model: ModelSpec) -> ModelSpec:
    """The model with a norm, as that of its stack, of what mixtures write, the shared expert's too."""
    norm = model.stack.norm
    behind = lambda branch: branch.but(norm_out=norm) if isinstance(branch.mixer, MoESpec) else branch  # noqa: E731
    return edited(model, BranchSpec, behind)


def axk1(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1) -> ModelSpec:
    """DeepSeek-V3 whose positions are not stretched, with 64 heads in the largest, and that norm (transformers' class)."""
    model = deepseek(
        *sizes, d_expert=d_expert, router=choice, n_dense=n_dense, vocab_size=163_840, context=32_768, init=ByRole()
    )
    return normed_experts(model)


AXK1 = Origin("axk1", "deepseek-v3", 2026, "transformers' class of A.X-K1").lineage(
    "a norm behind the experts, 192 of them, one dense layer",
    Preset(
        "a.x-k1",
        axk1(61, 7168, 64, 18_432, d_expert=2048, choice=V3_ROUTER.but(n_experts=Count(192))),
        "519B",
        alias="axk1",
    ),
    sizes="SK Telecom 2026, the sizes of transformers' class (total from memory); active parameters: 33B",
    tokenizer="byte-level BPE, 163,840",
)
