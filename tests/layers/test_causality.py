"""Which models see later tokens: by a list written from their papers, and masks by what they say of themselves."""

from __future__ import annotations

import pytest

from anyformer.families import PRESETS
from anyformer.layers import (
    Causal,
    Everything,
    Heads,
    LookAhead,
    Mask,
    Not,
    Prefix,
    SameBlock,
    SlidingWindow,
    Strided,
    SymmetricWindow,
    Tokens,
    TwoStreams,
)
from anyformer.layers.causality import later_tokens_seen, sees_later_tokens
from anyformer.spec import Window

# "Bidirectional" in the titles or abstracts of their papers; all other lineages are decoders, alone or beside an encoder.
# XLNet's text has no order of its own but the one that training draws: without one its content stream sees everything.
ENCODERS = (
    "bert-base", "bert-large", "roberta", "distilbert", "minilm", "albert", "xlnet", "electra", "deberta", "longformer",
    "xlm-roberta", "camembert", "mpnet", "roformer", "nomic-embed", "gte", "eurobert", "modernbert", "esm", "megatron-bert",
    "efficient-mlm", "ernie-1.0", "rembert", "jina-embeddings", "embeddinggemma", "fnet", "convbert",
    "nystromformer", "mobilebert", "bigbird-base", "xlm-mlm", "flaubert", "data2vec-text",
)  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_encoders_see_later_tokens_and_decoders_do_not(name: str) -> None:
    spec = PRESETS[name].spec
    assert (later_tokens_seen(spec.stack) is not None) == name.startswith(ENCODERS)
    assert (later_tokens_seen(spec.stack, *spec.heads, after_prefix=True) is not None) == name.startswith(ENCODERS)
    assert spec.encoder is None or later_tokens_seen(spec.encoder) is not None


class NextBlock(Mask):
    """A token sees the block of 64 tokens after its own: further away than any neighbour."""

    def __call__(self, query: Tokens, key: Tokens, head: object) -> object:  # type: ignore[override]
        return key.position // 64 - query.position // 64 == 1


WINDOW, BLOCK = Window(4), Window(8)
MASKS: dict[str, tuple[Mask, bool, bool]] = {  # sees later tokens; those behind a prefix do
    "causal": (Causal(), False, False),
    "window and causal": (Causal() & SlidingWindow(size=WINDOW), False, False),
    "window alone": (SlidingWindow(size=WINDOW), True, True),
    "both sides": (SymmetricWindow(radius=WINDOW), True, True),
    "ahead": (SlidingWindow(size=WINDOW) & LookAhead(size=WINDOW), True, True),
    "own position": (SymmetricWindow(radius=Window(0)), False, False),
    "everything": (Everything(), True, True),
    "blocks": (SameBlock(size=BLOCK), True, True),
    "blocks and causal": (Causal() & (SameBlock(size=BLOCK) | Strided(stride=WINDOW)), False, False),
    "one head": (Heads(masks=(Causal(), Causal(), Everything())), True, True),
    "the past's complement": (Not(mask=Causal()), True, True),
    "marked prefix": (Causal() | Prefix(), True, False),
    "prefix of a size": (Causal() | Prefix(size=WINDOW), True, False),
    "no order": (TwoStreams(), True, True),
    "far ahead": (Causal() | NextBlock(), True, True),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks(case: str) -> None:
    mask, later, behind = MASKS[case]
    assert sees_later_tokens(mask) is later
    assert sees_later_tokens(mask, after_prefix=True) is behind
