"""How far two ways to compute one formula may lie apart, relative to the largest number compared; stated here once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# float32 rounds to 6e-8. The numbers compared are sums of some hundred products taken in another order, through two
# layers whose norms and softmaxes pass an error on enlarged by less than ten; angles of rotary positions differ by
# their own rounding times the position. Measured: up to 5e-6 for gradients, 2e-6 for logits.
FLOAT32 = 2e-5

# What a state is read for may be nearly nothing, and the norm behind enlarges its rounding: on both sides alike, and by
# chance of the weights. Measured: up to 2.4e-4 for gradients, 3e-5 for logits; in float64, where FLOAT64 holds, 3e-14. Likewise
# the few features that a layer's embeddings are multiplied by: 4e-5 where they are shrunk to 8, 5e-6 where they are 32.
FLOAT32_READ = 5e-4

# What sparse activations leave of a token is a few features, as far as they lie above a cutoff: the difference of numbers
# that may be nearly alike, and the norm behind enlarges its rounding likewise, in each of up to twelve layers that Gemma 3n
# keeps when it is shrunk. Measured: up to 2.2e-4 for gradients, 1.2e-5 for logits; in float64 3e-12 (4e-14 without sparsity).
FLOAT64_SPARSE = 1e-11

# Where a block's result is read aside (Zamba 2), a state in each layer is read for what may be nearly nothing, and a norm behind
# enlarges its rounding. Measured: 5.3e-11 for gradients, by chance of the weights, 1.3e-12 for logits.
FLOAT64_ASIDE = 1e-10

# Each layer enlarges what the one before it rounded, and of some models four or five layers must be kept. Where transformers'
# float32 lies further than the tolerance from its own float64, ours may lie as far from it, to another side, and by chance
# twice. Measured, of HY 4's five layers (of two 4e-6): 5.5e-4 is lost here and 4.8e-4 there, by one number that scales
# coefficients of all tokens; both agree in float64 to FLOAT64.
OWN_LOSS = 3.0

# float64 rounds to 1e-16, and where nothing is taken in float32 (`InDouble`) no more is left; measured: 2e-14.
FLOAT64 = 1e-12

# BLOOM writes √(2/π) with 8 digits; measured: 4.8e-8.
FLOAT64_ALIBI = 3e-7

# Marian holds its sinusoids in float32; measured: 4e-7, for gradients.
FLOAT64_TABLE = 1e-6

# A mutated field must be seen this much more clearly than rounding is.
VISIBLE = 100


def distance(a: Tensor, b: Tensor, least: float = 0.0) -> float:
    """Return the largest difference, relative to the largest number of `b`, or to `least` where that is larger."""
    assert a.shape == b.shape, f"{tuple(a.shape)} is compared with {tuple(b.shape)}"
    scale = max(b.abs().max().item(), least)
    return (a - b).abs().max().item() / (scale or 1.0)


# Of a part, one for all tokens, or one for each of its heads.
ONE_NUMBER = (".sink", ".activation.positive", ".activation.negative")


def gradient_distance(ours: Mapping[str, Any], theirs: Mapping[str, Any], share: float = 0.0) -> float:
    """Return the largest distance of gradients of one name; what is below this share of the largest of all is measured by it.

    A bias's gradient sums over tokens what its weight's gradient multiplies by inputs first, so it shares that one's
    rounding: a key's bias adds the same to all scores of a query, and its gradient is nothing but rounding. A sink's
    gradient is such a sum too, of what its attention's matrices are given, and so is that of an activation's number, and of
    a norm's gain where that is one number.
    """
    assert set(ours) == set(theirs)
    largest = {name: gradient.abs().max().item() for name, gradient in theirs.items()}
    least = {name: largest.get(name.removesuffix("bias") + "weight", 0.0) for name in theirs}
    for name in theirs:
        end = next((end for end in ONE_NUMBER if name.endswith(end)), None)
        if end is None and theirs[name].numel() == 1:
            end = name.removeprefix(name.rsplit(".", 2)[0])
        if end is not None:
            beside = name.removesuffix(end.removeprefix("."))
            least[name] = max(size for other, size in largest.items() if other.startswith(beside))
    floor = share * max(largest.values())
    return max(distance(ours[name], theirs[name], max(least[name], floor)) for name in theirs)


def close(a: Tensor, b: Tensor, most: float = FLOAT32) -> None:
    """Fail where two tensors are further apart than rounding explains."""
    apart = distance(a, b)
    assert apart < most, f"{apart:.1e} apart, relative to the largest number; the tolerance is {most:.0e}"


@contextmanager
def in_float64() -> Iterator[None]:
    """Make every number of twice as many digits, which tells rounding from error; also as a function's decorator."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
