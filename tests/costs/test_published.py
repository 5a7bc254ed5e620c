"""Figures that papers print come out under the convention that each paper uses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from anyformer.cli.cost import CONVENTIONS as OFFERED
from anyformer.costs import CONVENTIONS, active_parameters, cost, state_nbytes
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.gpt2 import gpt2
from anyformer.families.olmo import olmo
from anyformer.layers import FeedForwardSpec, GainSpec, GatedFeedForwardSpec, LayerNormSpec
from anyformer.spec import BranchSpec, Count, ModelSpec, StackSpec, SublayerSpec, Width, Workload, parameters
from anyformer.training.run.evaluation import DocumentLoss, Evaluation
from tests.costs.opt_table import CORRECT, PRINTED, ROWS, cells, table


@pytest.mark.parametrize("row", ROWS)
def test_all_cells_of_the_opt_table(row: str) -> None:
    flops, shares = cells(row, "opt-table")
    printed_flops, *printed = PRINTED[row]
    assert float(f"{flops:.1e}") == printed_flops
    for share, cell in zip(shares.values(), printed, strict=True):
        digits = len(cell.partition(".")[2])
        assert f"{share:.{digits}f}" == cell, (row, shares)


@pytest.mark.parametrize("row", ROWS)
def test_the_correct_shares(row: str) -> None:
    flops, shares = cells(row, "megatron")
    wanted_flops, *wanted = CORRECT[row]
    assert float(f"{flops:.2e}") == wanted_flops
    found = (shares["projections"], shares["feed-forward"], shares["scores"] + shares["values"], shares["logits"])
    assert tuple(round(share, 1) for share in found) == tuple(wanted)


def test_olmo_1b() -> None:
    """Groeneveld et al. 2024, arXiv:2402.00838; July 2024 unties the tables. One table is the printed 103M."""
    layer = 4 * 2048**2 + 3 * 2048 * 8192
    assert parameters(olmo(16, 2048, 16, 8192, context=4096)).total == 2 * 103_022_592 + 16 * layer == 1_279_787_008
    assert parameters(preset("olmo-1b").spec).total == 103_022_592 + 16 * layer == 1_176_764_416


# Brown et al. 2020, arXiv:2005.14165, table D.1, millions; figures are rounded to three or four digits.
GPT3 = {"125m": 125, "350m": 356, "760m": 760, "1.3b": 1320, "2.7b": 2650, "6.7b": 6660, "13b": 12_850, "175b": 174_600}


@pytest.mark.parametrize("size", GPT3)
def test_gpt3(size: str) -> None:
    step = 1 if GPT3[size] < 1000 else 10 if GPT3[size] < 100_000 else 100
    assert abs(parameters(preset(f"gpt3-{size}").spec).total / 1e6 - GPT3[size]) <= step / 2


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("t5-base", 222_903_552),  # Narang's 223M
        ("t5-large", 737_668_096),  # printed 770M
        ("switch-base-128", 7_415_000_000),  # Fedus et al. 2021, arXiv:2101.03961: 7.4B
        ("chinchilla-70b", 70_060_000_000),  # 13d²L + Vd: arXiv:2203.15556's positions are Transformer-XL's
        ("gopher-280b", 279_700_000_000),
        ("gopher-7.1b", 7_110_000_000),
        ("gopher-1.4b", 1_370_000_000),
        ("gopher-417m", 417_000_000),
        ("gopher-117m", 117_000_000),
        ("gopher-44m", 43_700_000),
        # Printed 340M: 335,141,888 with its pooler, and the heads that were trained with it (transform, norm, biases).
        ("bert-large", 335_141_888 + (1024**2 + 3 * 1024 + 30_522) + (2 * 1024 + 2)),
    ],
)
def test_totals(name: str, total: int) -> None:
    zeros = len(str(total)) - len(str(total).rstrip("0"))
    assert round(parameters(preset(name).spec).total, -zeros) == total


@pytest.mark.parametrize(("name", "printed"), [("palm-8b", 8.63), ("palm-62b", 62.50), ("palm-540b", 540.35)])
def test_palm_prints_products_and_one_table_without_norms(name: str, printed: float) -> None:
    """Chowdhery et al. 2022, table 1: L(2dHq + 2dq + 12d²) + Vd."""
    spec = preset(name).spec
    norms = (spec.n_layers + 1) * spec.stack.d_model
    assert f"{(parameters(spec).total - norms) / 1e9:.2f}" == f"{printed:.2f}"


def test_palm_mfu_is_6n_and_12lhqt() -> None:
    spec, seq_len = preset("palm-540b").spec, 2048
    found = sum(CONVENTIONS["palm-mfu"].training(spec, Workload(1, seq_len)).values()) / seq_len
    n = parameters(spec).total
    assert found == 6 * n + 12 * 118 * 48 * 256 * seq_len


# Brown et al. 2020, arXiv:2005.14165, table D.1: FLOPs of training on 300 billion tokens, 6 a parameter and token.
@pytest.mark.parametrize(
    ("size", "flops"),
    [("125m", 2.25e20), ("350m", 6.41e20), ("760m", 1.37e21), ("13b", 2.31e22), ("175b", 3.14e23)],
)
def test_6nd_of_gpt3(size: str, flops: float) -> None:
    report = cost(preset(f"gpt3-{size}").spec, convention="6nd", recompute="full")
    assert float(f"{report.training_flops_per_token * 300e9:.2e}") == flops


def test_6nd_of_llama3() -> None:
    """Grattafiori et al. 2024, arXiv:2407.21783, section 3.2.1: 3.8e25 FLOPs for 15.6 trillion tokens; both tables are in N."""
    per_token = cost(preset("llama3.1-405b").spec, convention="6nd").training_flops_per_token
    assert f"{per_token * 15.6e12:.1e}" == "3.8e+25"
    assert per_token == 6 * parameters(preset("llama3.1-405b").spec).total


# DeepSeek-AI 2025, arXiv:2505.09343, table 2: GFLOPs of training a token, sequences of 4,096.
@pytest.mark.parametrize(("name", "printed"), [("deepseek-v2", 155), ("deepseek-v3", 250)])
def test_causal_half_of_deepseek(name: str, printed: int) -> None:
    half, every = (
        cost(preset(name).spec, seq_len=4096, convention=convention).training_flops_per_token / 1e9
        for convention in ("causal-half", "full-attention")
    )
    assert round(half) == printed < round(every)


def test_causal_half_is_what_flash_attention_counts() -> None:
    """Dao 2023, arXiv:2307.08691, section 4.1: 4 · seqlen² · head_dim · heads, halved with a causal mask."""
    n, layer = 1024, 4 * 1024**2 * 64 * 12

    def pairs(name: str, convention: str = "causal-half") -> int:
        flops = cost(preset(name).spec, seq_len=n, source_len=256 if name == "t5-base" else None, convention=convention)
        return flops.forward_flops["scores"] + flops.forward_flops["values"]

    assert pairs("gpt2") == 12 * layer // 2
    assert pairs("longformer-base-4096", "full-attention") == pairs("longformer-base-4096")
    # T5: the encoder sees all of its 256 tokens, the decoder half of its own pairs and all of the encoder's.
    assert pairs("t5-base") == 12 * (layer // 16 + layer // 2 + layer // 4)


@pytest.mark.parametrize(
    ("name", "convention", "printed", "digits"),
    [
        ("mixtral-8x7b", "all", 12.9, 1),  # Jiang et al. 2024, arXiv:2401.04088
        ("deepseek-v2", "all", 21, 0),  # arXiv:2405.04434
        ("deepseek-v3", "without the input table", 37, 0),  # arXiv:2412.19437
        ("gpt-oss-20b", "without the input table", 3.61, 2),  # OpenAI 2025, arXiv:2508.10925, table 1
        ("gpt-oss-120b", "without the input table", 5.13, 2),
        ("deepseek-v2-lite", "without the input table", 2.451, 3),  # printed 2.4B, truncated
    ],
)
def test_active_parameters(name: str, convention: str, printed: float, digits: int) -> None:
    assert round(active_parameters(preset(name).spec)[convention] / 1e9, digits) == printed


@pytest.mark.parametrize(("name", "total"), [("gpt2", 124_439_808), ("gemma-2b", 2_506_172_416)])
def test_a_tied_table_is_the_heads_too(name: str, total: int) -> None:
    found = active_parameters(preset(name).spec)
    assert found["without the input table"] == found["all"] == total
    assert found["without tables"] < total


def test_deepseek_totals() -> None:
    """The checkpoint also holds 58 · 256 biases of routers, which no gradient trains."""
    count = parameters(preset("deepseek-v3").spec)
    assert (count.total, count.frozen) == (671_026_404_352, 58 * 256)


def test_kv_cache_of_deepseek_v2() -> None:
    """arXiv:2405.04434, table 1: 9/2 · head_dim · layers, as GQA of 2.25 groups; 93.3 % less than the 67B model's cache.

    The 93.3 % is of 6 bits a number (section 3.2.3) against bfloat16; in bfloat16 it is 82.2 %.
    """
    v2, dense = (cost(preset(name).spec, seq_len=1).cache_nbytes // 2 for name in ("deepseek-v2", "deepseek-67b"))
    assert v2 == 9 / 2 * 128 * 60 == 2 * 2.25 * 128 * 60
    assert round(100 * (1 - v2 * 6 / (dense * 16)), 1) == 93.3
    assert round(100 * (1 - v2 / dense), 1) == 82.2
    assert (v2 * 2 / 1024, dense * 2 / 1024) == (67.5, 380)


# DeepSeek-AI 2025, arXiv:2505.09343, table 1: kB (1,000 bytes) a token in bfloat16.
@pytest.mark.parametrize(
    ("name", "kb"), [("deepseek-v3", 70.272), ("qwen2.5-72b", 327.680), ("llama3.1-405b", 516.096)]
)
def test_kv_cache_a_token(name: str, kb: float) -> None:
    assert cost(preset(name).spec, seq_len=1).cache_nbytes == kb * 1000


# Narang et al. 2021, arXiv:2102.11972, tables 1 and 2: 128 sequences of 512 tokens and 114 of targets.
BATCH = Workload(batch=128, query=114, memory=512)


def test_narang_baseline() -> None:
    spec = preset("t5-base").spec
    assert round(parameters(spec).total / 1e6) == 223
    macs = CONVENTIONS["narang-macs"].forward(spec, BATCH)
    assert round(sum(macs.values()) / 1e12, 1) == 11.1
    assert round(macs["embeddings"] / 1e12, 3) == 1.977
    report = cost(spec, batch=128, seq_len=114, source_len=512, convention="narang-macs")
    assert report.forward_flops == macs
    assert (report.source_len, report.as_json()["source_len"]) == (512, 512)
    assert {kind.kind: kind.nbytes for kind in report.cache} == {
        "full": 12 * 2 * 768 * 2 * 114 * 128,
        "memory": 12 * 2 * 768 * 2 * 512 * 128,
    }
    assert (report.activation_nbytes or 0) < (cost(spec, batch=128, seq_len=512).activation_nbytes or 0)


def rewritten(spec: ModelSpec, branch: Any) -> ModelSpec:
    def stack(old: StackSpec) -> StackSpec:
        def sublayer(s: SublayerSpec) -> SublayerSpec:
            norm, branches = s.norm_in, s.branches
            return s.but(norm_in=None, branches=tuple(branch(b.but(norm_in=b.norm_in or norm)) for b in branches))

        blocks = (b.but(sublayers=tuple(sublayer(s) for s in b.sublayers)) for b in old.blocks)
        return old.but(blocks=tuple(blocks))

    return spec.but(stack=stack(spec.stack), encoder=spec.encoder and stack(spec.encoder))


def gated(b: BranchSpec) -> BranchSpec:
    if not isinstance(b.mixer, FeedForwardSpec):
        return b
    return b.but(mixer=GatedFeedForwardSpec(d_ff=Width(2048), activation=b.mixer.activation))


@pytest.mark.parametrize(
    ("row", "branch", "millions"),
    [
        ("GLU", gated, 223),
        ("ReZero", lambda b: b.but(norm_in=None, norm_out=GainSpec(start=0.0)), 223),
        ("ReZero + LayerNorm", lambda b: b.but(norm_in=LayerNormSpec(), norm_out=GainSpec(start=0.0)), 223),
        ("ReZero + RMSNorm", lambda b: b.but(norm_out=GainSpec(start=0.0)), 223),
    ],
)
def test_narang_rows(row: str, branch: Any, millions: int) -> None:
    spec = rewritten(preset("t5-base").spec, branch)
    assert spec != preset("t5-base").spec
    assert round(parameters(spec).total / 1e6) == millions
    assert round(sum(CONVENTIONS["narang-macs"].forward(spec, BATCH).values()) / 1e12, 1) == 11.1


# Hoffmann et al. 2022, arXiv:2203.15556, table A4: layers, d_model, d_ff, heads, head_dim; ratio of the formula to 6ND.
A4 = {
    "73M": (10, 640, 2560, 10, 64, 1.03),
    "305M": (20, 1024, 4096, 16, 64, 1.10),
    "552M": (24, 1280, 5120, 10, 128, 1.08),
    "1.1B": (26, 1792, 7168, 14, 128, 1.04),
    "1.6B": (28, 2048, 8192, 16, 128, 1.03),
    "6.8B": (40, 3584, 14_336, 28, 128, 0.99),
}


@pytest.mark.parametrize("row", A4)
def test_chinchilla_ratios(row: str) -> None:
    n_layers, d_model, d_ff, n_heads, head_dim, ratio = A4[row]
    spec = gpt2(n_layers=n_layers, d_model=d_model, n_heads=n_heads)
    change = {"d_ff": Width(d_ff)}

    def sized(b: BranchSpec) -> BranchSpec:
        if isinstance(b.mixer, FeedForwardSpec):
            return b.but(mixer=b.mixer.but(**change))
        mixer: Any = b.mixer
        return b.but(mixer=mixer.but(projection=mixer.projection.but(n_heads=Count(n_heads), head_dim=Width(head_dim))))

    flops = sum(CONVENTIONS["chinchilla"].training(rewritten(spec, sized), Workload(1, 2048)).values())
    n_params = 13 * d_model**2 * n_layers + 32_000 * d_model  # Transformer-XL's positions are a thirteenth d²
    assert flops / (6 * n_params * 2048) == pytest.approx(ratio, abs=0.0075)


@pytest.mark.parametrize("name", ["gpt3-175b", "gpt2-xl"])
def test_megatron_formulas(name: str) -> None:
    """Narayanan et al. 2021, arXiv:2104.04473, equations 2 and 3: P and F."""
    spec = preset(name).spec
    n_layers, h, vocab, s, batch = spec.n_layers, spec.stack.d_model, spec.vocab_size, spec.context or 0, 4
    p = 12 * n_layers * h**2 * (1 + 13 / (12 * h) + (vocab + s) / (12 * n_layers * h))
    assert parameters(spec).total == pytest.approx(p + 2 * h, abs=1)  # and the final norm, which the formula leaves out
    f = 96 * batch * s * n_layers * h**2 * (1 + s / (6 * h) + vocab / (16 * n_layers * h))
    assert sum(CONVENTIONS["megatron"].training(spec, Workload(batch, s)).values()) == pytest.approx(f, rel=1e-12)


def test_ivanov() -> None:
    """Ivanov et al. 2020, arXiv:2007.00072: attention of BERT-large forward, batch 8, length 512: 43 GFLOP, 153 a word moved."""
    spec = preset("bert-large").spec
    forward = cost(spec, seq_len=512, batch=8).forward_flops
    flops = sum(forward[part] for part in ("projections", "scores", "values")) / spec.n_layers
    assert round(flops / 1e9) == 43
    # Numbers read and written unfused: products of q, k, v together; their bias; scores; scaling, softmax and dropout, one
    # read and three writes; values; the product with the output's matrix; its bias (figure 1).
    d, x, scores = 1024, 8 * 512 * 1024, 8 * 16 * 512**2
    products, bias = x + 3 * d**2 + 3 * x, 3 * x + 3 * d + 3 * x
    attention = (2 * x + scores) + (scores + 3 * scores) + (scores + x + x)
    words = products + bias + attention + (x + d**2 + x) + (x + d + x)
    assert round(flops / words) == 153


def test_perplexity_is_2_to_the_bits_and_e_to_the_nats() -> None:
    evaluation = Evaluation((DocumentLoss(nats=300.0, tokens=100, nbytes=400),))
    bits_per_token = evaluation.bits_per_byte * 400 / 100
    assert evaluation.perplexity == pytest.approx(math.exp(3.0)) == pytest.approx(2**bits_per_token)


@pytest.mark.parametrize(
    ("name", "convention", "has"),
    [
        ("t5-base", "palm-mfu", "an encoder and a decoder"),
        ("t5-base", "6nd", "an encoder and a decoder"),
        ("llama3-8b", "megatron", "GatedFeedForward"),
        ("mixtral-8x7b", "chinchilla", "MoE"),
        ("deepseek-v3", "opt-table", "layers with|MLA"),
    ],
)
def test_a_formula_for_other_models_is_refused(name: str, convention: str, has: str) -> None:
    with pytest.raises(SpecError, match=has):
        cost(preset(name).spec, seq_len=128, convention=convention)


def test_kv_heads_never_make_scores_cheaper() -> None:
    """And heads are of their own width: Gemma's 16 · 256 features at d_model 3,072 cost what they are."""
    grouped = cost(preset("llama3-70b").spec, seq_len=64).forward_flops
    assert grouped["scores"] == 2 * 64 * 128 * 80 * (64 * 65 // 2)
    gemma = cost(preset("gemma-7b").spec, seq_len=64).forward_flops
    assert gemma["scores"] == 2 * 16 * 256 * 28 * (64 * 65 // 2)


def test_the_page_shows_both_tables() -> None:
    page = Path(__file__).parents[2] / "docs" / "cost.md"
    assert table() in page.read_text(encoding="utf-8"), "its rows are those of tests.costs.opt_table.table()"


def test_the_command_offers_every_convention() -> None:
    assert tuple(CONVENTIONS) == OFFERED


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero(stage: int, gigabytes: float) -> None:
    """Rajbhandari et al. 2019, arXiv:1910.02054, figure 1: 7.5B parameters on 64 devices, 16 bytes a parameter."""
    state = state_nbytes(7_500_000_000, precision="mixed", shards=64, stage=stage)
    assert round(state.total / 1e9, 1) == gigabytes


def test_the_distributed_optimizer_of_megatron() -> None:
    """18 bytes a parameter, gradients in float32; 6 + 12 / dp with the optimiser sharded."""
    n = 8_000_000
    assert state_nbytes(n, precision="mixed-main-grads").total == 18 * n
    assert state_nbytes(n, precision="mixed-main-grads", shards=8, stage=1).total == 6 * n + 12 * n // 8
    with pytest.raises(SpecError, match="did you mean 'mixed'"):
        state_nbytes(n, precision="mixd")
