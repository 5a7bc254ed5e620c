"""Profiles: what runs is what is counted; classes of operators; what does not fit is refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import anyformer as af
from anyformer import recipe as recipes
from anyformer.errors import SpecError, UsageError
from anyformer.layers.packed import PackedWeight
from anyformer.layers.packing import Packing
from anyformer.measure import profile as module
from anyformer.measure.classes import CLASSES, class_of, flops_by_class, shares_of_time
from anyformer.measure.profile import profile
from anyformer.measure.runs import decoding_step, random_rows
from anyformer.model import Transformer
from anyformer.observation.operators import Operator
from anyformer.observation.passes import training_pass
from anyformer.spec import Place, Workload


def test_memory_and_cache_are_as_predicted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path))  # without a calibration
    spec = af.resize(af.preset("llama2-7b"), n_params=300_000, vocab_size=512, context=128)
    found = profile(spec, batch=2, seq_len=48, device="cpu", budget_seconds=0.02)
    assert found.activation_nbytes.error == pytest.approx(0, abs=0.05)
    assert found.cache_nbytes is not None
    assert found.cache_nbytes.error == 0
    facts = found.as_json()
    for phase in ("training", "decoding"):
        assert facts["seconds"][phase]["measured"] > 0
        assert facts["seconds"][phase]["predicted"] is None
        shares = facts["classes"][phase].values()
        assert set(facts["classes"][phase]) == set(CLASSES)
        assert sum(share["share_of_flops"] for share in shares) == pytest.approx(1)
        assert sum(share["share_of_seconds"] for share in shares) == pytest.approx(1)
    classes = facts["classes"]["training"]
    norms = 2 * spec.n_layers + 1
    in_norms = norms * 2 * spec.stack.d_model * 2 * 48  # the backward pass of each multiplies by its weight once
    assert classes["contraction"]["flops"] == 3 * spec.cost(Place(), Workload(2, 48)).flops + in_norms
    assert classes["contraction"]["share_of_flops"] > 0.9
    assert classes["normalisation"]["share_of_seconds"] > classes["normalisation"]["share_of_flops"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "contraction"),
        ("aten::addmm_", "contraction"),
        ("aten::bmm", "contraction"),
        ("aten::_weight_int8pack_mm", "contraction"),
        ("aten::_weight_int4pack_mm_for_cpu", "contraction"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "contraction"),
        ("aten::native_layer_norm", "normalisation"),
        ("aten::_fused_rms_norm", "normalisation"),
        ("NormByRootBackward", "normalisation"),
        ("aten::_log_softmax", "normalisation"),
        ("aten::linalg_vector_norm", "element-wise"),
        ("aten::normal_", "element-wise"),
        ("aten::mul", "element-wise"),
        ("aten::silu_backward", "element-wise"),
        ("aten::_fused_adamw_", "element-wise"),
        ("aten::copy_", "movement"),
        ("aten::index_select", "movement"),
        ("aten::embedding", "movement"),
        ("autograd::engine::evaluate_function: MulBackward0", None),
        ("Optimizer.step#AdamW.step", None),
    ],
)
def test_classes(name: str, kind: str | None) -> None:
    assert class_of(name) == kind


def test_seconds_go_to_the_class_that_took_them() -> None:
    a, x = torch.randn(512, 512), torch.randn(1 << 21)
    norm = torch.nn.RMSNorm(512)
    rows = torch.randn(4096, 512)
    only = {
        "contraction": lambda: a @ a,
        "element-wise": lambda: x.exp(),
        "movement": lambda: x.clone(),
        "normalisation": lambda: norm(rows),
    }
    for kind, step in only.items():
        with torch.no_grad():
            found = shares_of_time(step, torch.device("cpu"), times=5)
        assert found[kind] > 0.8 * sum(found.values()), (kind, found)


def test_flops_by_class() -> None:
    """Ivanov et al. 2020: LayerNorm of BERT-large at 8 × 512 tokens is 29.4 MFLOP: 7 for each number. A product is exact."""
    of = {"part": "norms", "phase": "forward", "copies": 1, "weights": 0, "nbytes": 0}
    norm = Operator(name="native_layer_norm", kind="normalisation", flops=0, shape=None, numel=8 * 512 * 1024, **of)  # type: ignore[arg-type]
    product = Operator(name="mm", kind="contraction", flops=10**9, shape=(1, 1, 1), numel=1, times=2, **of)  # type: ignore[arg-type]
    found = flops_by_class((norm, product))
    assert found["normalisation"] == pytest.approx(29.4e6, rel=0.01)
    assert found["contraction"] == 2 * 10**9
    assert flops_by_class((product,), n_updated=100)["element-wise"] == 1400  # AdamW and clipping: 14 a parameter


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError,
        match=r"needs 1,[0-9]{3}\.[0-9] GB of memory and .* GB are free on cpu; resize it \(--params [0-9]+M\)",
    ):
        profile(af.preset("llama3-70b"), batch=1, seq_len=64, device="cpu")
    monkeypatch.setattr(module, "ROOM", 1e-6)
    with pytest.raises(UsageError, match="are free"):
        profile(af.shrink(af.preset("gpt2")), batch=1, seq_len=8, device="cpu")


def test_other_refusals() -> None:
    with pytest.raises(UsageError, match="--batch 0"):
        profile(af.preset("gpt2"), batch=0)
    with pytest.raises(SpecError, match="1,024 learned positions"):
        profile(af.preset("gpt2"), seq_len=2000)
    with pytest.raises(UsageError, match="no training step can be timed: the model has no head"):
        profile(af.shrink(af.preset("bert-base")).but(heads=()), batch=1, seq_len=8)


@pytest.fixture
def unprofiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No calibration, and no profiler beside the steps, which takes seconds."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "shares_of_time", lambda *_, **__: dict.fromkeys(CLASSES, 1 / len(CLASSES)))


@pytest.mark.parametrize("name", ["bert-base", "electra-base", "embeddinggemma-300m"])
@pytest.mark.usefixtures("unprofiled")
def test_an_encoder_is_timed_by_every_token(name: str) -> None:
    """Whatever its head says: of tokens, one score, nothing before a pool. It keeps what was predicted, and writes nothing."""
    found = profile(af.shrink(af.preset(name)), batch=2, seq_len=16, device="cpu", budget_seconds=0.001)
    assert found.activation_nbytes.measured == found.activation_nbytes.predicted
    assert list(found.seconds) == ["training"]
    assert found.cache_nbytes is None


@pytest.mark.usefixtures("unprofiled")
def test_two_streams_are_timed_as_they_are_trained() -> None:
    """The sixth of a row that a step asks for stands there twice, as itself and as a blank."""
    spec = af.shrink(af.preset("xlnet-base"))
    rows = random_rows(spec, 2, 24)
    assert rows.mark.sum(1).tolist() == [4, 4]
    assert rows.labels.min() >= 0
    found = profile(spec, batch=2, seq_len=24, device="cpu", budget_seconds=0.001)
    seen = training_pass(spec, batch=2, seq_len=28, device="cpu").operators
    assert found.flops["training"] == flops_by_class(seen, n_updated=found.n_params)


def test_what_a_profile_trains_on_is_nothing_to_ask_for() -> None:
    with pytest.raises(SpecError, match="EveryToken"):
        recipes.loads("recipe: 1\nobjective: EveryToken\n")


@pytest.mark.usefixtures("unprofiled")
def test_further_tokens_are_predicted_in_a_step() -> None:
    spec = af.shrink(af.preset("deepseek-v3-mtp"))
    assert spec.ahead
    found = profile(spec, batch=1, seq_len=16, device="cpu", budget_seconds=0.001)
    assert found.activation_nbytes.measured == found.activation_nbytes.predicted


@pytest.mark.usefixtures("unprofiled")
@pytest.mark.parametrize("packing", ["int8", "int4", "nf4"])
def test_decoding_by_weights_in_few_bits(packing: Packing) -> None:
    """It is measured, and no calibration would predict it."""
    spec, sizes = af.shrink(af.preset("gpt2")), {"batch": 1, "seq_len": 8, "device": "cpu", "budget_seconds": 0.001}
    found = profile(spec, dtype=packing, **sizes)
    assert (found.dtype, found.seconds["decoding"].predicted) == (packing, None)
    assert found.cache_nbytes == profile(spec, **sizes).cache_nbytes
    assert "run `anyformer calibrate --dtype float32` once" in str(found)
    model = decoding_step(spec, 1, 8, torch.device("cpu"), packing).__closure__  # what the step runs
    assert any(isinstance(each.cell_contents, Transformer) and is_packed(each.cell_contents) for each in model or ())


def is_packed(model: Transformer) -> bool:
    return any(isinstance(each, PackedWeight) for each in model.parameters())


@pytest.mark.usefixtures("unprofiled")
def test_each_phase_is_predicted_in_its_own_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in bf16 says nothing about decoding in float32, which is what ran."""
    by_dtype = {"bfloat16": 1.0, "float32": 2.0}

    class Times:
        def __init__(self, dtype: str) -> None:
            time = SimpleNamespace(seconds=by_dtype[dtype])
            self.phases = {"training": time, "decoding": time}

    known = list(by_dtype)
    monkeypatch.setattr(module, "kept", lambda _: SimpleNamespace(rates=SimpleNamespace(knows=known.__contains__)))
    monkeypatch.setattr(module, "roofline", lambda *_, dtype, **__: Times(dtype))
    spec, sizes = af.shrink(af.preset("gpt2")), {"batch": 1, "seq_len": 8, "device": "cpu", "budget_seconds": 0.001}
    assert _predicted(profile(spec, precision="bf16", **sizes)) == {"training": 1.0, "decoding": 2.0}
    halves = profile(spec, dtype=torch.bfloat16, **sizes)
    assert _predicted(halves) == {"training": 2.0, "decoding": 1.0}
    assert halves.cache_nbytes is not None
    assert (
        halves.cache_nbytes.measured == halves.cache_nbytes.predicted == 2 * 2 * spec.n_layers * 8 * spec.stack.d_model
    )
    known.remove("bfloat16")
    assert "run `anyformer calibrate --dtype bfloat16` once" in str(profile(spec, precision="bf16", **sizes))


def _predicted(found: module.Profile) -> dict[str, float | None]:
    return {phase: beside.predicted for phase, beside in found.seconds.items()}
