"""What serving takes: against published cache sizes, GGUF's own bytes, and arithmetic by hand."""

from dataclasses import replace
from typing import Any

import pytest

import anyformer as af
from anyformer.costs.hardware.devices import Efficiency, device
from anyformer.costs.hardware.inference import WEIGHT_BITS, Deployment, InferencePlan, plan_inference
from anyformer.costs.hardware.plan import Hardware
from tests.cli.running import answer, refused, run

H100 = device("H100")


def served(name: str, devices: int = 1, seq_len: int = 4096, **changes: Any) -> InferencePlan:
    return plan_inference(af.preset(name), Hardware(devices, replace(H100, **changes)), seq_len=seq_len)


def way(found: InferencePlan, weight_bits: int = 16, cache_bits: int = 16, tp: int = 1) -> Deployment:
    wanted = weight_bits, cache_bits, tp
    return next(each for each in found.ways if (each.weight_bits, each.cache_bits, each.tp) == wanted)


# KiB a token in 16 bits: 2 · layers · key/value heads · width of a head · 2 bytes, as published.
@pytest.mark.parametrize(("name", "kib"), [("llama2-7b", 512), ("llama3-8b", 128)])
def test_the_cache_of_a_sequence(name: str, kib: int) -> None:
    found = served(name, 4)
    assert way(found).cache_nbytes == kib * 1024 * 4096
    assert way(found, cache_bits=8).cache_nbytes == kib * 1024 * 4096 * 17 / 32  # a scale of 16 bits for 32 numbers
    assert way(found, tp=4).cache_nbytes == kib * 1024 * 4096 / 4


@pytest.mark.slow
def test_a_latent_is_on_every_device() -> None:
    """70.272 kB a token of DeepSeek-V3: arXiv:2505.09343, table 1."""
    found = served("deepseek-v3", 16)
    for tp in (1, 8, 16):
        assert way(found, tp=tp).cache_nbytes == 70_272 * 4096
    touched = way(found, 4, 8, tp=16)
    assert touched.expert_nbytes == 58 * 2 * 8 * 15 / 16 * 7168 * 2
    assert touched.experts_touched is not None
    assert 8 < touched.experts_touched < 256


def test_weights_take_the_bytes_of_gguf() -> None:
    gguf = pytest.importorskip("gguf")
    sizes, kind = gguf.GGML_QUANT_SIZES, gguf.GGMLQuantizationType
    for bits, of in {16: kind.BF16, 8: kind.Q8_0, 6: kind.Q6_K, 4: kind.Q4_0}.items():
        n, nbytes = sizes[of]
        assert WEIGHT_BITS[bits] == nbytes * 8 / n
    found = served("llama3-8b")
    assert way(found).weights_nbytes == 2 * 8_030_261_248  # Meta's count
    assert way(found, 4).weights_nbytes == pytest.approx(8_030_261_248 * 18 / 32, abs=1)


