"""ESM-1b and ESM-2, BERT on proteins.

Rives et al. 2021, doi:10.1073/pnas.2016239118; Lin et al. 2023, doi:10.1126/science.ade2574.
"""

from __future__ import annotations

from anyformer.families.compose import attend, changed, feed, language_model, repeat, serial
from anyformer.families.heads import contacts, with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    Everything,
    LayerNormSpec,
    LearnedPositionsSpec,
    RotarySpec,
    TokenDropoutSpec,
    TokensSpec,
)
from anyformer.spec import EmbeddingSpec, Length, ModelSpec

# Of 33 ids, amino acids and special tokens, 1 pads and 32 is the mask; 1,026 rows of positions, 2 of them before the first.
VOCABULARY, PADDING, MASK, CONTEXT = 33, 1, 32, 1024


def esm(n_layers: int, d_model: int, n_heads: int, *, learned: bool = False) -> ModelSpec:
    """Pre-norm encoder without heads: rotary positions, or learned ones and a norm of the embedding; masked tokens dropped."""
    norm = LayerNormSpec(eps=1e-5)
    attention = attend(n_heads, bias=True, rotary=None if learned else RotarySpec(), mask=Everything())
    positions = LearnedPositionsSpec(n_positions=Length(CONTEXT), offset=PADDING + 1, padding=PADDING)
    model = language_model(
        VOCABULARY,
        d_model,
        repeat(serial(norm, attention, feed(4 * d_model, GELU())), n_layers),
        norm,
        tied=True,
        positions=(positions,) if learned else (),
        embedding_norm=norm if learned else None,
        context=CONTEXT,
    ).but(heads=())
    model = changed(model, EmbeddingSpec, masked=True)
    return changed(model, TokensSpec, dropout=TokenDropoutSpec(token=MASK))


def with_contacts(model: ModelSpec) -> ModelSpec:
    """The model with the heads for masked words and for contacts."""
    return with_masked_words(model, contacts())


def esm2(*sizes: int) -> ModelSpec:
    """ESM-2 with its heads."""
    return with_contacts(esm(*sizes))


TRAINING = {
    "source": "Lin et al. 2023, doi:10.1126/science.ade2574, supplement, section A.2 (from memory)",
    "objective": "15 % of the residues, of which 80 % masked, 10 % random, 10 % kept",
    "optimiser": "Adam, betas 0.9 and 0.98, eps 1e-8, decay 0.01",
    "batch": "2 million tokens of up to 1,024, 500,000 steps",
    "corpus": "UniRef50, replaced by members of the same cluster of UniRef90",
}

ESM1B = Origin("esm-1b", "roberta", 2020, "Rives et al. 2021, doi:10.1073/pnas.2016239118").lineage(
    "proteins, pre-norm, masked tokens dropped and made up for, contacts read off attention",
    Preset("esm1b-650m", with_contacts(esm(33, 1280, 20, learned=True)), "650M", "652.4M, which the paper rounds"),
    family="esm",
    sizes="Rives et al. 2021, doi:10.1073/pnas.2016239118, and the released configuration (from memory)",
    tokenizer="amino acids, 33",
)
ESM2 = Origin("esm-2", "esm-1b", 2022, "Lin et al. 2023, doi:10.1126/science.ade2574").lineage(
    "rotary positions for the learned ones, no norm of the embedding",
    Preset("esm2-8m", esm2(6, 320, 20), "8M"),
    Preset("esm2-35m", esm2(12, 480, 20), "35M", "33.5M; the name rounds"),
    Preset("esm2-150m", esm2(30, 640, 20), "150M", "148.1M; the name rounds"),
    Preset("esm2-650m", esm2(33, 1280, 20), "650M", "651.0M; the name rounds", alias="esm2"),
    Preset("esm2-3b", esm2(36, 2560, 40), "3B"),
    Preset("esm2-15b", esm2(48, 5120, 40), "15B"),
    known="esm2-650m",
    family="esm",
    sizes="Lin et al. 2023, doi:10.1126/science.ade2574, table S1, and the released configurations (all but 650M from memory)",
    tokenizer="amino acids, 33",
    training=TRAINING,
)
