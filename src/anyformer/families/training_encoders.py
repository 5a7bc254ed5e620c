"""What is published about how encoders and encoder–decoders were trained; figures from memory are said to be so."""

from __future__ import annotations

from collections.abc import Mapping

Facts = Mapping[str, str]  # a row of the card → its words; the row "source" of all of them

_LINEAR = "linear over {} steps to {}, then linear to 0"
_ADAM = "Adam, betas 0.9 and {}, eps 1e-6, decay 0.01, dropout 0.1"
_ROBERTA = {
    "source": "Liu et al. 2019, arXiv:1907.11692, sections 4 and 5, table 9 (from memory)",
    "objective": "15 % of the tokens, of which 80 % masked, 10 % random, 10 % kept, drawn anew each time; no next sentence",
    "optimiser": _ADAM.format("0.98"),
    "batch": "8,000 sequences of 512 tokens, 500,000 steps",
    "corpus": "160 GB of text",
}
_DISTILBERT = {
    "source": "Sanh et al. 2019, arXiv:1910.01108, sections 2 and 3 (from memory)",
    "objective": "the teacher's distribution, masked words, and the cosine between hidden states; no next sentence",
    "start": "every second layer of bert-base",
    "batch": "up to 4,000 sequences",
}
_MINILM = {
    "source": "Wang et al. 2020, arXiv:2002.10957, sections 3 and 4 (from memory)",
    "objective": "of the teacher's last layer the attention and the products of values, each by Kullback–Leibler divergence",
    "optimiser": "Adam, betas 0.9 and 0.999, decay 0.01, dropout 0.1",
    "schedule": _LINEAR.format("4,000", "5e-4"),
    "batch": "1,024 sequences of up to 512 tokens, 400,000 steps",
}
_ALBERT = {
    "source": "Lan et al. 2019, arXiv:1909.11942, section 4.1 (from memory)",
    "objective": "masked words, in runs of up to three; and which of two segments came first",
    "optimiser": "LAMB, learning rate 1.76e-3",
    "batch": "4,096 sequences of up to 512 tokens, 125,000 steps",
}
_ELECTRA = {
    "source": "Clark et al. 2020, arXiv:2003.10555, section 2 and table 6 (from memory)",
    "objective": "generator and discriminator together, weighed 1 to 50, tables of embeddings shared",
    "optimiser": _ADAM.format("0.999"),
}
_DEBERTA = {
    "source": "He et al. 2020, arXiv:2006.03654, section 3.2, appendix A.3 (from memory)",
    "objective": "masked words, 15 % of the tokens in runs of up to three, predicted by the enhanced mask decoder",
    "optimiser": _ADAM.format("0.999"),
    "schedule": _LINEAR.format("10,000", "2e-4"),
    "batch": "2,048 sequences of 512 tokens, 1,000,000 steps",
    "corpus": "78 GB of text",
}
_DEBERTA_V2 = {
    "source": "He et al. 2020, arXiv:2006.03654, section 5.3 and appendix A (from memory)",
    "objective": _DEBERTA["objective"],
    "corpus": "160 GB of text",
}
_DEBERTA_V3 = {
    "source": "He et al. 2021, arXiv:2111.09543, sections 3 and 5.1 (from memory)",
    "objective": "replaced words; the generator's gradient alone moves the table that both read, the discriminator adds to it",
    "generator": "as wide, half as deep: the preset deberta-v3-{}-generator",
    "batch": "8,192 sequences of 512 tokens, 500,000 steps",
    "corpus": "160 GB of text",
}
_XLNET = {
    "source": "Yang et al. 2019, arXiv:1906.08237, section 3.1 and appendix A.4 (from memory)",
    "objective": "words in a random order, the last sixth of it (K = 6)",
    "optimiser": "Adam, eps 1e-6, decay 0.01, dropout 0.1",
}
_LONGFORMER = {
    "source": "Beltagy et al. 2020, arXiv:2004.05150, section 5 (from memory)",
    "objective": "masked words",
    "start": "RoBERTa's weights, its 512 positions copied eight times",
    "schedule": "linear over 500 steps to 3e-5, then a power of 3 to 0",
    "batch": "64 sequences of 4,096 tokens, 65,000 steps",
}
_LED = {
    "source": "Beltagy et al. 2020, arXiv:2004.05150, section 7 (from memory)",
    "start": "BART's weights, its 1,024 positions copied sixteen times in the encoder; not trained further before tasks",
}
_BIGBIRD = {
    "source": "Zaheer et al. 2020, arXiv:2007.14062, section 4 and appendix E.1 (from memory)",
    "objective": "masked words, 15 % of the tokens",
    "start": "RoBERTa's weights",
    "optimiser": "Adam, learning rate 1e-4, dropout 0.1",
    "batch": "256 sequences of 4,096 tokens",
}
_BART = {
    "source": "Lewis et al. 2019, arXiv:1910.13461, sections 3.2 and 5.1, of the large (from memory)",
    "objective": "spans of 3 tokens on average (Poisson), 30 % of the tokens, one mask each; sentences in random order",
    "batch": "8,000 sequences, 500,000 steps",
    "dropout": "0.1, none in the last tenth of the steps",
    "corpus": "160 GB of text",
}
_MARIAN = {
    "source": "Tiedemann & Thottingal 2020, OPUS-MT, EAMT; Marian's configuration of the Transformer (from memory)",
    "objective": "translation, labels smoothed by 0.1",
    "optimiser": "Adam, betas 0.9 and 0.98, eps 1e-9, dropout 0.1",
    "schedule": "linear over 16,000 steps to 3e-4, then 1/√step",
    "corpus": "OPUS",
}
_T5_V1_1 = {
    "source": "Shazeer 2020, arXiv:2002.05202, section 3.1, and the notes on the released checkpoints (from memory)",
    "objective": "spans of 3 tokens on average, 15 % of the tokens, put out in order; no tasks among them",
    "dropout": "none",
    "optimiser": "Adafactor",
    "schedule": "1/√max(step, 10,000)",
    "corpus": "C4",
}
_MT5 = {
    "source": "Xue et al. 2020, arXiv:2010.11934, section 3 (from memory)",
    "objective": _T5_V1_1["objective"],
    "dropout": "none",
    "schedule": "1/√max(step, 10,000)",
    "batch": "1,024 sequences of 1,024 tokens, 1,000,000 steps: about 1T tokens",
    "corpus": "mC4, 101 languages, each drawn by the 0.3rd power of its size",
}
_SWITCH = {
    "source": "Fedus et al. 2021, arXiv:2101.03961, sections 2 and 5 (from memory)",
    "objective": "spans, 15 % of the tokens",
    "precision": "bfloat16, routers in float32",
    "auxiliary losses": "balance of the experts' load 0.01",
    "capacity": "1.25 times an even share in training; the preset has the released configurations' fixed one",
    "batch": "2^20 tokens",
    "corpus": "C4",
}


