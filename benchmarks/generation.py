"""Decoding of ours and of transformers' Llama, and of its Mixtral at 95M parameters: greedy, one prompt.

    python -m benchmarks.generation --quick

Both start from the same weights and must write the same tokens. The time of a token is that of 65 new tokens less
that of one, over 64, so that reading the prompt does not count. Ours runs as `anyformer generate` runs it, with the
weights laid out for decoding; the figure without that layout is there to see what it gives. Compiled, it runs as
`anyformer generate --compile` does; what compiling takes is no part of a token's time, and is told beside it. A model whose
modules somebody watches computes each step as it is written: how much longer that takes than the tape is told too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from anyformer.families import preset
from anyformer.generation import CompiledStep, generate_ids, lay_out_for_decoding
from anyformer.model import Transformer
from anyformer.resizing import resize
from benchmarks import measure, pair
from benchmarks.twins import twins

PROMPT, NEW = 512, 64
MIXTURE: dict[str, Any] = {"d_model": 512, "n_layers": 4, "vocab_size": 4096}


def writers(plain: Transformer, theirs: Any) -> dict[str, Callable[[int], Tensor]]:
    """Return by side what writes n new tokens after the prompt."""
    ids = torch.randint(0, plain.spec.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    plain, other = plain.eval(), theirs.eval()
    laid_out, watched = (lay_out_for_decoding(deepcopy(plain)) for _ in range(2))
    watched.register_forward_hook(lambda *_: None)
    for_compiled = lay_out_for_decoding(deepcopy(plain), compiled=True)
    step = CompiledStep(for_compiled)
    return {
        "ours": lambda n: generate_ids(laid_out, ids, max_new_tokens=n),
        "transformers": lambda n: other.generate(ids, attention_mask=mask, max_new_tokens=n, do_sample=False)[
            :, PROMPT:
        ],
        "ours, compiled": lambda n: generate_ids(for_compiled, ids, max_new_tokens=n, compiled=step),
        "ours, as written": lambda n: generate_ids(watched, ids, max_new_tokens=n),
        "ours, weights as loaded": lambda n: generate_ids(plain, ids, max_new_tokens=n),
    }


def timed(write: dict[str, Callable[[int], Tensor]], n: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return (CPU seconds of a token by side, turn by turn; seconds of each side's first text)."""
    texts, first = {}, {}
    for side, once in write.items():
        start = time.perf_counter()
        texts[side] = once(NEW + 1)[0].tolist()
        first[side] = time.perf_counter() - start
    if len({tuple(text) for text in texts.values()}) > 1:
        raise SystemExit(f"error: the two sides write different tokens, so their times say nothing: {texts}")

    def seconds_per_token(side: str) -> float:
        first = measure.cpu_seconds(lambda: write[side](1))
        return (measure.cpu_seconds(lambda: write[side](NEW + 1)) - first) / NEW

    return measure.turns({side: lambda side=side: seconds_per_token(side) for side in write}, n), first


def main() -> None:
    given = measure.arguments("Decoding beside transformers' classes.")
    torch.set_num_threads(1)
    mixture = resize(preset("mixtral-8x7b").spec, **MIXTURE)
    rows = []
    for name, sides, least, least_compiled in (
        ("decoding speed", lambda: (pair.ours(pair.SMALL), pair.theirs(pair.SMALL)), 1.4, 1.8),
        ("decoding speed of a mixture", lambda: twins(mixture), 1.0, 1.8),
    ):
        taken, first = timed(writers(*sides()), 5 if given.quick else 25)
        rows += [
            measure.row(
                f"{name}, eager float32, x transformers",
                measure.speed_ratio(taken),
                least=least,
                milliseconds_per_token={side: round(1e3 * statistics.median(each), 3) for side, each in taken.items()},
                beside_steps_as_written=round(measure.speed_ratio(taken, "ours", "ours, as written"), 3),
                weights_as_loaded=round(measure.speed_ratio(taken, "ours, weights as loaded"), 3),
                cpu_seconds_per_token=measure.rounded(taken),
            ),
            measure.row(
                f"{name}, compiled float32, x transformers",
                measure.speed_ratio(taken, "ours, compiled"),
                least=least_compiled,
                beside_ours_eager=round(measure.speed_ratio(taken, "ours, compiled", "ours"), 3),
                first_text_seconds={side: round(first[side], 1) for side in ("ours", "ours, compiled")},
            ),
        ]
    shape = pair.facts(pair.SMALL) | {"batch": 1, "prompt": PROMPT, "new_tokens": NEW, "mixture": MIXTURE}
    measure.record("generation", given.out, rows, {"shape": shape})


if __name__ == "__main__":
    main()
