"""The roofline: times are what a pencil gives."""

from dataclasses import replace

import pytest

import anyformer as af
from anyformer.costs.hardware.devices import Device, Efficiency, devices
from anyformer.costs.hardware.rates import Grid, on_curve
from anyformer.costs.hardware.roofline import roofline
from anyformer.costs.hardware.sections import roofline_sections
from anyformer.errors import SpecError, UsageError
from anyformer.observation.passes import forward_pass

IDEAL = Efficiency(1.0, 1.0, 1.0, 1.0, 1.0)
H100 = replace(devices()["H100"], overhead_seconds=0.0, efficiency=IDEAL)


def test_decoding_is_the_time_to_read_weights_and_cache() -> None:
    spec, n, batch = af.preset("llama2-7b").spec, 4096, 4
    found = roofline(spec, device=H100, seq_len=n, batch=batch)
    weights = 2 * (6_738_415_616 - 32_000 * 4096)  # the embedding is looked up
    cache = batch * n * 2 * 32 * 32 * 128 * 2  # keys and values, 32 layers of 32 heads of 128
    pencil = (weights + cache) / 3.35e12
    assert found.phases["decoding"].seconds == pytest.approx(pencil, rel=0.01)
    assert found.phases["decoding"].bound == "memory"
    assert found.cache_nbytes == cache
    assert found.weights_nbytes == 2 * 6_738_415_616


def test_training_is_the_time_of_three_passes_of_products() -> None:
    spec, n, batch = af.preset("llama2-7b").spec, 4096, 8
    phase = roofline(spec, device=H100, seq_len=n, batch=batch).phases["training"]
    matrices = 6_738_415_616 - 32_000 * 4096 - 65 * 4096
    pencil = 3 * (2 * matrices * n + 4 * 32 * 4096 * n * (n + 1) // 2) * batch
    assert phase.flops == pencil
    arithmetic = sum(part.compute_seconds for part in phase.parts)
    assert arithmetic == pytest.approx(phase.flops / 989.4e12)
    assert arithmetic < phase.seconds < 1.6 * arithmetic  # what all else moves, operator by operator, comes beside


def test_efficiency_and_price() -> None:
    spec = af.preset("llama2-7b").spec
    half = replace(H100, efficiency=Efficiency(0.5, 0.5, 0.5, 0.5))
    whole, slow = (roofline(spec, device=d, seq_len=2048, batch=2, price_per_hour=3.6) for d in (H100, half))
    for phase in whole.phases:
        assert slow.phases[phase].seconds == pytest.approx(2 * whole.phases[phase].seconds)
    facts = whole.phases["training"].as_json()
    assert facts["price"] == pytest.approx(facts["seconds"] / 1000)
    assert facts["joules"] == pytest.approx(700 * facts["seconds"])
    assert facts["share_of_peak"] == pytest.approx(facts["flops"] / facts["seconds"] / 989.4e12)


def test_a_latent_cache_is_read_instead_of_keys_and_values() -> None:
    spec, n, batch = af.preset("deepseek-v3").spec, 32_768, 1
    seen = [o for o in forward_pass(spec, batch=batch, query=1, past=n - 1) if o.kind == "attention"]
    read = sum(o.times * o.nbytes for o in seen)
    assert read == pytest.approx(61 * (512 + 64 + 512) * 2 * n, rel=0.05)  # keys of 576 and, of the same latent, values


def test_small_passes_are_bound_by_launches() -> None:
    spec = af.preset("gpt2").spec
    phase = roofline(spec, device="H100", seq_len=64, batch=1).phases["decoding"]
    calls = sum(o.times for o in forward_pass(spec, batch=1, query=1, past=63))
    assert phase.bound == "overhead"
    assert phase.seconds >= 0.8 * calls * 4e-6


@pytest.mark.parametrize(("name", "word"), [("H100", "fitted"), ("A100-40GB", "fitted"), ("L4", "assumed")])
def test_whether_shares_of_peaks_are_fitted(name: str, word: str) -> None:
    found = roofline(af.preset("gpt2"), device=name, seq_len=64)
    said = {line.name: line.value for line in next(roofline_sections(found)).lines}
    assert said["efficiency"] == word
    given = roofline(af.preset("gpt2"), device=name, seq_len=64, efficiency=IDEAL)
    assert {line.name: line.value for line in next(roofline_sections(given)).lines}["efficiency"] == "assumed"


def test_an_encoder_has_no_decoding() -> None:
    assert set(roofline(af.preset("bert-base"), device="H100").phases) == {"training", "prefill"}
    assert "decoding" in roofline(af.preset("t5-small"), device="H100", seq_len=128).phases


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"device": "H10"}, "no device 'H10'"),
        ({"device": "V100", "dtype": "bfloat16"}, "no peak for bfloat16"),
        ({"dtype": "float23"}, "did you mean 'float32'"),
        ({"dtype": "int4"}, "has no times: those on a device are of float32, bfloat16, float16; give one of these"),
        ({"seq_len": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"seq_len": 1025}, "goes beyond the 1,024 learned positions"),
        ({"price_per_hour": 0.0}, "must be above 0"),
        ({"device": "this"}, "run `anyformer calibrate` first"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict, says: str) -> None:
    with pytest.raises((UsageError, SpecError)) as caught:
        roofline(af.preset("gpt2"), **arguments)
    assert says in str(caught.value)


def test_between_rows_of_a_table_powers_are_exact() -> None:
    axes = (1, 8, 64), (2, 32), (4, 64, 256)
    law = lambda m, n, k: 3.0 * m**-0.5 * n**0.25 * k**-1.5  # noqa: E731
    grid = Grid(*axes, tuple(law(m, n, k) for m in axes[0] for n in axes[1] for k in axes[2]))
    for m, n, k in ((1, 2, 4), (3, 5, 200), (64, 32, 256), (17, 9, 64)):
        assert grid.at(m, n, k) == pytest.approx(law(m, n, k))
    assert grid.at(1000, 2, 4) == pytest.approx(law(64, 2, 4))  # beyond the end: as the end
    assert grid.at(1, 1, 1) == pytest.approx(law(1, 2, 4))
    assert on_curve(((10.0, 1.0), (1000.0, 100.0)), 100.0) == pytest.approx(10.0)


def test_a_device_of_the_user_is_a_device() -> None:
    mine = Device("mine", {"float32": 1e12}, 10**9, 1e11, "a test")
    found = roofline(af.preset("gpt2"), device=mine, seq_len=128)
    assert (found.dtype, found.fits) == ("float32", True)
    assert not roofline(af.preset("llama2-7b"), device=mine, seq_len=128).fits
