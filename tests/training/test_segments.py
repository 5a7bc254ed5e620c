"""Training with a memory of segments, beside plain passes over all that was read; streams, parts, restarts, refusals."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer.errors import CheckpointError, SpecError, UsageError
from anyformer.families import preset
from anyformer.layers import Everything
from anyformer.layers.projection import Projection
from anyformer.model import Transformer, build
from anyformer.recipe import (
    AdamW,
    Constant,
    DropoutSpec,
    LoadBalance,
    MaskedLM,
    MultiToken,
    Recipe,
    RouterTraining,
    dumps,
    loads,
)
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, EncodedCorpus, Sampler, StreamSampler, pack
from anyformer.training.data import segments
from anyformer.training.data.feed import Feed
from anyformer.training.data.segments import SegmentBatch, SegmentValidation, in_streams
from anyformer.training.data.text import TextData
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run import Job, Run, RunOptions, train
from anyformer.training.run.evaluation import evaluate
from anyformer.training.run.plan import flops_per_token
from anyformer.training.step import Trainer
from anyformer.training.step.memories import SegmentMemories, check_memory
from tests.laws.models import randomised
from tests.laws.tolerance import FLOAT32, VISIBLE, gradient_distance
from tests.training.crashing import crashed, hexadecimal
from tests.training.models import decoder, encoder_decoder

LENGTH, MEMORY, STREAMS = 6, 8, 3
CPU = torch.device("cpu")


def small(name: str) -> ModelSpec:
    return resize(shrink(preset(name).spec), vocab_size=61)


def corpus(n_documents: int, seed: int = 0, longest: int = 40) -> EncodedCorpus:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, longest, n_documents)
    tokens = draw.integers(1, 61, lengths.sum()).astype(np.uint16)
    return EncodedCorpus(tokens, np.concatenate([[0], lengths.cumsum()]), lengths - 2, 61, f"random {seed} {longest}")


def recipe(**changes: Any) -> Recipe:
    given = Recipe(
        tokens=LENGTH * STREAMS * 20,
        batch_tokens=LENGTH * STREAMS,
        seq_len=LENGTH,
        memory=MEMORY,
        optimizer=AdamW(lr=0.03),
        schedule=(Constant(),),
        router=RouterTraining(losses=()),
    )
    return given.but(**changes)


def trainer_of(model: Transformer, said: Recipe, micro_tokens: int | None = None) -> Trainer:
    return Trainer(model, said, objective_of(said.objective, model.spec), micro_tokens=micro_tokens)


# What the streams read.


def test_each_stream_reads_on_and_together_they_read_everything() -> None:
    packed = pack(corpus(40), LENGTH, seed=3)
    sampler = StreamSampler(packed.n_rows, STREAMS, 3)
    before = next(sampler)
    rows = [before]
    for _ in range(2 * packed.n_rows):
        now = next(sampler)
        assert ((now - before) % packed.n_rows == 1).all()
        rows.append(now)
        before = now
    epoch = -(-packed.n_rows // STREAMS)
    assert set(np.concatenate(rows[:epoch]).tolist()) == set(range(packed.n_rows))
    again = StreamSampler(packed.n_rows, STREAMS, 3)
    again.restore(sampler.state() | {"step": 5})
    assert (next(again) == rows[5]).all()
    assert Sampler(packed.n_rows, 4, 3).state().keys() == sampler.state().keys()


def told(feed: Feed, steps: int) -> SegmentBatch:
    """All that each stream reads, one segment after the other."""
    batches = [next(feed) for _ in range(steps)]
    fields = [np.concatenate(fields, 1) for fields in zip(*(batch[:4] for batch in batches), strict=True)]
    assert all((batch.stream[:, 0] == np.arange(STREAMS)).all() for batch in batches)
    return SegmentBatch(*fields, stream=batches[0].stream)


@pytest.mark.parametrize("longest", [2**16, 11])
def test_a_stream_is_documents_that_go_on_from_row_to_row(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    monkeypatch.setattr(segments, "LONGEST", longest)
    encoded = corpus(9)
    packed = pack(encoded, LENGTH, seed=3)
    read = told(in_streams(packed, StreamSampler(packed.n_rows, STREAMS, 3)), 2 * packed.n_rows)
    documents = [encoded.document(i).tolist() for i in range(encoded.n_documents)]
    for ids, labels, document, position in zip(*read[:4], strict=True):
        real = document > 0
        assert (labels[~real] == NOT_PREDICTED).all()
        ids, labels, document, position = (field[real] for field in (ids, labels, document, position))
        assert len(set(document[np.flatnonzero(np.diff(document))].tolist())) == (np.diff(document) != 0).sum()
        cuts = np.flatnonzero(np.diff(document)) + 1
        pieces = list(zip(*(np.split(field, cuts) for field in (ids, labels, position)), strict=True))
        for i, (tokens, sharing, place) in enumerate(pieces):
            assert len(tokens) <= longest
            assert (tokens[1:] == sharing[:-1]).all()
            assert (np.diff(place) == 1).all()
            if 0 < i < len(pieces) - 1:  # neither cut by the first segment nor by the last
                assert place[0] == 0
                if longest == 2**16:
                    assert [*tokens.tolist(), sharing[-1]] in documents


# Losses and gradients.


class Oracle:
    """Plain passes over the memory and the segment; keys and values that were made in earlier steps are those, constants."""

    def __init__(self) -> None:
        self.read: list[tuple[Tensor, ...]] = []  # (ids, document, positions), [stream, token]
        self.made: list[list[Mapping[str, Tensor]]] = []  # by step, by layer

    def __call__(self, model: Transformer, rows: SegmentBatch) -> tuple[float, dict[str, Tensor]]:
        self.read.append(tuple(map(torch.from_numpy, (rows.input_ids, rows.document, rows.positions))))
        ids, document, positions = (torch.cat(fields, 1) for fields in zip(*self.read, strict=True))
        past = min(MEMORY, ids.shape[1] - LENGTH)
        window = slice(ids.shape[1] - LENGTH - past, None)
        with self.substituted(model, past):
            out = model(ids[:, window], document[:, window], positions[:, window])
        labels = torch.from_numpy(rows.labels)
        logits = out.logits[:, -LENGTH:].flatten(0, 1).float()
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=NOT_PREDICTED)
        model.zero_grad()
        loss.backward()
        return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    @contextmanager
    def substituted(self, model: Transformer, past: int) -> Iterator[None]:
        projections = [module for module in model.modules() if isinstance(module, Projection)]
        made: list[Mapping[str, Tensor]] = []

        def project(
            plain: Any, layer: int, narrow: Tensor, x: Tensor, context: Any, store: Any
        ) -> tuple[Tensor, Mapping[str, Tensor]]:
            q, stored = plain(narrow, x, context, store)
            made.append({name: value[..., -LENGTH:, :].detach() for name, value in stored.items()})
            if not past:
                return q, stored
            before = {name: torch.cat([step[layer][name] for step in self.made], -2) for name in stored}
            return q, {
                name: torch.cat((before[name][..., -past:, :], value[..., -LENGTH:, :]), -2)
                for name, value in stored.items()
            }

        for layer, module in enumerate(projections):
            module.project = partial(project, module.project, layer)
        yield
        self.made.append(made)
        for module in projections:
            del module.project


@pytest.mark.parametrize(
    ("name", "micro_tokens"),
    [
        ("gopher-44m", None),
        ("gopher-44m", LENGTH),
        ("gopher-44m", 2 * LENGTH),
        ("llama2-7b", None),
        ("gemma2-2b", None),
        ("deepseek-v2-lite", None),
    ],
)
def test_losses_and_gradients_are_those_of_plain_passes(name: str, micro_tokens: int | None) -> None:
    model, said, oracle = randomised(small(name)), recipe(), Oracle()
    feed, trainer = TextData(corpus(12), None, None).feed(said), trainer_of(model, said, micro_tokens)
    for step in range(1, 7):
        rows = next(feed)
        loss, wanted = oracle(copy.deepcopy(model), rows)
        mean, *_ = trainer.gradients(step, rows)
        found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        assert mean == pytest.approx(loss, rel=FLOAT32)
        assert gradient_distance(found, wanted, share=1e-3) < FLOAT32
        trainer.optimizer.zero_grad()
        assert trainer.step(step, rows).loss == pytest.approx(loss, rel=FLOAT32)  # a pass more has left nothing


def test_a_memory_is_seen_only_within_its_stream_and_document() -> None:
    """Changing what one stream has read changes no other stream, and what another document said changes nothing."""
    model, said = randomised(small("gopher-44m")), recipe()
    feed = TextData(corpus(12), None, None).feed(said)
    first, second = next(feed), next(feed)

    def losses(read: SegmentBatch) -> Tensor:
        trainer = trainer_of(model, said)
        trainer.gradients(1, read)
        assert trainer.memories is not None
        trainer.memories.advance()
        return trainer.losses(second).each

    plain, ids = losses(first), first.input_ids.copy()
    ids[1] = 60 - ids[1]
    other = losses(first._replace(input_ids=ids))
    assert torch.equal(other[[0, 2]], plain[[0, 2]])
    apart = losses(first._replace(document=first.document + 10**6))
    goes_on = first.document[:, -1] == second.document[:, 0]
    assert goes_on.any()
    changed = (apart != plain).any(1).numpy()
    assert (changed == goes_on).all()


# Runs.

TEXTS = TextData(corpus(30), corpus(6, seed=1), None)
RUN = recipe(dropout=DropoutSpec(residual=0.2))
HOW = RunOptions(device=CPU, save_every=3, validations=3)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_that_crashed_goes_on_bit_for_bit(tmp_path: Path, precision: Any) -> None:
    said, spec, out = RUN.but(precision=precision), small("gopher-44m"), tmp_path / "run"
    whole = train(spec, said, TEXTS, out=tmp_path / "whole", options=HOW)
    other = train(spec, said.but(memory=MEMORY + 1), TEXTS, options=HOW)
    assert [m.loss for m in other.steps[:5]] != [m.loss for m in whole.steps[:5]]
    for step in (5, 13):
        crashed(step, spec, said, TEXTS, out=out, options=HOW)
    again = RunOptions(device=CPU, save_every=3, validations=3, workers=2)
    result = train(spec, said, TEXTS, out=out, options=again)
    assert hexadecimal(result) == hexadecimal(whole)
    assert result.evaluation == whole.evaluation


def test_a_checkpoint_of_another_memory_is_refused() -> None:
    model = randomised(small("gopher-44m"))
    other = SegmentMemories(model, MEMORY, STREAMS + 1).held
    with pytest.raises(CheckpointError, match=r"the checkpoint's memory is another: last is \(4, 2, 1\) there and \(3"):
        SegmentMemories(model, MEMORY, STREAMS).restore(other)
    with pytest.raises(CheckpointError, match="last is nothing there"):
        SegmentMemories(model, MEMORY, STREAMS).restore({})


def test_micro_batches_of_a_mixture_add_up() -> None:
    """Where losses go by the whole batch's load, each part is passed twice: the memory goes on once."""
    spec, said = small("deepseek-v2-lite"), recipe(router=RouterTraining(losses=(LoadBalance(weight=0.1),)))
    feed = TextData(corpus(12), None, None).feed(said)
    batches = [next(feed) for _ in range(4)]
    found = []
    for micro_tokens in (None, LENGTH):
        trainer = trainer_of(randomised(spec), said, micro_tokens)
        found.append([trainer.step(i, rows) for i, rows in enumerate(batches, 1)])
    for whole, parts in zip(*found, strict=True):
        assert parts.loss == pytest.approx(whole.loss, rel=FLOAT32 * 10)
        assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-3)


