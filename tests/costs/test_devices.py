"""Devices: what the datasheets print, and files that are read strictly."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from anyformer.cli.options import NAMES
from anyformer.costs.hardware.devices import Device, device, devices
from anyformer.costs.hardware.roofline import roofline
from anyformer.errors import UsageError

MINE = {
    "name": "mine",
    "peak_flops_per_second": {"bfloat16": 100e12, "float32": "25e12"},  # YAML reads 25e12 as text
    "memory_nbytes": 16e9,
    "nbytes_per_second": 1e12,
    "source": "a test",
}


# FLOPs a byte as published beside the peaks: NVIDIA's and Google's pages, and lectures that divide them.
@pytest.mark.parametrize(("name", "ridge"), [("A100-80GB", 153), ("H100", 295), ("H200", 206), ("TPUv4", 224)])
def test_ridges(name: str, ridge: float) -> None:
    assert devices()[name].ridge("bfloat16") == pytest.approx(ridge, rel=0.005)


def test_every_device_is_whole() -> None:
    for known in devices().values():
        assert known.source
        assert known.memory_nbytes >= 16e9
        peaks = known.peak_flops_per_second
        assert peaks["float32"] < max(peaks.get("bfloat16", 0), peaks["float16"])
        assert known.link_nbytes_per_second is not None
        assert known.link_nbytes_per_second < known.nbytes_per_second
        if known.network_nbytes_per_second is not None:
            assert known.network_nbytes_per_second < known.link_nbytes_per_second


def test_the_shell_completes_all_names() -> None:
    assert list(NAMES) == list(devices())


@pytest.mark.parametrize("name", ["H100", "h100", "H-100", "h100-sxm"])
def test_names_are_read_kindly(name: str) -> None:
    assert device(name) is devices()["H100"]


def test_an_unknown_device_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no device 'H10O' \(did you mean 'H100'\?\)"):
        device("H10O")


def write(path: Path, **changes: object) -> Path:
    path.write_text(yaml.safe_dump({k: v for k, v in {**MINE, **changes}.items() if v is not None}), encoding="utf-8")
    return path


def test_a_file_is_a_device(tmp_path: Path) -> None:
    found = device(write(tmp_path / "mine.yaml", efficiency={"products": 0.5}))
    assert isinstance(found, Device)
    assert (found.peak("float32"), found.memory_nbytes, found.ridge("bfloat16")) == (25e12, 16_000_000_000, 100)
    assert (found.efficiency.products, found.efficiency.memory) == (0.5, 0.85)


@pytest.mark.parametrize("name", ["memory_nbytes", "nbytes_per_second", "devices_per_node", "overhead_seconds"])
def test_what_a_device_must_have_is_not_null(tmp_path: Path, name: str) -> None:
    (path := tmp_path / "mine.yaml").write_text(yaml.safe_dump({**MINE, name: None}), encoding="utf-8")
    with pytest.raises(UsageError, match=f"{name} = None is no number"):
        device(path)
    path.write_text(yaml.safe_dump({**MINE, "power_watts": None}), encoding="utf-8")
    assert device(path).power_watts is None


def test_a_device_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "h100.yaml"
    path.write_text(yaml.safe_dump(devices()["H100"].as_json()), encoding="utf-8")
    assert device(path) == devices()["H100"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"memory": 3}, "'memory' is no field"),
        ({"memory_nbyte": 3}, "did you mean 'memory_nbytes'"),
        ({"nbytes_per_second": None}, "nbytes_per_second is missing"),
        ({"nbytes_per_second": "fast"}, "'fast' is no number"),
        ({"nbytes_per_second": -1}, "-1 must be above 0"),
        ({"peak_flops_per_second": {}}, "must be a mapping of dtype"),
        ({"peak_flops_per_second": {"bfloat16": 0}}, "peak_flops_per_second.bfloat16 = 0 must be above 0"),
        ({"efficiency": {"products": 1.5}}, "efficiency.products = 1.5 must be above 0 and at most 1"),
        ({"efficiency": {"product": 0.5}}, "did you mean 'products'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        device(write(tmp_path / "mine.yaml", **changes))
    assert says in str(caught.value)
    assert "mine.yaml" in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_a_file_that_holds_no_device_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.yaml"):
        device(tmp_path / "mine.yaml")
    with pytest.raises(UsageError, match="cannot read"):
        device(tmp_path / "none.yaml")


def test_a_dtype_without_a_peak_is_refused() -> None:
    with pytest.raises(UsageError, match="V100 states no peak for bfloat16"):
        devices()["V100"].peak("bfloat16")
    fp8 = replace(devices()["V100"], name="mine", peak_flops_per_second={"float8": 1e15})
    with pytest.raises(UsageError, match="mine states no peak for float16; it does for float8"):
        roofline("gpt2", device=fp8, seq_len=8)
