"""Writes docs/parity.md, how far each preset is from an independent implementation: `python -m tests.laws.parity_table`.

Run it from the repository's root with `PYTHONPATH=src`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import transformers

from anyformer.cache import KVCache
from anyformer.families import PRESETS
from anyformer.hub import load, save
from anyformer.spec import ModelSpec, parameters
from tests.laws.models import SHRUNK, waives
from tests.laws.parity import differences, greedy, inputs, pair
from tests.laws.references import COMPARED, ELSEWHERE
from tests.laws.tolerance import FLOAT32, distance
from tests.laws.weights import filled, telling

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
KINDS = ("plain", "right", "left", "packed")
HEAD = """# Parity

Written by `PYTHONPATH=src python -m tests.laws.parity_table`, with PyTorch {torch} and transformers {transformers}, float32 on
the CPU. Each row is one structure, shrunk to a width of 32, under the presets that share it; every parameter is random.

- **logits**, **gradients**: the largest difference to the class of transformers that the row names, relative to the largest
  number compared, over its eager and sdpa attention and plain, right-padded, left-padded and packed inputs (theirs is given
  packed documents one by one, since not all of its classes keep them apart). The tests'
  limit is {limit:g}. Families without a class are held against the slow implementation that their test names.
- **greedy**: twelve tokens, one after the other, are those that transformers' `generate` writes.
- **cached**: the largest difference between decoding token by token and one pass; "waived" where a part of the
  architecture rules it out (longrope rotates a short text by other frequencies than a long one).
- **both ways**: our directory, loaded by transformers, gives these logits; theirs, loaded by us, does too.
- **parameters**: ours at full size, and what the source prints.

"""
COLUMNS = (
    "presets",
    "held against",
    "logits",
    "gradients",
    "greedy",
    "cached",
    "both ways",
    "parameters: ours (printed)",
)


def row(names: str, spec: ModelSpec) -> tuple[str, ...]:
    """Return the cells of one structure."""
    first = PRESETS[names.split(" = ")[0]]
    sizes = "; ".join(
        f"{parameters(PRESETS[name].spec).total:,} ({PRESETS[name].published or '–'})" for name in names.split(" = ")
    )
    label = names.replace(" = ", ", ")
    if names not in COMPARED:
        file = ELSEWHERE[first.family]
        return label, f"[{file}](../tests/laws/{file})", "–", "–", "–", cached(spec), "–", sizes
    found = [
        differences(pair(spec, attention), inputs(kind, spec.vocab_size))
        for attention in ("eager", "sdpa")
        for kind in KINDS
    ]
    return (
        label,
        pair(spec).family.architecture,
        f"{max(d.logits for d in found):.1e}",
        f"{max(d.gradients for d in found):.1e}",
        "equal" if continues_alike(spec) else "**differs**",
        cached(spec),
        f"{both_ways(spec):.1e}",
        sizes,
    )


def continues_alike(spec: ModelSpec) -> bool:
    """Return whether both write the same twelve tokens after a padded and a plain prompt."""
    both, given = pair(spec, least_row=1.0), inputs("left", spec.vocab_size)
    ids, mask = given.input_ids[:, :20], given.real[:, :20].long()
    theirs = both.theirs.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=12, pad_token_id=0)
    return torch.equal(greedy(both.ours, ids, mask, 12), theirs)


def cached(spec: ModelSpec) -> str:
    """Return how far decoding token by token is from one pass; what a part says against that where it does."""
    if waives(spec, "cache"):
        return "waived"
    model = filled(spec, telling(spec))
    ids = inputs("plain", spec.vocab_size).input_ids
    cache = KVCache(spec, batch=ids.shape[0], length=ids.shape[1])
    with torch.no_grad():
        if spec.encoder is not None:
            whole = model(ids, decoder_input_ids=ids).logits
            steps = [model(ids, decoder_input_ids=ids[:, i : i + 1], cache=cache).logits for i in range(ids.shape[1])]
        else:
            whole = model(ids).logits
            steps = [model(ids[:, i : i + 1], cache=cache).logits for i in range(ids.shape[1])]
    return f"{distance(torch.cat(steps, 1), whole):.1e}"


def both_ways(spec: ModelSpec) -> float:
    """Return the largest difference after a directory of ours went to transformers, and one of theirs came to us."""
    both = pair(spec)
    ids = inputs("plain", spec.vocab_size).input_ids
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        expected = both.ours(ids).logits
        save(both.ours, Path(folder, "ours"), form="hf")
        kind = getattr(transformers, both.family.architecture)
        there = kind.from_pretrained(Path(folder, "ours")).eval()(ids).logits
        both.theirs.save_pretrained(Path(folder, "theirs"))
        here = load(Path(folder, "theirs"))[0](ids).logits
    return max(distance(there, expected), distance(here, expected))


def main() -> None:
    """Write the page, a row at a time to the terminal."""
    transformers.utils.logging.disable_progress_bar()
    head = HEAD.format(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, limit=FLOAT32)
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for names, spec in SHRUNK.items():
        lines.append(f"| {' | '.join(row(names, spec))} |")
        sys.stdout.write(lines[-1] + "\n")
        sys.stdout.flush()
    PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