def test_how_many_sequences() -> None:
    """By hand: 92 % of 80 GB, less 16.06 GB of weights, in pieces of 4,096 · 128 KiB; buffers take less than one."""
    room = 0.92 * 80e9 - 16.06e9
    one = 4096 * 128 * 1024
    assert way(served("llama3-8b")).sequences in (int(room // one), int(room // one) - 1)


def test_a_token_reads_weights_and_cache_once() -> None:
    """On a device that computes, launches and sends in no time, of whose memory every byte is read at full speed."""
    peaks = {"bfloat16": 1e25}
    ideal = Efficiency(1.0, 1.0, 1.0, 1.0, 1.0)
    found = served("llama3-8b", peak_flops_per_second=peaks, overhead_seconds=0.0, efficiency=ideal)
    table = 128_256 * 4096 * 2  # of the input, of which a token reads one row
    for bits, cache in ((16, 16), (8, 8), (4, 16)):
        one = way(found, bits, cache)
        read = one.weights_nbytes - table * WEIGHT_BITS[bits] / 16
        assert one.alone_seconds * 3.35e12 == pytest.approx(read + one.cache_nbytes, rel=0.01)
        # Beside them, unfused, a sequence's own vectors: some 75 as wide as the stream a layer, of 2 bytes.
        vectors = one.token_seconds * 3.35e12 - read - one.sequences * one.cache_nbytes
        assert 0 < vectors < 1.5 * one.sequences * 32 * 75 * 4096 * 2
        assert one.bound == "cache"
        assert one.tokens_per_second == one.sequences / one.token_seconds


def test_beyond_a_node_nothing_is_sent_in_no_time() -> None:
    """Where no network is said, as over the node's own links; a slower one is slower."""
    both = {"devices_per_node": 4, "link_nbytes_per_second": 1e9}
    slow, unknown, whole = (
        way(served("llama3-8b", 8, **more), tp=8).first_token_seconds
        for more in (
            both | {"network_nbytes_per_second": 1e8},
            both | {"network_nbytes_per_second": None},
            both | {"devices_per_node": 8},
        )
    )
    assert unknown == whole
    assert slow > 5 * whole


def test_a_prompt_is_arithmetic() -> None:
    """2 · parameters but the input's table, a token, and the visible half of the pairs; and what the elements move."""
    found = way(served("llama3-8b", efficiency=Efficiency(1.0, 1.0, 1.0, 1.0, 1.0), overhead_seconds=0.0))
    products = 2 * (8_030_261_248 - 2 * 128_256 * 4096) * 4096
    attention = 4 * 32 * 4096 * 4096 * 4097 / 2
    assert found.first_token_seconds > (products + attention) / 9.894e14
    assert found.first_token_seconds < 1.5 * (products + attention) / 9.894e14


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("gpt2", "cache"),
        ("lstm-medium", "states"),
        ("mamba-130m", "states"),
        ("qwen1.5-moe-a2.7b", "weights"),
        ("deepseek-v3", "cache"),
    ],
)
def test_a_token_takes_what_the_roofline_says_of_so_many_sequences(name: str, most: str) -> None:
    spec, seq_len = af.preset(name).spec, 256
    spec = af.shrink(spec) if name == "deepseek-v3" else spec
    large, n = replace(H100, memory_nbytes=1e15, overhead_seconds=0.0), 400
    whole = way(plan_inference(spec, Hardware(1, large), seq_len=seq_len))
    room = (whole.weights_nbytes + whole.buffers_nbytes + (n + 0.5) * whole.cache_nbytes) / 0.92
    found = way(plan_inference(spec, Hardware(1, replace(large, memory_nbytes=room)), seq_len=seq_len))
    assert found.sequences == n
    for batch, seconds in ((1, found.alone_seconds), (n, found.token_seconds)):
        said = af.roofline(spec, device=large, seq_len=seq_len, batch=batch).phases["decoding"].seconds
        assert seconds == pytest.approx(said, rel=1e-3)
    assert found.bound == most


def test_experts() -> None:
    found = served("mixtral-8x7b", 4, 1024)
    one = way(found, tp=4)
    assert one.experts_touched == pytest.approx(8, abs=1e-6)  # hundreds of sequences choose all
    assert one.expert_nbytes == 32 * 2 * 2 * 3 / 4 * 4096 * 2
    assert found.least_tp(16, 16) == 2  # 93 GB do not fit one device of 80
    assert found.least_tp(4, 16) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert-base", [], "--inference is for decoders"),
        ("t5-base", [], "--inference is for decoders"),
        ("gpt2", ["--tokens", "5M"], "--tokens is of training; leave it out with --inference"),
        ("gpt2", ["--seq-len", "1"], "--seq-len 1 has no token to read"),
    ],
)
def test_what_is_refused(name: str, options: list[str], message: str) -> None:
    refused(run("plan", name, "--hardware", "H100", "--inference", *options), message)


def test_the_command() -> None:
    told = answer("plan", "gpt2", "--hardware", "2xH100", "--inference", "--json")
    assert told["fits"]
    assert {(each["weight_bits"], each["cache_bits"], each["tp"]) for each in told["ways"]} == {
        (w, c, tp) for w in (16, 8, 6, 4) for c in (16, 8) for tp in (1, 2)
    }


def test_a_cache_that_does_not_fit_is_said() -> None:
    """4 bits of weights would fit an L4 four times over; a sequence would not."""
    result = run("plan", "llama3-8b", "--hardware", "L4", "--inference", "--seq-len", "1000000")
    assert result.exit_code == 1
    assert "4.52 GB of weights in 4 bits, 69.6 GB of cache a sequence" in " ".join(result.stdout.split())
