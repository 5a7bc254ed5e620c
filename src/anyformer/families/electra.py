"""ELECTRA: BERT that tells which words a smaller one has replaced. Clark et al. 2020, arXiv:2003.10555."""

from __future__ import annotations

from anyformer.families.bert import ADAM, LINEAR, WORDPIECE, bert
from anyformer.families.heads import token_classes, with_masked_words
from anyformer.families.lineage import Facts, Origin, Preset
from anyformer.layers import GELU, LinearSpec
from anyformer.spec import HeadSpec, ModelSpec


def replaced() -> HeadSpec:
    """The discriminator's head: one score a token, above 0 where the word is not the original."""
    return token_classes(1, "rtd").but(transform=(LinearSpec(bias=True), GELU()))


def discriminator(model: ModelSpec) -> ModelSpec:
    """The model that is kept: it tells replaced words from original ones (section 2)."""
    return model.but(heads=(replaced(),))


# Of generators, which propose words for masked ones, the embedding is the discriminator's, projected (section 3.2).
_SMALL = bert(12, 256, 4, width=128)
_BASE = bert(12, 768, 12)
_LARGE = bert(24, 1024, 16)
_SMALL_GENERATOR = bert(12, 64, 1, width=128)
_BASE_GENERATOR = bert(12, 256, 4, width=768)
_LARGE_GENERATOR = bert(24, 256, 4, width=1024)
_SMALL_NOTE = "13.5M as released, with an embedding of 128; the paper rounds up"
_BASE_NOTE = "109.5M; the paper counts 110M with BERT"


def _training(masked: int, rate: str, batch: str) -> Facts:
    return {
        "source": "Clark et al. 2020, arXiv:2003.10555, section 2 and table 6 (from memory)",
        "objective": "generator and discriminator together, weighed 1 to 50, tables of embeddings shared",
        "optimiser": ADAM.format("0.999"),
        "masking": f"{masked} % of the tokens",
        "schedule": LINEAR.format("10,000", rate),
        "batch": batch,
    }


OF_SMALL = _training(15, "5e-4", "128 sequences of 128 tokens, 1,000,000 steps")
OF_BASE = _training(15, "2e-4", "256 sequences of 512 tokens, 766,000 steps")
OF_LARGE = _training(25, "2e-4", "2,048 sequences of 512 tokens, 1,750,000 steps")

ELECTRA = Origin("electra", "bert", 2020, "arXiv:2003.10555, section 3").lineage(
    "tells which tokens a small generator has replaced",
    Preset("electra-small", discriminator(_SMALL), "14M", _SMALL_NOTE, training=OF_SMALL),
    Preset("electra-base", discriminator(_BASE), "110M", _BASE_NOTE, training=OF_BASE, alias="electra"),
    Preset("electra-large", discriminator(_LARGE), "335M", training=OF_LARGE),
    Preset("electra-small-generator", with_masked_words(_SMALL_GENERATOR), training=OF_SMALL),
    Preset("electra-base-generator", with_masked_words(_BASE_GENERATOR), training=OF_BASE),
    Preset("electra-large-generator", with_masked_words(_LARGE_GENERATOR), training=OF_LARGE),
    known="electra-large",
    sizes="Clark et al. 2020, arXiv:2003.10555, tables 1, 6 and 8",
    tokenizer=WORDPIECE,
)
