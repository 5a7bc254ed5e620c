"""A norm and a mask of one's own in a language model: built, counted, written as YAML and read again.

python examples/own_part.py mine.yaml
anyformer show ./mine.yaml --import examples/own_part.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

import anyformer as af
from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.layers import (
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    Mask,
    NormSpec,
    Part,
    ReLU2,
    RotarySpec,
    Tokens,
)
from anyformer.spec import Count, ModelSpec, Place, Weight, Width, Window


class PeakNormSpec(NormSpec):
    """x divided by its largest absolute value, times a weight."""

    eps: float = 1e-6

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight(place.shape, ("d_model",), "gain", fill=1.0)}


class PeakNorm(Part[PeakNormSpec]):
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().amax(-1, keepdim=True) + self.spec.eps) * self.weight


class Dilated(Mask):
    """Keys at a multiple of `stride` tokens from the query, the query's own among them."""

    stride: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (query.position - key.position) % self.stride == 0


def architecture() -> ModelSpec:
    """Return a decoder whose layers take turns: one sees everything before it, one every fourth token."""
    norm = PeakNormSpec()
    heads = GQASpec(n_heads=Count(4), n_kv_heads=Count(2), rotary=RotarySpec())
    feed = FeedForwardSpec(d_ff=Width(256), activation=ReLU2(), bias_in=False, bias_out=False)
    layers = [
        block(pre_norm(norm, AttentionSpec(projection=heads, mask=mask)), pre_norm(norm, feed))
        for mask in (Causal(), Causal() & Dilated(stride=Window(4)))
    ]
    return language_model(vocab_size=512, d_model=64, blocks=repeat(layers, 4), norm=norm, tied=True, context=256)


def main() -> None:
    """Write the file, read it, and show that the model of what was read counts and computes the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="the YAML to write")
    path: Path = parser.parse_args().file

    spec = architecture()
    path.write_text(af.dumps(spec), encoding="utf-8")
    again = af.load_spec(path)
    print(f"{path} holds the same architecture: {again == spec}")

    model = af.build(again, seed=0)
    print(f"{af.parameters(spec).total:,} parameters declared, {sum(p.numel() for p in model.parameters()):,} built")

    ids = torch.arange(24)[None] % 512
    with torch.no_grad():
        full = model(ids).logits
        cache = af.KVCache(spec, batch=1, length=24)
        steps = torch.cat([model(token, cache=cache).logits for token in ids.split(1, 1)], 1)
    print(f"cached decoding is the full pass: {torch.allclose(steps, full, atol=1e-5)}")


if __name__ == "__main__":
    main()
