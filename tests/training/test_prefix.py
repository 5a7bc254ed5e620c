"""Prefix language models without an encoder: losses against an explicit mask, text by text; runs, generation, refusals."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anyformer import layers
from anyformer.errors import SpecError, UsageError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.families.prefix import prefixed
from anyformer.generation import BeamSearch, generate_ids
from anyformer.generation.beam import search_ids
from anyformer.generation.sampling import Sampling, generators
from anyformer.model import Transformer, build
from anyformer.recipe import UL2, CausalLM, Denoising, MaskedLM, ObjectiveSpec, PrefixLM, SpanCorruption
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec, Place, Window, Workload
from anyformer.text import NOT_PREDICTED
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.denoising.loss import in_one_row
from anyformer.training.objectives.denoising.noise import NoisyPairs
from anyformer.training.objectives.objective import LossContext, objective_of
from anyformer.training.run import RunOptions, train
from anyformer.training.run.plan import flops_per_token
from anyformer.training.step import Trainer
from tests.laws.elsewhere import named
from tests.laws.tolerance import FLOAT32, gradient_distance
from tests.laws.weights import filled, telling
from tests.oracles.decoders import Sees, gelu_tanh, gpt
from tests.training.crashing import hexadecimal, resumed
from tests.training.models import encoder_decoder
from tests.training.noisy import text_data, tokenizer
from tests.training.test_objectives import CPU
from tests.training.test_objectives_noise import by_kind, originals, recipe

RESTORED = (PrefixLM(), SpanCorruption(), Denoising(), UL2())
DRAWN = Sampling(temperature=6.0, top_k=40)
restored = pytest.mark.parametrize("objective", RESTORED, ids=by_kind)


@cache
def spec(name: str = "gpt2") -> ModelSpec:
    return prefixed(resize(shrink(preset(name).spec), vocab_size=tokenizer().vocab_size, context=96))


def sequences(rows: NoisyPairs, row: int) -> list[tuple[list[int], list[int]]]:
    """Return (prefix, target) of each document: what begins an answer, the source without its end; the labels."""
    found = []
    for number in sorted(set(rows.source_document[row].tolist()) - {0}):
        source = rows.source_ids[row][rows.source_document[row] == number].tolist()
        written = rows.target_document[row] == number
        begin = rows.target_ids[row][written][0]
        found.append(([int(begin), *source[:-1]], rows.labels[row][written].tolist()))
    return found


@restored
def test_losses_are_those_of_an_explicit_mask(objective: ObjectiveSpec) -> None:
    """Packed documents in one row against one document at a time, head by head, key by key; forward and backward."""
    weights = telling(spec())
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    oracle, ours = named(spec(), leaves), filled(spec(), weights)
    rows = next(text_data().feed(recipe(objective, seq_len=24, batch_tokens=48)))
    losses = objective_of(objective, spec())(LossContext(ours, ours.head(), CPU), rows)
    losses.total.backward()
    total, n = torch.zeros(()), 0
    for row in range(len(rows.labels)):
        assert len(sequences(rows, row)) > 1 or row
        each = []
        for prefix, labels in sequences(rows, row):
            ids = torch.tensor([*prefix, *labels[:-1]])
            table = oracle["positions.weight"][: len(ids)]
            logits = gpt(
                oracle,
                ids,
                n_layers=spec().n_layers,
                n_heads=heads(spec()),
                sees=seeing(len(prefix)),
                positions=table,
                feed=gelu_tanh,
            )
            each.append(F.cross_entropy(logits[len(prefix) - 1 :], torch.tensor(labels), reduction="none"))
        expected = torch.cat(each)
        real = torch.from_numpy(rows.labels[row] != NOT_PREDICTED)
        torch.testing.assert_close(losses.each[row][real], expected.detach(), rtol=1e-4, atol=1e-4)
        total, n = total + expected.sum(), n + len(expected)
    assert n > 15
    torch.testing.assert_close(losses.total, total, rtol=FLOAT32, atol=0)
    total.backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert gradient_distance(gradients, {name: leaf.grad for name, leaf in leaves.items()}) < FLOAT32


def seeing(prefix: int) -> Sees:
    return lambda layer, head, query, key: key <= query or key < prefix


def heads(model: ModelSpec) -> int:
    return next(v.n_heads for v in model.stack.nested() if isinstance(v, layers.GQASpec))


def test_a_row_is_its_text_cut_in_two() -> None:
    """Whole texts with a random cut each; labels are what comes after it, and the text's end."""
    rows, plain, end = next(text_data().feed(recipe(PrefixLM()))), originals(), tokenizer().end_of_text
    one, cuts = in_one_row(rows), set()
    for row in range(len(rows.labels)):
        for number in range(1, int(plain.document[row].max()) + 1):
            text = [int(t) for t in plain.input_ids[row][plain.document[row] == number] if t != end]
            here = one["attention_mask"][row] == number
            if not text:
                assert not here.any()
                continue
            order = np.argsort(one["position_ids"][row][here])
            assert sorted(one["position_ids"][row][here]) == list(range(len(text) + 1))
            assert one["input_ids"][row][here][order].tolist() == [end, *text]
            types = one["token_type_ids"][row][here][order]
            cut = int((types == 0).sum())
            assert types.tolist() == [0] * cut + [1] * (len(text) + 1 - cut)
            assert rows.labels[row][rows.target_document[row] == number].tolist() == [*text[cut - 1 :], end]
            if len(text) > 8:
                cuts.add(cut / len(text))
    assert len(cuts) > 2


