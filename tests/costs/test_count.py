"""Parameters by part, against sizes worked out by hand."""

import pytest
import torch

import anyformer as af
from anyformer.families import preset
from anyformer.resizing import shrink
from anyformer.spec import parameters, parameters_by_part


def test_gpt2_by_part() -> None:
    """Radford et al. 2019: 12 layers of 768, tied tables; matrices and their biases."""
    d, n = 768, 12
    assert parameters_by_part(preset("gpt2").spec) == {
        "embedding": (50_257 + 1024) * d,
        "norms": (2 * n + 1) * 2 * d,
        "attention": n * 4 * (d * d + d),
        "feed-forward": n * (8 * d * d + 5 * d),
    }


def test_gpt_oss_by_part() -> None:
    """OpenAI 2025, arXiv:2508.10925, table 1, billions: MLP 114.71, attention 0.96, embedding and unembedding 1.16."""
    found = {name: round(n / 1e9, 2) for name, n in parameters_by_part(preset("gpt-oss-120b").spec).items()}
    assert found.pop("norms") == 0
    assert found == {"embedding": 0.58, "heads": 0.58, "attention": 0.96, "experts": 114.71}


def test_what_albert_shares_is_counted_once() -> None:
    """Lan et al. 2020, arXiv:1909.11942: one layer stands twelve times."""
    found, d = parameters_by_part(preset("albert-base").spec), 768
    assert found["attention"] == 4 * (d * d + d)
    assert found["feed-forward"] == 8 * d * d + 5 * d


@pytest.mark.parametrize(
    "name", ["deepseek-v3-mtp", "t5-base", "xlnet-base", "deberta-base", "mixtral-8x7b", "bart-base"]
)
def test_parts_sum_to_the_total(name: str) -> None:
    spec = preset(name).spec
    assert sum(parameters_by_part(spec).values()) == parameters(spec).total
    assert "other" not in parameters_by_part(spec)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tables_of_whole_numbers_take_their_own_bytes(dtype: str) -> None:
    """DeepSeek-V4's first layers choose experts by a table, which no dtype of the weights shrinks: what the tensors take."""
    spec = shrink(preset("deepseek-v4-flash").spec)
    model = af.build(spec, device="meta", dtype=getattr(torch, dtype))
    held = model.state_dict().values()
    assert any(not tensor.is_floating_point() for tensor in held)
    assert af.cost(spec, seq_len=8, dtype=dtype).weights_nbytes == sum(tensor.nbytes for tensor in held)
