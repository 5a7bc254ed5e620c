"""Every scaling of rotary positions is the one that transformers computes, in every spelling, short and long."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from anyformer.cache import KVCache
from anyformer.errors import CheckpointError, SpecError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import spec_of
from anyformer.families.hf.rotary import rotary, rotary_settings
from anyformer.families.hf.settings import Settings
from anyformer.layers import (
    DynamicNTK,
    GQASpec,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    ProportionalRoPE,
    RotarySpec,
    Tokens,
    YaRN,
)
from anyformer.layers.rotary import fraction_of
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import resize, shrink
from anyformer.spec import Length, ModelSpec, dumps, loads
from tests.laws.inputs import inputs
from tests.laws.models import ids_for, randomised
from tests.laws.parity import differences, moves, pair
from tests.laws.tolerance import FLOAT32, VISIBLE, close
from tests.laws.weights import edited

CONTEXT, WIDTH = 256, 24
PAIRS = WIDTH // 2
SHORT = [1.0 + 0.1 * i for i in range(PAIRS)]
LONG = [1.5 + 0.7 * i for i in range(PAIRS)]
# transformers takes dynamic's original context from max_position_embeddings; the others are told theirs, 64.
TABLES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "llama3, none blended": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, whole context": {"factor": 4.0},
    "yarn, betas": {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8, "beta_slow": 2.0},
    "yarn, equal betas": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 2,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn, fractions": {"factor": 32.0, "original_max_position_embeddings": 64, "truncate": False},
    "yarn, given": {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.25},
    "yarn, two": {"factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.707},
    "yarn, one": {"factor": 40.0, "original_max_position_embeddings": 64, "mscale_all_dim": 0.707},
    "longrope": {
        "factor": 4.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 64,
    },
    "longrope, by contexts": {
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 64,
    },
    "longrope, given": {
        "factor": 4.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.5,
    },
}
each_table = pytest.mark.parametrize("name", TABLES)


def table(name: str) -> dict[str, Any]:
    return {"rope_type": name.split(",")[0], "rope_theta": 10_000.0, **TABLES[name]}


def read(config: dict[str, Any], **options: Any) -> RotarySpec:
    return rotary(Settings(config, "config.json"), CONTEXT, **options)


def theirs(name: str, length: int, fraction: float = 1.0) -> tuple[Tensor, float]:
    """Return (frequencies, magnitude) as transformers computes them for a text of so many tokens."""
    parameters = {**table(name), "partial_rotary_factor": fraction}
    config = transformers.LlamaConfig(
        hidden_size=int(WIDTH / fraction),
        num_attention_heads=1,
        max_position_embeddings=CONTEXT,
        rope_parameters=parameters,
    )
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), length)


@pytest.mark.parametrize("length", [30, 64, 65, 256, 257, 700])
@pytest.mark.parametrize("fraction", [1.0, 0.75])
@each_table
def test_frequencies_and_magnitudes_are_those_of_transformers(name: str, fraction: float, length: int) -> None:
    frequencies, magnitude = theirs(name, length, fraction)
    ours = read({"rope_parameters": {**table(name), "partial_rotary_factor": fraction}})
    assert ours.fraction == fraction
    found = torch.tensor(ours.frequencies(int(WIDTH / fraction), length))
    torch.testing.assert_close(found, frequencies, rtol=2e-6, atol=0)
    cos, sin = ours.tables(plain_tokens(length, torch.device("cpu")), int(WIDTH / fraction), torch.float32)
    angles = torch.arange(length)[:, None] * frequencies
    expected = torch.cat((angles, angles), -1)
    # an angle of some hundred radians is known to 6e-8 of itself
    torch.testing.assert_close(cos[0, 0], expected.cos() * magnitude, rtol=0, atol=2e-4)
    torch.testing.assert_close(sin[0, 0].abs(), (expected.sin() * magnitude).abs(), rtol=0, atol=2e-4)
    assert cos[0, 0, 0, 0].item() == pytest.approx(magnitude, rel=1e-6)


@each_table
def test_every_spelling_is_read_and_what_is_written_is_read_again(name: str) -> None:
    new = table(name)
    inside = {key: value for key, value in new.items() if key not in ("rope_theta", "rope_type")}
    kind = new["rope_type"]
    spellings = [
        {"rope_parameters": new},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": kind, **inside}},
        {"rope_theta": 10_000, "rope_scaling": {"type": kind, **inside}},
        {"rope_parameters": {**new, "type": kind}},
    ]
    first, *others = [read(each) for each in spellings]
    assert all(other == first for other in others)
    assert first.scaling is not None
    assert read(rotary_settings(first)) == first
    assert read(rotary_settings(first.but(fraction=0.5))) == first.but(fraction=0.5)
    named: dict[str, Any] = {"theta": "rotary_emb_base", "fraction": "rotary_pct"}
    assert read(rotary_settings(first.but(fraction=0.25), **named), **named) == first.but(fraction=0.25)
    spec = with_rotary(shrink(preset("llama-7b").spec), first.fitted(8))
    assert loads(dumps(spec)) == spec


def test_what_the_class_takes_where_nothing_is_said() -> None:
    plain = RotarySpec(theta=5e5, fraction=0.5, layout="interleaved")
    assert read({}, plain=plain) == plain
    assert read({"rope_scaling": {"type": "linear", "factor": 2}}, plain=plain) == plain.but(
        scaling=LinearScaling(factor=2.0)
    )
    assert read({"rope_parameters": {"rope_theta": 7.0}}, plain=plain) == plain.but(theta=7.0)


def test_the_original_context_at_the_top_goes_before_the_one_inside() -> None:
    inside = {**table("longrope"), "original_max_position_embeddings": 32}
    found = read({"original_max_position_embeddings": 64, "rope_parameters": inside}).scaling
    assert isinstance(found, LongRoPE)
    assert found.original_context == 64


def test_a_mixture_of_phi_has_a_magnitude_for_each_list() -> None:
    inside = {**table("longrope"), "short_mscale": 1.1, "long_mscale": 1.3, "type": "su"}
    with pytest.raises(CheckpointError, match=r"short_mscale = 1\.1 is unknown here"):
        read({"rope_scaling": inside})
    found = read({"rope_scaling": inside}, magnitudes=True)
    for length, magnitude in ((60, 1.1), (70, 1.3)):
        cos, _ = found.tables(plain_tokens(length, torch.device("cpu")), WIDTH, torch.float32)
        assert cos[0, 0, 0, 0].item() == pytest.approx(magnitude, rel=1e-6)
    assert read(rotary_settings(found, magnitudes=True), magnitudes=True) == found
    assert read(rotary_settings(found)) != found


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ({"rope_type": "yran", "factor": 2.0}, r"'yran' is no scaling known here \(did you mean 'yarn'\?\); there are"),
        ({"type": "spiral"}, r"type = 'spiral' is no scaling known here.*; there are default, linear, dynamic"),
        ({"rope_type": "dynamic"}, "rope_scaling has no setting 'factor'"),
        ({"rope_type": "yarn", "factor": 2.0, "beta": 1}, "beta = 1 is unknown here"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": "x"}, "long_factor = 'x' must be a list of"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "long_factor = None must be a list of numbers"),
    ],
)
def test_a_scaling_that_cannot_be_read_is_refused_in_one_line(inside: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        read({"rope_scaling": inside})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (
            lambda: LongRoPE(short=(1.0,), long=(1.0, 2.0), factor=2.0),
            r"LongRoPE.long = \(1.0, 2.0\) must be a list as",
        ),
        (lambda: LongRoPE(short=(1.0, 0.0), long=(1.0, 2.0), factor=2.0), "must be above 0"),
        (lambda: YaRN(factor=2.0, beta_fast=1.0, beta_slow=2.0), "YaRN.beta_fast = 1.0 must be at least beta_slow"),
        (
            lambda: RotarySpec(scaling=LongRoPE(short=(1.0,), long=(1.0,), factor=2.0)).dims(8),
            r"LongRoPE.short = \(1.0,\) must be 4 numbers",
        ),
        (lambda: RotarySpec(scaling=DynamicNTK(factor=2.0)).dims(2), "needs heads with more than one rotating pair"),
        (lambda: RotarySpec(scaling=YaRN(factor=2.0)).dims(2), "needs heads with more than one rotating pair"),
        (lambda: RotarySpec(theta=1.0, scaling=YaRN(factor=2.0)), "Rotary.theta = 1.0 must be at least 2"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused(scaling: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        scaling()


BY_LENGTH = {
    "dynamic": DynamicNTK(factor=4.0, original_context=Length(12)),
    "longrope": LongRoPE(
        short=tuple(SHORT[:4]), long=tuple(LONG[:4]), factor=4.0, original_context=Length(12), magnitude_long=1.3
    ),
}
by_length = pytest.mark.parametrize("scaling", BY_LENGTH.values(), ids=BY_LENGTH)


def test_a_number_of_features_is_the_fraction_that_makes_it_again() -> None:
    """N / head_dim times head_dim may be less than n in a computer's numbers, and dims rounds down."""
    sizes = [(n, head_dim) for head_dim in range(2, 300) for n in range(2, head_dim + 1, 2)]
    assert [size for size in sizes if RotarySpec(fraction=fraction_of(*size)).dims(size[1]) != size[0]] == []