@pytest.mark.parametrize("objective", [PrefixLM(), UL2()], ids=by_kind)
def test_micro_batches_add_up(objective: ObjectiveSpec) -> None:
    given = recipe(objective, seq_len=40, batch_tokens=160)
    batch, gradients = next(text_data().feed(given)), []
    for micro_tokens in (None, 1):
        trainer = Trainer(build(spec()), given, objective_of(objective, spec()), micro_tokens=micro_tokens)
        mean, tokens, *_ = trainer.gradients(1, batch)
        gradients.append((mean, tokens, [p.grad for p in trainer.parameters]))
    assert gradients[1][:2] == (pytest.approx(gradients[0][0], rel=1e-6), gradients[0][1])
    torch.testing.assert_close(gradients[1][2], gradients[0][2], rtol=1e-4, atol=1e-6)


def test_a_run_that_crashed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    options, given = (
        RunOptions(device=CPU, save_every=2, validations=2, plan=False),
        recipe(PrefixLM(), seq_len=40, batch_tokens=160),
    )
    straight = train(spec(), given, text_data(), options=options, out=tmp_path / "straight")
    again = resumed(3, spec(), given, text_data(), out=tmp_path / "run", options=options)
    assert hexadecimal(again) == hexadecimal(straight)


def plainly(model: Transformer, prompt: list[int], n: int, seed: int) -> list[int]:
    """Continue a prompt, all computed anew each time with a mask of that very prefix; likeliest tokens would repeat."""
    size = Window(len(prompt))
    other = build(changed(model.spec, layers.Prefix, size=size))
    other.load_state_dict(model.state_dict())
    ids, drawn = list(prompt), generators(seed, 1)
    for _ in range(n):
        with torch.no_grad():
            ids.append(int(DRAWN(other(torch.tensor([ids])).logits[:, -1], drawn)))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", ["gpt2", "gemma3-1b"])
@pytest.mark.parametrize("cached", [True, False])
def test_a_prompt_is_a_prefix(name: str, cached: bool) -> None:
    """Alone, and beside others of other lengths, padded; the second model's windows have it too."""
    model = filled(spec(name), telling(spec(name), seed=7))
    prompts = [[5, 9, 2, 7, 11, 3, 8, 4, 30, 31], [6, 12, 9, 41, 8]]
    expected = [plainly(model, prompt, 6, seed) for seed, prompt in enumerate(prompts)]
    assert len(set(expected[0])) > 2
    causal = build(changed(model.spec, layers.Prefix, size=Window(1)))
    causal.load_state_dict(model.state_dict())
    options: dict[str, Any] = {"max_new_tokens": 6, "sampling": DRAWN}
    assert generate_ids(causal, torch.tensor([prompts[0]]), **options)[0].tolist() != expected[0]
    for seed, (prompt, tokens) in enumerate(zip(prompts, expected, strict=True)):
        assert generate_ids(model, torch.tensor([prompt]), cache=cached, seed=seed, **options)[0].tolist() == tokens
    padded = torch.tensor([prompts[0], [0] * 5 + prompts[1]])
    mask = torch.tensor([[1] * 10, [0] * 5 + [1] * 5])
    assert generate_ids(model, padded, mask, cache=cached, **options).tolist() == expected


