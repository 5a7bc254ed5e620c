"""I-BERT (Kim et al. 2021, arXiv:2101.01321) to and from transformers' IBertModel and the classes that put heads on it, as they
compute without quantisation: RoBERTa. Files also hold what integers are made with, which nobody reads then.
"""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.families.bert import bert
from anyformer.families.hf import table
from anyformer.families.hf.bert import LAYER, roberta_heads
from anyformer.families.hf.encoder import SEGMENTS, SIZES, encoder_family, laid_out, n_positions
from anyformer.families.hf.mapping import TensorRow, dropped
from anyformer.spec import ModelSpec

# Of tables, linear maps, norms and what lies between them.
OF_TABLE = ("weight_integer", "weight_scaling_factor")
OF_MAP = ("weight_integer", "bias_integer", "fc_scaling_factor")
RANGE = ("x_min", "x_max", "act_scaling_factor")
OF_NORM = ("shift", *(f"activation.{name}" for name in RANGE))
EMBEDDING = {
    **{f"{name}_embeddings": OF_TABLE for name in ("word", "token_type", "position")},
    **dict.fromkeys(("embeddings_act1", "embeddings_act2", "output_activation"), RANGE),
    "LayerNorm": OF_NORM,
}
IN_LAYER = {
    **{f"attention.self.{name}": OF_MAP for name in ("query", "key", "value")},
    **{f"{name}.dense": OF_MAP for name in ("attention.output", "intermediate", "output")},
    **{f"attention.self.{name}_activation": RANGE for name in ("query", "key", "value", "output")},
    **{
        f"{place}.{name}": each
        for place in ("attention.output", "output")
        for name, each in {"ln_input_act": RANGE, "output_activation": RANGE, "LayerNorm": OF_NORM}.items()
    },
    **dict.fromkeys(
        ("attention.self.softmax.act", "intermediate.output_activation", "pre_intermediate_act", "pre_output_act"),
        RANGE,
    ),
}
HEADS = roberta_heads("IBert", "ibert.")


def unread(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of what integers are made with."""
    layers = (f"encoder.layer.{i}" for i in range(spec.n_layers))
    for place, modules in (("embeddings", EMBEDDING), *((layer, IN_LAYER) for layer in layers)):
        yield dropped(*(f"{HEADS.prefix}{place}.{module}.{name}" for module, each in modules.items() for name in each))


IBERT = encoder_family(
    "ibert",
    bert(1, 8, 1, n_segments=1),
    (*SIZES, SEGMENTS, table.eps(1e-12), n_positions(offset_by_padding=True), table.only(quant_mode=False)),
    HEADS,
    laid_out(LAYER),
    further=unread,
    ignored=("force_dequant",),
)
