"""Switch Transformer (base, 8 experts): T5 with every other layer sparse. Fedus et al. 2021, arXiv:2101.03961."""

from __future__ import annotations

from typing import Any

from anyformer.layers import FeedForwardSpec, FixedCapacity, MoESpec, ReLU, RouterSpec
from anyformer.spec import Count, MixerSpec, ModelSpec, Width
from tests.hard_cases.case import Case, of_transformers
from tests.hard_cases.t5 import t5


def switch() -> ModelSpec:
    """Return base-8; sizes: those of T5 base (section 3), and the released config."""
    router = RouterSpec(n_experts=Count(8), top_k=1)

    def feed(layer: int, d_ff: int) -> MixerSpec:
        expert = FeedForwardSpec(d_ff=Width(d_ff), activation=ReLU(), bias_in=False, bias_out=False)
        return MoESpec(router=router, expert=expert, capacity=FixedCapacity(tokens=64)) if layer % 2 else expert

    return t5(feed=feed)


def theirs() -> Any:
    """Return the model of transformers."""
    layers = {
        "num_layers": 12,
        "num_decoder_layers": 12,
        "num_sparse_encoder_layers": 6,
        "num_sparse_decoder_layers": 6,
    }
    sizes = {"num_experts": 8, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_heads": 12}
    names = "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig"
    return of_transformers(*names, **layers, **sizes)


CASE = Case("switch-base-8", switch, "619M", theirs)
