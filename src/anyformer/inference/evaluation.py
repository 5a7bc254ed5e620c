"""How well a model predicts what it was trained to predict, on data that is named: tokens, labels, or which texts belong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anyformer.amounts import counted
from anyformer.errors import UsageError
from anyformer.generation import GREEDY, UNSAID, BeamSearch, Released, lay_out_for_decoding
from anyformer.inference.embedding import retrieve
from anyformer.inference.figures import figures, in_words
from anyformer.inference.judging import Judging, goal_of, judging, refuse_unknown
from anyformer.inference.opened import Opened, TrainedModel, at_least_one, opened
from anyformer.inference.writing import Bleu, bleu, translate
from anyformer.layers.packing import Packing
from anyformer.notebook import ShowsItself
from anyformer.recipe import ComparedAnswers, Contrastive, Labelled, Precision, RewardedSpec, RewardSpec
from anyformer.text import Tokenizer
from anyformer.training.data.feed import Validation
from anyformer.training.objectives.answers import CHOSEN, MARGIN
from anyformer.training.objectives.contrastive.data import ContrastValidation
from anyformer.training.objectives.labelled.data import LabelledValidation
from anyformer.training.objectives.labelled.loss import LabelledObjective
from anyformer.training.objectives.objective import JudgedAnswer
from anyformer.training.objectives.reward_model import SCORE
from anyformer.training.objectives.rewarded import ENDED, LENGTH, REWARD
from anyformer.training.objectives.seq2seq.data import PairValidation
from anyformer.training.prepare import Sources
from anyformer.training.run.evaluation import SAMPLE, Evaluation, PartLoss
from anyformer.training.run.evaluation import evaluate as evaluate_rows

VERSION = 1
BESIDE = ("context", "memory", "bleu", "search")  # of a text, what JSON does not have, or not always


@dataclass(frozen=True)
class TextEvaluation(ShowsItself):
    """What predictions cost on a text, or on translations."""

    objective: str
    loss: float  # nats a token
    perplexity: float
    bits_per_byte: float | None  # None where what is predicted is not the whole text
    nats: float
    tokens: int
    nbytes: int
    documents: int
    seq_len: int
    parts: Mapping[str, PartLoss]
    context: int | None = None  # tokens that the model is published for
    # tokens before a window that it sees; None: nobody asked for a memory
    memory: int | None = None
    bleu: Bleu | None = None
    search: BeamSearch | None = None

    def as_json(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name not in BESIDE}
        told["parts"] = {name: part._asdict() for name, part in self.parts.items()}
        told |= {} if self.memory is None else {"memory": self.memory}
        told |= {} if self.bleu is None else {"bleu": self.bleu.score, "bleu_signature": self.bleu.signature}
        return {"version": VERSION, **told}

    def __str__(self) -> str:
        bits = f"by {self.objective}" if self.bits_per_byte is None else f"{self.bits_per_byte:.4f} bits a byte"
        rows = f"rows of {self.seq_len}"
        if self.context is not None and self.seq_len > self.context:
            rows += f", beyond the {self.context} tokens that the model is published for"
        memory = "" if self.memory is None else f", a memory of {self.memory}"
        lines = [
            f"{self.loss:.4f} nats a token, perplexity {self.perplexity:.3f}, {bits} ({counted(self.tokens, 'token')}, "
            f"{counted(self.nbytes, 'byte')}, {counted(self.documents, 'document')}, {rows}{memory})"
        ]
        for name, part in self.parts.items():
            right = "" if part.accuracy is None else f", {part.accuracy:.1%} right"
            lines.append(f"{name}: {part.loss:.4f} nats{right} ({counted(part.labels, 'label')})")
        if self.bleu is not None and self.search is not None:
            how = f"beams {self.search.beams}, length penalty {self.search.length_penalty:g}"
            lines.append(f"BLEU {self.bleu.score:.2f} ({self.bleu.signature}), {how}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LabelEvaluation(ShowsItself):
    """How well a model labels examples."""

    objective: str
    unit: str
    loss: float
    examples: int
    labels: int
    cut: int  # texts
    figures: Mapping[str, float | None] = field(default_factory=dict)  # by name, as `inference.figures` has them

    def as_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("objective", "loss", "examples", "labels", "cut")}
        return {"version": VERSION, **told, **self.figures}

    def __str__(self) -> str:
        said = f"{self.loss:.4f} {self.unit}, {in_words(self.figures)}"
        return f"{said} ({counted(self.examples, 'example')}, {self.cut:,} cut)"


@dataclass(frozen=True)
class PairEvaluation(ShowsItself):
    """How well a model finds which texts belong together."""

    objective: str
    unit: str
    loss: float
    chance_loss: float
    batch_pairs: int
    accuracy: float
    mrr: float
    pairs: int
    cut: int  # texts

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **{name: value for name, value in vars(self).items() if name != "unit"}}

    def __str__(self) -> str:
        losses = f"{self.loss:.4f} {self.unit} ({self.chance_loss:.4f} by chance)"
        return f"{losses}, {in_words(vars(self))} ({counted(self.pairs, 'pair')})"


@dataclass(frozen=True)
class PreferenceEvaluation(ShowsItself):
    """How often a model would rather give the answer that people prefer."""

    objective: str
    unit: str
    loss: float
    chance_loss: float
    accuracy: float  # share of the pairs in which the reward of the preferred answer is the higher one
    margin: float  # by how much, on average
    pairs: int
    chosen_loss: float | None = None  # nats a token of the preferred answers, of a model that writes
    score: float | None = None  # of an answer, on average, of a model that scores

    def as_json(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name != "unit" and value is not None}
        return {"version": VERSION, **told}

    def __str__(self) -> str:
        losses = f"{self.loss:.4f} {self.unit} ({self.chance_loss:.4f} by chance), {in_words(vars(self))}"
        said = "" if self.chosen_loss is None else f"; the preferred answers {self.chosen_loss:.4f} nats a token"
        said += "" if self.score is None else f"; an answer scores {self.score:.4f} on average"
        return f"{losses}{said} ({counted(self.pairs, 'pair')})"


@dataclass(frozen=True)
class RewardEvaluation(ShowsItself):
    """What a model's own answers are worth, each of the likeliest tokens."""

    objective: str
    loss: float  # what the reward lacks of the highest one
    reward: float  # of an answer, on average
    accuracy: float | None  # share of the answers that are worth the most that one can be; None: none is, to a judge
    answer_tokens: float  # of an answer, on average
    ended: float  # share of the answers that ended by themselves
    prompts: int
    answers: Sequence[JudgedAnswer] = ()  # of all prompts, in their order

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **vars(self), "answers": [each._asdict() for each in self.answers]}

    def __str__(self) -> str:
        written = f"{self.answer_tokens:.1f} tokens an answer, {self.ended:.1%} ended by themselves"
        said = f"{in_words(vars(self))}; {written} ({counted(self.prompts, 'prompt')})"
        return "\n".join([said, *map(str, self.answers[:SAMPLE])])


