"""Multi-token prediction beside a slow implementation, packed, padded and plain; what it costs, what it refuses, a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from anyformer import layers
from anyformer.cache import KVCache
from anyformer.errors import InputError, SpecError, UsageError
from anyformer.families import preset
from anyformer.families.deepseek import predicting_further
from anyformer.model import Transformer, build
from anyformer.recipe import CausalLM, Constant, MultiToken, Recipe, dumps, loads
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Place, Workload, parameters, tensors
from anyformer.spec import dumps as spec_text
from anyformer.spec import loads as spec_of_text
from anyformer.text import NOT_PREDICTED, Batch
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.objectives.objective import LossContext, Losses, objective_of
from anyformer.training.run import RunOptions, train
from anyformer.training.run.checks import check_run
from anyformer.training.step import Trainer
from anyformer.training.step.routing import routers_of
from tests.laws.models import flop_counter
from tests.laws.tolerance import FLOAT32, distance, gradient_distance
from tests.oracles import multi_token as oracle
from tests.training.crashing import hexadecimal, resumed
from tests.training.models import VOCAB, decoder
from tests.training.texts import text_data

CPU = torch.device("cpu")
N_AHEAD, LENGTH, WEIGHT = 2, 9, 0.4
SPEC = predicting_further(decoder(), N_AHEAD)
# Of each row the lengths of its documents; what is left is padding. The last is too short to look two further ahead.
ROWS = {"plain": [[9], [9]], "padded": [[9], [5], [1]], "packed": [[4, 5], [2, 3, 3], [1, 6, 2]]}


def batch(lengths: list[list[int]], seed: int = 0) -> tuple[Batch, list[list[int]]]:
    """Return the rows and each document's tokens, one more than it has inputs."""
    rng, documents = np.random.default_rng(seed), []
    fields = [np.full((len(lengths), LENGTH), fill, dtype=np.int64) for fill in (0, NOT_PREDICTED, 0, 0, -1)]
    for row, each in enumerate(lengths):
        start = 0
        for number, n in enumerate(each, 1):
            tokens, here = rng.integers(0, VOCAB, n + 1), slice(start, start + n)
            documents.append(tokens.tolist())
            for field, value in zip(fields, (tokens[:-1], tokens[1:], number, np.arange(n), 0), strict=True):
                field[row, here] = value
            start += n
    return Batch(*fields), documents


def told(spec: ModelSpec, seed: int = 0) -> Transformer:
    """Return a model whose every number is random and whose logits spread."""
    model, generator = build(spec, seed=None), torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters())
    for name, weight in tensors(spec, Place()):
        noise = torch.randn(weight.shape, generator=generator)
        gain = weight.role == "gain"
        named[name].data.copy_(1 + 0.3 * noise if gain else noise * (0.7 if weight.role == "table" else 0.4))
    return model


def learnt(model: Transformer, rows: Batch, forward: object = None) -> Losses:
    objective = objective_of(MultiToken(weight=WEIGHT), model.spec)
    return objective(LossContext(model if forward is None else forward, model.head(), CPU), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ROWS)
def test_loss_and_gradients_are_the_papers(kind: str) -> None:
    """Document by document, token by token; every sum is divided by the number of all tokens in the end (equation 24)."""
    rows, documents = batch(ROWS[kind])
    model = told(SPEC)
    found = learnt(model, rows)
    w = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    each = [oracle.losses(w, tokens, n_layers=1, n_ahead=N_AHEAD) for tokens in documents]
    sums = [torch.stack([nats for document in each for nats in document[k]]) for k in range(N_AHEAD + 1)]
    expected = sums[0].sum() + WEIGHT * (sums[1].sum() + sums[2].sum()) / 2
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert float(found.each.sum()) == pytest.approx(sums[0].sum().item(), rel=1e-6)
    for k in range(1, N_AHEAD + 1):
        part = found.parts[f"ahead {k}"]
        assert float(part.nats) == pytest.approx(sums[k].sum().item(), rel=1e-6)
        assert int(part.labels) == len(sums[k])
    found.total.backward()
    expected.backward()
    ours = {name: p.grad for name, p in model.named_parameters()}
    assert gradient_distance(ours, {name: leaf.grad for name, leaf in w.items()}) < FLOAT32
    assert all(g is not None and float(g.abs().max()) > 0 for g in ours.values())


def test_a_compiler_follows() -> None:
    torch.compiler.reset()
    model, (rows, _) = told(SPEC), batch(ROWS["packed"])
    expected = learnt(model, rows)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert learnt(model, rows, compiled).total.item() == pytest.approx(expected.total.item(), rel=1e-6)


def test_parts_of_a_batch_add_up() -> None:
    rows, _ = batch(ROWS["packed"])
    recipe = Recipe(objective=MultiToken(), tokens=27, batch_tokens=27, seq_len=LENGTH, schedule=(Constant(),))
    whole, parts = (
        Trainer(told(SPEC), recipe, objective_of(recipe.objective, SPEC), micro_tokens=n) for n in (None, LENGTH)
    )
    a, b = whole.step(1, rows), parts.step(1, rows)
    assert a.parts == pytest.approx(b.parts, rel=1e-6)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-5)