def test_validation_is_each_document_read_alone() -> None:
    model, encoded = randomised(small("gopher-44m")), corpus(7, seed=4, longest=16)
    objective = objective_of(recipe().objective, model.spec)

    def read(text: EncodedCorpus, memory: int, **options: Any) -> Any:
        return evaluate(model, objective, SegmentValidation(text, LENGTH, memory), **options)

    every = read(encoded, MEMORY, batch_tokens=3 * LENGTH)
    assert len(every.documents) == 7
    assert every.tokens == encoded.predictions
    for i, found in enumerate(every.documents):
        tokens = encoded.document(i)
        alone = EncodedCorpus(tokens, np.array([0, len(tokens)]), encoded.document_nbytes[[i]], 61, "")
        assert found.nats == pytest.approx(read(alone, MEMORY).nats, rel=FLOAT32)
        assert (found.tokens, found.nbytes) == (len(tokens) - 1, len(tokens) - 2)
        ids = torch.from_numpy(tokens.astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None, :-1]).logits[0]
        whole = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum").item()
        assert read(alone, 64).nats == pytest.approx(whole, rel=FLOAT32)
    assert abs(read(encoded, 1).loss - every.loss) > VISIBLE * FLOAT32

    validation = SegmentValidation(encoded, LENGTH, MEMORY)
    some = [(rows, source) for rows, source in validation.batches(2 * LENGTH, 30)]
    assert sum((rows.labels != NOT_PREDICTED).sum() for rows, _ in some) == 30
    assert len({len(rows.labels) for rows, _ in some}) == 1
    assert evaluate(model, objective, validation, most_tokens=10**6).loss == pytest.approx(every.loss, rel=FLOAT32)


