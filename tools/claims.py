"""Writes src/anyformer/study/evidence.json from studies/ and studies/results, and a picture of each: `python -m tools.claims`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from anyformer.study.evidence import Evidence, in_order
from anyformer.study.paired import Ruling
from anyformer.study.specification import read_study

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "studies"
DATA = ROOT / "src" / "anyformer" / "study" / "evidence.json"
HEAD = "| claim | verdict | numbers |"


def rows(page: str, head: str) -> Iterator[list[str]]:
    """The cells of each row of the table whose first line begins so; none where the page has no such table."""
    lines = iter(page.splitlines())
    for line in lines:
        if line.startswith(head):
            break
    next(lines, None)
    for line in lines:
        if not line.startswith("| "):
            return
        yield line.removeprefix("| ").removesuffix(" |").split(" | ")


def verdicts(page: str) -> Iterator[tuple[str, Ruling, str]]:
    """(claim, ruling, numbers) of each row of the table of verdicts on a page of findings."""
    for claim, ruling, numbers in rows(page, HEAD):
        said = ruling.strip("*")
        (found,) = (each for each in get_args(Ruling) if each == said)
        yield claim, found, numbers


def pages() -> list[Path]:
    """The pages of findings."""
    return sorted((STUDIES / "results").glob("*.md"))


def evidence() -> tuple[Evidence, ...]:
    """What all pages of findings say; claims that a file no longer makes are about the whole."""
    found = []
    for path in pages():
        page = path.read_text(encoding="utf-8")
        scale = next(line for line in page.splitlines() if line.startswith("Up to ")).removesuffix(".")
        file = STUDIES / f"{path.stem}.yaml"
        about = {claim.says: claim.about for claim in read_study(file).claims} if file.exists() else {}
        for claim, ruling, said in verdicts(page):
            found.append(Evidence(about.get(claim), claim, ruling, said, scale, f"studies/{path.stem}.yaml"))
    return in_order(found)


def written() -> str:
    """The file."""
    return json.dumps([asdict(one) for one in evidence()], indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from tools.claims_pictures import beside, draw

    DATA.write_text(written(), encoding="utf-8")
    for path in pages():
        beside(path).write_text(draw(path.read_text(encoding="utf-8")), encoding="utf-8")
