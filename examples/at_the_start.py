"""What each branch of a new model adds to the stream beside a token's own vector, and what √d_model in its embedding does to it.

Where branches write more than the token has, later layers see all tokens alike until training has undone it: docs/claims.md.

python examples/at_the_start.py
python examples/at_the_start.py "llama2+tied=true+wiring=parallel" --params 3e6
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import anyformer as af

VOCAB_SIZE = 2048


def deviations(spec: af.ModelSpec, seq_len: int = 256) -> list[tuple[str, float]]:
    """(part, deviation of what it adds to the stream) of a new model that reads random tokens, the embedding first."""
    model = af.build(spec, seed=0)
    parts: list[tuple[str, Any]] = [("tokens", model.stack.embedding)]
    for i, block in enumerate(model.stack.blocks, 1):
        mixers = [branch.mixer for sublayer in block.sublayers for branch in sublayer.branches]
        parts += [(f"layer {i}, {type(mixer).__name__}", mixer) for mixer in mixers]
    found: list[tuple[str, float]] = []
    for name, part in parts:
        part.register_forward_hook(lambda _, args, given, name=name: found.append((name, _deviation(given))))
    with torch.inference_mode():
        model(torch.randint(VOCAB_SIZE, (4, seq_len), generator=torch.Generator().manual_seed(0)))
    return found


def _deviation(given: Any) -> float:
    """Of the vectors that a part gives, which may have notes beside them."""
    y = given if isinstance(given, torch.Tensor) else given[0]
    return float(y.std())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architecture", nargs="?", default="llama2+tied=true")
    parser.add_argument("--params", type=float, default=1.25e6, help="about so many parameters: 2e6, 10e6")
    options = parser.parse_args()
    spec = af.resize(af.load_spec(options.architecture), n_params=round(options.params), vocab_size=VOCAB_SIZE)
    scaled = af.vary(spec, embedding="gemma-2b")
    print("| writes to the stream | deviation | with √d_model |")
    print("|---|---:|---:|")
    for (part, plain), (_, other) in zip(deviations(spec), deviations(scaled), strict=True):
        print(f"| {part} | {plain:.4f} | {other:.4f} |")


if __name__ == "__main__":
    main()