@pytest.mark.parametrize("head_dim", range(2, 60))
def test_heads_of_any_width_turn(head_dim: int) -> None:
    """Of an odd one all features but one."""
    assert RotarySpec().fitted(head_dim).dims(head_dim) == head_dim - head_dim % 2


def test_64_of_98_features_turn() -> None:
    """As GPT-J's class has it for such a file."""
    config = {"model_type": "gptj", "vocab_size": 8, "n_embd": 392, "n_head": 4, "n_layer": 1, "rotary_dim": 64}
    family, spec = spec_of(FAMILIES, config, "config.json")
    assert family.to_config(spec)["rotary_dim"] == 64


def with_rotary(spec: ModelSpec, rotary: RotarySpec) -> ModelSpec:
    return edited(spec, RotarySpec, lambda _: rotary)


def scaled(scaling: Any) -> ModelSpec:
    return with_rotary(shrink(preset("llama-7b").spec), RotarySpec(scaling=scaling))


@by_length
def test_a_document_is_scaled_by_its_own_length(scaling: Any) -> None:
    """Whatever stands beside it in the batch or the row: transformers takes the longest position of the whole batch."""
    model = randomised(scaled(scaling))
    ids = ids_for(model.spec, 2, 20)
    with torch.no_grad():
        short, long = model(ids[:1, :9]).logits, model(ids[1:]).logits
        mask = torch.ones_like(ids)
        mask[0, :11] = 0
        rows = torch.stack((torch.cat((ids[0, 9:], ids[0, :9])), ids[1]))
        batch = model(rows, mask).logits
        close(batch[:1, 11:], short)
        close(batch[1:], long)
        packed = model(torch.cat((ids[0, :9], ids[1]))[None], torch.tensor([[1] * 9 + [2] * 20])).logits
        close(packed, torch.cat((short, long), 1))
        assert (model(ids[1:, :9]).logits - long[:, :9]).abs().max() > 0.01, "the longer text is scaled otherwise"


