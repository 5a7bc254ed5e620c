"""Sums that are shown, and others that are found by reward: taught, then GRPO. `python rewards.py FOLDER TOKENS`"""

import json
import random
import sys
from pathlib import Path

import anyformer as af
from anyformer.text import Tokenizer

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "sums")
tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 500_000
folder.mkdir(exist_ok=True)


def write(name: str, lines: list[dict[str, str | int]]) -> Path:
    """A file of JSON Lines."""
    (folder / name).write_text("\n".join(map(json.dumps, lines)))
    return folder / name


sums = [(a, b) for a in range(10) for b in range(10)]
random.Random(0).shuffle(sums)
shown = write("shown.jsonl", [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in sums[:60]])
asked = write("asked.jsonl", [{"prompt": f"{a}+{b}=", "answer": a + b} for a, b in sums])

tokenizer = Tokenizer.train(["0123456789+="] * 2, 257)
spec = af.resize(af.preset("llama2"), n_params=100_000, vocab_size=tokenizer.vocab_size)
rows = {"seq_len": 16, "lr": 2e-3, "tokens": 50_000, "batch_tokens": 256}
af.train(spec, shown, tokenizer=tokenizer, out=folder / "taught", objective="sft", **rows)

judged = {"rewards": ["equal"], "max_new_tokens": 3}
print("taught:", af.evaluate(folder / "taught", asked, objective="grpo", **judged))
rows = {"seq_len": 16, "lr": 3e-4, "tokens": tokens, "batch_tokens": 4096, "validation": 0.1}
taught = folder / "taught"
af.train(taught, asked, init=taught, out=folder / "better", objective="grpo", group=16, updates=4, **judged, **rows)
print("rewarded:", af.evaluate(folder / "better", asked))