def test_longer_keys_and_what_is_kept_are_counted(tmp_path: Path) -> None:
    spec, said = small("llama2-7b"), recipe()
    load = TEXTS.load(said)
    assert (load.query, load.past) == (LENGTH, MEMORY)
    with_memory, alone = flops_per_token(spec, load), flops_per_token(spec, TEXTS.load(said.but(memory=None)))
    width = sum(p.shape[1] for n, p in build(spec).named_parameters() if n.endswith("projection.o.weight"))
    # Queries times keys and weights times values, a multiplication and an addition each, three passes.
    assert with_memory - alone == pytest.approx(3 * 2 * 2 * width * MEMORY)
    plan, plain = (Run(Job(spec, one, TEXTS, tmp_path / "run"), HOW).plan() for one in (said, said.but(memory=None)))
    assert plan.flops_per_token == with_memory
    # Keys and values, as wide as o reads (no head is shared here), and six facts a place and stream; a save more than is kept.
    nbytes = STREAMS * MEMORY * (2 * width * 4 + 5 * 8)
    copies = (plan.disk_nbytes - plain.disk_nbytes) / nbytes
    assert copies == pytest.approx(HOW.keep_last + 2, rel=0.05)


# What a document asks at its end was said at its beginning: in short ones in the same segment, in long ones before it.
KINDS, LONG, SHORT = 8, 12, 2


