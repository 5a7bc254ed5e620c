"""Law 6: a model computes what an independent implementation computes, each distinguishing field is seen."""

from typing import Any

import pytest
import torch

from anyformer.families import PRESETS, preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    Everything,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearScaling,
    Llama3Scaling,
    ReLU,
    RMSNormSpec,
    RotarySpec,
    SiLU,
    SlidingWindow,
)
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, ScaleSpec, Spec, Window
from tests.laws.inputs import LENGTH, inputs_for
from tests.laws.models import WRITERS, waives
from tests.laws.mutations import check_seen
from tests.laws.parity import (
    InDouble,
    beginning,
    decided,
    differences,
    even_seed,
    generated,
    greedy,
    n_begun,
    pair,
    rounding,
    single,
    tolerated,
)
from tests.laws.references import COMPARED, HERE, elsewhere
from tests.laws.tolerance import FLOAT32, VISIBLE, distance
from tests.laws.weights import edited, filled, telling, token_scale
from tests.sample import beside, is_one_of_few, sampled

KINDS = ("plain", "right", "left", "packed")
every_compared = pytest.mark.parametrize("spec", sampled(COMPARED))
WRITING = {names: spec for names, spec in COMPARED.items() if names in WRITERS}


def test_every_preset_is_compared_with_transformers_or_elsewhere() -> None:
    compared = {name for names in COMPARED for name in names.split(" = ")}
    assert len(compared) >= 18
    for name, record in PRESETS.items():
        file = elsewhere(record)
        assert (name in compared) == (file is None), name
        assert file is None or (HERE / file).is_file()
        if record.spec.ahead:
            assert shrink(record.spec.but(ahead=())) in COMPARED.values()


def packs(spec: ModelSpec, kind: str) -> None:
    """Leave out packed documents where a part says that they cannot but touch each other."""
    if kind == "packed" and waives(spec, "packing"):
        pytest.skip("the documents of a row compete for an expert's places")


EACH = {f"eager-{kind}": ("eager", kind) for kind in KINDS} | {f"sdpa-{k}": ("sdpa", k) for k in ("left", "packed")}


@pytest.mark.parametrize(("spec", "attention", "kind"), beside(COMPARED, EACH, {"eager-left", "sdpa-packed"}))
def test_logits_hidden_states_and_gradients_are_those_of_transformers(
    spec: ModelSpec, attention: str, kind: str
) -> None:
    packs(spec, kind)
    given = inputs_for(kind, spec)
    both = decided(spec, attention, given)
    found = differences(both, given)
    assert max(found.logits, found.hidden) < single(spec)
    assert found.gradients < tolerated(both, given, found)


@pytest.mark.parametrize(("spec", "kind"), beside(COMPARED, {kind: (kind,) for kind in ("left", "packed")}, {"packed"}))
def test_in_float64_nothing_is_left_but_rounding(spec: ModelSpec, kind: str) -> None:
    """Their classes take norms, softmaxes and angles in float32 whatever the model is of; here they may not."""
    packs(spec, kind)
    with InDouble():
        given = inputs_for(kind, spec)
        both = decided(spec, "sdpa", given, even_seed(spec))
        both.ours.double()  # takes sdpa where that can
        both.theirs.double()
        found = differences(both, given)
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)


@pytest.mark.parametrize("spec", sampled(COMPARED, is_one_of_few))
def test_our_eager_kernel_computes_the_same(spec: ModelSpec) -> None:
    given = inputs_for("left", spec)
    both = decided(spec, "eager", given)
    both.ours.kernel = "eager"
    found = differences(both, given)
    assert max(found.logits, found.hidden) < single(spec)
    assert found.gradients < tolerated(both, given, found)


@pytest.mark.parametrize("spec", sampled(WRITING, is_one_of_few))
def test_greedy_continuation_is_that_of_transformers(spec: ModelSpec) -> None:
    """Tied models like to repeat themselves: of some models, one at least must say more than that."""
    begun, n, variety = n_begun(spec), 12, 0
    start = beginning(inputs_for("left", spec), begun)
    row = 1 / token_scale(spec)  # all enter the stream alike
    for seed in range(24):
        both = pair(spec, least_row=row, longest_row=row, seed=seed)
        fit = start.fit_for(both.theirs, spec)  # M2M-100's class counts positions by the ids
        ours, theirs = greedy(both.ours, fit, n), generated(both, fit, n)
        assert ours.shape == (2, begun + n)
        assert torch.equal(ours, theirs)
        variety = max(variety, ours[:, begun:].unique().numel())
        if variety > 2:
            return
    assert variety > 2


SEEDS = {
    "gte": 1,
    "wmt19-en-de": 2,
    "jina-embeddings-v3": 1,
}  # with the first, attention of a layer is at less than 4 / LENGTH


