"""Writes docs/catalogue.md from families/catalogue.json: `python tools/catalogue.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "src" / "anyformer" / "families" / "catalogue.json"
PAGE = ROOT / "docs" / "catalogue.md"

HEAD = """# The catalogue

Every architecture known by name. Written by `make catalogue` from the specifications; a test fails where this page is
behind them. *Parameters* are counted from the specification, *published* is what the source prints.
`anyformer presets` lists the same, `anyformer show NAME` says what one is made of, [parity](parity.md) how near each is to an
independent implementation, cached to uncached, and ours to theirs after conversion either way.
"""


def page(presets: Iterable[dict[str, Any]]) -> str:
    """Return the page of these records: a table for each family, errata below it."""
    families: dict[str, list[dict[str, Any]]] = {}
    for preset in presets:
        families.setdefault(preset["family"], []).append(preset)
    return HEAD + "".join(f"\n## {family}\n\n{_table(records)}" for family, records in families.items())


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
    PAGE.write_text(page(json.loads(DATA.read_text(encoding="utf-8"))["presets"]), encoding="utf-8")
