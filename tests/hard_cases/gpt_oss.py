"""gpt-oss-20b, a preset now: sinks, every other layer a window, clamped experts. OpenAI 2025, arXiv:2508.10925, table 1."""

from __future__ import annotations

from typing import Any

from anyformer.families import preset
from tests.hard_cases.case import Case, of_transformers


def theirs() -> Any:
    """Return the model of transformers."""
    return of_transformers("GptOssForCausalLM", "GptOssConfig", num_hidden_layers=24, num_local_experts=32)


CASE = Case("gpt-oss-20b", lambda: preset("gpt-oss-20b").spec, "20.9B", theirs)
