"""Training steps of ours and of transformers' Llama: forward, backward, AdamW, eager and compiled; speed, memory, importing.

    python -m benchmarks.training --quick

Both start from the same weights, see the same tokens and use PyTorch's fused AdamW. Ours trains as `anyformer train`
does, with the cross-entropy in chunks; theirs as its own `labels=` does.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks import measure, pair

BATCH, SEQ_LEN = 16, 256
SIDES, COMPILED = ("ours", "transformers"), "ours, compiled"


def step_of(side: str, autocast: bool = False) -> Callable[[], float]:
    """Return a training step that gives the loss."""
    if side.startswith("ours"):
        from anyformer.layers.block import compile_layers
        from anyformer.layers.cross_entropy import cross_entropy

        model = pair.ours(pair.SMALL)
        if side == COMPILED:
            compile_layers(model)  # as `train --compile` does

        def loss_of(ids: Tensor, labels: Tensor) -> Tensor:
            hidden = model(ids, output_logits=False).last_hidden_state
            return cross_entropy(model.head(), hidden, labels)[0] / labels.numel()
    else:
        model = pair.theirs(pair.SMALL)

        def loss_of(ids: Tensor, labels: Tensor) -> Tensor:
            # shift_labels: the label of each position is given, so neither side predicts fewer tokens than the other.
            return model(input_ids=ids, labels=labels, shift_labels=labels, use_cache=False).loss

    ids, labels = read_and_predicted()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return loss_of(ids, labels)

    return measure.training_step(model, loss)


def read_and_predicted() -> tuple[Tensor, Tensor]:
    """Ids [batch, token] and the labels of each."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, pair.SMALL.vocab_size, (BATCH, SEQ_LEN + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def speed(autocast: bool, n_turns: int) -> tuple[dict[str, list[float]], float]:
    """Return (CPU seconds of every step, the largest relative difference of the losses from theirs)."""
    sides = (*SIDES, COMPILED)
    steps = {side: step_of(side, autocast) for side in sides}
    losses: dict[str, list[float]] = {side: [] for side in sides}
    work = {side: lambda side=side: measure.cpu_seconds(lambda: losses[side].append(steps[side]())) for side in steps}
    taken = measure.turns(work, n_turns)
    pairs = ((a, b) for side in sides for a, b in zip(losses[side], losses["transformers"], strict=True))
    return taken, max(abs(a - b) / b for a, b in pairs)


def grow(side: str) -> int:
    """Take a step with the optimiser's state in place and return the growth in bytes while it ran."""
    torch.set_num_threads(1)
    step = step_of(side)
    step()
    return measure.growth_nbytes(step)


def first_step_seconds(folder: str) -> float:
    """Return the seconds, by the clock, of making a model and taking its first compiled step in a new process."""
    command = [sys.executable, "-m", "benchmarks.training", "--first-step"]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder})
    return time.perf_counter() - start


def import_seconds(module: str) -> float:
    """Return the CPU seconds of importing a module in a fresh interpreter."""
    code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(found.stdout)


def main() -> None:
    if "--growth" in sys.argv:
        print(json.dumps(grow(sys.argv[sys.argv.index("--growth") + 1])))
        return
    if "--first-step" in sys.argv:
        step_of(COMPILED)()
        return
    given = measure.arguments("Training steps beside transformers' Llama.")
    torch.set_num_threads(1)
    difference = pair.largest_difference(pair.SMALL)
    rows, losses = [], {}
    for name, autocast, least, least_compiled in (("float32", False, 1.05, 1.2), ("bfloat16 autocast", True, 1.1, 1.5)):
        if autocast and not measure.native_bfloat16():
            continue  # emulated it is some twenty times as slow as float32, and says nothing of other machines
        taken, losses[name] = speed(autocast, 3 if given.quick else 9)
        fastest = {side: BATCH * SEQ_LEN / statistics.median(each) for side, each in taken.items()}
        rows.append(
            measure.row(
                f"training speed, eager {name}, x transformers",
                measure.speed_ratio(taken),
                least=least,
                batch=BATCH,
                tokens_per_cpu_second={side: round(tokens, 1) for side, tokens in fastest.items()},
                cpu_seconds=measure.rounded(taken),
            )
        )
        compiled = measure.speed_ratio(taken, COMPILED)
        rows.append(
            measure.row(f"training speed, compiled {name}, x transformers eager", compiled, least=least_compiled)
        )
    with TemporaryDirectory() as folder:
        for kind, most in (("cold", 25.0), ("warm", 5.0)):
            seconds = first_step_seconds(folder)
            rows.append(measure.row(f"first step with --compile, cache {kind}, seconds", seconds, most=most))
    grown = {side: measure.printed_elsewhere("benchmarks.training", "--growth", side) for side in SIDES}
    ratio = grown["ours"] / grown["transformers"]
    rows.append(measure.row("memory growth of a step, x transformers", ratio, most=0.45, nbytes=grown))
    pairs = [(import_seconds("torch, anyformer"), import_seconds("torch")) for _ in range(3 if given.quick else 9)]
    more = statistics.median(a for a, _ in pairs) - statistics.median(b for _, b in pairs)
    rows.append(measure.row("import anyformer beyond import torch, seconds", more, most=0.3))
    notes = {
        "shape": pair.facts(pair.SMALL) | {"seq_len": SEQ_LEN},
        "largest_relative_difference": {"logits": difference, "losses": losses},
    }
    measure.record("training", given.out, rows, notes)


if __name__ == "__main__":
    main()
