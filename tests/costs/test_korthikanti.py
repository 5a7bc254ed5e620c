"""A layer's activation bytes as Korthikanti et al. 2022, arXiv:2205.05198, derive them, and ours: each difference is named."""

from __future__ import annotations

import pytest

from anyformer.costs.activations import activations
from anyformer.families.gpt2 import gpt2
from anyformer.recipe import DropoutSpec

SEQ_LEN, ROWS = 512, 2


def korthikanti(s: int, b: int, h: int, a: int, *, selective: bool) -> int:
    """Bytes of one layer, section 4: activations of 16 bits, d_ff = 4h, GELU, dropout after both branches and of the scores.

    Attention 11sbh + 5as²b (its input 2, queries and keys 4, values 2, its result 2, a mask 1), feed-forward 19sbh (its
    input 2, GELU's input 8 and result 8, a mask 1), two norms' inputs 4. Selective recomputation keeps no scores.
    """
    return 34 * s * b * h + (0 if selective else 5 * a * s**2 * b)


def test_the_papers_figures() -> None:
    """Section 5: of GPT-3's 34 + 5as/h bytes a number, selective recomputation saves 70 %; of MT-NLG's, 65 %."""
    for h, a, saved in ((12_288, 96, 70), (20_480, 128, 65)):
        whole = korthikanti(2048, 1, h, a, selective=False)
        assert round(100 * (1 - korthikanti(2048, 1, h, a, selective=True) / whole)) == saved


@pytest.mark.parametrize(("h", "a"), [(512, 8), (1024, 16), (1024, 8)])
def test_ours(h: int, a: int) -> None:
    """What a layer of GPT-2 adds on a GPU, whose fused attention keeps no scores, is the paper's, but for five things."""

    def kept(n_layers: int) -> int:
        model = gpt2(n_layers, h, a, context=SEQ_LEN)
        seen = activations(model, batch=ROWS, seq_len=SEQ_LEN, dropout=DropoutSpec(residual=0.1)).saved
        return sum(nbytes for part, nbytes in seen.items() if part != "weights in bf16")

    tokens = SEQ_LEN * ROWS
    paper = korthikanti(SEQ_LEN, ROWS, h, a, selective=True)
    paper -= 8 * tokens * h  # GELU's result: made again from its input
    paper -= 4 * tokens * h  # the inputs of both maps that follow a norm: made again from the norm's input
    paper += 4 * tokens * h  # the stream, which both norms read, is float32
    statistics = tokens * (4 * a + 2 * 2 * 4)  # a logarithm of a sum a head, a mean and a root a norm: not in the paper
    copies = 2 * 2 * 4 * h  # both norms' weight and bias, of their own
    assert kept(3) - kept(2) == paper + statistics + copies
