"""T5Gemma 2 to and from transformers' T5Gemma2ForConditionalGeneration: a table of Gemma 3's settings for each stack.

Its encoder sees, too: of that the text alone is read. What is written has a tower of no layers, since the class has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from anyformer.families.compose import changed, edited, window
from anyformer.families.hf.gemma import GEMMA3
from anyformer.families.hf.layout import Laid, Theirs, of_layers, rows_of, within
from anyformer.families.hf.llama import ATTENTION, GATED, QK_NORMS
from anyformer.families.hf.mapping import Family, TensorRow, constant, dropped
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.stacks import encoder_of, two_stacks
from anyformer.families.hf.t5gemma import COPIED, TIED
from anyformer.families.t5gemma import t5gemma2
from anyformer.layers import AttentionSpec, Causal
from anyformer.spec import ModelSpec, TableSpec

TEXT, VISION = "text_config", "vision_config"
OF_IMAGES = ("mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")
# What the classes copy from one table into another.
ALIKE = (*COPIED, "dropout_rate", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", TIED)
TOWER = {
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 0,
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_attention_heads", "image_size", "patch_size"), 1),
    "vision_use_head": False,
}
MODULES = {
    "0.norm_in": "pre_self_attn_layernorm",
    "0.branches.0.norm_out": "post_self_attn_layernorm",
    "1.norm_in": "pre_feedforward_layernorm",
    "1.branches.0.norm_out": "post_feedforward_layernorm",
    **ATTENTION,
    **GATED,
    **QK_NORMS,
}


def _to_spec(settings: Settings) -> ModelSpec:
    tied = settings.take(TIED, bool, True)
    settings.require("is_encoder_decoder", True)
    settings.ignore(*ALIKE, *OF_IMAGES)
    encoder, decoder = (settings.section(name) for name in ("encoder", "decoder"))
    if encoder is None or decoder is None:
        raise settings.refusal("encoder", "and decoder leave sizes unknown; add the tables of their settings")
    text = encoder.section(TEXT)
    if text is None:
        raise encoder.refusal(TEXT, "leaves the size of that stack unknown; add the table of its settings")
    encoder.ignore(*ALIKE, *OF_IMAGES, VISION)
    encoder.close()
    settings.close()
    sides = [_side(table, tied) for table in (text, decoder)]
    return t5gemma2(*sides)


def _side(table: Settings, tied: bool) -> ModelSpec:
    """The model of one stack alone."""
    table.ignore(*COPIED[:2], "dropout_rate")
    return changed(GEMMA3.to_spec(table), TableSpec, shared="tokens" if tied else None)


def _to_config(spec: ModelSpec) -> dict[str, Any]:
    decoder = spec.but(stack=changed(spec.stack, AttentionSpec, memory=False), encoder=None)
    encoder = decoder.but(stack=edited(encoder_of(spec), AttentionSpec, _back))
    sides = [GEMMA3.to_config(side) for side in (encoder, decoder)]
    seeing = {TEXT: sides[0], VISION: TOWER, "mm_tokens_per_image": 1}
    tied = any(head.tied for head in spec.heads)
    return {"encoder": seeing, "decoder": sides[1], TIED: tied, "is_encoder_decoder": True}


def _back(attention: AttentionSpec) -> AttentionSpec:
    """The attention that sees back alone, of whose window `halves` makes this one."""
    before, after = attention.mask.band() or (math.inf, math.inf)
    size = before + after + 1
    return attention.but(mask=Causal() if math.isinf(size) else window(int(size)))


def _rows(spec: ModelSpec, text: str = "text_model.") -> list[TensorRow]:
    """The rows of tensors, those of the encoder's text model by the name that it has inside."""
    head, sides = "lm_head.out_proj", {"encoder": f"model.encoder.{text}", "decoder": "model.decoder."}
    tables = [f"{place}embed_tokens" for place in sides.values()]
    tied = spec.heads[0].tied if spec.heads else None
    links: Laid = {"heads.0.table": Theirs(head)}
    if tied:
        links |= {f"shared.{tied}": Theirs(tables[0], also=(tables[1], head))}
    else:
        links |= within({"encoder.embedding.terms.0.table": tables[0], "stack.embedding.terms.0.table": tables[1]})
    for ours, side, stack in two_stacks(spec):
        links |= {f"{ours}.norm": Theirs(f"{sides[side]}norm")}
        links |= of_layers(stack, f"{sides[side]}layers", MODULES, ours)
    ends = (f"{table}.eoi_embedding" for table in tables)
    return [*rows_of(spec, links), *_unseen(spec.stack.d_model, *ends)]


def _unseen(width: int, end: str, again: str) -> Iterator[TensorRow]:
    """The rows of the tower, and of the vector that ends an image, in either stack, which no text has."""
    tower, projector = "model.encoder.vision_tower.", "model.encoder.multi_modal_projector."
    shapes: dict[str, tuple[int, ...]] = {
        f"{tower}embeddings.patch_embedding.weight": (1, 3, 1, 1),
        f"{tower}embeddings.patch_embedding.bias": (1,),
        f"{tower}embeddings.position_embedding.weight": (1, 1),
        f"{tower}post_layernorm.weight": (1,),
        f"{tower}post_layernorm.bias": (1,),
        f"{projector}mm_input_projection_weight": (1, width),
        f"{projector}mm_soft_emb_norm.weight": (1,),
        end: (width,),
    }
    for name, shape in shapes.items():
        yield constant(name, partial(torch.zeros, shape))
    yield dropped(again)


_FILES = partial(_rows, text="")
T5GEMMA2 = Family(
    "t5gemma2", "T5Gemma2ForConditionalGeneration", "model.", _to_spec, _to_config, _rows, _FILES, fixed_masks=True
)
