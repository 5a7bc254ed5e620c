"""A small encoder that judges words, its generator, and text: what tests of replaced-token detection train."""

import anyformer as af
from anyformer.families.bert import bert
from anyformer.families.electra import discriminator
from anyformer.recipe import AdamW, Constant, Recipe, ReplacedTokens
from anyformer.spec import ModelSpec
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer
from tests.training import noisy


def spec(width: int = 16, d_model: int = 32) -> ModelSpec:
    """The encoder's embedding is narrower than it, so that the generator's is as wide as the generator's stream or wider."""
    made = discriminator(bert(n_layers=2, d_model=d_model, n_heads=4, width=width))
    return af.resize(made, vocab_size=noisy.tokenizer().vocab_size, context=64)


def recipe(said: ReplacedTokens | None = None, **changes: object) -> Recipe:
    given = Recipe(
        objective=said or ReplacedTokens(),
        tokens=4 * 32 * 8,
        batch_tokens=4 * 32,
        seq_len=32,
        optimizer=AdamW(lr=1e-2),
        schedule=(Constant(),),
        clip=None,
    )
    return given.but(**changes)


def trainer(said: ReplacedTokens | None = None, micro_tokens: int | None = None, **changes: object) -> Trainer:
    given, made = recipe(said, **changes), spec()
    return Trainer(af.build(made, seed=3), given, objective_of(given.objective, made), micro_tokens=micro_tokens)
