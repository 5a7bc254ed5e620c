"""Devices, precisions, and the heap."""

import ctypes
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.errors import UsageError
from anyformer.training.step.device import autocast, best_device, choose_device, compute_dtype, keep_heap


def test_the_best_is_the_default() -> None:
    assert choose_device() == best_device()
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "says"),
    [("cuds", "did you mean 'cuda'"), ("tpu", "there is no device 'tpu'"), ("cpu:x", "cannot be used")],
)
def test_a_device_that_is_not_there_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choose_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="device 'cuda' cannot be used here") as caught:
        choose_device("cuda")
    assert "\n" not in str(caught.value)


def test_a_model_is_neither_built_nor_loaded_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    spec = af.shrink(af.preset("gpt2"))
    af.save(af.build(spec), tmp_path / "saved")
    for make in (partial(af.build, spec), partial(af.load, tmp_path / "saved")):
        with pytest.raises(UsageError, match=r"device 'gpu' cannot be used here .*; take another, such as cpu"):
            make(device="gpu")


def test_bf16_is_the_dtype_of_products() -> None:
    a = torch.ones(2, 2)
    with autocast("bf16", a.device):
        assert (a @ a).dtype == compute_dtype("bf16") == torch.bfloat16
    with autocast("float32", a.device):
        assert (a @ a).dtype == compute_dtype("float32") == torch.float32


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_an_unknown_precision_is_not_taken_for_float32() -> None:
    wrong: Any = "bfloat16"
    with pytest.raises(UsageError, match=r"no precision 'bfloat16'.*; there are float32, bf16"):
        autocast(wrong, torch.device("cpu"))


def test_a_large_tensor_comes_from_the_heap_again() -> None:
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        pytest.skip("another C library")
    assert keep_heap()
    nbytes = 64 << 20
    first = torch.empty(nbytes, dtype=torch.uint8)
    address = first.data_ptr()
    heap = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "[heap]" in line]
    # A heap that has been grown for long is several mappings side by side.
    assert any(int(low, 16) <= address < int(high, 16) for low, high in heap)
