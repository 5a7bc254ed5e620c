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
from anyformer.recipe import RECIPES, CausalLM, PermutedLM, Precision, Seq2Seq
from anyformer.spec import ModelSpec
from anyformer.text import Batch, PairBatch
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.architecture import has_two_streams
from anyformer.training.objectives.causal.loss import CausalObjective
from anyformer.training.objectives.objective import LossContext, Losses, tensor
from anyformer.training.objectives.permuted.loss import PermutedNoise, PermutedObjective
from anyformer.training.objectives.seq2seq.loss import Seq2SeqObjective
from anyformer.training.step import Trainer

SEED = 0
STEPS = 32  # tokens that a row grows by before it starts anew


class EveryToken(CausalObjective):
    """A label for every token, whatever the model: what `observation.training_pass` predicts the step of.

    No user can ask for it, so that it has no specification of its own. Rows are what the model is trained on otherwise:
    `text.Batch`, beside an encoder `text.PairBatch`, of two streams `PermutedRows`.
    """

    def refuses(self) -> str | None:
        return None

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        if self.spec.encoder is not None:
            given = Seq2SeqObjective(Seq2Seq(), self.spec).asked(rows, device)
        elif has_two_streams(self.spec):
            given = PermutedObjective(PermutedLM(), self.spec).asked(rows, device)
        else:
            given = super().asked(rows, device)
        return given | {"output_ahead": bool(self.spec.ahead)}

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        total, each = scored(by.head, out, tensor(rows.labels))
        return Losses(total, torch.zeros(rows.labels.shape) if each is None else each, out.notes)


def trainer_of(model: Transformer, rows: Rows, precision: Precision = "float32") -> Trainer:
    """A trainer of a model by the small recipe on rows of this size. Raises UsageError for a model without a head."""
    if not model.spec.heads:
        raise UsageError(
            "no training step can be timed: the model has no head to score tokens; write one under its `heads`"
        )
    batch, places = rows.labels.shape
    recipe = RECIPES["small"].but(seq_len=places, batch_tokens=batch * places, precision=precision)
    return Trainer(model, recipe, EveryToken(CausalLM(), model.spec))


def random_rows(spec: ModelSpec, batch: int, seq_len: int) -> Rows:
    """A batch of random tokens, with labels that the first head has a row for; in two streams with blanks beside them."""
    generator = np.random.default_rng(SEED)
    shape = (batch, seq_len)
    table = spec.heads[0].table if spec.heads else None
    n_labels = spec.vocab_size if table is None else min(spec.vocab_size, table.rows)

    def ids(below: int = spec.vocab_size, shape: tuple[int, ...] = shape) -> np.ndarray:
        return generator.integers(0, below, shape, dtype=np.int64)

    ones, positions = np.ones(shape, dtype=np.int64), np.tile(np.arange(seq_len), (batch, 1))
    if spec.encoder:
        real = ones.astype(bool)
        return PairBatch(ids(), real, ids(), real, ids(n_labels))
    rows = Batch(ids(), ids(n_labels), ones, positions, np.zeros(shape, dtype=np.int64))
    if not has_two_streams(spec):
        return rows
    beside = PermutedNoise(PermutedLM())(rows, [generator] * batch)
    return beside._replace(labels=ids(n_labels, beside.labels.shape))


def training_step(spec: ModelSpec, batch: int, seq_len: int, device: torch.device) -> Callable[[], object]:
    """A function that makes one optimiser step of a new model on random tokens."""
    rows = random_rows(spec, batch, seq_len)
    trainer = trainer_of(build(spec, SEED, device=device), rows)
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
