"""Writes docs/parity.md, how far each preset is from an independent implementation: `python -m tests.laws.parity_table`.

Run it from the repository's root with `PYTHONPATH=src`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from itertools import product
from pathlib import Path

import torch
import transformers

from anyformer.cache import KVCache
from anyformer.families import FAMILIES, PRESETS
from anyformer.families.hf.mapping import class_of, fitting
from anyformer.hub import load, save
from anyformer.layers.init import DistributionSpec
from anyformer.spec import AheadSpec, InitSpec, ModelSpec, parameters
from tests.laws.inputs import inputs_for
from tests.laws.models import SHRUNK, WRITERS, waives
from tests.laws.parity import (
    Differences,
    beginning,
    decided,
    differences,
    generated,
    greedy,
    n_begun,
    pair,
    single,
    theirs_on,
    tolerated,
)
from tests.laws.references import COMPARED, HERE, elsewhere
from tests.laws.tolerance import FLOAT32, FLOAT32_READ, distance
from tests.laws.weights import filled, telling

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
COMMON = {"Tokens", "Add", "And", "Linear"}
KINDS = ("plain", "right", "left", "packed")
HEAD = """# Parity

Written by `PYTHONPATH=src python -m tests.laws.parity_table`, with PyTorch {torch} and transformers {transformers}, float32 on
the CPU. Each row is one structure, shrunk to a width of 32, under the presets that share it; every parameter is random.

- **logits**, **gradients**: the largest difference to the class of transformers that the row names, relative to the largest
  number compared, over its eager and sdpa attention and plain, right-padded, left-padded and packed inputs (theirs is given
  packed documents one by one, since not all of its classes keep them apart; where documents compete for an expert's places
  they are not packed). The limit is {limit:g}, in the tests too: a page with more is not written. It is {read:g} where a norm
  reads what a state, sparse activations or the embeddings of a layer give, which may be nearly nothing and then enlarges
  rounding (in float64 both agree
  to 1e-12, where activations are sparse to 1e-11), and for gradients three times what the class's own float32 loses of its
  float64, where that is more. Families
  without a class are held against the slow implementation that their test names.
- **greedy**: twelve tokens, one after the other, are those that transformers' `generate` writes.
- **cached**: the largest difference between decoding token by token and one pass; "waived" where a part of the
  architecture rules it out (longrope rotates a short text by other frequencies than a long one).
- **both ways**: how far the logits are from these after our directory was loaded by transformers, and after theirs was
  loaded by us. Without a class a model goes to a directory of ours and back, bit for bit (`tests/laws/test_checkpoints.py`).
- Of text models that transformers has within models that see alone, such as Step3p5ForCausalLM, the class is their own text
  model and a head (`tests/oracles/text_models.py`); files of the whole are held against it in `tests/hub/test_composite.py`.
- **parts**: the kinds of parts that it is made of; `anyformer show NAME` says how, [the catalogue](catalogue.md) from
  which source.
- **parameters**: ours at full size, and what the source prints.
- Encoders and encoder–decoders are held to the same limit, in the tests named, on **token types**, **labels** (the loss of masked
  and replaced words, of classes of rows and tokens, -100 left out), and every class that differs by its heads
  (`test_parity_encoders.py`); on **labels** and a **padded decoder** beside a padded encoder (`test_parity_encoder_decoder.py`);
  on **two streams**, orders and **memories** (`test_parity_xlnet.py`); on **global attention** (`test_parity_longformer.py`);
  on blocks of long texts (`test_parity_bigbird.py`); on **landmarks** (`test_parity_nystromformer.py`);
  on the **enhanced mask decoder** (`test_parity_deberta_decoder.py`).
- **–**: what there is not to be: a continuation by an encoder, a class of transformers.

