"""A training step and a decoding step of a model, as functions that can be called again and again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from anyformer.errors import UsageError
from anyformer.generation.decode import Decoding
from anyformer.generation.layout import lay_out_for_decoding
from anyformer.model import Transformer, build
from anyformer.recipe import RECIPES, CausalLM, Precision, Seq2Seq
from anyformer.spec import ModelSpec
from anyformer.text import Batch, PairBatch
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer

SEED = 0
STEPS = 32  # tokens that a row grows by before it starts anew


def trainer_of(model: Transformer, batch: int, seq_len: int, precision: Precision = "float32") -> Trainer:
    """A trainer of a model by the small recipe at this size. Raises UsageError for what no objective here can train."""
    said = Seq2Seq() if model.spec.encoder else CausalLM()
    sizes = {"seq_len": seq_len, "batch_tokens": batch * seq_len, "precision": precision}
    try:
        objective = objective_of(said, model.spec)
    except UsageError:  # whose remedy is an option that nobody has here
        raise UsageError(
            "steps are timed of decoders, which learn the next token, and of encoders with a decoder; "
            "this architecture learns neither from its first head"
        ) from None
    return Trainer(model, RECIPES["small"].but(**sizes, objective=said), objective)


def random_rows(spec: ModelSpec, batch: int, seq_len: int) -> Rows:
    """A batch of random tokens."""
    generator = np.random.default_rng(SEED)
    shape = (batch, seq_len)

    def ids() -> np.ndarray:
        return generator.integers(0, spec.vocab_size, shape, dtype=np.int64)

    ones, positions = np.ones(shape, dtype=np.int64), np.tile(np.arange(seq_len), (batch, 1))
    if spec.encoder:
        real = ones.astype(bool)
        return PairBatch(ids(), real, ids(), real, ids())
    return Batch(ids(), ids(), ones, positions, np.zeros(shape, dtype=np.int64))


def training_step(spec: ModelSpec, batch: int, seq_len: int, device: torch.device) -> Callable[[], object]:
    """A function that makes one optimiser step of a new model on random tokens."""
    trainer = trainer_of(build(spec, SEED, device=device), batch, seq_len)
    rows = random_rows(spec, batch, seq_len)
    return lambda: trainer.step(1, rows)


def decoding_step(spec: ModelSpec, batch: int, past: int, device: torch.device) -> Callable[[], object]:
    """A function that adds a token to each of `batch` rows that hold about `past`, greedily, as `generate` does."""
    model = lay_out_for_decoding(build(spec, SEED, device=device, dtype=torch.float32), several=batch > 1)
    ids = torch.from_numpy(random_rows(spec, batch, past).labels).to(device)
    state: list[Decoding] = []

    def step() -> None:
        if not state or not state[0].steps_left:
            start = ids[:, :1] if spec.encoder else None
            state[:] = [Decoding(model, ids, max_new_tokens=STEPS, decoder_input_ids=start)]
            next(state[0])
        next(state[0])

    return step
