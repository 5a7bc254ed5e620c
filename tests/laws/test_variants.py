"""Law of variants: a diff is a patch. What `as_variant` says makes of A exactly B; a change does what `diff` says it does."""

from __future__ import annotations

import random

import pytest
import torch

import anyformer as af
from anyformer.descriptions import as_variant
from anyformer.descriptions.diff.rows import ROWS as READINGS
from anyformer.errors import RunFailed, SpecError
from anyformer.families import PRESETS
from anyformer.model import build
from anyformer.spec import Spec, parameters
from anyformer.spec.phrase import parse
from anyformer.variants.rows import ROWS
from anyformer.variants.values import read, text_of
from tests.laws.models import ids_for
from tests.laws.test_learning import check_reach, loss_of

NAMES = list(PRESETS)
PAIRS = [tuple(random.Random(seed).sample(NAMES, 2)) for seed in range(120)]
ALWAYS = 8  # pairs that every run of the tests draws; the rest are slow
KNOWN = [("gpt2", "llama3-8b"), ("llama2-7b", "gemma-2b"), ("bert-base", "bert-large"), ("t5-v1.1-base", "llama-7b")]


def drawn(pairs: list[tuple[str, str]], n: int) -> pytest.MarkDecorator:
    marked = [pytest.param(*pair, marks=[] if i < n else pytest.mark.slow) for i, pair in enumerate(pairs)]
    return pytest.mark.parametrize(("first", "second"), marked)


@drawn([(first, second) for first, second in PAIRS], ALWAYS)
def test_round_trip(first: str, second: str) -> None:
    a, b = PRESETS[first], PRESETS[second]
    try:
        name = said = as_variant(a, b)
    except RunFailed as error:
        name, said = "", str(error)
    assert "\n" not in said
    if name:
        assert name.startswith(f"{first}+")
        assert af.load_spec(name) == b.spec
    else:
        rows = said.rpartition("makes equal ")[2].split(", ")
        assert all(READINGS[row](a.spec) != READINGS[row](b.spec) for row in rows if row in READINGS)


@drawn(KNOWN, len(KNOWN))
def test_there_is_a_variant(first: str, second: str) -> None:
    assert af.load_spec(as_variant(PRESETS[first], PRESETS[second])) == PRESETS[second].spec


def test_without_a_name_to_take_parts_of_kinds_and_fields_are_enough() -> None:
    name = as_variant(PRESETS["llama2-7b"], PRESETS["gpt2"].spec)
    assert "gpt2" not in name
    assert af.load_spec(name) == PRESETS["gpt2"].spec


DONORS = [
    *(("llama2-7b", other) for other in ("gpt2", "gemma2-2b", "mixtral-8x7b", "albert-base", "transformer-lm")),
    *(("gpt2", other) for other in ("gptj-6b", "llama3-8b", "bert-base", "olmo2-7b")),
    ("olmo3-7b", "qwen3-next-80b-a3b"),
    *(("transformer-base", other) for other in ("gpt2", "t5-base")),
]


@pytest.mark.parametrize(("first", "second"), DONORS)
def test_a_row_taken_from_a_model_has_the_effect_that_diff_measures(first: str, second: str) -> None:
    a, b = PRESETS[first], PRESETS[second]
    effects, tried = af.diff(a, b).effects, 0
    for key, row in ROWS.items():
        effect = effects.get(row.part)
        if effect is None or effect.measured_in != "a":
            continue
        variant = af.load_spec(f"{first}+{key}={second}")
        assert parameters(variant).total - parameters(a).total == effect.change.parameters, key
        assert READINGS[row.part](variant) != READINGS[row.part](a.spec), key
        tried += 1
    assert tried >= 4


def test_every_row_is_tried_above_or_cannot_be_measured_alone() -> None:
    tried = set[str]()
    for first, second in DONORS:
        effects = af.diff(PRESETS[first], PRESETS[second]).effects
        tried |= {part for part, effect in effects.items() if effect and effect.measured_in == "a"}
    untried = {key for key, row in ROWS.items() if row.part not in tried}
    # The one is no row of diff, but activation, experts, biases and d_ff at once; the other is x + y in all presets.
    assert untried == {"feed-forward", "residual"}


@pytest.mark.parametrize(
    "name",
    [
        "llama2+norm=LayerNorm",
        "llama2+positions=alibi",
        "llama2+activation=GELU",
        "gemma2-2b+attention=gpt2+softcap=none",
        "gpt2+activation=SwiGLU+norm=RMSNorm+placement=pre",
        "llama3+placement=post+qk-norm=RMSNorm+n_layers=4",
        "gpt2+positions=t5+feed-forward=MoE(router=Router(n_experts=8,top_k=2))",
        "bert-base+positions=rope+placement=pre+mask=SymmetricWindow(radius=64)",
        "transformer+norm=RMSNorm+positions=alibi+activation=ReLU2+biases=none",
        "llama2+mixer=[GatedDeltaNet,attention]+mask=SlidingWindow(size=8)",
        "gpt2+mixer=mamba-130m+norm=RMSNorm",
        "mistral+mixer=[SSD,LightningAttention,attention]",
        "mistral+wiring=parallel+tied=true+sharing=all+mask=SlidingWindow(size=8)",
    ],
)
def test_a_variant_runs_and_learns(name: str) -> None:
    spec = af.shrink(af.load_spec(name))
    check_reach(spec)
    model, ids = build(spec, seed=0), ids_for(spec, 4, 16)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_every_part_of_every_preset_is_read_as_it_is_written() -> None:
    parts = {
        part for preset in PRESETS.values() for part in preset.spec.nested() if part.kind not in ("Model", "Stack")
    }
    assert len({type(part) for part in parts}) > 40
    for part in parts:
        assert read(parse(text_of(part)), type(part), "part") == part, text_of(part)


def test_no_value_has_two_meanings() -> None:
    """A preset called like a kind or a word would be taken for a model."""
    words = {word.lower() for row in ROWS.values() for word in row.words} | {kind.lower() for kind in Spec.kinds}
    words -= {"rope", "alibi"} - words
    assert not words & {name.lower() for name in [*PRESETS, *af.families.ALIASES]}


def test_a_variant_that_is_drawn_at_random_is_a_model_or_is_refused() -> None:
    """Three rows of other presets on a preset: whatever comes out is counted, or one line says which change cannot be."""
    refused: list[tuple[dict[str, str], str]] = []
    for seed in range(60):
        draw = random.Random(seed)
        changes = {key: draw.choice(NAMES) for key in draw.sample(list(ROWS), 3)}
        name = "+".join([draw.choice(NAMES), *(f"{key}={model}" for key, model in changes.items())])
        try:
            assert parameters(af.load_spec(name)).total > 0
        except SpecError as error:
            refused.append((changes, str(error)))
    assert len(refused) < 45
    for changes, said in refused:
        assert any(said.startswith(f"{key}={model}") for key, model in changes.items()), said
        assert "\n" not in said
