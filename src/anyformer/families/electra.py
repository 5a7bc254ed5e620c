"""ELECTRA: BERT that tells which words a smaller one has replaced. Clark et al. 2020, arXiv:2003.10555."""

from __future__ import annotations

from anyformer.families.bert import bert
from anyformer.families.heads import masked_words, token_scores
from anyformer.families.preset import Preset
from anyformer.spec import HeadSpec, ModelSpec


def electra(*, n_layers: int, d_model: int, n_heads: int, d_ff: int | None = None, width: int) -> ModelSpec:
    """The encoder, which is BERT's; an embedding of another width is projected to d_model (section 3.2)."""
    return bert(n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_ff=d_ff, width=width)


def replaced() -> HeadSpec:
    """The discriminator's head: one score a token, above 0 where the word is not the original."""
    return token_scores()


def discriminator(model: ModelSpec) -> ModelSpec:
    """The model that is kept: it tells replaced words from original ones (section 2)."""
    return model.but(heads=(replaced(),))


def generator(model: ModelSpec) -> ModelSpec:
    """The model that proposes words for the masked ones; it shares the discriminator's embeddings (section 3.2)."""
    return model.but(heads=(masked_words(model),))


SOURCE = "Clark et al. 2020, arXiv:2003.10555, tables 1, 6 and 8"
WORDPIECE = "WordPiece, 30,522"

_SMALL = electra(n_layers=12, d_model=256, n_heads=4, width=128)
_BASE = electra(n_layers=12, d_model=768, n_heads=12, width=768)
_LARGE = electra(n_layers=24, d_model=1024, n_heads=16, width=1024)
_SMALL_GENERATOR = electra(n_layers=12, d_model=64, n_heads=1, width=128)
_BASE_GENERATOR = electra(n_layers=12, d_model=256, n_heads=4, width=768)
_LARGE_GENERATOR = electra(n_layers=24, d_model=256, n_heads=4, width=1024)
_SMALL_NOTE = "13.5M as released, with an embedding of 128; the paper rounds up"
_BASE_NOTE = "109.5M; the paper counts 110M with BERT"

PRESETS = (
    Preset("electra-small", "electra", discriminator(_SMALL), SOURCE, "14M", _SMALL_NOTE, WORDPIECE),
    Preset("electra-base", "electra", discriminator(_BASE), SOURCE, "110M", _BASE_NOTE, WORDPIECE),
    Preset("electra-large", "electra", discriminator(_LARGE), SOURCE, "335M", None, WORDPIECE),
    Preset("electra-small-generator", "electra", generator(_SMALL_GENERATOR), SOURCE, None, None, WORDPIECE),
    Preset("electra-base-generator", "electra", generator(_BASE_GENERATOR), SOURCE, None, None, WORDPIECE),
    Preset("electra-large-generator", "electra", generator(_LARGE_GENERATOR), SOURCE, None, None, WORDPIECE),
)