Evaluated = TextEvaluation | LabelEvaluation | PairEvaluation | PreferenceEvaluation | RewardEvaluation


def evaluate(
    model: TrainedModel,
    data: str | Path | None = None,
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    held_out: float | None = None,
    seq_len: int | None = None,
    memory: int | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    objective: str | None = None,
    rewards: Sequence[str | RewardSpec] | None = None,
    max_new_tokens: int | None = None,
    stop: Sequence[str] | None = None,
    chat_template: str | Path | None = None,
    precision: Precision = "float32",
    truncate: bool = False,
    bleu: BeamSearch | Released | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    dtype: torch.dtype | Packing | None = None,
    device: str | None = None,
) -> Evaluated:
    """What a model's predictions cost on a text (a file, a folder, "stdlib", or labelled text), or on two files of pairs.

    `model` is a model, or a directory: a run is judged by the objective that it was trained by, any other model by the one
    that suits its architecture, unless `objective` is "sft", of the answers of conversations, which `chat_template` may
    write, "causal-lm", of preferences "simpo" or "orpo", or "grpo", of what the model itself answers to prompts, in
    `max_new_tokens` at most and up to the first of the texts `stop`, by `rewards`, rules or their names. `held_out` takes
    only what training with such a share of validation set aside. Rows have `seq_len` tokens, by default as trained; with a
    `memory`, windows of one text see so many tokens before them. `truncate` cuts labelled texts, pairs or conversations
    longer than a row. `bleu` translates the source too, searching so, or as the model's files say, and compares.
    The languages of pairs are special tokens (`Tokenizer.between`). `dtype` is that of the weights of what is loaded, or how
    they are packed.

    Raises UsageError for data and options that do not go together, TextError, CheckpointError.
    """
    given = Sources(data, source, target)
    if bleu is not None and source is None:
        raise UsageError("--bleu compares translations: give --source and --target")
    if memory is not None and source is not None:
        raise UsageError("--memory is for texts that are read in windows; leave it out with --source")
    if (source_language or target_language) and source is None:
        raise UsageError("--source-language and --target-language are of translations: give --source and --target too")
    at_least_one("--seq-len", seq_len)
    at_least_one("--max-new-tokens", max_new_tokens)
    refuse_unknown(objective, given)
    found = opened(model, tokenizer, device=device, dtype=dtype).by_template(chat_template)
    found = found.between(source_language, target_language)
    answers = {"rewards": rewards, "max_new_tokens": max_new_tokens, "stop": stop}
    goal = goal_of(found, given, objective, truncate=truncate, **answers)
    if bleu is not None and isinstance(goal, Contrastive):
        raise UsageError("--bleu compares translations, and this model makes vectors of texts; leave it out")
    judge = judging(found, goal, given, held_out=held_out, seq_len=seq_len, memory=memory)
    losses = evaluate_rows(
        found.model, judge.objective, judge.validation, precision=precision, auxiliary=judge.auxiliary
    )
    if isinstance(goal, Labelled):
        return _labels(found, goal, judge, losses, precision)
    if isinstance(goal, Contrastive):
        return _pairs(found, goal, judge, losses)
    if isinstance(goal, ComparedAnswers):
        return _preferences(goal, losses)
    if isinstance(goal, RewardedSpec):
        return _rewards(goal, losses)
    score, search = (None, None) if bleu is None else _translations(found, judge.validation, bleu)
    return TextEvaluation(
        objective=goal.kind,
        loss=losses.loss,
        perplexity=losses.perplexity,
        bits_per_byte=losses.bits_per_byte if goal.whole else None,
        nats=losses.nats,
        tokens=losses.tokens,
        nbytes=losses.nbytes,
        documents=len(losses.documents),
        seq_len=judge.seq_len or 0,
        parts=losses.parts,
        context=found.model.spec.context,
        memory=judge.memory,
        bleu=score,
        search=search,
    )


