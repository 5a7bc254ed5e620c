"""Writes docs/memory.md, what training keeps beside what is predicted: `python -m tests.laws.memory_table`.

Run it from the repository's root with `PYTHONPATH=src`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from anyformer.costs import activations
from anyformer.families import preset
from anyformer.resizing import shrink
from tests.laws.memory import TWELVE, counted

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
BATCH, SEQ_LEN = 3, 61
POLICIES = ("none", "selective", "full")
HEAD = """# Memory of training

Written by `PYTHONPATH=src python -m tests.laws.memory_table`, with PyTorch {torch} on the CPU: {batch} rows of {seq_len} tokens.

`anyformer cost` observes the bytes of activations by running the model, forward and backward, on tensors that have shapes and no
memory, each kind of layer twice; no part says what it keeps. Here each of twelve architectures, shrunk to a width of 32, is
really run; `torch.autograd.graph.saved_tensors_hooks` counts the storages, each once, parameters left out, and to them are added
the gradients that the chunked cross-entropy makes in its forward pass. The tests hold every preset to 1 %, random combinations
of parts, with dropout, to 5 %, and the peak, all that is alive at once, to 6 %.

- **float32**, **bf16**: bytes kept, and how far the prediction is from it. In bf16 the copies of weights that autocast makes are
  among them, and a copy of each product's input. What a norm made is not: linear maps of it have it made again.
- **selective**: attention is made again in the backward pass; **full**: whole layers are. The losses and gradients are the same
  to the bit, dropout included.

"""
NOTE = """
On a GPU dropout keeps a byte a number where a CPU keeps a factor, and attention stays fused where a CPU writes it out (learned
scores, dropout of weights, values of another width than keys): `cost` predicts a GPU, the tests a CPU. Beside what is kept, a
step needs what is there for a while, at the worst time: buffers of the loss, gradients on their way, a layer that is made again.

Korthikanti et al. 2022 (arXiv:2205.05198) derive s·b·h·(34 + 5as/h) bytes for a layer of Megatron in 16 bits with dropout. Ours
differs from it by these, and `tests/costs/test_korthikanti.py` holds a layer of GPT-2 on a GPU to the byte: a fused kernel keeps
no scores (−5as/h), GELU is made again from its input (−8), the maps after a norm have their inputs made again from the norm's
(−4), the stream is float32 (+4); the norms' and softmax's statistics, which the paper leaves out, are counted.
"""


def cell(name: str, **options: Any) -> str:
    """Return bytes kept and the prediction's error."""
    spec = shrink(preset(name).spec)
    kept = counted(spec, BATCH, SEQ_LEN, **options)
    found = activations(spec, batch=BATCH, seq_len=SEQ_LEN, device="cpu", **options).saved_nbytes
    error = round(100 * (found / kept - 1), 2) + 0.0
    return f"{kept:,} ({error:+.2f} %)" if error else f"{kept:,} (0)"


def page() -> str:
    """Return the page."""
    columns = [(precision, policy) for precision in ("float32", "bf16") for policy in POLICIES]
    titles = [precision if policy == "none" else f"{precision}, {policy}" for precision, policy in columns]
    lines = [f"| architecture | {' | '.join(titles)} |", "|---" * (1 + len(columns)) + "|"]
    for name in TWELVE:
        cells = [cell(name, precision=precision, recompute=policy) for precision, policy in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    head = HEAD.format(torch=torch.__version__.partition("+")[0], batch=BATCH, seq_len=SEQ_LEN)
    return head + "\n".join(lines) + "\n" + NOTE


if __name__ == "__main__":
    torch.set_num_threads(1)
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")
