"""Writes families/catalogue.json from the presets, and docs/catalogue.md from it: `python tools/catalogue.py`.

The command line lists and completes names by the JSON, so that it imports no model code for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from anyformer import families
from anyformer.families import UNDISCLOSED, hf
from anyformer.families.files import modules
from anyformer.families.registry import records
from anyformer.families.tree import PACKAGE, lineages, lineages_in

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "src" / "anyformer" / "families" / "catalogue.json"
PAGE = ROOT / "docs" / "catalogue.md"

HEAD = """# The catalogue

Every architecture known by name. Written by `make catalogue` from the specifications; a test fails where this page is
behind them. *Parameters* are counted from the specification, *published* is what the source prints.
`anyformer presets` lists the same, `anyformer show NAME` says what one is made of, [parity](parity.md) how near each is to an
independent implementation, cached to uncached, and ours to theirs after conversion either way.
"""

# Classes of transformers 5.24 near those that are read here, and why they are not.
LEFT_OUT = {
    "EuroBertForSequenceClassification": "classifies every token and pools what that says, where heads here pool first",
    "MPNetForMaskedLM with other buckets": "tells 32 apart whatever its configuration says; other numbers are refused",
    "ErnieForMaskedLM with use_task_id": "adds a row of a table of tasks, for whose ids no input is here; refused",
    "MvpForConditionalGeneration with use_prompt": "puts learned keys and values before each layer's own; refused",
    "CodeGenForCausalLM of 2B": "is read and written, and is no preset: of the 80 features of a head 64 rotate, which no small "
    "model of the laws can show",
    "RoFormerForMaskedLM with rotary_value": "turns values too; refused",
    "FalconH1ForCausalLM with a multiplier of gates beside biases": "is no product of what parts here compute; refused",
    "DoryForCausalLM": "goes through its middle layers several times, on a sphere (nGPT), for which no parts are here",
    "ZambaForCausalLM": "has Mamba in heads, each with maps of its own for steps and states, for which no part is here",
    "ProphetNetForConditionalGeneration": "has streams that predict several tokens each, for which no part is here",
    "MobileBertForMaskedLM otherwise than released": "has layer norms, no bottlenecks or tokens one by one; refused",
    "NllbMoeForConditionalGeneration": "runs its experts 0 and 1 alone, whatever the router says, so that there is no oracle",
    "NystromformerForMaskedLM with landmarks": "takes rows of one length alone, padding among them; here texts have any",
    "`FunnelForMaskedLM`, `BltForCausalLM`": (
        "layers on fewer tokens are here (`Shortened`), but no attention from them to tokens around, nor blocks cut by content"
    ),
    "DogeForCausalLM": "masks all but the best keys; with experts, the class lets a token's hang on later tokens",
    "LukeForMaskedLM": "reads entities beside words; without them it is RoBERTa",
    "GraniteMoeSharedForCausalLM": "is read and written, and is no preset: its sizes are no class's defaults",
    "LagunaForCausalLM as released": "is read and written; its preset has the class's sizes, without windows and further heads",
    "T5Gemma2ForConditionalGeneration": "sees, and its decoder has one softmax over its own tokens and the encoder's",
    "MistralLarge4ForConditionalGeneration": "learns factors of rotary frequencies and of scores by position; no parts are here",
    "`Inkling2ForConditionalGeneration`, `Inkling2LoopForConditionalGeneration`": "have convolutions that each token makes and "
    "residuals that attend to blocks before, for which no parts are here",
    "IBertForMaskedLM with quant_mode": "computes with integers; refused, and without it RoBERTa, which its presets are",
    "JinaEmbeddingsV3ForMaskedLM with adapters": "has none of the adapters for its tasks in the class; files of them are refused",
    "MellumForCausalLM with further tokens": "passes over the layers that predict them, whose tensors are not read here; refused",
}


def catalogue() -> dict[str, Any]:
    """What catalogue.json must hold."""
    own = [preset for line in lineages() for preset in line.presets]
    undisclosed = [{**dataclasses.asdict(model), "public": [*model.public]} for model in UNDISCLOSED.values()]
    return {"version": 1, "presets": records(own), "undisclosed": undisclosed, "files": _files()}


def _files() -> dict[str, dict[str, str]]:
    """The file in which each preset and each checkpoint family stands, by name."""
    lines = [(file, line) for file in modules(PACKAGE, families.__path__, ()) for line in lineages_in(file)]
    presets = {name: _stem(file) for file, line in lines for preset in line.presets for name in preset.names}
    each = [(file, hf_type) for file in modules(hf.__name__, hf.__path__, ()) for hf_type in hf.families_in(file)]
    return {"presets": presets, "families": {hf_type: _stem(file) for file, hf_type in reversed(each)}}


def _stem(file: ModuleType) -> str:
    return file.__name__.rpartition(".")[2]


def page(presets: Iterable[dict[str, Any]]) -> str:
    """Return the page of these records: a table for each family, errata below it."""
    families: dict[str, list[dict[str, Any]]] = {}
    for preset in presets:
        families.setdefault(preset["family"], []).append(preset)
    tables = "".join(f"\n## {family}\n\n{_table(records)}" for family, records in families.items())
    left_out = "".join(f"- {name if '`' in name else f'`{name}`'}: {reason}.\n" for name, reason in LEFT_OUT.items())
    return f"{HEAD}{tables}\n## Classes that are left out\n\n{left_out}"


def _table(records: list[dict[str, Any]]) -> str:
    columns = ("name", "parameters", "published", "layers", "d_model", "vocabulary", "context", "source")
    head = f"| {' | '.join(columns)} |\n|---|---:|---|---:|---:|---:|---:|---|\n"
    errata = [f"- `{record['name']}`: {record['erratum']}.\n" for record in records if record["erratum"]]
    return head + "".join(map(_line, records)) + ("\nErrata:\n\n" + "".join(errata) if errata else "")


def _line(record: dict[str, Any]) -> str:
    names = ", ".join(f"`{name}`" for name in (record["name"], *record["aliases"]))
    sizes = [f"{record[name]:,}" if record[name] else "" for name in ("layers", "d_model", "vocab_size", "context")]
    count = f"{record['parameters']:,}"
    return f"| {' | '.join((names, count, record['published'] or '', *sizes, record['source']))} |\n"


if __name__ == "__main__":
    found = catalogue()
    DATA.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(found["presets"]), encoding="utf-8")
