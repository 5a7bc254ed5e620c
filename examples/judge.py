"""Preferences instead of a rule: a reward model of pairs, and a writer that it rewards. `python judge.py FOLDER TOKENS`"""

import json
import random
import sys
from pathlib import Path

import anyformer as af
from anyformer.text import Tokenizer

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "judged")
tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 500_000
folder.mkdir(exist_ok=True)
rng = random.Random(0)


def write(name: str, lines: list[dict[str, str | int]]) -> Path:
    """A file of JSON Lines."""
    (folder / name).write_text("\n".join(map(json.dumps, lines)))
    return folder / name


def wrong(total: int) -> str:
    """Anything else that a model of these sums may write."""
    while True:
        said = "".join(rng.choices("0123456789", k=rng.randint(1, 3)))
        if said != str(total):
            return said if rng.random() < 0.5 else str(rng.choice([other for other in range(19) if other != total]))


sums = [(a, b) for a in range(10) for b in range(10)]
rng.shuffle(sums)
shown = write("shown.jsonl", [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in sums[:60]])
asked = write("asked.jsonl", [{"prompt": f"{a}+{b}=", "answer": a + b} for a, b in sums])
pairs = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": wrong(a + b)} for a, b in sums for _ in range(16)]
others = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": wrong(a + b)} for a, b in sums]
preferred, compared = write("pairs.jsonl", pairs), write("others.jsonl", others)

tokenizer = Tokenizer.train(["0123456789+="] * 2, 257)
spec = af.resize(af.preset("llama2"), n_params=100_000, vocab_size=tokenizer.vocab_size)
how = {"seq_len": 16, "lr": 2e-3, "batch_tokens": 256}
taught, judge = folder / "taught", folder / "judge"
af.train(spec, shown, tokenizer=tokenizer, out=taught, objective="sft", tokens=50_000, **how)
af.train(taught, preferred, init=taught, out=judge, objective="reward-model", tokens=tokens // 2, **how)
print("the judge:", af.evaluate(judge, compared))

print("taught:", af.evaluate(taught, asked, objective="grpo", rewards=["equal"], max_new_tokens=3))
how = {"seq_len": 16, "lr": 3e-4, "tokens": tokens, "batch_tokens": 4096, "validation": 0.1}
answers = {
    "rewards": [str(judge)],
    "max_new_tokens": 3,
    "group": 16,
    "updates": 4,
    "distillation": f"{taught},weight=0.05",
}
af.train(taught, asked, init=taught, out=folder / "better", objective="grpo", **answers, **how)
print("rewarded:", af.evaluate(folder / "better", asked, objective="grpo", rewards=["equal"], max_new_tokens=3))
