"""Decoding of ours and of transformers' Llama: greedy, eager, one prompt.

    python -m benchmarks.generation --quick

Both start from the same weights and must write the same tokens. The time of a token is that of 65 new tokens less
that of one, over 64, so that reading the prompt does not count. Ours runs as `anyformer generate` runs it, with the
weights laid out for decoding; the figure without that layout is there to see what it gives. Compiled, it runs as
`anyformer generate --compile` does; what compiling takes is no part of a token's time, and is told beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.generation import CompiledStep, generate_ids, lay_out_for_decoding
from benchmarks import measure, pair

PROMPT, NEW = 512, 64


def writers(shape: pair.Shape) -> dict[str, Callable[[int], Tensor]]:
    """Return by side what writes n new tokens after the prompt."""
    ids = torch.randint(0, shape.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    plain, laid_out = pair.ours(shape), lay_out_for_decoding(pair.ours(shape))
    for_compiled = lay_out_for_decoding(pair.ours(shape), compiled=True)
    other, step = pair.theirs(shape).eval(), CompiledStep(for_compiled)
    return {
        "ours": lambda n: generate_ids(laid_out, ids, max_new_tokens=n),
        "transformers": lambda n: other.generate(ids, attention_mask=mask, max_new_tokens=n, do_sample=False)[
            :, PROMPT:
        ],
        "ours, compiled": lambda n: generate_ids(for_compiled, ids, max_new_tokens=n, compiled=step),
        "ours, weights as loaded": lambda n: generate_ids(plain, ids, max_new_tokens=n),
    }


def main() -> None:
    given = measure.arguments("Decoding beside transformers' Llama.")
    torch.set_num_threads(1)
    write = writers(pair.SMALL)
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

    work = {side: lambda side=side: seconds_per_token(side) for side in write}
    taken = measure.turns(work, 5 if given.quick else 25)
    rows = [
        measure.row(
            "decoding speed, eager float32, x transformers",
            measure.speed_ratio(taken),
            least=1.4,
            milliseconds_per_token={side: round(1e3 * statistics.median(each), 3) for side, each in taken.items()},
            weights_as_loaded=round(measure.speed_ratio(taken, "ours, weights as loaded"), 3),
            cpu_seconds_per_token=measure.rounded(taken),
        ),
        measure.row(
            "decoding speed, compiled float32, x transformers",
            measure.speed_ratio(taken, "ours, compiled"),
            least=1.8,
            beside_ours_eager=round(measure.speed_ratio(taken, "ours, compiled", "ours"), 3),
            first_text_seconds={side: round(first[side], 1) for side in ("ours", "ours, compiled")},
        ),
    ]
    notes = {"shape": pair.facts(pair.SMALL) | {"batch": 1, "prompt": PROMPT, "new_tokens": NEW}}
    measure.record("generation", given.out, rows, notes)


if __name__ == "__main__":
    main()
