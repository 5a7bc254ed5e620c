"""How files of one architecture are read and written: which keys say which settings, and which tensors hold which of ours.

The format: ggml's docs/gguf.md; names of tensors and what is done to them: llama.cpp's conversion from Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from anyformer.errors import SpecError
from anyformer.families.hf import table
from anyformer.families.hf.layout import Laid, Modules, Theirs, of_layers, rows_of, tokens_and_head, within
from anyformer.families.hf.mapping import TensorRow, Tensors, one, same
from anyformer.families.hf.pooling import IDENTITY, NORMALIZE, module_tensors, modules_of
from anyformer.layers import GQASpec, SSDSpec
from anyformer.spec import ModelSpec, TableSpec

Change = Callable[[Tensor, ModelSpec], Tensor]  # (tensor, its model) → as the other side stores it


class Turn(NamedTuple):
    """What is done to a tensor of a file, to be as ours is, and back."""

    restored: Change
    stored: Change


class Keys(NamedTuple):
    """Keys of a file that are not one setting each, both ways."""

    names: tuple[str, ...]  # below the architecture's name
    # (the keys that a file has, the settings so far) → settings; raises ValueError for a value that is none
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
    write: Callable[[Mapping[str, Any]], Mapping[str, Any]]  # settings → keys


class Adapted(NamedTuple):
    """A model as files hold it that lack a key for something in it: the same function, and what makes its tensors."""

    spec: ModelSpec
    changes: Mapping[str, Callable[[Tensor], Tensor]] = {}  # by our tensor's name
    note: str = ""  # of what was changed
    names: Mapping[str, str] = {}  # of tensors that are called otherwise in the model that it was

    def row(self, row: TensorRow) -> TensorRow:
        """The row of the model as files hold it, filled from the one that it was."""
        row = row._replace(ours=tuple(self.names.get(name, name) for name in row.ours))
        each = [self.changes.get(name) for name in row.ours]
        if not any(each):
            return row

        def save(ours: Tensors) -> Tensors:
            return row.save(
                tuple(one if change is None else change(one) for one, change in zip(ours, each, strict=True))
            )

        return row._replace(save=save)


SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
}
HEAD_DIM = {**SIZES, "attention.key_length": "head_dim"}
GROUPED = "num_key_value_heads"
LAYER_NORM = "attention.layer_norm_epsilon"
SEGMENTS = "tokenizer.ggml.token_type_count"
TOKENS = "stack.embedding.terms.0.table"  # where no head shares it
EXPERTS, SHARED = f"{table.FEED}.experts", f"{table.FEED}.shared_expert"
# The modules of a layer: all architectures have one name for each.
Block = Mapping[str | tuple[str, ...], str | Theirs]
LAYER: Block = {
    "0.norm_in": "attn_norm",
    "1.norm_in": "ffn_norm",
    "0.branches.0.norm_out": "post_attention_norm",
    "1.branches.0.norm_out": "post_ffw_norm",
    **{f"{table.PROJECTION}.{x}": f"attn_{x}" for x in "qkv"},
    f"{table.PROJECTION}.o": "attn_output",
    f"{table.PROJECTION}.norm_query": "attn_q_norm",
    f"{table.PROJECTION}.norm_key": "attn_k_norm",
    **table.feeds(gate="ffn_gate", up="ffn_up", down="ffn_down"),
    f"{table.FEED}.router.weight": "ffn_gate_inp.weight",
    f"{table.FEED}.router.correction": "exp_probs_b.bias",
    **{f"{EXPERTS}.{x}": f"ffn_{x}_exps" for x in ("gate", "up", "down")},
    **{f"{SHARED}.{x}": f"ffn_{x}_shexp" for x in ("gate", "up", "down")},
    f"{table.FEED}.shared_gate": "ffn_gate_inp_shexp",
}
GATE_AND_UP = (f"{table.FEED}.gate", f"{table.FEED}.up")


def with_epsilon(
    settings: Mapping[str, str], setting: str, key: str = "attention.layer_norm_rms_epsilon"
) -> dict[str, str]:
    """The settings with one that norms have by another name, or another key."""
    return {**without(settings, "rms_norm_eps"), key: setting}


def without(settings: Mapping[str, str], *lacking: str) -> dict[str, str]:
    """The settings of a model that has some not: GROUPED where queries have keys of their own."""
    return {name: to for name, to in settings.items() if to not in lacking}


def halves(n_heads: Callable[[GQASpec], int]) -> Turn:
    """llama.cpp turns neighbouring features, Hugging Face those half a head apart."""

    def heads(tensor: Tensor, spec: ModelSpec, *shape: int) -> Tensor:
        n = n_heads(one(spec, GQASpec))
        if (width := tensor.shape[0] // n) % 2:
            raise SpecError(f"heads of {width} features have no halves, which GGUF files turn; keep the directory")
        return tensor.unflatten(0, (n, *shape)).transpose(1, 2).flatten(0, 2)

    return Turn(lambda tensor, spec: heads(tensor, spec, -1, 2), lambda tensor, spec: heads(tensor, spec, 2, -1))


def _mixer(spec: ModelSpec) -> SSDSpec:
    return one(spec, SSDSpec)


# Gains that a model adds 1 to are stored with the 1.
ONE_MORE = Turn(lambda tensor, _: tensor - 1, lambda tensor, _: tensor + 1)
# A convolution by channel, without the axis of the channels that one sees.
NO_AXIS = Turn(lambda tensor, _: tensor.unsqueeze(1), lambda tensor, _: tensor.squeeze(1))
# Rates of decay, of which a model holds the logarithms; those of heads and what heads skip have one column.
RATE = Turn(lambda tensor, _: (-tensor).log(), lambda tensor, _: -tensor.exp())
RATES_OF_HEADS = Turn(lambda tensor, _: (-tensor[:, 0]).log(), lambda tensor, _: -tensor.exp()[:, None])
COLUMN = Turn(lambda tensor, _: tensor[:, 0], lambda tensor, _: tensor[:, None])
# Gains of a group each; files have no axis for the only group, nor for the only row of a matrix.
BY_GROUP = Turn(
    lambda tensor, spec: tensor.reshape(_mixer(spec).norm_shape),
    lambda tensor, spec: tensor.reshape(_mixer(spec).n_groups, -1) if _mixer(spec).n_groups > 1 else tensor,
)
ONE_ROW = Turn(lambda tensor, _: tensor[None], lambda tensor, _: tensor[0])


@dataclass(frozen=True)
class Dialect:
    """How files of one `general.architecture` are read and written."""

    architecture: str
    hf_type: str
    settings: Mapping[str, str] = field(default_factory=lambda: SIZES)  # key below the architecture's → setting
    keys: tuple[Keys, ...] = ()  # those that are no setting by themselves
    layer: Block = field(default_factory=lambda: LAYER)  # modules of a layer, ours → tensors of a block
    # Modules outside of layers, ours → tensors.
    outside: Modules = field(default_factory=lambda: {"stack.norm": "output_norm"})
    further: Callable[[ModelSpec], Iterable[TensorRow]] = lambda spec: ()  # rows that are no modules
    turns: Mapping[str, Turn] = field(default_factory=dict)  # by what a tensor's name in the file matches
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that files of this architecture do not hold
    # Settings that are true where a layer has a tensor, by how its name ends.
    told: Mapping[str, str] = field(default_factory=dict)
    # A key that files say, or a tensor that they hold, and those of another dialect of the architecture do not.
    when: str | None = None
    holds: tuple[str, ...] = ()  # types of other classes whose models are written so
    dense: tuple[str, ...] = ()  # linear maps behind the pool, in their order
    unheeded: tuple[str, ...] = ()  # keys that llama.cpp itself reads and leaves out of what it computes
    adapted: Callable[[ModelSpec], Adapted] = Adapted  # what is written in a model's place
    # Gemma's largest scales attention by d_model / n_heads, of which files do not speak; 0 where none is that large.
    depth_of_27b: int | None = None

    def rows(self, spec: ModelSpec) -> list[TensorRow]:
        """The rows of our tensors and those of a file."""
        tokens = Theirs("token_embd")
        if spec.heads:
            places = tokens_and_head(spec, tokens, Theirs("output"))
        else:
            shared = one(spec.stack.embedding, TableSpec).shared
            places: Laid = {f"shared.{shared}" if shared else TOKENS: tokens}
        places |= within(self.outside) | of_layers(spec.stack, "blk", self.layer)
        return [self._turned(row, spec) for row in (*rows_of(spec, places), *self.further(spec))]

    def dense_rows(self, spec: ModelSpec) -> list[TensorRow]:
        """The rows of the layers behind a model's pool. Raises SpecError for those that files cannot hold."""
        modules = modules_of(spec)
        layers = [module.layer for module in modules if module.layer is not None]
        if not layers:
            return []
        kinds = [module.kind for module in modules]
        name, where = f"the head {spec.heads[-1].name!r}", f"GGUF files of {self.architecture}"
        if len(layers) > len(self.dense):
            most = f"hold {len(self.dense)} layers" if self.dense else "have no place for layers"
            raise SpecError(f"{name} has {len(layers)} behind its pool, and {where} {most} there; keep the directory")
        said = {
            "bias": any(layer.bias for layer in layers),
            "activation": any(module.activation not in ("", IDENTITY) for module in modules),
            "length 1 before a layer": NORMALIZE in kinds[: len(layers)],
        }
        if found := next((what for what, there in said.items() if there), None):
            raise SpecError(f"{name} has a layer with {found}, and those of {where} are plain maps; keep the directory")
        width = spec.stack.width
        if (made := layers[-1].d_out or width) != width:
            raise SpecError(
                f"{name} makes vectors of {made}, and {where} those of the model's width, {width}; keep the directory"
            )
        names = zip(module_tensors(spec), self.dense, strict=False)
        return [same(ours, f"{theirs}.weight") for ours, theirs in names]

    def _turned(self, row: TensorRow, spec: ModelSpec) -> TensorRow:
        turns = [next((t for like, t in self.turns.items() if re.fullmatch(like, name)), None) for name in row.theirs]
        if not any(turns):
            return row

        def load(theirs: Tensors) -> Tensors:
            each = zip(theirs, turns, strict=True)
            return row.load(tuple(t if turn is None else turn.restored(t, spec).contiguous() for t, turn in each))

        def save(ours: Tensors) -> Tensors:
            each = zip(row.save(ours), turns, strict=True)
            return tuple(t if turn is None else turn.stored(t, spec).contiguous() for t, turn in each)

        return row._replace(load=load, save=save)
