"""Decoding of a model that memory bounds, 150M parameters: its share of that bound, few bits, guesses, many rows at once.

    python -m benchmarks.decoding --quick

Greedy, batch 1, one thread. The bound is the time of reading once, at the speed that this machine was just seen to read at, what
a token needs: all weights but the table of the embedding, and the cache. Weights in few bits are those of `load(dtype=…)`; what
they write may differ. Compiled, it runs as `generate --compile` does, after the compiler's time. Guesses are what the text said
before, eight at a time: random weights soon repeat themselves, as code does and answers that quote. Sixteen requests arrive,
one every second step, and are written together; beside that, one by one.
Passes of several rows have the layout that `serve` and `generate --lookup` give them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from anyformer.generation import (
    CompiledStep,
    ContinuousBatch,
    PromptLookup,
    SpeculativeDecoding,
    Wanted,
    generate_ids,
    lay_out_for_decoding,
)
from anyformer.hub import load, save
from anyformer.measure import calibrate
from anyformer.model import Transformer
from benchmarks import measure, pair

DTYPES: Mapping[str, Any] = {"int8": "int8", "int4": "int4", "bfloat16": torch.bfloat16}
LARGE = pair.Shape(d_model=1024, n_layers=12, n_heads=16, n_kv_heads=4, d_ff=2816)
PROMPT, NEW, REQUESTS, SHORT, ROWS, GUESSES, LONG = 256, 32, 16, 32, 8, 8, 96


def read_nbytes() -> int:
    """The bytes of a token: weights in float32, keys and values of as many tokens as lie in the cache on average."""
    table = LARGE.vocab_size * LARGE.d_model
    weights = sum(p.numel() for p in pair.ours(LARGE).parameters()) - table
    kept = 2 * LARGE.n_layers * LARGE.n_kv_heads * LARGE.d_model // LARGE.n_heads
    return 4 * (weights + kept * (PROMPT + NEW // 2))


def loaded(directory: Path, *, compiled: bool = False) -> dict[str, Transformer]:
    """Ours by dtype, as `generate` lays it out."""
    models = {"float32": pair.ours(LARGE), **{name: load(directory, dtype=dtype)[0] for name, dtype in DTYPES.items()}}
    return {name: lay_out_for_decoding(each, compiled=compiled).eval() for name, each in models.items()}


def seconds_a_token(write: Callable[[int], object]) -> float:
    first = measure.cpu_seconds(lambda: write(1))
    return (measure.cpu_seconds(lambda: write(NEW + 1)) - first) / NEW


def requests() -> list[Wanted]:
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, LARGE.vocab_size, (REQUESTS, SHORT), generator=generator)
    return [Wanted(tuple(prompt), NEW) for prompt in prompts.tolist()]


def one_after_the_other(model: Transformer) -> None:
    for wanted in requests():
        generate_ids(model, torch.tensor([wanted.token_ids]), max_new_tokens=NEW)


def as_they_come(model: Transformer) -> None:
    batch, waiting = ContinuousBatch(model, SHORT + NEW), requests()
    step = 0
    while waiting or any(not row.ended for row in batch.rows):
        if waiting and step % 2 == 0:
            batch.add(waiting.pop(0))
        batch.step()
        step += 1


def guessed(model: Transformer, ids: torch.Tensor) -> tuple[list[int], int]:
    """(the text, the model's passes) where what follows is guessed from what the text said before."""
    decoding = SpeculativeDecoding(model, ids, None, PromptLookup(GUESSES), max_new_tokens=LONG)
    return [step[0] for step in decoding], decoding.passes[0]


def main() -> None:
    given = measure.arguments("Decoding of a model that memory bounds.")
    torch.set_num_threads(1)
    n = 3 if given.quick else 9
    ids = torch.randint(0, LARGE.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    mask, theirs = torch.ones_like(ids), pair.theirs(LARGE).eval()
    with TemporaryDirectory() as folder:
        save(pair.ours(LARGE), Path(folder) / "model")
        models, to_compile = (loaded(Path(folder) / "model", compiled=compiled) for compiled in (False, True))
    several = lay_out_for_decoding(pair.ours(LARGE), several=True).eval()
    write: dict[str, Callable[[int], object]] = {
        name: lambda k, model=model: generate_ids(model, ids, max_new_tokens=k) for name, model in models.items()
    }
    for name, model in to_compile.items():
        once = partial(generate_ids, model, ids, compiled=CompiledStep(model))
        once(max_new_tokens=NEW + 1)  # the compiler's time is no token's
        write[f"{name}, compiled"] = lambda k, once=once: once(max_new_tokens=k)
    write["transformers"] = lambda k: theirs.generate(ids, attention_mask=mask, max_new_tokens=k, do_sample=False)
    eight = torch.randint(0, LARGE.vocab_size, (ROWS, PROMPT), generator=torch.Generator().manual_seed(2))
    write["8 rows"] = lambda k: generate_ids(several, eight, max_new_tokens=k)
    write["8 rows, transformers"] = lambda k: theirs.generate(
        eight, attention_mask=torch.ones_like(eight), max_new_tokens=k, do_sample=False
    )
    taken = measure.turns({name: lambda once=once: seconds_a_token(once) for name, once in write.items()}, n)
    bound = read_nbytes() / calibrate().read_nbytes_per_second
    middle = {name: statistics.median(each) for name, each in taken.items()}
    rows = [
        measure.row("decoding 150M, float32, x transformers", measure.speed_ratio(taken, "float32"), least=1.0),
        measure.row(
            "decoding 150M, float32, compiled, x transformers",
            measure.speed_ratio(taken, "float32, compiled"),
            least=1.0,
            milliseconds_per_token={name: round(1e3 * each, 2) for name, each in middle.items()},
            bound_milliseconds=round(1e3 * bound, 2),
            cpu_seconds_per_token=measure.rounded(taken),
        ),
        *(
            measure.row(f"decoding 150M, {name}, share of memory's bound", bound / middle[name], least=0.85)
            for name in ("float32", "float32, compiled")
        ),
        *(
            measure.row(
                f"decoding 150M, {dtype}{how} x float32", measure.speed_ratio(taken, dtype + how, "float32"), least=bar
            )
            for how in ("", ", compiled")
            for dtype, bar in (("int8", 1.6), ("int4", 2.5), *([("bfloat16", 1.6)] if how else []))
        ),
    ]
    rows.append(
        measure.row(
            f"decoding 150M, {ROWS} rows, float32, x transformers",
            measure.speed_ratio(taken, "8 rows", "8 rows, transformers"),
            least=1.4,
        )
    )
    text, passes = guessed(several, ids)
    same = sum(a == b for a, b in zip(text, generate_ids(several, ids, max_new_tokens=LONG)[0].tolist(), strict=True))
    ways = {
        "guessed": lambda: measure.cpu_seconds(lambda: guessed(several, ids)),
        "plain": lambda: measure.cpu_seconds(lambda: generate_ids(models["float32"], ids, max_new_tokens=LONG)),
        "together": lambda: measure.cpu_seconds(lambda: as_they_come(several)),
        "alone": lambda: measure.cpu_seconds(lambda: one_after_the_other(models["float32"])),
    }
    found = measure.turns(ways, max(1, n // 3))
    rows.append(
        measure.row(
            f"{LONG} tokens of a text that repeats itself, guessed {GUESSES} at a time, x a token a pass",
            measure.speed_ratio(found, "guessed", "plain"),
            least=1.0,
            passes=passes,
            same_tokens=same,
        )
    )
    rows.append(
        measure.row(
            f"{REQUESTS} arriving requests, x one after the other",
            measure.speed_ratio(found, "together", "alone"),
            least=3.0,
            cpu_seconds=measure.rounded(found),
        )
    )
    shape = pair.facts(LARGE) | {"prompt": PROMPT, "new_tokens": NEW, "requests": REQUESTS, "prompt_of_requests": SHORT}
    measure.record("decoding", given.out, rows, {"shape": shape})


if __name__ == "__main__":
    main()