def test_what_is_predicted_next_is_the_same_with_and_without() -> None:
    model, ids = told(SPEC), torch.randint(0, VOCAB, (2, 7), generator=torch.Generator().manual_seed(0))
    bare = build(SPEC.but(ahead=()), seed=None)
    surplus = bare.load_state_dict(model.state_dict(), strict=False).unexpected_keys
    assert surplus
    assert all(name.startswith("ahead.") for name in surplus)
    assert torch.equal(model(ids).logits, bare(ids).logits)
    assert torch.equal(model(ids, output_ahead=True).logits, bare(ids).logits)
    assert KVCache(SPEC, length=7).nbytes == KVCache(bare.spec, length=7).nbytes


def test_a_mixtures_modules_have_routers_that_report() -> None:
    spec = shrink(preset("deepseek-v3-mtp").spec)
    model, rows = build(spec), torch.zeros(2, 6, dtype=torch.long)
    notes = model(rows, output_ahead=True).notes
    routed = [note for note in notes if "router_logits" in note]
    assert len(routed) == len(routers_of(model)) == 2
    assert [note["chosen"].shape[1] for note in routed] == [6, 5]
    # Where a document has ended one token later nothing is predicted, so that its token is no load of the experts.
    documents = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]])
    real = model(rows, documents, output_ahead=True).notes[-1]["real"]
    assert real.int().tolist() == [[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]


@pytest.mark.parametrize("name", ["deepseek-v3-mtp", "small"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    spec = SPEC if name == "small" else shrink(preset(name).spec)
    model = build(spec, seed=None, device="meta")
    ids, counter = torch.zeros(2, LENGTH, dtype=torch.long, device="meta"), flop_counter()
    totals = []
    for ahead in (False, True):
        with counter:
            out = model(ids, output_ahead=ahead)
            for hidden in out.ahead:
                model.head()(hidden)
        totals.append(counter.get_total_flops())
    load = Workload(batch=2, query=LENGTH, causal_exact=False)
    assert spec.cost(Place(), load).flops == totals[0]
    assert spec.cost_ahead(Place(), load).flops == totals[1] - totals[0]
    assert spec.but(ahead=()).cost_ahead(Place(), load).flops == 0


def test_the_specification_and_the_recipe_are_files() -> None:
    assert spec_of_text(spec_text(SPEC)) == SPEC
    recipe = Recipe(objective=MultiToken(weight=0.1))
    assert loads(dumps(recipe)) == recipe
    assert "MultiToken" in dumps(recipe)
    own = sum(weight.numel for name, weight in tensors(SPEC, Place()) if name.startswith("ahead."))
    assert own == parameters(SPEC).total - parameters(decoder()).total > 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        UsageError, match="MultiToken does not go with this architecture: it has no module that predicts"
    ):
        objective_of(MultiToken(), decoder())
    blind = SPEC.but(ahead=(SPEC.ahead[0].but(block=decoder(layers.Everything()).stack.blocks[0]),))
    with pytest.raises(UsageError, match="the Everything mask of what predicts further tokens"):
        objective_of(MultiToken(), blind)
    with pytest.raises(
        UsageError,
        match=r"CausalLM leaves the 2 modules of `ahead` untrained; .* MultiToken \(--objective multi-token\)",
    ):
        check_run(SPEC, Recipe(objective=CausalLM()), text_data())
    with pytest.raises(UsageError, match="rows of 2 tokens have nothing 2 further ahead"):
        check_run(SPEC, Recipe(objective=MultiToken(), seq_len=2, batch_tokens=4), text_data())
    with pytest.raises(SpecError, match=r"MultiToken\.weight = 0 must be above 0"):
        MultiToken(weight=0)
    with pytest.raises(SpecError, match=r"Model\.ahead predicts with the first of Model\.heads"):
        SPEC.but(heads=())
    with pytest.raises(SpecError, match="batch_tokens = 10 must be a multiple"):
        Recipe(objective=MultiToken(), batch_tokens=10, seq_len=4)
    model, ids = build(SPEC), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(InputError, match="rows of 2 tokens have nothing 2 further ahead"):
        model(ids, output_ahead=True)
    with pytest.raises(InputError, match="leave the cache out"):
        model(ids, output_ahead=True, cache=KVCache(SPEC, length=4))


def test_a_run_learns_goes_on_and_reports_each_distance(tmp_path: Path) -> None:
    recipe = Recipe(objective=MultiToken(), tokens=64 * 40, batch_tokens=64, seq_len=16, schedule=(Constant(),))
    options = RunOptions(device=CPU, save_every=10, validations=2)
    whole = train(SPEC, recipe, text_data(), options=options)
    again = resumed(25, SPEC, recipe, text_data(), out=tmp_path / "run", options=options)
    assert hexadecimal(again) == hexadecimal(whole)
    steps = read_metrics(tmp_path / "run").steps
    assert [len(step.parts or ()) for step in steps] == [N_AHEAD] * 40
    assert steps == list(again.steps)
    for k in range(N_AHEAD):
        first, last = (np.mean([s.parts[f"ahead {k + 1}"] for s in part]) for part in (steps[:5], steps[-5:]))  # type: ignore[index]
        assert last < first - 0.2
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert abs(line["parts"]["ahead 1"] - np.log(VOCAB)) < 0.5
    load = Workload(batch=4, query=16)
    own = SPEC.cost(Place(), load).flops + SPEC.cost_ahead(Place(), load).flops
    assert whole.flops_per_token == pytest.approx(3 * own / 64)
    assert distance(torch.tensor(whole.steps[0].loss), torch.tensor(np.log(VOCAB))) < 0.1