"""
MISSING = "--missing"
COLUMNS = (
    "presets",
    "held against",
    "logits",
    "gradients",
    "greedy",
    "cached",
    "both ways",
    "parts",
    "parameters: ours (printed)",
)


def row(names: str, spec: ModelSpec) -> tuple[tuple[str, ...], float]:
    """Return the cells of one structure, and what none of its differences may be above."""
    limit = single(spec)
    first = PRESETS[names.split(" = ")[0]]
    sizes = "; ".join(
        f"{parameters(PRESETS[name].spec).total:,} ({PRESETS[name].published or '–'})" for name in names.split(" = ")
    )
    label = names.replace(" = ", ", ")
    if names not in COMPARED:
        file = elsewhere(first) or ""
        link = f"[{Path(file).name}]({relative(HERE / file)})"
        return (label, link, "–", "–", "–", cached(names, spec), "–", parts(spec), sizes), limit
    kinds = [kind for kind in KINDS if kind != "packed" or not waives(spec, "packing")]
    found: list[Differences] = []
    for attention, kind in product(("eager", "sdpa"), kinds):
        given = inputs_for(kind, spec)
        both = decided(spec, attention, given)
        found.append(differences(both, given))
        limit = max(limit, tolerated(both, given, found[-1]))
    cells = (
        label,
        class_of(*fitting(FAMILIES.values(), spec)),
        f"{max(d.logits for d in found):.1e}",
        f"{max(d.gradients for d in found):.1e}",
        "–" if names not in WRITERS else "equal" if continues_alike(spec) else "**differs**",
        cached(names, spec),
        both_ways(spec),
        parts(spec),
        sizes,
    )
    return cells, limit


def relative(file: Path) -> str:
    """Return the link from the page to a file of the repository."""
    return os.path.relpath(file.resolve(), PAGE.parent)


def continues_alike(spec: ModelSpec) -> bool:
    """Return whether both write the same twelve tokens after a padded and a plain prompt."""
    both = pair(spec, least_row=1.0)
    start = beginning(inputs_for("left", spec), n_begun(spec)).fit_for(both.theirs, spec)
    return torch.equal(greedy(both.ours, start, 12), generated(both, start, 12))


def parts(spec: ModelSpec) -> str:
    """Return the kinds of parts in the order in which they stand, but those that every model has and how weights start."""
    own = "anyformer.layers."
    said = (v for v in spec.nested() if type(v).__module__.startswith(own) or isinstance(v, AheadSpec))
    kinds = dict.fromkeys(value.kind for value in said if not isinstance(value, InitSpec | DistributionSpec))
    return ", ".join(kind for kind in kinds if kind not in COMMON)


def cached(names: str, spec: ModelSpec) -> str:
    """Return how far decoding token by token is from one pass; what a part says against that where it does."""
    if names not in WRITERS:
        return "–"
    if waives(spec, "cache"):
        return "waived"
    model = filled(spec, telling(spec))
    given = inputs_for("plain", spec)
    ids = given.input_ids
    cache = KVCache(spec, batch=ids.shape[0], length=ids.shape[1])
    with torch.no_grad():
        if spec.encoder is not None:
            whole = given.run(model).logits
            each = (ids[:, i : i + 1] for i in range(ids.shape[1]))
            steps = [model(given.source, decoder_input_ids=token, cache=cache).logits for token in each]
        else:
            whole = model(ids).logits
            steps = [model(ids[:, i : i + 1], cache=cache).logits for i in range(ids.shape[1])]
    return f"{distance(torch.cat(steps, 1), whole):.1e}"


def both_ways(spec: ModelSpec) -> str:
    """Return the largest differences after a directory of ours went to transformers, and after one of theirs came to us."""
    both = pair(spec)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        save(both.ours, Path(folder, "ours"), form="hf")
        kind = getattr(transformers, class_of(*fitting(FAMILIES.values(), spec)))
        read = kind.from_pretrained(Path(folder, "ours")).eval()
        given = inputs_for("plain", spec).fit_for(read, spec)  # what was read knows which id is padding
        expected, there = given.run(both.ours).logits, theirs_on(read, given, spec)
        both.theirs.save_pretrained(Path(folder, "theirs"))
        here = given.run(load(Path(folder, "theirs"))[0]).logits
    return f"{distance(there, expected):.1e}, {distance(here, expected):.1e}"


def too_far(line: str, limit: float) -> bool:
    """Return whether a row of the page has a difference above the limit, or a continuation that differs."""
    differs = (float(figure) > limit for figure in re.findall(r"\d\.\de[+-]\d\d", line))
    return "**differs**" in line or any(differs)


def main() -> None:
    """Write the page, a row at a time to the terminal; with words as arguments, only show the rows whose names have one.

    With --missing the rows that the page has stay as they are, unless it is of other versions.
    """
    words = [word for word in sys.argv[1:] if word != MISSING]
    transformers.utils.logging.disable_progress_bar()
    head = HEAD.format(
        torch=torch.__version__.split("+")[0], transformers=transformers.__version__, limit=FLOAT32, read=FLOAT32_READ
    )
    there = PAGE.read_text(encoding="utf-8") if MISSING in sys.argv else ""
    kept = {line.split(" | ")[0]: line for line in there.removeprefix(head).splitlines() if there.startswith(head)}
    above: list[str] = []
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for names, spec in SHRUNK.items():
        if words and not any(word in names for word in words):
            continue
        label = f"| {names.replace(' = ', ', ')}"
        if label in kept:
            lines.append(kept[label])
            continue
        cells, limit = row(names, spec)
        lines.append(f"| {' | '.join(cells)} |")
        sys.stdout.write(lines[-1] + "\n")
        sys.stdout.flush()
        if too_far(lines[-1], limit):
            above.append(lines[-1])
    if above:
        sys.exit(f"{len(above)} rows lie above the limit, so the page is not written:\n" + "\n".join(above))
    if not words:
        PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
