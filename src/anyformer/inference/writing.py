"""What a model writes: what follows a prompt; lines translated, in batches of like length; how good that is, by BLEU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from anyformer.errors import InputError, TextError, UsageError
from anyformer.generation import (
    GREEDY,
    UNSAID,
    BeamSearch,
    CompiledStep,
    Form,
    Sampling,
    Stopping,
    generate_text,
    lay_out_for_decoding,
    released,
)
from anyformer.inference.guessing import guessing
from anyformer.inference.opened import TrainedModel, opened
from anyformer.layers.embedding import learned_positions
from anyformer.text import Tokenizer
from anyformer.text.filling import prompt_between
from anyformer.text.prompts import encode_source

USUAL = 50  # new tokens
LONGER, MORE = 2, 10  # a translation has at most twice the source's tokens and ten more (Vaswani et al. allow 50 more)

Prompt = TypeVar("Prompt", str, list[str])


def generate(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None,
    prompt: Prompt,
    *,
    suffix: str | None = None,
    as_released: bool = False,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    no_repeat_ngram_size: int | None = None,
    min_new_tokens: int | None = None,
    json_schema: Mapping[str, Any] | None = None,
    regex: str | None = None,
    grammar: str | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    on_text: Callable[[int, str], None] | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    stopping: Stopping | None = None,
    draft: TrainedModel | None = None,
    draft_tokens: int | None = None,
    lookup: int | None = None,
    ahead: bool = False,
    compiled: bool = False,
    source_language: str | None = None,
    target_language: str | None = None,
    device: str | None = None,
) -> Prompt:
    """The text that follows a prompt, or each of several, without the prompt; see `generate_text`. With a `suffix` it is what
    stands between a prompt and that, by a model that was trained to fill in the middle (`text.filling`).

    `model` is a model, or a directory, which has its tokenizer. How tokens are chosen is `Sampling`'s: the likeliest, where
    nothing is given, 50 of them; `as_released`: as the model's generation_config.json says, but for what is given
    (`released`). `beams` above 1 search for the likeliest text; see `BeamSearch` for them, `length_penalty` and `stopping`.
    `draft`, a smaller model of the same vocabulary, guesses `draft_tokens` at a time (4), `lookup` as many from what the text
    said before, `ahead` lets the model's own modules guess: the same text in fewer passes (`SpeculativeDecoding`). `compiled`:
    the step behind the prompt is compiled first (`CompiledStep`), once for texts of like length; the text is the same.
    Texts are values of a `json_schema`, match a `regex`, or are of a `grammar` in Lark's or llama.cpp's notation (`Grammars`).
    The languages of a translation are special tokens by their spelling (`Tokenizer.between`).
    """
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "min_new_tokens": min_new_tokens,
    }
    given, searched = (
        {name: value for name, value in each.items() if value is not None}
        for each in (given, {"beams": beams, "length_penalty": length_penalty, "stopping": stopping})
    )
    if not as_released:
        UNSAID.chosen(given, searched)  # raises before a model is opened
    several = (beams or 1) > 1 or not isinstance(prompt, str) or draft is not None or lookup is not None or ahead
    prepare = partial(lay_out_for_decoding, several=several, compiled=compiled)
    opening: dict[str, Any] = {"device": device, "prepare": prepare}
    found = opened(model, tokenizer, **opening).between(source_language, target_language)
    texts: list[str] = [prompt] if isinstance(prompt, str) else prompt
    prompts: Sequence[str | list[int]] = texts
    if suffix is not None:
        found = found.filling()
        prompts = [prompt_between(found.tokenizer, each, suffix) for each in texts]
    said = UNSAID._replace(most=max_new_tokens)
    if as_released:
        said = released(found.tokenizer.generation).behind(*found.before(prompts), max_new_tokens)
    sampling, search = said.chosen(given, searched)
    most = USUAL if said.most is None else said.most
    refuse_too_few(min_new_tokens, most)
    forms: dict[Form, Any] = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
    held_to = found.grammar({form: content for form, content in forms.items() if content is not None})
    written = generate_text(
        found.model,
        found.tokenizer,
        prompts,
        max_new_tokens=most,
        sampling=replace(sampling, grammar=held_to),
        seed=seed,
        stop=stop,
        on_text=on_text,
        search=search,
        guessing=guessing(found, opening, draft=draft, draft_tokens=draft_tokens, lookup=lookup, ahead=ahead),
        compiled=CompiledStep(found.model) if compiled else None,
    )
    if isinstance(prompt, str):
        return written[0].text
    return [each.text for each in written]


def refuse_too_few(least: int | None, most: int) -> None:
    """Raise UsageError where a text is to have more new tokens than it may have: it would have these, and end in the midst."""
    if least is not None and least > most:
        raise UsageError(
            f"min_new_tokens = {least:,} is more than the {most:,} that are written at most; give max_new_tokens, or fewer"
        )


def translate(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None = None,
    lines: Sequence[str] = (),
    *,
    search: BeamSearch | None = None,
    sampling: Sampling = GREEDY,
    max_new_tokens: int | None = None,
    batch_tokens: int = 4096,
    source_language: str | None = None,
    target_language: str | None = None,
    device: str | None = None,
) -> list[str]:
    """A line for each line, in order; a blank one is answered with an empty one, and never shown to the model.

    `model` is a model, or a directory, which has its tokenizer.
    `search` None is greedy; `sampling` has penalties, and what is forbidden.
    `max_new_tokens` None allows twice the longest source of a batch and ten more.
    `batch_tokens`: sources of a batch times the longest of them. The languages are special tokens (`Tokenizer.between`).
    Raises InputError for a model without an encoder and for a line beyond the positions it has learned.
    """
    prepare = partial(lay_out_for_decoding, several=True)
    found = opened(model, tokenizer, device=device, prepare=prepare).between(source_language, target_language)
    translator, tokenizer, *_ = found
    if sampling.draws:
        raise InputError("lines are answered by their likeliest texts; leave temperature, top_k, top_p and min_p out")
    if translator.spec.encoder is None:
        raise InputError("this model has no encoder to read a source; it continues a prompt instead")
    lengths = {i: len(encode_source(tokenizer, line)) for i, line in enumerate(lines) if line.strip()}
    longest = learned_positions(translator.spec.encoder)
    for i, length in lengths.items():
        if longest is not None and length > longest:
            raise InputError(
                f"line {i + 1} of the source is {length} tokens long, beyond the {longest} positions that this model has "
                "learned; split it"
            )
    limit = learned_positions(translator.spec.stack)
    answers = [""] * len(lines)
    for batch in batches(lengths, batch_tokens):
        most = max_new_tokens
        if most is None:
            most = LONGER * lengths[batch[-1]] + MORE
            most = most if limit is None else min(most, limit - 1)
        sources = [lines[i] for i in batch]
        written = generate_text(translator, tokenizer, sources, max_new_tokens=most, search=search, sampling=sampling)
        for i, each in zip(batch, written, strict=True):
            answers[i] = " ".join(each.text.split("\n")).strip()
    return answers


def batches(lengths: dict[int, int], batch_tokens: int) -> list[list[int]]:
    """The numbers of the lines, shortest first, in batches that pad to at most so many tokens, or of one line."""
    found: list[list[int]] = []
    for i in sorted(lengths, key=lambda number: (lengths[number], number)):
        if found and (len(found[-1]) + 1) * lengths[i] <= batch_tokens:
            found[-1].append(i)
        else:
            found.append([i])
    return found


class Bleu(NamedTuple):
    """A score from 0 to 100, and how it was computed."""

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """The score of a corpus, a reference for each line.

    Raises UsageError where sacrebleu is not installed, TextError for unequal line counts.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise UsageError("BLEU needs sacrebleu; install it with `pip install anyformer[translation]`") from None
    if len(translations) != len(references):
        raise TextError(f"{len(translations)} translations have {len(references)} references; they go line by line")
    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Bleu(score, str(metric.get_signature()))
