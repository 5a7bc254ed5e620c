"""Each pretraining objective on prose for a few minutes: how far its loss ends below what frequency alone predicts.

    python -m benchmarks.objectives TEXT runs/objectives

TEXT is a folder of prose; Debian's python3.11-doc has 11 MB of it. Every row is an `anyformer train` of its own (a small
model, a vocabulary trained on the way, 5 % of the text set aside) whose JSON has both figures: the loss on that text, and
`unigram_loss`, that of predicting each label by its frequency in training. Two rows run at once, a core each; what has run is
not run again. Writes `results/objectives.json`.

The encoder of masked words and replaced tokens is not BERT but a Llama whose tokens see both sides, its matrices drawn by
their fan-in: with norms after the sums and a deviation of 0.02, a model this narrow stays at the unigrams for minutes. What its
generator replaces is drawn at a temperature of 2: at 1, after minutes, a generator is often right, and what is left to find is
hardly below the frequencies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import anyformer as af
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, ByRole, Everything, Normal, RMSNormSpec
from anyformer.recipe import Denoising, MaskedLM, ObjectiveSpec, Recipe, ReplacedTokens, SpanCorruption
from anyformer.recipe import dumps as dumps_recipe
from anyformer.spec import dumps
from benchmarks import measure

BAR = 0.15  # below the baseline, at least
AT_ONCE = 2
ENCODER = "both-ways.yaml"
VOCAB, SEQ_LEN = 400, 128
SHARED = ("--vocab", str(VOCAB), "--seq-len", str(SEQ_LEN), "--batch-tokens", "1024", "--device", "cpu")


class Row(NamedTuple):
    """One training."""

    architecture: str
    objective: ObjectiveSpec
    lr: str
    tokens: str


ROWS = {
    "replaced-tokens": Row(ENCODER, ReplacedTokens(rate=0.25, temperature=2.0), "3e-3", "2M"),
    "masked-lm": Row(ENCODER, MaskedLM(), "3e-3", "2M"),
    "span-corruption": Row("t5-small", SpanCorruption(), "3e-3", "1M"),
    "denoising": Row("bart-base", Denoising(), "1e-3", "1M"),
}


def both_ways(n_params: int = 600_000) -> str:
    """Return the specification of a small encoder: a Llama without its causal mask."""
    spec = changed(af.preset("llama-7b").spec, AttentionSpec, mask=Everything())
    start = ByRole(table=Normal(scale=0.02), matrix=Normal(scale=1.0, fan_in_power=-0.5))
    embedding = spec.stack.embedding.but(norm=RMSNormSpec())  # a generator is made of it
    spec = spec.but(init=start, stack=spec.stack.but(embedding=embedding))
    return dumps(af.resize(spec, n_params=n_params, vocab_size=VOCAB, context=SEQ_LEN))


def trained(name: str, text: str, runs: Path) -> dict[str, Any]:
    """Return what `anyformer train --json` says of one row."""
    row, kept = ROWS[name], runs / f"{name}.json"
    if kept.is_file():
        return json.loads(kept.read_text(encoding="utf-8"))
    recipe = runs / f"{name}.yaml"
    spec, sized = (str(runs / ENCODER), ()) if row.architecture == ENCODER else (row.architecture, ("--params", "1M"))
    command = ["train", spec, "--recipe", str(recipe), "--data", text, *sized, *SHARED, "--lr", row.lr]
    command += ["--tokens", row.tokens, "--out", str(runs / name)]
    recipe.write_text(dumps_recipe(Recipe(objective=row.objective)), encoding="utf-8")
    print(" ".join(["anyformer", *command]), flush=True)
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // AT_ONCE))}
    with (runs / f"{name}.log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-m", "anyformer", *command, "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | threads,
            check=True,
        )
    told = {"command": " ".join(["anyformer", *command]), **json.loads(done.stdout)}
    kept.write_text(json.dumps(told), encoding="utf-8")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description="The losses of pretraining objectives beside their baselines.")
    parser.add_argument("text", help="a folder of prose")
    parser.add_argument("runs", type=Path, help="directory of the runs")
    parser.add_argument(
        "--only", choices=ROWS, nargs="+", default=list(ROWS), help="these rows alone; nothing is recorded"
    )
    parser.add_argument("--out", type=Path, default=measure.RESULTS, help="directory of the JSON result")
    chosen = parser.parse_args()
    chosen.runs.mkdir(parents=True, exist_ok=True)
    (chosen.runs / ENCODER).write_text(both_ways(), encoding="utf-8")
    rows = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda name: trained(name, chosen.text, chosen.runs), chosen.only)
        for name, told in zip(chosen.only, found, strict=True):
            loss, baseline = told["validation"]["loss"], told["validation"]["unigram_loss"]
            figures = {"loss": loss, "unigram_loss": baseline, "seconds": told["seconds"], "n_params": told["n_params"]}
            rows.append(measure.row(name, 1 - loss / baseline, least=BAR, command=told["command"], **figures))
            print(f"{name}: {loss:.4f} nats a label, {1 - loss / baseline:.1%} below {baseline:.4f}", flush=True)
    if len(rows) == len(ROWS):
        measure.record("objectives", chosen.out, rows, {"text": chosen.text})


if __name__ == "__main__":
    main()
