"""ALBERT to and from transformers' AlbertModel and the classes that put heads on it: layers are groups that repeat."""

from __future__ import annotations

from typing import Any

from anyformer.errors import SpecError
from anyformer.families.albert import albert
from anyformer.families.compose import with_layers
from anyformer.families.hf import headings
from anyformer.families.hf.encoder import SEGMENTS, encoder_family, laid_out, n_positions, sizes, width
from anyformer.families.hf.layout import Laid, Theirs, within
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import FEED, PROJECTION, Pair, eps
from anyformer.spec import ModelSpec
from anyformer.spec.ranges import MOST_LAYERS

LAYER = {
    f"{PROJECTION}.q": "attention.query",
    f"{PROJECTION}.k": "attention.key",
    f"{PROJECTION}.v": "attention.value",
    f"{PROJECTION}.o": "attention.dense",
    "0.norm_sum": "attention.LayerNorm",
    f"{FEED}.up": "ffn",
    f"{FEED}.down": "ffn_output",
    "1.norm_sum": "full_layer_layer_norm",
}


def order(n_layers: int, groups: int, inner: int) -> list[int]:
    """Which distinct layer stands at each depth: a group of `inner` layers is repeated until the next one's turn."""
    turn = n_layers / groups  # which need not be whole
    return [int(i / turn) * inner + k for i in range(n_layers) for k in range(inner)]


def grouped(spec: ModelSpec) -> tuple[list[str], int, int]:
    """The names of the distinct layers, the number of groups and of layers in each. Raises SpecError."""
    names = [block.shared for block in spec.stack.blocks]
    distinct = [name for name in dict.fromkeys(names) if name is not None]
    depths = [distinct.index(name) for name in names if name is not None]
    for inner in range(1, len(distinct) + 1):
        groups, depth = len(distinct) // inner, len(names) // inner
        if order(depth, groups, inner) == depths:
            return distinct, groups, inner
    raise SpecError("the model's layers are not shared in groups, each of which is repeated")


def depth() -> Pair:
    """The number of groups that are run one after the other, how many are distinct, and the layers in each."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n_layers = settings.take("num_hidden_layers", int)
        groups, inner = settings.take("num_hidden_groups", int, 1), settings.take("inner_group_num", int, 1)
        if not 1 <= groups <= n_layers or not 1 <= inner <= MOST_LAYERS // n_layers:
            raise settings.refusal("num_hidden_groups", f"of {inner} layers cannot be repeated to {n_layers}")
        layer, only = spec.stack.blocks[0], groups == inner == 1
        which = order(n_layers, groups, inner)
        blocks = {i: layer.but(shared="layer" if only else f"layer_{i}") for i in set(which)}
        return with_layers(spec, (blocks[i] for i in which))

    def write(spec: ModelSpec) -> dict[str, Any]:
        _, groups, inner = grouped(spec)
        return {"num_hidden_layers": spec.n_layers // inner, "num_hidden_groups": groups, "inner_group_num": inner}

    return Pair(read, write)


OUTSIDE = laid_out({}, outside={"stack.embedding.projection": "encoder.embedding_hidden_mapping_in"})


def links(spec: ModelSpec) -> Laid:
    """The encoder's modules."""
    (names, _, inner), found = grouped(spec), {**OUTSIDE(spec)}
    for i, name in enumerate(names):
        place = f"encoder.albert_layer_groups.{i // inner}.albert_layers.{i % inner}."
        found |= within(LAYER, f"shared.{name}.sublayers.", place)
    return found


POOLER, DECODER = "albert.pooler", "predictions.decoder"
HEADS = headings.usual_classes(
    "Albert",
    "albert.",
    {
        "mlm": headings.words(
            "predictions.dense",
            "predictions.LayerNorm",
            Theirs("predictions", also=(DECODER,)),
            headings.of_feed_forwards,
        ),
        "sop": headings.of_pairs("sop", POOLER, "sop_classifier.classifier"),
        "pooler": headings.pooled(POOLER),
        "classes": headings.row_labels(POOLER, "classifier"),
        **headings.LABELLED,
    },
    {"ForPreTraining": ("mlm", "sop")},
)
ALBERT = encoder_family(
    "albert",
    albert(1, 8, 1),
    (*sizes(usual="gelu_new")[:-1], depth(), width(128, always=True), SEGMENTS, eps(1e-12), n_positions()),
    HEADS,
    links,
    # Settings of the first release that its own code does not read.
    ignored=("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"),
)