@by_length
def test_a_cache_equals_the_full_pass_where_the_length_does_not_pass_the_original(scaling: Any) -> None:
    """And says so: beyond, cached keys stay as they were, which `caveats` declares."""
    model = randomised(scaled(scaling))
    ids = ids_for(model.spec, 1, 20)

    def cached(sizes: list[int]) -> Tensor:
        cache = KVCache(model.spec, length=20)
        return torch.cat([model(chunk, cache=cache).logits for chunk in ids[:, : sum(sizes)].split(sizes, 1)], 1)

    with torch.no_grad():
        close(cached([5, 1, 6]), model(ids[:, :12]).logits)
        beyond = cached([12, 1, 7])
        assert (beyond - model(ids).logits).abs().max() > 0.01
    assert [caveat.law for caveat in scaling.caveats()] == ["cache"]
    assert "\n" not in scaling.caveats()[0].reason


def test_a_cached_step_is_that_of_transformers_beyond_the_original() -> None:
    """Keys of earlier passes stay, the new query and key rotate as for the length that is reached."""
    scaling = BY_LENGTH["dynamic"]
    theirs = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=12, rope_parameters={
            "rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4,
        },
    )  # fmt: skip
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(theirs)
    spec = RotarySpec(scaling=scaling)
    for start, stop in ((0, 9), (9, 15), (15, 16), (16, 30)):
        positions = torch.arange(start, stop)[None]
        cos, sin = module(torch.zeros(1), positions)
        ours = spec.tables(Tokens(positions, span=(start, stop)), 8, torch.float32)
        torch.testing.assert_close(ours[0][:, 0], cos, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours[1][:, 0].abs(), sin.abs(), rtol=0, atol=1e-5)


