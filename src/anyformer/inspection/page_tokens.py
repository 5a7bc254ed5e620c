"""One text as the page of an inspection shows it: tokens that can be read, maps as bytes, and the lens as a grid."""

from __future__ import annotations

import unicodedata
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.inspection.page_figures import figure, known, place_of, rows_of
from anyformer.inspection.results import HeadFigures, LayerAnswer, Map, Reading

MARKS = {" ": "·", "\n": "⏎", "\t": "⇥"}
LONGEST_TOKEN = 48  # characters that are shown of one


def shown(token: str) -> str:
    """A token as it is read: white space as marks, what does not print as escapes, and no more of it than fits."""
    cut = token if len(token) <= LONGEST_TOKEN else f"{token[: LONGEST_TOKEN - 1]}…"
    text = "".join(MARKS.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode()) for c in cut)
    return f"◌{text}" if text and unicodedata.category(text[0]).startswith("M") else text or "∅"


def map_data(maps: Sequence[Map], heads: Sequence[HeadFigures]) -> list[dict[str, Any]]:
    """The maps as the script reads them, those of a stack and kind behind each other; `figures` are the numbers of the figures
    of its heads, where there are some."""
    rows = [(place_of(row[0][1]), {head.head: i for i, head in row}) for row in rows_of(heads)]
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in (one for one in maps if one.weights.numel()):
        match = next((i for i, (place, _) in enumerate(rows) if place == place_of(each)), None)
        figures = {} if match is None else rows.pop(match)[1]  # of branches of one kind the first, then the next
        group = f"{each.stack} {each.kind}".strip()
        groups.setdefault(group, []).append({
            "group": group, "layer": each.layer, "shape": list(each.weights.shape),
            "figures": [figures.get(head) for head in range(len(each.weights))],
            "queries": [shown(token) for token in each.queries], "keys": [shown(token) for token in each.keys],
            "weights": as_bytes(each.weights),
        })  # fmt: skip
    return [one for group in groups.values() for one in group]


def as_bytes(weights: Tensor) -> str:
    """Weights [heads, query, key] as base64 of a byte each, row by row: 255 √weight, so that small ones are told apart."""
    levels = weights.detach().float().nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).sqrt() * 255
    return b64encode(levels.round().to(torch.uint8).cpu().numpy().tobytes()).decode()


def lens_rows(reading: Reading) -> list[dict[str, Any]]:
    """The rows of the lens, the last layer first: of each token what is said, how dark it is, and whether it is right."""
    return [
        {"layer": each.layer, "name": _behind(each.layer), "cells": _cells(each, reading)}
        for each in reversed(reading.answers)
    ]


def _cells(answer: LayerAnswer, reading: Reading) -> list[dict[str, Any]]:
    cells = []
    columns = zip(reading.tokens, reading.right, answer.says, answer.probability, answer.right, strict=True)
    for token, truth, says, own, right in columns:
        told = [f"{_behind(answer.layer)}, at {shown(token)}", f"says {shown(says)}, {figure(own)}"]
        if truth is not None:
            told.append(f"right: {shown(truth)}, {figure(right)}")
        level = known(own if right is None else right) or 0.0
        cells.append(
            {
                "says": shown(says),
                "level": round(min(max(level, 0.0), 1.0), 3),
                "tip": "\n".join(told),
                "hit": says == truth,
            }
        )
    return cells


def _behind(layer: str) -> str:
    return f"layer {layer}" if layer.isdecimal() else layer
