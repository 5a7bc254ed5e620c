"""What runs is counted, what does not is not: shared layers at each call, further tokens in training, no cache of encoders."""

from __future__ import annotations

from typing import Any

import pytest

from anyformer.costs import cost
from anyformer.costs.hardware.plan import hardware, plan
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.spec import PartSpec, Spec


def unshared(value: Any) -> Any:
    """The same value, every part its own."""
    if isinstance(value, tuple):
        return tuple(unshared(item) for item in value)
    if not isinstance(value, Spec):
        return value
    own: dict[str, Any] = {name: unshared(inner) for name, inner in value.values().items()}
    return value.but(**own | ({"shared": None} if isinstance(value, PartSpec) else {}))


@pytest.mark.parametrize("convention", ["palm-mfu", "6nd", "exact-causal"])
def test_shared_layers_cost_what_they_run(convention: str) -> None:
    """ALBERT's twelve calls of one layer: Lan et al. 2020, arXiv:1909.11942, section 3.1."""
    spec = preset("albert-base").spec
    apart = spec.but(stack=spec.stack.but(blocks=unshared(spec.stack.blocks)))
    once, each = (cost(s, seq_len=512, convention=convention) for s in (spec, apart))
    assert each.parameters.total > 6 * once.parameters.total
    assert once.training_flops == each.training_flops
    # 12 · (12 d² of matrices), the head's 30,000 · 128, and the least of the rest; 12LHQT beside it.
    matrices = 12 * 12 * 768**2 + 30_000 * 128 + 2 * 768 * 128
    pairs = 12 * 12 * 768 * 512 if convention != "6nd" else 0
    assert once.training_flops_per_token == pytest.approx(6 * matrices + pairs, rel=0.02)


def test_training_predicts_further_tokens_and_inference_does_not() -> None:
    """DeepSeek-V3, arXiv:2412.19437, section 2.2: one module of two projections, a layer of 256 experts, the head again."""
    n, d, heads = 4096, 7168, 128
    mla = d * 1536 + 1536 * heads * 192 + d * 576 + 512 * heads * 256 + heads * 128 * d
    moe = d * 256 + 9 * 3 * d * 2048
    each = 2 * (2 * d * d + mla + moe + 129_280 * d)
    pairs = 2 * heads * (192 + 128) * (n - 1) * n // 2
    plain, more = (cost(preset(name).spec, seq_len=n) for name in ("deepseek-v3", "deepseek-v3-mtp"))
    assert more.forward_flops == plain.forward_flops
    assert more.decode_flops == plain.decode_flops
    assert more.training_flops_total - plain.training_flops_total == 3 * ((n - 1) * each + pairs)
    assert more.training_flops["multi-token prediction"] == 3 * ((n - 1) * each + pairs)
    planned = plan(preset("deepseek-v3-mtp").spec, hardware("2048xH800"), seq_len=n)
    assert planned.training_flops_per_token == more.training_flops_per_token
    n_params = more.parameters.active - plain.parameters.active
    six = [cost(preset(name).spec, seq_len=n, convention="6nd") for name in ("deepseek-v3", "deepseek-v3-mtp")]
    assert six[1].training_flops_total - six[0].training_flops_total == 6 * n * (n_params + 129_280 * d)


@pytest.mark.parametrize("name", ["bert-base", "longformer-base-4096", "bigbird-base", "xlnet-base"])
def test_what_sees_later_tokens_has_no_cache_and_decodes_nothing(name: str) -> None:
    report = cost(preset(name).spec, seq_len=512)
    assert (report.cache, report.cache_nbytes, report.decode_flops_per_token) == ((), 0, 0)


@pytest.mark.parametrize(
    ("name", "source_len", "says"),
    [
        ("gpt2", 5, "source_len = 5 is an encoder's, and this model has none"),
        ("t5-base", 0, "source_len = 0 must be at least 1"),
        ("bart-base", 2000, "source_len = 2,000 goes beyond the 1,024 learned positions"),
    ],
)
def test_a_source_that_cannot_be_is_refused(name: str, source_len: int, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        cost(preset(name).spec, seq_len=64, source_len=source_len)


@pytest.mark.parametrize(
    ("name", "n"), [("reformer-crime-and-punishment", 512 * 1024), ("sparse-transformer-enwik8", 12_288)]
)
def test_positions_of_a_table_a_digit_end_too(name: str, n: int) -> None:
    with pytest.raises(SpecError, match=f"seq_len = {n + 1:,} goes beyond the {n:,} learned positions"):
        cost(preset(name).spec, seq_len=n + 1)


@pytest.mark.parametrize("option", ["dtype", "precision", "recompute", "convention"])
def test_a_word_that_is_not_known_is_refused(option: str) -> None:
    with pytest.raises(SpecError, match=f"{option} = 'selectiv' is unknown.*; there are"):
        cost(preset("gpt2").spec, **{option: "selectiv"})  # type: ignore[arg-type]
