"""Published recipes: the learning rate at steps that papers name, tokens as steps of batches, sizes of batches."""

from __future__ import annotations

import math

import pytest

from anyformer import recipe
from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.recipe import RECIPES, Adam, AdamW, Recipe, SequenceBalance

B, T = 10**9, 10**12


def rate(name: str, *, step: int | None = None, tokens: float | None = None) -> float:
    """The learning rate at a step, or at the step where so many tokens have been seen."""
    made = RECIPES[name]
    width = PRESETS[name].spec.stack.d_model if name in PRESETS else 512
    return made.learning_rates(width)(step or round((tokens or 0) / made.batch_tokens))


PUBLISHED = [name for name in RECIPES if name in PRESETS]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_recipe_of_its_name(name: str) -> None:
    made = RECIPES[name]
    assert PRESETS[name].recipe == made == recipe.named(name)
    assert recipe.loads(recipe.dumps(made)) == made
    assert 0 <= made.steps * made.batch_tokens - made.tokens < made.batch_tokens
    context = PRESETS[name].spec.context
    assert context is not None
    assert made.seq_len <= context
    rates = made.learning_rates(PRESETS[name].spec.stack.d_model)
    sampled = [rates(max(1, made.steps * i // 200)) for i in range(1, 201)]
    assert max(sampled) <= rates.peak * (1 + 1e-12)
    assert all(value > 0 for value in sampled[:-1])
    facts = PRESETS[name].training
    assert name == "olmo-1b-0724" or (facts is not None and facts["source"])


# arXiv:2005.14165, table 2.1: learning rate and batch as printed.
GPT3 = {
    "125m": (6.0e-4, 0.5),
    "350m": (3.0e-4, 0.5),
    "760m": (2.5e-4, 0.5),
    "1.3b": (2.0e-4, 1),
    "2.7b": (1.6e-4, 1),
    "6.7b": (1.2e-4, 2),
    "13b": (1.0e-4, 2),
    "175b": (0.6e-4, 3.2),
}


@pytest.mark.parametrize("size", GPT3)
def test_gpt3(size: str) -> None:
    name, (peak, batch) = f"gpt3-{size}", GPT3[size]
    made = RECIPES[name]
    assert made.batch_tokens / 1e6 == pytest.approx(batch, rel=0.05)
    assert made.tokens == 300 * B
    assert rate(name, tokens=375e6) == pytest.approx(peak, rel=1e-9)
    assert rate(name, tokens=187.5e6) == pytest.approx(peak / 2, rel=0.01)
    middle = 375e6 + (260e9 - 375e6) / 2
    assert rate(name, tokens=middle) == pytest.approx(0.55 * peak, rel=1e-3)
    for tokens in (260.1e9, 280e9, 299e9):
        assert rate(name, tokens=tokens) == pytest.approx(peak / 10, rel=1e-6)
    assert isinstance(made.optimizer, AdamW)
    assert (made.optimizer.beta1, made.optimizer.beta2, made.optimizer.eps) == (0.9, 0.95, 1e-8)
    assert (made.optimizer.weight_decay, made.clip) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("name", "peak", "tokens"),
    [
        ("llama-7b", 3e-4, 1 * T),
        ("llama-13b", 3e-4, 1 * T),
        ("llama-33b", 1.5e-4, 1.4 * T),
        ("llama-65b", 1.5e-4, 1.4 * T),
        ("llama2-7b", 3e-4, 2 * T),
        ("llama2-13b", 3e-4, 2 * T),
        ("llama2-70b", 1.5e-4, 2 * T),
    ],
)
def test_llama(name: str, peak: float, tokens: float) -> None:
    made = RECIPES[name]
    assert made.tokens == tokens
    assert rate(name, step=2000) == pytest.approx(peak)
    assert rate(name, step=1000) == pytest.approx(peak / 2)
    assert rate(name, step=made.steps) == pytest.approx(peak / 10)
    assert made.batch_tokens / 1e6 == pytest.approx(4, rel=0.05)
    assert isinstance(made.optimizer, AdamW)
    assert (made.optimizer.beta1, made.optimizer.beta2, made.optimizer.weight_decay) == (0.9, 0.95, 0.1)
    assert made.optimizer.eps == (1e-5 if name.startswith("llama2") else 1e-8)


def test_llama_3_405b() -> None:
    name = "llama3.1-405b"
    assert rate(name, step=8000) == pytest.approx(8e-5)
    assert rate(name, step=RECIPES[name].steps) == pytest.approx(8e-7)
    assert RECIPES[name].tokens == 15.6 * T


def test_deepseek_v3() -> None:
    name, made = "deepseek-v3", RECIPES["deepseek-v3"]
    assert rate(name, step=2000) == pytest.approx(2.2e-4)
    assert rate(name, tokens=9.99 * T) == pytest.approx(2.2e-4)
    assert rate(name, tokens=10 * T + 4.3 * T / 2) == pytest.approx((2.2e-4 + 2.2e-5) / 2, rel=1e-3)
    for tokens in (14.301 * T, 14.5 * T, 14.63 * T):
        assert rate(name, tokens=tokens) == pytest.approx(2.2e-5, rel=1e-4)
    for tokens in (14.634 * T, 14.8 * T):
        assert rate(name, tokens=tokens) == pytest.approx(7.3e-6)
    assert made.tokens == 10 * T + 4.3 * T + 333 * B + 167 * B
    assert (made.batch_tokens, made.seq_len) == (15_360 * 4096, 4096)
    assert made.router.correction_speed == 0.001
    assert made.router.losses == (SequenceBalance(weight=1e-4),)


@pytest.mark.parametrize(
    ("name", "peak", "tokens", "first", "least"),
    [
        ("deepseek-7b", 4.2e-4, 2 * T, 0.8, 0.1),
        ("deepseek-67b", 3.2e-4, 2 * T, 0.8, 0.1),
        ("deepseek-v2", 2.4e-4, 8.1 * T, 0.6, 0.316**2),
        ("deepseek-v2-lite", 4.2e-4, 5.7 * T, 0.8, 0.316**2),
    ],
)
def test_deepseek_goes_down_in_steps(name: str, peak: float, tokens: float, first: float, least: float) -> None:
    assert RECIPES[name].tokens == tokens
    for share, factor in ((first - 0.01, 1), (first + 0.01, 0.316), (0.89, 0.316), (0.91, least), (1, least)):
        assert rate(name, tokens=share * tokens) == pytest.approx(factor * peak)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("pythia-70m", 1e-3),
        ("pythia-160m", 6e-4),
        ("pythia-410m", 3e-4),
        ("pythia-1b", 3e-4),
        ("pythia-1.4b", 2e-4),
        ("pythia-2.8b", 1.6e-4),
        ("pythia-6.9b", 1.2e-4),
        ("pythia-12b", 1.2e-4),
    ],
)
def test_pythia(name: str, peak: float) -> None:
    made = RECIPES[name]
    assert made.steps == 143_000
    assert made.tokens == 299_892_736_000  # as the paper prints
    assert rate(name, step=1430) == pytest.approx(peak)
    assert rate(name, step=143_000) == pytest.approx(peak / 10)