def _labels(found: Opened, goal: Labelled, judge: Judging, losses: Evaluation, precision: Precision) -> LabelEvaluation:
    assert isinstance(judge.validation, LabelledValidation)
    assert isinstance(judge.objective, LabelledObjective)
    examples, right = judge.validation.examples, figures(found.model, judge.objective, judge.validation, precision)
    return LabelEvaluation(goal.kind, goal.unit, losses.loss, len(examples), losses.tokens, examples.cut, right)


def _pairs(found: Opened, goal: Contrastive, judge: Judging, losses: Evaluation) -> PairEvaluation:
    assert judge.pairs is not None
    assert isinstance(judge.validation, ContrastValidation)
    pairs, size = judge.pairs.pairs, judge.validation.size
    guesses = [rows.chance() for rows, _ in judge.validation.batches(0)]
    chance = sum(float(each.sum()) for each in guesses) / len(pairs)
    places = retrieve(found.model, found.tokenizer, pairs, longest=judge.seq_len, truncate=goal.truncate)
    return PairEvaluation(goal.kind, goal.unit, losses.loss, chance, size, **places._asdict())


def _preferences(goal: ComparedAnswers, losses: Evaluation) -> PreferenceEvaluation:
    margin = losses.parts[MARGIN]
    assert margin.accuracy is not None
    chance = math.log(2)  # of an even guess
    chosen, score = (part and part.loss for part in map(losses.parts.get, (CHOSEN, SCORE)))
    return PreferenceEvaluation(
        goal.kind, goal.unit, losses.loss, chance, margin.accuracy, margin.loss, losses.tokens, chosen, score
    )


def _rewards(goal: RewardedSpec, losses: Evaluation) -> RewardEvaluation:
    reward, length, ended = (losses.parts[name] for name in (REWARD, LENGTH, ENDED))
    return RewardEvaluation(
        goal.kind,
        losses.loss,
        reward.loss,
        reward.accuracy,
        length.loss,
        ended.loss,
        losses.tokens,
        losses.answers,
    )


def _translations(found: Opened, validation: Validation, way: BeamSearch | Released) -> tuple[Bleu, BeamSearch]:
    """How good the translations of what is judged are, searched so, and how they were searched in the end."""
    assert isinstance(validation, PairValidation)
    sources, references = zip(*validation.corpus.pairs, strict=True)
    said, sampling, search = UNSAID, GREEDY, None if isinstance(way, Released) else way
    if isinstance(way, Released):
        said = way.behind(*found.before(sources), None)
        sampling, search = said.chosen({}, {})
        if sampling.draws:
            raise UsageError(
                "--as-released: the model's files draw tokens, and lines are answered by their likeliest texts; leave it out"
            )
    writer = lay_out_for_decoding(found.model)
    written = translate(writer, found.tokenizer, sources, search=search, sampling=sampling, max_new_tokens=said.most)
    return bleu(written, references), search or BeamSearch(1)
