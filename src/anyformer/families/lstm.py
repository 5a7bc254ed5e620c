"""LSTM language models: layers of LSTMs and nothing else, no norm and no way around a layer. Zaremba 2014, Merity 2017."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import AddSpec, ByRole, GRUSpec, LSTMSpec, Normal
from anyformer.spec import BranchSpec, Count, MixerSpec, ModelSpec, SublayerSpec, Width

PTB, WIKITEXT2 = 10_000, 33_278


def recurrent(
    mixer: MixerSpec, d_model: int, vocab_size: int = PTB, *, n_layers: int = 1, tied: bool = False, start: float
) -> ModelSpec:
    """The mixers one on another, each reading what the one before wrote; a biased head; tables of deviation `start` at first."""
    layer = block(SublayerSpec(branches=(BranchSpec(mixer=mixer),)))
    model = language_model(
        vocab_size,
        d_model,
        repeat(layer, n_layers),
        None,
        tied=tied,
        head_bias=True,
        init=ByRole(table=Normal(scale=start)),
    )
    return model.but(stack=model.stack.but(residual=AddSpec(scale=0.0)))


def awd_lstm(vocab_size: int) -> ModelSpec:
    """Three layers, the inner two of 1,150, in one mixer as wide as the tied table (arXiv:1708.02182, section 5)."""
    return recurrent(LSTMSpec(n_layers=Count(3), d_inner=Width(1150)), 400, vocab_size, tied=True, start=0.058)


LSTM = Origin("lstm", None, 2014, "Zaremba et al. 2014, arXiv:1409.2329, sections 3 and 4.1").lineage(
    "two layers of LSTMs, no attention, no norm, a state in place of positions",
    Preset("lstm-medium", recurrent(LSTMSpec(), 650, n_layers=2, start=0.029), "20M"),
    sizes="Zaremba et al. 2014, arXiv:1409.2329, section 4.1; totals as in Merity et al. 2017, table 1 (from memory)",
    tokenizer="words of the Penn Treebank, 10,000",
)
GRU = Origin("gru", "lstm", 2014, "the layer: Cho et al. 2014, arXiv:1406.1078, section 2.3").lineage(
    "two gates and one state in place of three and two",
    Preset("gru-medium", recurrent(GRUSpec(), 650, n_layers=2, start=0.029)),
    sizes="those of lstm-medium, no published model's",
    tokenizer="words of the Penn Treebank, 10,000",
)
AWD_LSTM = Origin("awd-lstm", "lstm", 2017, "arXiv:1708.02182, sections 4 and 5").lineage(
    "tied tables narrower than the layers; dropout of a state's matrices and one mask for all tokens of a row",
    Preset("awd-lstm-ptb", awd_lstm(PTB), "24M", alias="awd-lstm"),
    Preset(
        "awd-lstm-wikitext2",
        awd_lstm(WIKITEXT2),
        "33M",
        "33.6M with the table of 33,278 words, their biases and both biases of each layer; the paper prints it cut",
        tokenizer="words of WikiText-2, 33,278",
    ),
    known="awd-lstm-ptb",
    sizes="Merity et al. 2017, arXiv:1708.02182, tables 1 and 2 (totals from memory)",
    tokenizer="words of the Penn Treebank, 10,000",
)