def test_gpt_neox() -> None:
    made = RECIPES["gpt-neox-20b"]
    assert made.steps == 150_000
    assert made.batch_tokens / 1e6 == pytest.approx(3.15, abs=0.005)
    assert rate("gpt-neox-20b", step=150_000) == pytest.approx(0.97e-5)


@pytest.mark.parametrize(
    ("name", "peak", "batch"),
    [
        ("opt-125m", 6e-4, 0.5),
        ("opt-350m", 3e-4, 0.5),
        ("opt-1.3b", 2e-4, 1),
        ("opt-2.7b", 1.6e-4, 1),
        ("opt-6.7b", 1.2e-4, 2),
        ("opt-13b", 1e-4, 4),
        ("opt-30b", 1e-4, 4),
        ("opt-66b", 0.8e-4, 2),
        ("opt-175b", 1.2e-4, 2),
    ],
)
def test_opt(name: str, peak: float, batch: float) -> None:
    made = RECIPES[name]
    assert made.batch_tokens == batch * 2**20
    warm = 2000 if name == "opt-175b" else round(375e6 / made.batch_tokens)
    assert rate(name, step=warm) == pytest.approx(peak)
    assert rate(name, step=(warm + made.steps) // 2) == pytest.approx(0.55 * peak, rel=1e-3)
    assert rate(name, step=made.steps) == pytest.approx(peak / 10)
    assert (made.dropout.embedding, made.dropout.residual, made.dropout.attention) == (0, 0.1, 0.1)


@pytest.mark.parametrize(("name", "peak", "least"), [("bloom-7b1", 1.2e-4, 1e-5), ("bloom-176b", 6e-5, 6e-6)])
def test_bloom_stops_before_the_cosine_ends(name: str, peak: float, least: float) -> None:
    made = RECIPES[name]
    at = (made.tokens - 375e6) / (410e9 - 375e6)
    expected = least + (peak - least) * (1 + math.cos(math.pi * at)) / 2
    assert rate(name, step=made.steps) == pytest.approx(expected, rel=1e-3)
    assert rate(name, tokens=375e6) == pytest.approx(peak)


def test_gopher_and_chinchilla() -> None:
    for size, peak, batch, clip in (
        ("44m", 6e-4, 0.25, 1.0),
        ("117m", 6e-4, 0.25, 1.0),
        ("417m", 2e-4, 0.25, 1.0),
        ("1.4b", 2e-4, 0.25, 1.0),
        ("7.1b", 1.2e-4, 2, 0.25),
        ("280b", 4e-5, 6, 0.25),
    ):
        name, made = f"gopher-{size}", RECIPES[f"gopher-{size}"]
        assert made.batch_tokens == batch * 2**20
        assert (rate(name, step=1500), rate(name, step=made.steps)) == pytest.approx((peak, peak / 10))
        assert made.clip == clip
        assert rate(name, step=1) == pytest.approx(1e-7 + (peak - 1e-7) / 1500)
        assert type(made.optimizer) is Adam
    assert RECIPES["chinchilla-70b"].tokens == 1.4 * T
    assert rate("chinchilla-70b", step=1500) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("name", "peak", "warm", "tokens"), [("olmo-1b", 4e-4, 2000, 2), ("olmo-7b", 3e-4, 5000, 2.46)]
)
def test_olmo(name: str, peak: float, warm: int, tokens: float) -> None:
    made = RECIPES[name]
    assert made.tokens == tokens * T
    assert rate(name, step=warm) == pytest.approx(peak)
    assert rate(name, step=(warm + made.steps) // 2) == pytest.approx(0.55 * peak, rel=1e-4)
    assert rate(name, step=made.steps) == pytest.approx(peak / 10)
    assert isinstance(made.optimizer, AdamW)
    assert made.optimizer.eps == 1e-5


def test_a_wrong_name_is_answered_in_one_line() -> None:
    with pytest.raises(SpecError, match=r"'gpt3-175' \(did you mean 'gpt3-175b'\?\)"):
        recipe.named("gpt3-175")
    assert isinstance(recipe.named("small"), Recipe)
