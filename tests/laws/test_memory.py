"""Law 8, memory: the bytes that a training pass keeps are those that autograd's hooks count; policies change no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.costs import activations, state_nbytes
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import BatchNormSpec
from anyformer.layers.context import Dropout
from anyformer.model import Transformer, build
from anyformer.observation.passes import training_pass
from anyformer.recipe import DropoutSpec
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec, parameters
from tests.laws.combinations import decoders
from tests.laws.memory import TWELVE, counted, peak
from tests.laws.models import every_preset, every_preset_few_fast, flop_counter, ids_for, randomised, runner
from tests.laws.tolerance import close
from tests.sample import combinations

POLICIES = ("none", "selective", "full")
ALL_DROPPED = DropoutSpec(embedding=0.1, attention=0.1, residual=0.1, activation=0.1)
CLOSE = 0.01  # what is left out is of the size of a bias
PEAK = 0.06  # a gradient of a weight on its way is counted with the state; of toys, whose weights are large beside the rest


def predicted(spec: ModelSpec, batch: int, seq_len: int, **options: Any) -> int:
    return activations(spec, batch=batch, seq_len=seq_len, device="cpu", **options).saved_nbytes


@every_preset
def test_presets(spec: ModelSpec) -> None:
    options: dict[str, Any] = {"precision": "float32", "recompute": "none"}
    assert predicted(spec, 3, 40, **options) == pytest.approx(counted(spec, 3, 40, **options), rel=CLOSE)


def test_layers_that_are_undone_keep_the_last_state_alone() -> None:
    """However many are alike, of which two are observed; and what each of them keeps besides."""
    spec = resize(preset("reformer-enwik8").spec, n_layers=5, d_model=32, vocab_size=300)
    options: dict[str, Any] = {"precision": "float32", "recompute": "none"}
    assert predicted(spec, 2, 24, **options) == pytest.approx(counted(spec, 2, 24, **options), rel=CLOSE)


@pytest.mark.in_turn
@pytest.mark.parametrize("recompute", POLICIES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", TWELVE)
def test_twelve_architectures_at_two_shapes(name: str, precision: str, recompute: str) -> None:
    spec = shrink(preset(name).spec)
    for batch, seq_len in ((2, 24), (3, 61)):
        options: dict[str, Any] = {"precision": precision, "recompute": recompute}
        assert predicted(spec, batch, seq_len, **options) == pytest.approx(
            counted(spec, batch, seq_len, **options), rel=CLOSE
        )


@pytest.mark.in_turn
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", TWELVE)
def test_peaks(name: str, precision: str, recompute: str) -> None:
    """Of all that is alive at once, buffers of the loss and gradients on their way among it."""
    spec = shrink(preset(name).spec)
    options: dict[str, Any] = {"precision": precision, "recompute": recompute}
    found = activations(spec, batch=3, seq_len=61, device="cpu", **options)
    assert found.nbytes == pytest.approx(peak(spec, 3, 61, **options), rel=PEAK)


@pytest.mark.in_turn
@pytest.mark.parametrize("recompute", POLICIES)
@pytest.mark.parametrize("name", TWELVE)
def test_dropout(name: str, recompute: str) -> None:
    options: dict[str, Any] = {"precision": "float32", "recompute": recompute, "dropout": ALL_DROPPED}
    spec = shrink(preset(name).spec)
    assert predicted(spec, 2, 24, **options) == pytest.approx(counted(spec, 2, 24, **options), rel=CLOSE)


@given(
    spec=decoders(),
    precision=st.sampled_from(["float32", "bf16"]),
    recompute=st.sampled_from(POLICIES),
    drop=st.booleans(),
)
@settings(max_examples=combinations(40), deadline=None)
def test_combinations(spec: ModelSpec, precision: str, recompute: str, drop: bool) -> None:
    options: dict[str, Any] = {"precision": precision, "recompute": recompute}
    options["dropout"] = ALL_DROPPED if drop else DropoutSpec()
    assert predicted(spec, 2, 24, **options) == pytest.approx(counted(spec, 2, 24, **options), rel=0.05)


def gradients(model: Transformer, recompute: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """Return the loss and every gradient of a pass with dropout, drawn from one seed."""
    model.recompute = recompute
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    ids = ids_for(model.spec, 2, 24)
    more = {} if model.spec.encoder is None else {"decoder_input_ids": ids}
    out = model(ids, **more, dropout=Dropout(0.1, 0.1, 0.1, 0.1), **options)
    loss = out.last_hidden_state.square().mean() + sum(logits.square().mean() for logits in out.outputs.values())
    loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    return (loss.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in trained))


@every_preset_few_fast
def test_policies_change_no_bit(spec: ModelSpec) -> None:
    model = randomised(spec)
    plain = gradients(model, "none")
    for recompute in ("selective", "full"):
        again = gradients(model, recompute)
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True)), recompute


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize(
    "name",
    ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma2-2b", "mixtral-8x7b", "t5-small"))],
)
def test_policies_compile_without_a_break(name: str, recompute: Any) -> None:
    torch.compiler.reset()
    model = randomised(shrink(preset(name).spec))
    dropless = runner(model)
    ids = ids_for(model.spec, 2, 12)

    def step() -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        dropless(ids).logits.square().mean().backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]

    model.recompute = "none"
    plain = step()
    model.recompute = recompute
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)  # type: ignore[method-assign]
    for mine, other in zip(step(), plain, strict=True):
        close(mine, other)


def test_padded_rows_change_no_bit() -> None:
    model = randomised(shrink(preset("gemma3-1b").spec))
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[0, :7] = 0
    plain = gradients(model, "none", attention_mask=mask)
    for recompute in ("selective", "full"):
        assert all(
            torch.equal(a, b) for a, b in zip(plain, gradients(model, recompute, attention_mask=mask), strict=True)
        )


def test_statistics_of_batches_move_once() -> None:
    small = shrink(preset("gpt2").spec)
    norm = BatchNormSpec()
    blocks = tuple(
        block.but(
            sublayers=tuple(
                sublayer.but(norm_in=norm, branches=_bare(sublayer.branches)) for sublayer in block.sublayers
            )
        )
        for block in small.stack.blocks
    )
    model = randomised(small.but(stack=small.stack.but(blocks=blocks)))
    start = {name: p.clone() for name, p in model.named_parameters()}
    moved = []
    for recompute in ("none", "full"):
        model.load_state_dict(start)
        gradients(model, recompute)
        moved.append({name: p.clone() for name, p in model.named_parameters() if not p.requires_grad})
    assert any(not torch.equal(moved[0][name], start[name]) for name in moved[0])
    assert all(torch.equal(moved[0][name], moved[1][name]) for name in moved[0])


def _bare(branches: Any) -> Any:
    return tuple(branch.but(norm_in=None) for branch in branches)


def test_nothing_is_made_again_without_gradients() -> None:
    model = build(shrink(preset("llama2-7b").spec))
    model.recompute = "full"
    ids = ids_for(model.spec, 1, 8)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, build(model.spec)(ids).logits)


@pytest.mark.parametrize(("name", "into"), [("llama2-7b", 2), ("gpt2", 1)])
def test_a_layers_last_map_is_not_made_again(name: str, into: int) -> None:
    """Nobody needs its result: what is made again are attention's four maps and the feed-forward's first, as PyTorch counts.

    Attention itself it counts on a CPU from 2.15 on; that is left out.
    """
    model = randomised(shrink(preset(name).spec))
    ids = ids_for(model.spec, 2, 16)
    found = {}
    for model.recompute in ("none", "full"):
        with flop_counter() as counter:
            model(ids).logits.sum().backward()
        counts = counter.get_flop_counts()["Global"]
        found[model.recompute] = sum(n for operator, n in counts.items() if "dot_product" not in str(operator))
    d_ff = next(fields["d_ff"] for each in model.spec.nested() if "d_ff" in (fields := each.values()))
    d = model.spec.stack.d_model
    again = model.spec.n_layers * (4 * d * d + into * d * d_ff)
    assert found["full"] - found["none"] == 2 * ids.numel() * again


def test_what_is_made_again_is_the_largest_layer() -> None:
    spec = preset("llama2-7b").spec
    none, full = (activations(spec, batch=1, seq_len=4096, recompute=policy) for policy in ("none", "full"))
    of_layers = none.saved_nbytes - full.saved_nbytes - none.saved["weights in bf16"]
    (beside,) = full.passing.values()
    # A layer is there again, and what its gradients take on their way: as much as it keeps, for the wide tensors four times.
    assert of_layers / 32 < beside < 5 * of_layers / 32
    assert full.nbytes == full.saved_nbytes + beside


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_state_is_what_training_holds(name: str) -> None:
    """Of a shrunk model in float32: the bytes of weights, gradients and the optimiser's tensors after a step."""
    from anyformer.recipe import AdamW
    from anyformer.training.step.optimizer import optimizer_of, ways_of

    model = build(shrink(preset(name).spec))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer_of(AdamW(), model, ways_of(model))
    for p in trained:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moments = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.dim() or t.numel() > 1)
    expected = state_nbytes(parameters(model.spec).total, precision="float32")
    assert (expected.weights, expected.gradients) == (sum(p.nbytes for p in trained),) * 2
    assert abs(expected.optimizer - moments) <= 8 * len(trained)  # scalars have the shape of a number of steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_that_are_made_again_keep_what_each_read(dtype: torch.dtype) -> None:
    """Where weights have 16 bits too, though of alike layers two are observed: kept, and there at the peak."""
    rows, tokens = 2, 32
    specs = (resize(preset("llama2").spec, n_layers=n, d_model=64, vocab_size=64) for n in (6, 12))
    six, twelve = (training_pass(spec, batch=rows, seq_len=tokens, dtype=dtype, recompute="full") for spec in specs)
    of_layer = rows * tokens * 64 * dtype.itemsize
    assert sum(twelve.kept.values()) - sum(six.kept.values()) == 6 * of_layer
    assert twelve.peak - six.peak == 6 * of_layer


def test_unknown_names_are_refused() -> None:
    spec = preset("gpt2").spec
    for options in ({"recompute": "ful"}, {"precision": "bf15"}, {"device": "cdua"}):
        with pytest.raises(SpecError, match="did you mean"):
            activations(spec, batch=1, seq_len=8, **options)  # type: ignore[arg-type]
