"""BigBird: BERT over 4,096 tokens, each of which sees a few blocks. Zaheer et al. 2020, arXiv:2007.14062."""

from __future__ import annotations

from typing import TypeVar

from anyformer.families.bert import bert, pretraining
from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, AttentionSpec, FeedForwardSpec, FirstBlockAgainSpec, GlobalBlocks
from anyformer.spec import Count, ModelSpec, Spec, Window

S = TypeVar("S", bound=Spec)
TANH = GELU(form="tanh")


def block_sparse(model: S, size: int, n_random: int) -> S:
    """The model, or a stack, with blocks of `size` tokens for a mask (section 2)."""
    blocks = {"size": Window(size), "n_random": Count(n_random)}
    return changed(model, AttentionSpec, mask=GlobalBlocks(**blocks), scores=(FirstBlockAgainSpec(**blocks),))


def bigbird(*sizes: int) -> ModelSpec:
    """The encoder without heads, all of whose tokens see all; GELU is approximated, as in the released code."""
    model = bert(*sizes, vocab_size=50_358, context=4096)
    return changed(model, FeedForwardSpec, activation=TANH)


BASE = block_sparse(bigbird(12, 768, 12), 64, 3)

BIGBIRD = Origin("bigbird", "bert", 2020, "arXiv:2007.14062, section 2").lineage(
    "each token sees the first, the last and three near blocks; 4,096 tokens",
    Preset("bigbird-base", pretraining(BASE, TANH), "128M", alias="bigbird"),  # appendix E.1
    sizes="Zaheer et al. 2020, arXiv:2007.14062, section 4 and table 8; total of the released checkpoint",
    tokenizer="SentencePiece BPE, 50,358",
    training={
        "source": "Zaheer et al. 2020, arXiv:2007.14062, section 4 and appendix E.1 (from memory)",
        "objective": "masked words, 15 % of the tokens",
        "start": "RoBERTa's weights",
        "optimiser": "Adam, learning rate 1e-4, dropout 0.1",
        "batch": "256 sequences of 4,096 tokens",
    },
)
