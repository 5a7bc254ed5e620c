"""Each pretraining objective on prose for a few minutes: how far its loss ends below what frequency alone predicts.

    python -m benchmarks.objectives TEXT runs/objectives

TEXT is a folder of prose; Debian's python3.11-doc has 11 MB of it. Every row is an `anyformer train` of its own (a small
model, a vocabulary trained on the way, 5 % of the text set aside) whose JSON has both figures: the loss on that text, and
`unigram_loss`, that of predicting each label by its frequency in training. Writes `results/objectives.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import measure

BAR = 0.15  # below the baseline, at least

ROWS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "masked-lm": ("bert-base", "masked-lm", ()),
    "replaced-tokens": ("electra-small", "replaced-tokens", ()),
    "permuted-lm": ("xlnet-base", "permuted-lm", ()),
    "span-corruption": ("t5-small", "span-corruption", ()),
    "denoising": ("bart-base", "denoising", ()),
}
"""By name: the architecture, the objective, and what its command has beside `SHARED`."""

SHARED = ("--params", "3M", "--vocab", "4096", "--tokens", "3M", "--seq-len", "128", "--batch-tokens", "2048")


def trained(name: str, text: str, runs: Path) -> dict[str, Any]:
    """Return what `anyformer train --json` says of one row."""
    spec, objective, own = ROWS[name]
    command = ["train", spec, "--objective", objective, "--data", text, *SHARED, *own]
    command += ["--device", "cpu", "--out", str(runs / name)]
    print(" ".join(["anyformer", *command]), flush=True)
    done = subprocess.run([sys.executable, "-m", "anyformer", *command, "--json"], stdout=subprocess.PIPE, check=True)
    return {"command": " ".join(["anyformer", *command]), **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description="The losses of pretraining objectives beside their baselines.")
    parser.add_argument("text", help="a folder of prose")
    parser.add_argument("runs", type=Path, help="directory of the runs")
    parser.add_argument(
        "--only", choices=ROWS, nargs="+", default=list(ROWS), help="these rows alone; nothing is recorded"
    )
    parser.add_argument("--out", type=Path, default=measure.RESULTS, help="directory of the JSON result")
    chosen = parser.parse_args()
    rows = []
    for name in chosen.only:
        told = trained(name, chosen.text, chosen.runs)
        loss, baseline = told["validation"]["loss"], told["validation"]["unigram_loss"]
        figures = {"loss": loss, "unigram_loss": baseline, "seconds": told["seconds"], "n_params": told["n_params"]}
        rows.append(measure.row(name, 1 - loss / baseline, least=BAR, command=told["command"], **figures))
        print(f"{name}: {loss:.4f} nats a label, {1 - loss / baseline:.1%} below {baseline:.4f}", flush=True)
    if len(rows) == len(ROWS):
        measure.record("objectives", chosen.out, rows, {"text": chosen.text})


if __name__ == "__main__":
    main()
