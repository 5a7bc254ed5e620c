"""A training step and a decoding step of a model, as functions that can be called again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anyformer.errors import UsageError
from anyformer.generation.decode import Decoding
from anyformer.generation.layout import lay_out_for_decoding
from anyformer.hub.loading import holding
from anyformer.layers.embedding import learned_positions
from anyformer.layers.packing import Packing
from anyformer.model import Output, Transformer, build
from anyformer.observation.passes import scored
from anyformer.recipe import RECIPES, ObjectiveSpec, Precision
from anyformer.spec import ModelSpec
from anyformer.text import Batch, PairBatch
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.objective import LossContext, Losses, Objective, objective_of, tensor
from anyformer.training.objectives.seq2seq.loss import pairs_of
from anyformer.training.step import Trainer

SEED = 0
STEPS = 32  # tokens that a row grows by before it starts anew


class EveryToken(ObjectiveSpec):
    """A label for every token, whatever the model: what `observation.training_pass` predicts the step of."""


class EveryTokenObjective(Objective[EveryToken]):
    """Rows are `text.Batch`, beside an encoder `text.PairBatch`, every token of which has a label."""

    def refuses(self) -> str | None:
        return None

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        paired = self.spec.encoder is not None
        given = pairs_of(rows, device, rows.source_mask, rows.target_mask) if paired else super().asked(rows, device)
        return given | {"output_ahead": bool(self.spec.ahead)}

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        total, each = scored(by.head, out, tensor(rows.labels))
        return Losses(total, torch.zeros(rows.labels.shape) if each is None else each, out.notes)


def trainer_of(model: Transformer, batch: int, seq_len: int, precision: Precision = "float32") -> Trainer:
    """A trainer of a model by the small recipe at this size. Raises UsageError for a model without a head."""
    if not model.spec.heads:
        raise UsageError(
            "no training step can be timed: the model has no head to score tokens; write one under its `heads`"
        )
    said = EveryToken()
    sizes = {"seq_len": seq_len, "batch_tokens": batch * seq_len, "precision": precision}
    return Trainer(model, RECIPES["small"].but(**sizes, objective=said), objective_of(said, model.spec))


def random_rows(spec: ModelSpec, batch: int, seq_len: int) -> Rows:
    """A batch of random tokens, with labels that the first head has a row for."""
    generator = np.random.default_rng(SEED)
    shape = (batch, seq_len)
    table = spec.heads[0].table if spec.heads else None
    n_labels = spec.vocab_size if table is None else min(spec.vocab_size, table.rows)

    def ids(below: int = spec.vocab_size) -> np.ndarray:
        return generator.integers(0, below, shape, dtype=np.int64)

    ones, positions = np.ones(shape, dtype=np.int64), np.tile(np.arange(seq_len), (batch, 1))
    if spec.encoder:
        real = ones.astype(bool)
        return PairBatch(ids(), real, ids(), real, ids(n_labels))
    return Batch(ids(), ids(n_labels), ones, positions, np.zeros(shape, dtype=np.int64))


def training_step(spec: ModelSpec, batch: int, seq_len: int, device: torch.device) -> Callable[[], object]:
    """A function that makes one optimiser step of a new model on random tokens."""
    trainer = trainer_of(build(spec, SEED, device=device), batch, seq_len)
    rows = random_rows(spec, batch, seq_len)
    return lambda: trainer.step(1, rows)


def decoding_step(
    spec: ModelSpec, batch: int, past: int, device: torch.device, dtype: torch.dtype | Packing = torch.float32
) -> Callable[[], object]:
    """A function that adds a token to each of `batch` rows that hold about `past`, greedily, as `generate` does.

    Rows hold less where learned positions end sooner. An encoder reads as many tokens. Raises KernelError for weights in few
    bits that the device does not multiply.
    """
    packing, kept = (dtype, torch.float32) if isinstance(dtype, str) else (None, dtype)
    model = build(spec, SEED, device=device, dtype=kept)
    if packing is not None:
        model = holding(spec, model.state_dict().items(), kept, packing=packing, device=device, where="memory")
    model = lay_out_for_decoding(model, several=batch > 1)
    most = learned_positions(spec.stack)
    held = past if most is None else max(1, min(past, most - STEPS))
    rows = random_rows(spec, batch, past)
    ids = torch.from_numpy(rows.source_ids if spec.encoder else rows.input_ids[:, :held]).to(device)
    start = torch.from_numpy(rows.target_ids[:, :held]).to(device) if spec.encoder else None
    state: list[Decoding] = []

    def step() -> None:
        if not state or not state[0].steps_left:
            n = STEPS if most is None else max(2, min(STEPS, most - held))
            state[:] = [Decoding(model, ids, max_new_tokens=n, decoder_input_ids=start)]
            next(state[0])
        next(state[0])

    return step
