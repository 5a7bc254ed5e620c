"""Prints how far each preset is from transformers: `PYTHONPATH=src python -m tests.laws.parity_table`."""

import sys

import transformers

from anyformer.families import PRESETS
from anyformer.resizing import shrink
from tests.laws.parity import differences, inputs, pair
from tests.laws.references import FULL_SIZED
from tests.laws.tolerance import FLOAT32

KINDS = ("plain", "right", "left", "packed")


def table() -> list[tuple[str, float, float, float]]:
    """Return (preset, largest difference in logits, hidden states, gradients) over kernels and inputs."""
    lines = []
    for name in FULL_SIZED:
        spec = shrink(PRESETS[name].spec)
        found = [
            differences(pair(spec, attention), inputs(kind, spec.vocab_size))
            for attention in ("eager", "sdpa")
            for kind in KINDS
        ]
        lines.append(
            (name, max(d.logits for d in found), max(d.hidden for d in found), max(d.gradients for d in found))
        )
    return lines


def main() -> None:
    """Print the table in Markdown."""
    out = sys.stdout
    out.write(
        f"Largest difference to transformers {transformers.__version__}, relative to the largest number compared; "
        f"float32, shrunk presets, random weights; tolerance {FLOAT32:g}\n\n"
    )
    out.write("| preset | logits | hidden states | gradients |\n|---|---|---|---|\n")
    for name, *found in table():
        out.write(f"| {name} | " + " | ".join(f"{difference:.1e}" for difference in found) + " |\n")


if __name__ == "__main__":
    main()
