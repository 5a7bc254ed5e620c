"""What two architectures have alike carries over, and nothing else: by name, kind and declaration of each tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families import preset, with_classifier
from anyformer.hub import load, save, transplant
from anyformer.model import build
from anyformer.resizing import shrink
from tests.cli.running import run
from tests.laws.models import randomised

BASE = shrink(preset("llama3-8b").spec)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "weights"
    save(randomised(BASE), path)
    return path


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({}, ()),
        ({"eps": 1e-3, "theta": 100.0, "mask": "SlidingWindow(size=8)"}, ()),
        ({"norm": "LayerNorm"}, ("norm",)),
        ({"norm": "RMSNorm(weight_offset=1.0)"}, ("norm",)),  # the same shape, and it starts from elsewhere
        ({"n_kv_heads": 1}, ("projection.k", "projection.v")),
        ({"attention": "MLA(kv_rank=8,head_dim=8,rotary_dim=4)"}, ("projection",)),
        ({"vocab_size": BASE.vocab_size + 3}, ("embedding", "table")),
        ({"activation": "GELU"}, ()),  # what the gate was is gone
        ({"n_layers": 1}, ()),
        ({"n_layers": BASE.n_layers + 1}, (f"blocks.{BASE.n_layers}.",)),
    ],
    ids=str,
)
def test_what_is_carried_over(given: Path, change: dict[str, object], new: tuple[str, ...]) -> None:
    spec = af.vary(BASE, **change)
    found = transplant(spec, given, seed=3)
    theirs, mine, drawn = load(given)[0].state_dict(), found.model.state_dict(), build(spec, 3).state_dict()
    assert [name for name in mine if name in found.new] == list(found.new)
    for name, tensor in mine.items():
        assert torch.equal(tensor, (drawn if name in found.new else theirs)[name]), name
    assert bool(found.new) == bool(new)
    assert all(any(part in name for part in new) for name in found.new)
    assert all(any(part in name for name in found.new) for part in new)


def test_a_mixer_of_another_kind_is_new(given: Path) -> None:
    from examples.hybrid import hybrid

    spec = hybrid(BASE)
    found = transplant(spec, given)
    odd = [name for name in found.model.state_dict() if name.startswith("stack.blocks.0.") and ".mixer." in name]
    assert {name for name in found.new if "blocks.0." in name} == {name for name in odd if "sublayers.0" in name}
    assert not any("blocks.1." in name for name in found.new)


def test_labels_go_where_their_rows_go(tmp_path: Path) -> None:
    spec = with_classifier(shrink(preset("bert-base").spec), 3, "classes")
    model = randomised(spec)
    model.labels = ("a", "b", "c")
    save(model, tmp_path / "given")
    assert transplant(af.vary(spec, norm="RMSNorm"), tmp_path / "given").model.labels == ("a", "b", "c")
    other = with_classifier(shrink(preset("bert-base").spec), 2, "classes")
    assert transplant(other, tmp_path / "given").model.labels is None


def test_nothing_alike(given: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing in .* is alike in that architecture; give a variant of it"):
        transplant(af.vary(BASE, d_model=48), given)


def test_the_command(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("convert", str(given), str(out), "--into", f"{given}+norm=LayerNorm", "--seed", "3")
    assert done.exit_code == 0, done.output
    n = sum(each.numel() for each in load(given)[0].state_dict().values())
    norms = (2 * BASE.n_layers + 1) * BASE.stack.d_model
    assert (
        f"{n - norms:,} of {n + norms:,} numbers are carried over; new: norm_in.weight, norm_in.bias, " in done.output
    )
    written, made = (
        load(out)[0].state_dict(),
        transplant(af.vary(BASE, norm="LayerNorm"), given, seed=3).model.state_dict(),
    )
    assert all(torch.equal(written[name], made[name]) for name in made)
    into = ["--into", "llama2"]
    for more, says in (
        ([*into, "--dtype", "bfloat16"], "leaves no room for --dtype; leave all but --to and --seed out"),
        ([*into, "--shard-size", "1MB"], "leaves no room for --shard-size; leave all but --to and --seed out"),
        ([*into, "--average", "2"], "leaves no room for --average; leave all but --to and --seed out"),
        ([*into, "--with", str(given)], "leaves no room for --with; leave all but --to and --seed out"),
        ([*into, "--seed", str(10**30)], "Invalid value for '--seed'"),
        (["--seed", "3"], "--seed says what --into draws; give --into too, or leave --seed out"),
    ):
        refused = run("convert", str(given), str(tmp_path / "b"), *more)
        assert refused.exit_code == 2
        assert says in refused.output
        assert not (tmp_path / "b").exists()