IN_A_MODEL = {
    "dynamic": BY_LENGTH["dynamic"],
    "longrope": BY_LENGTH["longrope"].but(magnitude_long=None),
    "yarn": YaRN(factor=8.0, original_context=Length(12), beta_fast=2.0, beta_slow=0.5),
    "linear": LinearScaling(factor=3.0),
}


@pytest.mark.parametrize("scaling", IN_A_MODEL.values(), ids=IN_A_MODEL)
def test_a_model_of_that_scaling_is_that_of_transformers(scaling: Any) -> None:
    """Its configuration written, read by the class, and run beyond the original context."""
    spec = scaled(scaling).but(context=Length(12))
    both, given = pair(spec), inputs("plain", spec.vocab_size)
    found = differences(both, given)
    assert max(found.logits, found.hidden, found.gradients) < FLOAT32
    assert both.theirs.config.rope_parameters["rope_type"] == type(scaling).__name__.lower().removesuffix(
        "ntk"
    ).removesuffix("scaling")
    unscaled = edited(spec, RotarySpec, lambda rotary: rotary.but(scaling=None))
    assert moves(spec, unscaled) > VISIBLE


def test_lists_follow_the_heads_when_an_architecture_is_resized() -> None:
    scaling = LongRoPE(short=tuple(range(1, 65)), long=tuple(range(101, 165)), factor=4.0)
    spec = with_rotary(preset("llama-7b").spec, RotarySpec(scaling=scaling))
    for other in (shrink(spec), resize(spec, d_model=256)):
        heads = next(value for value in other.nested() if isinstance(value, GQASpec))
        found = heads.rotary and heads.rotary.scaling
        assert isinstance(found, LongRoPE)
        n = other.stack.d_model // heads.n_heads // 2
        assert len(found.short) == n
        assert found.short == tuple(1 + 64 * i // n for i in range(n))
        randomised(other)(ids_for(other, 1, 3))


def test_magnitudes_by_hand() -> None:
    assert YaRN(factor=math.e).magnitude() == pytest.approx(1.1)
    assert YaRN(factor=1.0).magnitude() == 1.0
    assert LongRoPE(short=(1.0,), long=(1.0,), factor=4096.0).magnitude() == pytest.approx(math.sqrt(2))
    assert LongRoPE(short=(1.0,), long=(1.0,), factor=1.0).magnitude() == 1.0
    assert Llama3Scaling(factor=8.0).magnitude() == 1.0


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3])
def test_a_share_of_the_pairs_turns_as_transformers_has_it(share: float) -> None:
    settings = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": share}
    config = transformers.AutoConfig.for_model("llama", head_dim=32, rope_parameters=settings)
    theirs, _ = ROPE_INIT_FUNCTIONS["proportional"](config, torch.device("cpu"))
    ours = rotary(Settings({"rope_parameters": settings}, "config.json"), 64)
    assert ours.scaling == ProportionalRoPE(share=share)
    assert ours.frequencies(32) == pytest.approx(theirs.tolist(), rel=1e-5)


def test_a_share_that_leaves_no_pair_is_refused() -> None:
    with pytest.raises(SpecError, match=r"ProportionalRoPE.share = 0.1 of 4 pairs leaves none"):
        RotarySpec(scaling=ProportionalRoPE(share=0.1)).frequencies(8)
    assert ProportionalRoPE(share=0.1).fitted(4).scaled([1.0] * 4) == [1.0, 0.0, 0.0, 0.0]