def _more(facts: Facts, **rows: str) -> Facts:
    return {**facts, **rows}


_V3_RATE = {"base": "6e-4", "large": "3e-4"}
FACTS: Mapping[str, Facts] = {
    "roberta-base": _more(_ROBERTA, schedule=_LINEAR.format("24,000", "6e-4")),
    "roberta-large": _more(_ROBERTA, schedule=_LINEAR.format("30,000", "4e-4")),
    "distilbert-base": _DISTILBERT,
    **dict.fromkeys(("minilm-l12-h384", "minilm-l6-h384"), _MINILM),
    **{f"albert-{size}": _ALBERT for size in ("base", "large", "xlarge", "xxlarge")},
    **{
        f"electra-{size}{of}": _more(
            _ELECTRA,
            masking=f"{share} of the tokens",
            schedule=_LINEAR.format("10,000", rate),
            batch=f"{n} sequences of {length} tokens, {steps} steps",
        )
        for size, share, rate, n, length, steps in (
            ("small", "15 %", "5e-4", "128", "128", "1,000,000"),
            ("base", "15 %", "2e-4", "256", "512", "766,000"),
            ("large", "25 %", "2e-4", "2,048", "512", "1,750,000"),
        )
        for of in ("", "-generator")
    },
    **{f"deberta-{size}{of}": _DEBERTA for size in ("base", "large") for of in ("", "-emd")},
    **{f"deberta-v2-{size}{of}": _DEBERTA_V2 for size in ("xlarge", "xxlarge") for of in ("", "-emd")},
    **{
        f"deberta-v3-{size}{of}": _more(
            _DEBERTA_V3,
            generator=_DEBERTA_V3["generator"].format(size),
            schedule=_LINEAR.format("10,000", rate),
        )
        for size, rate in _V3_RATE.items()
        for of in ("", "-generator")
    },
    "xlnet-base": _more(_XLNET, corpus="BookCorpus and Wikipedia"),
    "xlnet-large": _more(
        _XLNET,
        schedule=_LINEAR.format("40,000", "4e-4"),
        batch="8,192 sequences of 512 tokens, 500,000 steps",
        corpus="32.9B pieces of words",
    ),
    **{f"longformer-{size}-4096": _LONGFORMER for size in ("base", "large")},
    **{f"led-{size}-16384": _LED for size in ("base", "large")},
    "bigbird-base": _BIGBIRD,
    **{f"bart-{size}": _BART for size in ("base", "large")},
    **dict.fromkeys(("opus-mt-en-de", "opus-mt-tc-big"), _MARIAN),
    **{f"t5-v1.1-{size}": _T5_V1_1 for size in ("small", "base", "large", "xl", "xxl")},
    **{f"mt5-{size}": _MT5 for size in ("small", "base", "large", "xl", "xxl")},
    **{f"switch-base-{n}": _SWITCH for n in (8, 16, 32, 64, 128, 256)},
    **dict.fromkeys(("switch-large-128", "switch-c-2048"), _SWITCH),
}