def questions(n: int, seed: int, *lengths: int) -> EncodedCorpus:
    draw, documents = np.random.default_rng(seed), []
    for _ in range(n):
        key, end = draw.integers(1, KINDS + 1), KINDS + 1 + LONG
        between = np.arange(end - draw.choice(lengths), end)
        documents.append(np.array([0, key, *between, key, 0], np.uint16))
    offsets = np.cumsum([0, *map(len, documents)])
    return EncodedCorpus(np.concatenate(documents), offsets, np.diff(offsets) - 2, 61, f"questions {n} {seed}")


@pytest.mark.slow
def test_what_was_said_before_the_segment_is_learned() -> None:
    data = TextData(questions(400, 0, LONG, SHORT), questions(100, 1, LONG), None)
    said = Recipe(
        tokens=1000 * 128, batch_tokens=128, seq_len=8, memory=16, optimizer=AdamW(lr=0.02), schedule=(Constant(),)
    )
    result = train(decoder(), said, data, options=RunOptions(device=CPU, plan=False, validations=0))
    # Drawn evenly, the first key costs ln 8 nats a document; so does the second where the first is not seen.
    best_without = 2 * math.log(KINDS)
    assert result.evaluation is not None
    assert result.evaluation.nats / len(result.evaluation.documents) < 0.8 * best_without
    forgetful = data.validation(said.but(memory=None))
    assert forgetful is not None
    found = evaluate(result.model, objective_of(said.objective, result.model.spec), forgetful)
    assert found.nats / len(found.documents) > 0.97 * best_without


# Refusals.


@pytest.mark.parametrize(
    ("spec", "changes", "said"),
    [
        (decoder(learned_positions=64), {}, r"cannot have a memory of segments: its positions are absolute"),
        (
            decoder(),
            {"objective": MaskedLM()},
            r"a memory of segments is for texts read from left to right, by CausalLM; MaskedLM",
        ),
        (encoder_decoder(), {}, "it has an encoder"),
    ],
)
def test_what_goes_with_no_memory_is_refused(tmp_path: Path, spec: ModelSpec, changes: Any, said: str) -> None:
    spec = decoder(Everything()) if changes else spec
    with pytest.raises(UsageError, match=said):
        train(spec, recipe(**changes), TEXTS, out=tmp_path / "run", options=HOW)
    assert not (tmp_path / "run").exists()


def test_what_predicts_further_ahead_reads_whole_rows() -> None:
    with pytest.raises(UsageError, match="by CausalLM; MultiToken reads them otherwise, so leave --memory out"):
        check_memory(decoder(), recipe(objective=MultiToken()))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"recompute": "full"}, "--recompute full would add to the memory of segments twice"),
        ({"compiled": True}, "--compile computes layers that keep nothing"),
    ],
)
def test_what_passes_with_a_memory_cannot_be(tmp_path: Path, how: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        train(decoder(), recipe(), TEXTS, out=tmp_path / "run", options=RunOptions(device=CPU, **how))
    assert not (tmp_path / "run").exists()


def test_a_recipe_says_its_memory() -> None:
    said = recipe()
    assert loads(dumps(said)) == said
    assert "memory" not in dumps(said.but(memory=None))
    with pytest.raises(SpecError, match=r"memory.*must be at least 1, or null"):
        recipe(memory=0)
