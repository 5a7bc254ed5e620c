"""A training step and a decoding step of a model, as functions that can be called again and again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from anyformer.generation.decode import Decoding
from anyformer.generation.layout import lay_out_for_decoding
from anyformer.model import Transformer, build
from anyformer.recipe import RECIPES, CausalLM, Precision, Recipe, Seq2Seq
from anyformer.spec import ModelSpec
from anyformer.text import Batch, PairBatch
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer

SEED = 0
STEPS = 32  # tokens that a row grows by before it starts anew


def recipe_for(spec: ModelSpec, batch: int, seq_len: int, precision: Precision = "float32") -> Recipe:
    """The small recipe at another size, with the objective of the architecture."""
    objective = Seq2Seq() if spec.encoder else CausalLM()
    return RECIPES["small"].but(seq_len=seq_len, batch_tokens=batch * seq_len, precision=precision, objective=objective)


def trainer_of(model: Transformer, batch: int, seq_len: int, precision: Precision = "float32") -> Trainer:
    """A trainer of a model. Raises UsageError for an architecture that no objective here can train."""
    recipe = recipe_for(model.spec, batch, seq_len, precision)
    objective = objective_of(recipe.objective, model.spec)
    return Trainer(model, recipe, objective)


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


def training_step(
    spec: ModelSpec, batch: int, seq_len: int, device: torch.device, precision: Precision = "float32"
) -> Callable[[], object]:
    """A function that makes one optimiser step of a new model on random tokens."""
    trainer = trainer_of(build(spec, SEED, device=device), batch, seq_len, precision)
    rows = random_rows(spec, batch, seq_len)
    return lambda: trainer.step(1, rows)


def decoding_step(
    spec: ModelSpec,
    batch: int,
    past: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    model: Transformer | None = None,
) -> Callable[[], object]:
    """A function that adds a token to each of `batch` rows that hold about `past`, greedily, as `generate` does."""
    model = model or build(spec, SEED, device=device, dtype=dtype)
    ids = torch.from_numpy(random_rows(spec, batch, past).labels).to(device)
    lay_out_for_decoding(model)
    state: list[Decoding] = []

    def step() -> None:
        if not state or not state[0].steps_left:
            start = ids[:, :1] if spec.encoder else None
            state[:] = [Decoding(model, ids, max_new_tokens=STEPS, decoder_input_ids=start)]
            next(state[0])
        next(state[0])

    return step
