"""Tasks of lm-eval (EleutherAI's Language Model Evaluation Harness), answered by any model of ours.

Importing this registers the model "anyformer" there: `simple_evaluate(model="anyformer", model_args={"pretrained": DIR})`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

from anyformer.errors import InputError, UsageError
from anyformer.generation import generate_text, released
from anyformer.generation.text import encode_read
from anyformer.inference.answering import TaskEvaluation, TaskFigures
from anyformer.inference.likelihood import Likelihood, ScoredText, log_likelihoods, pair_of, pass_length
from anyformer.inference.opened import Opened, TrainedModel, opened
from anyformer.layers.packing import Packing
from anyformer.recipe import Precision
from anyformer.screen import silent
from anyformer.text import Tokenizer
from anyformer.text.generation_config import CHOOSING, NEUTRAL

log = logging.getLogger(__name__)
AT_ONCE = 16  # prompts that are continued together
RESAMPLED = 1000  # for the standard errors that have no closed form
# What `generation_kwargs` may have: use_cache changes no text; lengths with the prompt differ among those written together.
OPTIONS = {"until", "max_gen_toks", "use_cache", *CHOOSING, *NEUTRAL} - {"min_length", "max_length"}
LONGEST = 2048  # tokens of a window of a long text, where the model has no context


@register_model("anyformer")
class AnyformerLM(LM):
    """A model of ours as lm-eval asks it: how likely is a text after another, how likely a whole one, what follows."""

    def __init__(
        self,
        pretrained: TrainedModel | Opened,
        seq_len: int | None = None,
        precision: Precision = "float32",
        device: str | None = None,
        **of_lm_eval: Any,  # batch_size and the like, which change no number
    ) -> None:
        """`pretrained` is what `anyformer.load` takes. Raises what opening it does."""
        super().__init__()
        self.found = pretrained if isinstance(pretrained, Opened) else opened(pretrained, device=device)
        self.seq_len = seq_len
        self.precision: Precision = precision
        self.n_cut = 0  # texts that were too long, and lost their beginning

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """(log-likelihood, whether greedy) of each continuation; spaces at the end of what stands before belong to it."""
        model, tokenizer, *_ = self.found
        pairs = []
        for before, after in (request.args for request in requests):
            kept = before.rstrip()
            pairs.append(pair_of(model, tokenizer, kept, before[len(kept) :] + after))
        return [(each.log, each.greedy) for each in self._score(pairs)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """The log-likelihood of each text, in windows that begin with the last token of the one before."""
        model, tokenizer, *_ = self.found
        longest = pass_length(model.spec, self.seq_len) or LONGEST
        windows, owners = [], []
        for i, (text,) in enumerate(request.args for request in requests):
            (first,), ids = pair_of(model, tokenizer, "", text)
            each = get_rolling_token_windows(ids, first, longest, context_len=1)
            windows += [ScoredText(*make_disjoint_window(window)) for window in each]
            owners += [i] * (len(windows) - len(owners))
        sums = [0.0] * len(requests)
        for i, each in zip(owners, self._score(windows), strict=True):
            sums[i] += each.log
        return sums

    def generate_until(self, requests: list[Any]) -> list[str]:
        """What follows each prompt, up to the first of its stop strings."""
        model, tokenizer, *_ = self.found
        found: dict[int, str] = {}
        asked = sorted(((repr(request.args[1]), i) for i, request in enumerate(requests)))
        for _, group in groupby(asked, key=lambda each: each[0]):
            numbers = [i for _, i in group]
            options = normalize_gen_kwargs(requests[numbers[0]].args[1])
            if odd := [name for name, value in options.items() if name not in OPTIONS and value not in (None, False)]:
                raise InputError(
                    f"generation_kwargs has {odd[0]} = {options[odd[0]]!r}, which is not done here; leave it out"
                )
            n_new, closing = options["max_gen_toks"], {"eos_token_id": list(tokenizer.closing_ids)}
            sampling, search = released({**closing, **options}).chosen({}, {})
            for start in range(0, len(numbers), AT_ONCE):
                batch = numbers[start : start + AT_ONCE]
                written = generate_text(
                    model,
                    tokenizer,
                    [self._prompt(requests[i].args[0], n_new) for i in batch],
                    max_new_tokens=n_new,
                    sampling=sampling,
                    stop=[stop for stop in options["until"] if stop],
                    search=search,
                )
                found |= {i: each.text for i, each in zip(batch, written, strict=True)}
        return [found[i] for i in range(len(requests))]

    def _prompt(self, text: str, n_new: int) -> list[int]:
        """The ids of a prompt; of one that leaves no room for the new tokens the end."""
        model, tokenizer, *_ = self.found
        ids = encode_read(model, tokenizer, text)
        longest = pass_length(model.spec, self.seq_len)
        room = len(ids) if longest is None or model.encoder is not None else max(1, longest - n_new)
        self.n_cut += len(ids) > room
        return ids[-room:]

    def _score(self, pairs: Sequence[ScoredText]) -> list[Likelihood]:
        found = log_likelihoods(self.found.model, self.found.tokenizer, pairs, self.seq_len, self.precision)
        self.n_cut += sum(each.cut > 0 for each in found)
        return found


def evaluate_task(
    model: TrainedModel,
    file: str | Path,
    *,
    seq_len: int | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    precision: Precision = "float32",
    dtype: torch.dtype | Packing | None = None,
    device: str | None = None,
) -> TaskEvaluation:
    """The figures of the task, or of the tasks of the group, in a YAML file as lm-eval reads it, which names its own metrics.

    Its functions (`!function`) are run: give none that is not trusted. Raises UsageError where lm-eval cannot read it.
    """
    asked = AnyformerLM(opened(model, tokenizer, device=device, dtype=dtype), seq_len, precision)
    with silent():
        try:
            tasks = TaskManager(include_defaults=False).load([str(Path(file).resolve())])["tasks"]
        except Exception as error:
            raise UsageError(f"lm-eval cannot read {file}: {type(error).__name__}: {error}") from error
        result = simple_evaluate(asked, tasks=[*tasks.values()], bootstrap_iters=RESAMPLED, log_samples=False)
    if asked.n_cut:
        log.warning("%d texts were longer than the model reads at once, and lost their beginning", asked.n_cut)
    if result is None:
        raise InputError(f"lm-eval found nothing to ask in {file}; give a task with a test or a validation split")
    return TaskEvaluation(tuple(_figures(name, said, result, tasks) for name, said in result["results"].items()))


def _figures(name: str, said: dict[str, Any], result: Any, tasks: dict[str, Any]) -> TaskFigures:
    """lm-eval's figures of a task by metric; of the filters that answers passed, the first is left unsaid."""
    figures: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    for key, value in said.items():
        metric, _, filtered = key.partition(",")
        label = metric.removesuffix("_stderr") + ("" if filtered in ("", "none") else f" ({filtered})")
        if isinstance(value, float | int) and filtered:
            (errors if metric.endswith("_stderr") else figures)[label] = float(value)
    kind = str(tasks[name].OUTPUT_TYPE).replace("_", " ") if name in tasks else "group"
    return TaskFigures(name, kind, result["n-samples"].get(name, {}).get("effective", 0), figures, errors)
