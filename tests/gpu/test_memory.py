"""Law 8 on the device: what `cost` says that a GPU keeps and holds is what autograd's hooks and the allocator count there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.costs import activations
from anyformer.families import preset
from anyformer.model import build
from anyformer.recipe import DropoutSpec
from anyformer.training.step.device import autocast
from tests.gpu.machine import DEVICE, REHEARSED, on_gpu
from tests.laws.memory import TWELVE, counted, losses_of
from tests.laws.models import ids_for
from tests.laws.test_memory import ALL_DROPPED, CLOSE, PEAK, POLICIES

pytestmark = on_gpu
KIND: Any = DEVICE.type
BATCH, SEQ_LEN = 4, 512
# Sizes at which what a kernel keeps for itself is small beside the rest.
SIZED = "+n_layers=2+d_model=256+n_heads=4+vocab_size=1024"


def sized(name: str) -> Any:
    return af.load_spec(name + SIZED)


@pytest.mark.parametrize("recompute", POLICIES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "bloom-560m", "gemma2-2b", "pythia-70m"])
def test_kept(name: str, precision: Any, recompute: Any) -> None:
    options = {"precision": precision, "recompute": recompute}
    said = activations(sized(name), batch=BATCH, seq_len=SEQ_LEN, device=KIND, **options)
    assert said.saved_nbytes == pytest.approx(counted(sized(name), BATCH, SEQ_LEN, device=DEVICE, **options), rel=CLOSE)


@pytest.mark.parametrize("dropout", [ALL_DROPPED, DropoutSpec(residual=0.1)])
def test_kept_with_dropout(dropout: DropoutSpec) -> None:
    options: dict[str, Any] = {"precision": "bf16", "recompute": "none", "dropout": dropout}
    said = activations(sized("gpt2"), batch=BATCH, seq_len=SEQ_LEN, device=KIND, **options)
    assert said.saved_nbytes == pytest.approx(
        counted(sized("gpt2"), BATCH, SEQ_LEN, device=DEVICE, **options), rel=CLOSE
    )


@pytest.mark.parametrize("name", TWELVE)
def test_kept_by_twelve_architectures(name: str) -> None:
    spec = af.shrink(preset(name).spec)
    said = activations(spec, batch=32, seq_len=64, device=KIND, precision="float32")
    assert said.saved_nbytes == pytest.approx(counted(spec, 32, 64, device=DEVICE), rel=0.03)


@pytest.mark.skipif(REHEARSED, reason="the allocator is CUDA's")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["gpt2", "llama2-7b"])
def test_the_allocators_peak(name: str, precision: Any) -> None:
    spec = sized(name)
    model = build(spec, device=DEVICE)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    ids = ids_for(spec, BATCH, SEQ_LEN).to(DEVICE)

    def step() -> None:
        with autocast(precision, DEVICE):
            loss = torch.stack(losses_of(model, ids, ids)).sum()
        loss.backward()

    step()
    torch.cuda.reset_peak_memory_stats(DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)
    step()
    found = torch.cuda.max_memory_allocated(DEVICE) - before
    said = activations(spec, batch=BATCH, seq_len=SEQ_LEN, device=KIND, precision=precision)
    assert said.nbytes == pytest.approx(found, rel=2 * PEAK)
