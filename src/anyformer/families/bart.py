"""BART: the Transformer of 2017 with learned positions, a norm on its embeddings and GELU: Lewis et al., arXiv:1910.13461.

PLBART is BART for programs (Ahmad et al. 2021, arXiv:2103.06333), MVP is BART taught many tasks (Tang et al. 2022,
arXiv:2206.12131).
"""

from __future__ import annotations

from functools import partial

from anyformer.families.lineage import Origin, Preset
from anyformer.families.transformer import ROOT, two_stacks
from anyformer.layers import GELU, LayerNormSpec, LearnedPositionsSpec
from anyformer.spec import Length

NORM = LayerNormSpec(eps=1e-5)
# Section 2.1. The tables of positions begin with two rows that are never read.
bart = partial(
    two_stacks,
    vocab_size=50_265,
    positions=(LearnedPositionsSpec(n_positions=Length(1024), offset=2),),
    norm=NORM,
    embedding_norm=NORM,
    activation=GELU(),
    context=1024,
)

BART = Origin("bart", "transformer", 2019, "arXiv:1910.13461, section 2.1").lineage(
    "learned positions, GELU, a norm after the embedding; restores noised text",
    Preset("bart-base", bart(d_model=768, layers=(6, 6), n_heads=(12, 12), d_ff=(3072, 3072)), "139M", alias="bart"),
    Preset("bart-large", bart(d_model=1024, layers=(12, 12), n_heads=(16, 16), d_ff=(4096, 4096)), "406M"),
    sizes="Lewis et al. 2019, arXiv:1910.13461, section 2.1; totals of the released checkpoints",
    tokenizer="GPT-2's byte-level BPE, 50,257, and special tokens: 50,265 rows",
    training={
        "source": "Lewis et al. 2019, arXiv:1910.13461, sections 3.2 and 5.1, of the large (from memory)",
        "objective": "spans of 3 tokens on average (Poisson), 30 % of the tokens, one mask each; sentences in random order",
        "batch": "8,000 sequences, 500,000 steps",
        "dropout": "0.1, none in the last tenth of the steps",
        "corpus": "160 GB of text",
    },
)
PLBART = Origin("plbart", "bart", 2021, "arXiv:2103.06333, section 2").lineage(
    "embeddings times √d_model, 50,005 tokens of programs and English",
    Preset(
        "plbart-base",
        bart(d_model=768, layers=(6, 6), n_heads=(12, 12), d_ff=(3072, 3072), vocab_size=50_005, token_scale=ROOT),
        "140M",
        "139.2M, which the paper rounds",
        alias="plbart",
    ),
    family="bart",
    sizes="Ahmad et al. 2021, arXiv:2103.06333, section 2.2 (total from memory), the class's own sizes",
    tokenizer="SentencePiece, 50,000 and special tokens: 50,005 rows",
)
MVP = Origin("mvp", "bart", 2022, "arXiv:2206.12131, section 3").lineage(
    "taught 45 tasks of writing with their labels, 50,267 tokens",
    Preset(
        "mvp",
        bart(d_model=1024, layers=(12, 12), n_heads=(16, 16), d_ff=(4096, 4096), vocab_size=50_267),
        "406M",
    ),
    family="bart",
    sizes="Tang et al. 2022, arXiv:2206.12131, section 3.3 (total from memory); sizes as released",
    tokenizer="GPT-2's byte-level BPE and special tokens: 50,267 rows",
)
