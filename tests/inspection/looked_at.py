"""A small model with random weights and a text, here and in transformers: what inspections are tried on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import anyformer as af
from anyformer.families import preset
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer
from tests.laws.models import randomised

TEXT = "the owl sits in the old oak, and no owl knows why it is so quiet there; the oak is older than the owl, who was young."
ROW = 16  # tokens


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT], 280).with_specials(["<mask>"], {"mask_token": "<mask>"})


def small(name: str, **changes: Any) -> Transformer:
    """Return a preset at its least size, for the tokenizer, every number of it random."""
    spec: ModelSpec = shrink(preset(name).spec)
    return randomised(af.vary(spec, vocab_size=tokenizer().vocab_size, **changes)).eval()


class Theirs(NamedTuple):
    """The same model in transformers, and what a pass of it gives for a row [1, token]."""

    model: Any
    inner: Any  # what its class calls `model`, without the head

    def pass_over(self, ids: Tensor, **options: Any) -> Any:
        return self.model(ids, output_hidden_states=True, output_attentions=True, **options)


def in_transformers(model: Transformer, directory: Path) -> Theirs:
    import transformers

    af.save(model, directory)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    return Theirs(theirs, theirs.model)


def rows_of(model: Transformer, data: Path) -> list[tuple[Tensor, Tensor]]:
    """Return the rows (ids [1, token], labels [token]) by which a decoder is judged, -100 where nothing is predicted."""
    from anyformer.inspection.effects import passes
    from anyformer.inspection.subject import subject
    from anyformer.training.prepare import Sources

    with subject(model, Sources(data), tokenizer=tokenizer(), seq_len=ROW) as one:
        each = [rows for _, rows in passes(one.model, one.judging, 10**6, apart=True)]
    assert all((rows.document == 1).all() for rows in each)
    return [(torch.from_numpy(rows.input_ids), torch.from_numpy(rows.labels[0])) for rows in each]
