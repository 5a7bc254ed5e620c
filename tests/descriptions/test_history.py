"""The field's table against cells written out here from the papers, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anyformer.cli.history import page
from anyformer.descriptions import history
from anyformer.families.tree import TREE

ROOT = Path(__file__).resolve().parents[2]
FOUND = history()
CELLS = {entry.model: entry.cells for entry in FOUND.entries}
# From the papers: norm, branches, where norms are, positions, activation, attention; "" is left out here.
PAPERS = {
    "transformer-base": ("LayerNorm", "serial", "post-norm", "sinusoids", "ReLU", "MHA"),
    "gpt": ("LayerNorm", "serial", "post-norm", "learned", "GELU", "MHA"),
    "gpt2-xl": ("LayerNorm", "serial", "pre-norm", "learned", "GELU", "MHA"),
    "t5-11b": ("RMSNorm", "serial", "pre-norm", "relative position bias (T5)", "ReLU", "MHA"),
    "t5-v1.1-xxl": ("RMSNorm", "serial", "pre-norm", "relative position bias (T5)", "GeGLU", "MHA"),
    "gptj-6b": ("LayerNorm", "parallel", "pre-norm", "RoPE", "GELU", "MHA"),
    "gpt-neox-20b": ("LayerNorm", "parallel", "pre-norm", "RoPE", "GELU", "MHA"),
    "gopher-280b": ("RMSNorm", "serial", "pre-norm", "relative sinusoids (Transformer-XL)", "GELU", "MHA"),
    "bloom-176b": ("LayerNorm", "serial", "pre-norm", "ALiBi", "GELU", "MHA"),
    "opt-175b": ("LayerNorm", "serial", "pre-norm", "learned", "ReLU", "MHA"),
    "palm-540b": ("LayerNorm (no bias)", "parallel", "pre-norm", "RoPE", "SwiGLU", "MQA"),
    "llama-65b": ("RMSNorm", "serial", "pre-norm", "RoPE", "SwiGLU", "MHA"),
    "llama2-70b": ("RMSNorm", "serial", "pre-norm", "RoPE", "SwiGLU", "GQA"),
    "olmo-7b": ("LayerNorm (no weights)", "serial", "pre-norm", "RoPE", "SwiGLU", "MHA"),
    "olmo2-13b": ("RMSNorm", "serial", "output norm (after each branch)", "RoPE", "SwiGLU", "MHA"),
    "gemma2-27b": ("RMSNorm", "serial", "sandwich norm (before and after each branch)", "RoPE", "GeGLU", "GQA"),
    "nemotron4-340b": ("LayerNorm", "serial", "pre-norm", "RoPE", "squared ReLU", "GQA"),
    "falcon2-11b": ("LayerNorm", "parallel", "pre-norm", "RoPE", "GELU", "GQA"),
    "command-a": ("LayerNorm (no bias)", "parallel", "pre-norm", "RoPE + none in some layers", "SwiGLU", "GQA"),
    "deepseek-v3": ("RMSNorm", "serial", "pre-norm", "RoPE", "SwiGLU", "MLA"),
    "phi3-small-8k": ("LayerNorm", "serial", "pre-norm", "RoPE", "GeGLU", "GQA"),
    "bert-large": ("LayerNorm", "serial", "post-norm", "learned", "GELU", "MHA"),
}
STABILITY = {
    "gemma2-27b": "scores capped at 50, logits capped at 30",
    "gemma3-27b": "QK-norm",
    "olmo2-13b": "QK-norm, z-loss 1e-5",
    "palm-540b": "logits × 1/√d_model, z-loss 1e-4",
    "olmo-7b-0424": "q, k, v within ±8",
    "gpt-oss-120b": "sinks",
    "llama3-70b": "–",
}
PUBLISHED_OTHERWISE = {
    ("gopher-280b", "activation"),
    ("gopher-280b", "positions"),
    ("chinchilla-70b", "activation"),
    ("chinchilla-70b", "positions"),
    ("palm-540b", "norm"),
    ("olmo-7b", "norm"),
    ("bloom-176b", "branches"),
    ("phi3-small-8k", "activation"),
}


@pytest.mark.parametrize("model", PAPERS)
def test_cells_are_those_of_the_papers(model: str) -> None:
    columns = ("norm", "branches", "norm placed", "positions", "activation", "attention")
    assert tuple(CELLS[model][column] for column in columns) == PAPERS[model]


@pytest.mark.parametrize("model", STABILITY)
def test_tricks(model: str) -> None:
    assert CELLS[model]["stability"] == STABILITY[model]


def test_every_lineage_has_a_row_and_rows_go_by_year() -> None:
    assert {entry.model for entry in FOUND.entries} == {line.known for line in TREE.values()}
    years = [entry.year for entry in FOUND.entries]
    assert years == sorted(years)
    assert years[0] == 2014


def test_marks_say_what_is_printed_and_why() -> None:
    marked = {(entry.model, mark.column) for entry in FOUND.entries for mark in entry.marks}
    assert marked >= PUBLISHED_OTHERWISE
    for entry in FOUND.entries:
        for mark in entry.marks:
            assert mark.printed != entry.cells[mark.column]
            assert len(mark.reason) > 20


def test_json() -> None:
    data = json.loads(json.dumps(FOUND.as_json()))
    assert data["version"] == 1
    assert data["entries"][0]["model"] == "lstm-medium"
    assert data["entries"][0]["parameters"] == 19_780_400


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    assert written == page(FOUND), "write it again with `anyformer history --markdown > docs/history.md`"
