"""A trained decoder, two that were trained on from it on a text each, and what both know in one: each way to merge them.

All are judged by what was held out of both texts.

anyformer train llama2 --params 1M --data stdlib --tokens 4M --out runs/first
cat $(python -c "import sysconfig; print(sysconfig.get_path('include'))")/*.h > headers.txt
python examples/merging.py runs/first docs headers.txt 400k runs/merging
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyformer as af
from anyformer.recipe import SMALL


def cases(base: Path, one: Path, other: Path) -> dict[str, dict[str, Any]]:
    """Return, by what is done, what `convert` is given."""
    both, on_base = {"source": one, "others": [other]}, {"source": one, "others": [other], "base": base}
    return {
        "mean": both,
        "mean, the other thrice": {"source": one, "others": {other: 3.0}},
        "slerp": both | {"by": "slerp"},
        "task arithmetic": on_base | {"by": "task-arithmetic"},
        "TIES": on_base | {"by": "ties,density=0.2"},
        "TIES, half of each change": on_base | {"by": "ties,density=0.5"},
        "DARE, half of each change": on_base | {"by": "dare,density=0.5"},
        "DARE, a tenth": on_base | {"by": "dare,density=0.1"},
        "the base without what the other learnt": {
            "source": base,
            "others": {other: -0.5},
            "base": base,
            "by": "task-arithmetic",
        },
    }


def main() -> None:
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    base, texts, tokens, out = Path(sys.argv[1]), sys.argv[2:4], sys.argv[4], Path(sys.argv[5])
    n = float(tokens.replace("k", "e3").replace("M", "e6"))
    runs = [out / "one", out / "other"]
    for run, text in zip(runs, texts, strict=True):
        af.train(base, text, init=base, out=run, tokens=n, lr=1e-3)
    print(f"| bits a byte | {texts[0]} | {texts[1]} |\n|---|---:|---:|")
    for name, path in (("the base", base), ("trained on the one", runs[0]), ("trained on the other", runs[1])):
        print(row(name, path, texts), flush=True)
    for i, (name, given) in enumerate(cases(base, *runs).items()):
        af.convert(target=out / f"{i}", **given)
        print(row(name, out / f"{i}", texts), flush=True)


def row(name: str, path: Path, texts: list[str]) -> str:
    """Return what a model's predictions cost on each text, as a row of the table."""
    found = [af.evaluate(path, text, held_out=0.05, seq_len=SMALL.seq_len).bits_per_byte for text in texts]
    return f"| {name} | {' | '.join(f'{each:.3f}' for each in found)} |"


if __name__ == "__main__":
    main()
