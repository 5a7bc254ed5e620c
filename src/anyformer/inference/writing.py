"""What follows a prompt, as text: the one call; `generation` has its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from anyformer.generation import BeamSearch, Stopping, generate_text
from anyformer.inference.opened import TrainedModel, opened_for_decoding
from anyformer.text import Tokenizer

Prompt = TypeVar("Prompt", str, list[str])


def generate(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None,
    prompt: Prompt,
    *,
    max_new_tokens: int = 50,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    on_text: Callable[[int, str], None] | None = None,
    beams: int = 1,
    length_penalty: float = 1.0,
    stopping: Stopping = "estimate",
    device: str | None = None,
) -> Prompt:
    """The text that follows a prompt, or each of several, without the prompt; see `generate_text`.

    `model` is a model, or a directory, which has its tokenizer. `beams` above 1 search for the likeliest text; see
    `BeamSearch` for them, `length_penalty` and `stopping`.
    """
    found = opened_for_decoding(model, tokenizer, device=device)
    prompts: list[str] = [prompt] if isinstance(prompt, str) else prompt
    written = generate_text(
        found.model,
        found.tokenizer,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        on_text=on_text,
        search=BeamSearch(beams, length_penalty, stopping) if beams > 1 else None,
    )
    if isinstance(prompt, str):
        return written[0].text
    return [each.text for each in written]
