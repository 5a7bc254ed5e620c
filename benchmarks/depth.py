"""Memory of a training step by depth: a Llama's layers, and the same with reversible residuals.

    python -m benchmarks.depth

Float32, one row of 4,096 tokens, narrow layers, so that what grows is what is kept for the backward pass and not weights. Each
depth in a process of its own; the figure is the growth of the resident set in the second step.
"""

from __future__ import annotations

import json
import sys

import torch

from anyformer import build
from anyformer.families.llama import llama
from anyformer.layers import ReversibleSpec
from anyformer.spec import ModelSpec
from benchmarks import measure

LENGTH, WIDTH, DEPTHS = 4096, 64, (6, 12, 24)


def model(kind: str, n_layers: int) -> ModelSpec:
    spec = llama(n_layers, WIDTH, 4, 3 * WIDTH, vocab_size=256, context=LENGTH)
    return spec if kind == "plain" else spec.but(stack=spec.stack.but(residual=ReversibleSpec()))


def grow(kind: str, n_layers: int) -> int:
    """The bytes by which a step grows above where it began."""
    torch.set_num_threads(1)
    built = build(model(kind, n_layers), seed=0)
    ids = torch.randint(0, 256, (1, LENGTH), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        built(ids, output_logits=False).last_hidden_state.square().sum().backward()

    step()
    return measure.growth_nbytes(step)


def main() -> None:
    if "--grow" in sys.argv:
        kind, n_layers = sys.argv[sys.argv.index("--grow") + 1 :]
        print(json.dumps(grow(kind, int(n_layers))))
        return
    given = measure.arguments("Memory of a training step by depth.")
    nbytes = {
        kind: {str(n): measure.printed_elsewhere("benchmarks.depth", "--grow", kind, str(n)) for n in DEPTHS}
        for kind in ("plain", "reversible")
    }
    ratio = nbytes["reversible"]["24"] / nbytes["reversible"]["6"]
    rows = [measure.row("memory of reversible layers, 24 over 6", ratio, most=1.15, nbytes=nbytes)]
    measure.record("depth", given.out, rows, {"shape": {"length": LENGTH, "d_model": WIDTH}})


if __name__ == "__main__":
    main()