@every_compared
def test_the_weights_tell(spec: ModelSpec) -> None:
    """Logits spread, and attention is neither uniform nor all on one key: else a wrong formula could pass."""
    given = inputs_for("plain", spec)
    seeds = {shrink(preset(name).spec): seed for name, seed in SEEDS.items()}
    seed = seeds.get(spec, 0)
    out = given.run(filled(spec, telling(spec, seed)), output_attentions=True)
    scale = spec.heads[0].scale  # Command R's divides logits by 16
    logits = out.logits if out.logits.shape[-1] > 1 else out.logits.mT  # one score a token spreads over tokens
    spread = logits.std(-1).mean() / (scale.value(spec.stack.d_model) if scale else 1.0)
    assert spread > 0.5
    assert out.attentions is not None
    for weights in out.attentions:
        last = weights[:, :, -1].max(-1).values  # of LENGTH keys: 1 / LENGTH if uniform
        assert 4 / LENGTH < last.mean() < 0.95


def but(**changes: Any) -> Any:
    return lambda value: value.but(**changes)


LLAMA3 = "llama3.1-8b"
MUTATIONS: dict[str, tuple[str, type[Spec], Any]] = {
    "gpt2 norm eps": ("gpt2", LayerNormSpec, but(eps=1e-6)),
    "gpt2 gelu form": ("gpt2", GELU, but(form="erf")),
    "gpt2 activation": ("gpt2", GELU, lambda _: ReLU()),
    "gpt2 heads": ("gpt2", GQASpec, but(n_heads=2)),
    "gpt2 attention scale": ("gpt2", AttentionSpec, but(scale=ScaleSpec(power=-0.49))),
    "gpt2 mask": ("gpt2", AttentionSpec, but(mask=Everything())),
    "gpt2 window one short": ("gpt2", AttentionSpec, but(mask=Causal() & SlidingWindow(size=Window(LENGTH - 1)))),
    "llama norm eps": ("llama-7b", RMSNormSpec, but(eps=1e-5)),
    "llama2 norm eps": ("llama2-7b", RMSNormSpec, but(eps=1e-6)),
    "llama norm offset": ("llama-7b", RMSNormSpec, but(weight_offset=0.01)),
    "llama theta": ("llama-7b", RotarySpec, but(theta=10_100.0)),
    "llama rotary layout": ("llama-7b", RotarySpec, but(layout="interleaved")),
    "llama rotary fraction": ("llama-7b", RotarySpec, but(fraction=0.5)),
    "llama linear scaling": ("llama-7b", RotarySpec, but(scaling=LinearScaling(factor=1.01))),
    "llama activation": ("llama-7b", SiLU, lambda _: GELU()),
    "llama attention scale": ("llama-7b", AttentionSpec, but(scale=ScaleSpec(power=-0.49))),
    "llama3 theta": (LLAMA3, RotarySpec, but(theta=510_000.0)),
    "llama3 unscaled": (LLAMA3, RotarySpec, but(scaling=None)),
    "llama3 scaling factor": (LLAMA3, Llama3Scaling, but(factor=8.5)),
    "llama3 low factor": (LLAMA3, Llama3Scaling, but(low_frequency_factor=0.9)),
    "llama3 high factor": (LLAMA3, Llama3Scaling, but(high_frequency_factor=6.0)),
    "llama3 original context": (LLAMA3, Llama3Scaling, but(original_context=40)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str) -> None:
    origin, kind, edit = MUTATIONS[name]
    spec = shrink(preset(origin).spec)
    check_seen(spec, edited(spec, kind, edit))


def test_the_pattern_of_grouped_heads_is_seen() -> None:
    """Query heads 0, 1 read key head 0 and 2, 3 read 1; were they dealt in turn, logits would move."""
    spec = shrink(preset("llama2-70b").spec)
    weights, given = telling(spec), inputs_for("plain", spec)
    dealt = dict(weights)
    for name, weight in weights.items():
        axis = {"q": 0, "o": 1}.get(name.split(".")[-2]) if ".projection." in name else None
        if axis is not None:
            heads = weight.unflatten(axis, (4, -1)).index_select(axis, torch.tensor([0, 2, 1, 3]))
            dealt[name] = heads.flatten(axis, axis + 1)
    with torch.no_grad():
        before, after = (filled(spec, w)(given.input_ids).logits for w in (weights, dealt))
    assert distance(after, before) > VISIBLE * FLOAT32


def test_learned_positions_are_refused_beyond_their_table_on_both_sides() -> None:
    spec = shrink(preset("gpt2").spec)
    n = next(v for v in spec.nested() if isinstance(v, LearnedPositionsSpec)).n_positions
    both, ids = pair(spec), torch.zeros(1, n + 1, dtype=torch.long)
    with pytest.raises(Exception, match=f"beyond the {n} learned positions"):
        both.ours(ids)
    with pytest.raises(IndexError):
        both.theirs(ids)
