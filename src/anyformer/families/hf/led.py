"""LED to and from transformers' LEDForConditionalGeneration: BART's classes with Longformer's encoder."""

from __future__ import annotations

from typing import Any

from anyformer.errors import SpecError
from anyformer.families.compose import changed
from anyformer.families.hf import bart
from anyformer.families.hf.layout import Link, link, rows_of, starts
from anyformer.families.hf.longformer import windows_of, with_windows
from anyformer.families.hf.mapping import Family, TensorRow, one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.stacks import Side, placed, shared_table_rows, sides
from anyformer.families.longformer import led
from anyformer.layers import AttentionSpec, Everything, GQASpec, LearnedPositionsSpec, LocalAndGlobalSpec
from anyformer.spec import ModelSpec, StackSpec

TABLES = ("led.encoder.embed_tokens.weight", "led.decoder.embed_tokens.weight")
PADDING = 1  # of the token that their class fills a row up with, to a multiple of the window


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a configuration of LED describes. Raises CheckpointError."""
    settings.require("scale_embedding", False)
    settings.ignore("attention_mode")
    said = bart.sizes(settings, 50_265, "gelu")
    said.pop("token_scale")
    n_positions = (
        settings.take("max_encoder_position_embeddings", int, 16_384),
        settings.take("max_decoder_position_embeddings", int, 1024),
    )
    spec = led(**said, n_positions=n_positions).but(init=starts(settings, "init_std"))
    assert spec.encoder is not None
    spec = spec.but(encoder=with_windows(settings, spec.encoder))
    settings.close()
    return spec


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration. Raises SpecError for a model that lacks a whole part of it."""
    encoder, decoder = (side.stack for side in sides(spec))
    heads = one(encoder, LocalAndGlobalSpec, "local and global heads").n_heads
    plain = changed(encoder, AttentionSpec, projection=GQASpec(n_heads=heads), mask=Everything())
    return {
        **bart.written(spec.but(encoder=plain)),
        **windows_of(encoder),
        "max_encoder_position_embeddings": _positions(encoder),
        "max_decoder_position_embeddings": _positions(decoder),
        "pad_token_id": PADDING,
    }


def _positions(stack: StackSpec) -> int:
    found = one(stack, LearnedPositionsSpec, "learned positions")
    if found.offset:
        raise SpecError("the class has no rows of positions that are never read")
    return found.n_positions


def links(side: Side) -> list[Link]:
    """The links of a stack: BART's under another name, but for the encoder's attention."""
    found = [each._replace(theirs=each.theirs.replace("model.", "led.", 1)) for each in bart.links(side)]
    for at in placed(side):
        if not isinstance(at.mixer, AttentionSpec) or not isinstance(at.mixer.projection, LocalAndGlobalSpec):
            continue
        inside, theirs = f"{at.path}.projection", f"led.{side.theirs}.layers.{at.layer}.self_attn"
        found = [each for each in found if not each.ours[0].startswith(inside)]
        found.append(link(f"{inside}.o", f"{theirs}.output"))
        for name in ("query", "key", "value"):
            found += [
                link(f"{inside}.{name[0]}{of}", f"{theirs}.longformer_self_attn.{name}{of}") for of in ("", "_global")
            ]
    return found


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    found = shared_table_rows(spec, "led.shared.weight", "lm_head.weight", TABLES)
    return [*found, bart.bias_row(spec), *(row for side in sides(spec) for row in rows_of(spec, links(side)))]


LED = Family("led", "LEDForConditionalGeneration", "led.", to_spec, to_config, rows, of_files=bart.biased)
