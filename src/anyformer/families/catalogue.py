"""The catalogue: every preset's name and figures as data, so that listing and completion import no model code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from anyformer.families import ALIASES, PRESETS, UNDISCLOSED
from anyformer.spec import parameters

PATH = Path(__file__).with_name("catalogue.json")


def catalogue() -> dict[str, Any]:
    """What catalogue.json must hold."""
    aliases = {name: [alias for alias, target in ALIASES.items() if target == name] for name in PRESETS}
    records = [
        {
            "name": preset.name,
            "family": preset.family,
            "aliases": aliases[preset.name],
            "parameters": parameters(preset.spec).total,
            "published": preset.published,
            "erratum": preset.erratum,
            "layers": preset.spec.n_layers,
            "d_model": preset.spec.stack.d_model,
            "vocab_size": preset.spec.vocab_size,
            "context": preset.spec.context,
            "source": preset.source,
        }
        for preset in PRESETS.values()
    ]
    undisclosed = [{**dataclasses.asdict(model), "public": [*model.public]} for model in UNDISCLOSED.values()]
    return {"version": 1, "presets": records, "undisclosed": undisclosed}


if __name__ == "__main__":
    PATH.write_text(json.dumps(catalogue(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