@pytest.mark.parametrize("name", ["gpt2", "gemma3-1b"])
def test_a_beam_of_one_is_the_likeliest_text(name: str) -> None:
    model = filled(spec(name), telling(spec(name), seed=3))
    prompt = torch.tensor([[5, 9, 2, 7, 11, 3, 8, 4, 30, 31]])
    expected = generate_ids(model, prompt, max_new_tokens=6, cache=False)[0].tolist()
    ((best,),) = search_ids(model, prompt, max_new_tokens=6, how=BeamSearch(beams=1))
    assert list(best.token_ids) == expected
    whole = torch.tensor([[*prompt[0].tolist(), *expected]])
    with torch.no_grad():
        types = (torch.arange(16) >= 10).long()[None]
        logs = model(whole, token_type_ids=types).logits[0].log_softmax(-1)
    total = sum(float(logs[9 + i, token]) for i, token in enumerate(expected))
    assert best.score == pytest.approx(total / 6, rel=1e-4)


def masked(mask: layers.Mask) -> ModelSpec:
    return changed(spec(), layers.AttentionSpec, mask=mask)


@pytest.mark.parametrize(
    ("objective", "model", "says"),
    [
        (PrefixLM(), masked(layers.Causal()), r"none of its masks has a prefix .* \(families.prefix.prefixed\)"),
        (UL2(), masked(layers.Everything()), "it has no encoder to read what noise left, and none of its masks"),
        (
            PrefixLM(),
            masked(layers.Causal() | layers.Prefix(size=Window(4))),
            "its prefix is of 4 tokens in any text",
        ),
        (
            PrefixLM(),
            masked(layers.Prefix() | layers.SymmetricWindow(radius=Window(2))),
            "its Or mask lets a token see the ones after the prefix",
        ),
        (PrefixLM(), masked(layers.Prefix() | layers.Everything()), "its Or mask lets a token see"),
        (PrefixLM(), spec().but(heads=()), "it has no head that predicts tokens"),
        (MaskedLM(), spec(), "its masks have a prefix, after which they are causal; use PrefixLM"),
        (CausalLM(), spec(), "its Or mask lets a token see the ones it has to predict; use PrefixLM"),
    ],
)
def test_what_has_no_prefix_is_refused(objective: ObjectiveSpec, model: ModelSpec, says: str) -> None:
    with pytest.raises(UsageError, match=f"{objective.kind} does not go with this architecture: .*{says}"):
        objective_of(objective, model)


@restored
def test_no_sequence_is_longer_than_is_said(objective: ObjectiveSpec) -> None:
    data, given = text_data(), recipe(objective, seq_len=40, batch_tokens=160)
    feed = data.feed(given)
    found = [
        len(p) + len(t) - 1 for _ in range(20) for rows in [next(feed)] for i in range(4) for p, t in sequences(rows, i)
    ]
    said = data.longest(spec(), given, 40)
    assert max(found) <= said
    if isinstance(objective, PrefixLM):
        assert said == 41
    with pytest.raises(UsageError, match=f"sequences of {said} tokens go beyond the model's 40 learned positions"):
        train(changed(spec(), layers.LearnedPositionsSpec, n_positions=40), given, data, options=RunOptions(device=CPU))


def test_all_that_is_read_costs_something() -> None:
    """FLOPs a predicted token are those of the whole row."""
    whole = 3 * spec().cost(Place(), Workload(query=50)).flops
    assert flops_per_token(spec(), Workload(query=20, memory=30)) == pytest.approx(whole / 20)
    both = encoder_decoder()
    assert (
        flops_per_token(both, Workload(query=20, memory=30))
        == 3 * both.cost(Place(), Workload(query=20, memory=30)).flops / 20
    )


def test_a_decoder_is_given_a_prefix_in_every_layer() -> None:
    causal = shrink(preset("gemma3-1b").spec)
    found = prefixed(causal)
    masks = {v.mask for v in found.stack.nested() if isinstance(v, layers.AttentionSpec)}
    windows = [v.size for v in causal.stack.nested() if isinstance(v, layers.SlidingWindow)]
    either = layers.Causal() | layers.Prefix()
    assert masks == {either, layers.And(masks=(either, layers.SlidingWindow(size=windows[0])))}
    assert usual(found) == PrefixLM()
    for model, says in ((encoder_decoder(), "with an encoder"), (masked(layers.Everything()), "no causal mask")):
        with pytest.raises(SpecError, match=says):
            prefixed(model)
