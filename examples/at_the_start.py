"""What each branch of a new model adds to the stream beside a token's own vector, and what √d_model in its embedding does to it.

Where branches write more than the token has, later layers see all tokens alike until training has undone it: docs/claims.md.

python examples/at_the_start.py
python examples/at_the_start.py "llama2+tied=true+wiring=parallel" --params 3M
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

import anyformer as af

VOCAB_SIZE = 2048


def deviations(spec: af.ModelSpec, seq_len: int = 256) -> list[tuple[str, float]]:
    """(part, deviation of what it adds to the stream) of a new model that reads random tokens, the embedding first."""
    model = af.build(spec, seed=0)
    found: list[tuple[str, float]] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            y: Tensor = output if isinstance(output, Tensor) else output[0]
            found.append((name, float(y.std())))

        return hook

    for name, module in model.named_modules():
        if name == "stack.embedding" or name.endswith(".mixer"):
            parts = [part for part in name.split(".") if part.isdigit()]
            layer = f"layer {int(parts[0]) + 1}, {type(module).__name__}" if parts else "tokens"
            module.register_forward_hook(note(layer))
    with torch.inference_mode():
        model(torch.randint(VOCAB_SIZE, (4, seq_len), generator=torch.Generator().manual_seed(0)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architecture", nargs="?", default="llama2+tied=true")
    parser.add_argument("--params", default="1.25M", help="about so many parameters: 2M, 10M")
    options = parser.parse_args()
    n_params = round(float(options.params.rstrip("Mm")) * 1e6)
    spec = af.resize(af.load_spec(options.architecture), n_params=n_params, vocab_size=VOCAB_SIZE)
    scaled = af.vary(spec, embedding="gemma-2b")
    print("| writes to the stream | deviation | with √d_model |")
    print("|---|---:|---:|")
    for (part, plain), (_, other) in zip(deviations(spec), deviations(scaled), strict=True):
        print(f"| {part} | {plain:.4f} | {other:.4f} |")


if __name__ == "__main__":
    main()
