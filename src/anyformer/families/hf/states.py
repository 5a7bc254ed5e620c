"""Layers of two kinds by a list of words: classes whose mixers keep a state in some layers and tokens in others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyformer.families.compose import firsts, with_layers
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import Pair
from anyformer.layers import AttentionSpec, GatedDeltaNetSpec
from anyformer.spec import BlockSpec, MixerSpec, ModelSpec

# Each word, and the kind of mixer that a layer of it has, or what is true of it.
Words = Mapping[str, type[MixerSpec] | Callable[[BlockSpec], object]]

OLDER = {"mamba": "linear_attention", "attention": "full_attention"}  # what files of before call them
DELTA: Words = {"linear_attention": GatedDeltaNetSpec, "full_attention": AttentionSpec}


def kinds_of(spec: ModelSpec, words: Words) -> list[str]:
    """The word for each layer: the first that is true of it."""

    def fits(block: BlockSpec, kind: type[MixerSpec] | Callable[[BlockSpec], object]) -> bool:
        if not isinstance(kind, type):
            return bool(kind(block))
        return any(isinstance(branch.mixer, kind) for sublayer in block.sublayers for branch in sublayer.branches)

    return [next((word for word, kind in words.items() if fits(block, kind)), "none") for block in spec.stack.blocks]


def layer_kinds(
    words: Words,
    default: Callable[[Settings, int], Sequence[str]],
    older: Mapping[str, str] | None = None,
) -> Pair:
    """The depth, and each layer's word, of a template with one layer of each kind; `default` goes where nothing is said.

    `older`: words of files from before → those of now.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n_layers = settings.positive("num_hidden_layers", int)
        usual = () if settings.strings("layer_types") else default(settings, n_layers)
        blocks = dict(zip(kinds_of(spec, words), spec.stack.blocks, strict=True))
        found = settings.words("layer_types", n_layers, blocks, usual, older)
        return with_layers(spec, (blocks[word] for word in found))

    def write(spec: ModelSpec) -> dict[str, Any]:
        return {"num_hidden_layers": spec.n_layers, "layer_types": kinds_of(spec, words)}

    return Pair(read, write)


def full_each(setting: str, default: int) -> Callable[[Settings, int], list[str]]:
    """Attention in each so many layers, the last of them, as a setting says."""

    def words(settings: Settings, n_layers: int) -> list[str]:
        n = settings.positive(setting, int, default)
        return ["linear_attention" if (i + 1) % n else "full_attention" for i in range(n_layers)]

    return words


def template(model: ModelSpec, words: Words) -> ModelSpec:
    """The first layer of each kind in a model, in the order of the words."""
    first = firsts(kinds_of(model, words), model)
    return with_layers(model, (first[word] for word in words))
