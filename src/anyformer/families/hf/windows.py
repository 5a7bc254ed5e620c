"""Windows and rotary positions layer by layer: what the types of a configuration's layers say of each."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf.rotary import FRACTION, THETA, rotary, rotary_settings, scaling_settings, within
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import FULL, SLIDING, Pair, types_of
from anyformer.layers import RotarySpec
from anyformer.spec import ModelSpec

ROTARY = "rotary positions"


def typed_rotary(inner: Settings, context: int, plain: RotarySpec, whole: bool = True) -> RotarySpec:
    """The rotary positions of one type's table, in which no class finds `truncate`; `whole` heads turn whatever is said."""
    inner.require("truncate", True)
    found = within(inner, context, plain)
    if whole and found.fraction != 1:
        raise inner.refusal(FRACTION, "is not computed here; only 1.0 is")
    return found


def rotary_by_type(local: RotarySpec, full: RotarySpec, context: int, setting: str | None = None) -> Pair:
    """The context and the rotary positions of a template's layers, such as `table.two_kinds` makes: sliding ones and full ones.

    Each type of layer has a table of its own; in older files the full layers have the usual settings and the others a theta by
    the name `setting`, or nothing. The arguments are what the class takes where nothing is said.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        length = settings.take("max_position_embeddings", int, context)
        plain = local if setting is None else local.but(theta=settings.take(setting, float, local.theta)), full
        tables = settings.section("rope_parameters")
        if tables is None:
            each: tuple[RotarySpec, ...] = plain[0], rotary(settings, length, plain=plain[1], fraction=None)
        else:
            inner = tables.section(SLIDING), tables.section(FULL)
            whole = local.fraction == full.fraction == 1
            each = tuple(
                p if i is None else typed_rotary(i, length, p, whole) for i, p in zip(inner, plain, strict=True)
            )
            tables.close()
        of_type: dict[str, RotarySpec] = dict(zip((SLIDING, FULL), each, strict=True))
        pairs = zip(spec.stack.blocks, types_of(spec), strict=True)
        blocks = (changed(block, RotarySpec, **of_type[kind].values()) for block, kind in pairs)
        return spec.but(stack=spec.stack.but(blocks=tuple(blocks)), context=length)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = {SLIDING: local, FULL: full}
        for kind, block in zip(types_of(spec), spec.stack.blocks, strict=True):
            found[kind] = next((value for value in block.nested() if isinstance(value, RotarySpec)), found[kind])
        length = {"max_position_embeddings": spec.context or context}
        if setting is not None:
            return {**length, setting: found[SLIDING].theta, **rotary_settings(found[FULL], fraction=None)}
        tables = {
            kind: {"rope_type": "default", THETA: each.theta, **(scaling_settings(each.scaling) or {})}
            for kind, each in found.items()
        }
        for kind, usual in ((SLIDING, local), (FULL, full)):
            if found[kind].fraction != 1 or usual.fraction != 1:
                tables[kind][FRACTION] = found[kind].fraction
        return {**length, "rope_parameters": tables}

    return Pair(read, write)
