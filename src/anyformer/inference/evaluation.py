"""How well a model predicts what it was trained to predict, on data that is named: tokens, labels, or which texts belong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anyformer.amounts import counted
from anyformer.errors import UsageError
from anyformer.generation import GREEDY, UNSAID, BeamSearch, Released, lay_out_for_decoding
from anyformer.hub import load_auxiliary
from anyformer.inference.classification import label_names, longest_of
from anyformer.inference.embedding import retrieve
from anyformer.inference.figures import figures, in_words
from anyformer.inference.opened import Opened, TrainedModel, at_least_one, opened
from anyformer.inference.writing import Bleu, bleu, translate
from anyformer.layers.packing import Packing
from anyformer.model import Transformer
from anyformer.notebook import ShowsItself
from anyformer.recipe import DPO, OBJECTIVES, SFT, Contrastive, Examples, Labelled, ObjectiveSpec, Precision, Recipe
from anyformer.text import EncodedPairs, Tokenizer, encode_corpus, split_labelled, split_pairs
from anyformer.text.conversations import split_exchanges
from anyformer.text.labelled import EncodedLabelled
from anyformer.text.sources import read_text
from anyformer.training.chosen_recipe import fits
from anyformer.training.data.feed import Validation
from anyformer.training.data.text import text_validation
from anyformer.training.objectives.answers.data import ConversationValidation
from anyformer.training.objectives.answers.encoded import EncodedConversations
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.contrastive.data import ContrastData
from anyformer.training.objectives.labelled.data import LabelledValidation
from anyformer.training.objectives.labelled.loss import LabelledObjective
from anyformer.training.objectives.objective import noise_of, objective_of
from anyformer.training.objectives.seq2seq.data import PairValidation
from anyformer.training.prepare import Sources
from anyformer.training.run.checks import check_positions, check_vocabulary
from anyformer.training.run.evaluation import PartLoss
from anyformer.training.run.evaluation import evaluate as evaluate_rows
from anyformer.training.step.memories import check_memory

VERSION = 1
NAMED = ("sft", "causal-lm")  # objectives that a model may be judged by which was not trained by them
LONGEST = 1024  # tokens a row where the model says nothing


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
    # tokens before a window that it sees; None: nobody asked for a memory
    memory: int | None = None
    bleu: Bleu | None = None
    search: BeamSearch | None = None

    def as_json(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name not in ("memory", "bleu", "search")}
        told["parts"] = {name: part._asdict() for name, part in self.parts.items()}
        told |= {} if self.memory is None else {"memory": self.memory}
        told |= {} if self.bleu is None else {"bleu": self.bleu.score, "bleu_signature": self.bleu.signature}
        return {"version": VERSION, **told}

    def __str__(self) -> str:
        bits = f"by {self.objective}" if self.bits_per_byte is None else f"{self.bits_per_byte:.4f} bits a byte"
        memory = "" if self.memory is None else f", a memory of {self.memory}"
        lines = [
            f"{self.loss:.4f} nats a token, perplexity {self.perplexity:.3f}, {bits} ({counted(self.tokens, 'token')}, "
            f"{counted(self.nbytes, 'byte')}, {counted(self.documents, 'document')}, rows of {self.seq_len}{memory})"
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


Evaluated = TextEvaluation | LabelEvaluation | PairEvaluation


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
    that suits its architecture, unless `objective` is "sft", of the answers of conversations, which `chat_template` may write,
    or "causal-lm". `held_out` takes only what training with such a share of validation set aside. Rows have
    `seq_len` tokens, by default as trained; with a `memory`, windows of one text see so many tokens before them. `truncate`
    cuts labelled texts, pairs or conversations longer than a row. `bleu` translates the source too, searching so, or as
    the model's files say, and compares.
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
    if objective is not None and (objective not in NAMED or given.reads == "pairs"):
        said = (
            f"--objective {objective}: a text is judged by {' or '.join(NAMED)} where it is named, all else as trained"
        )
        raise UsageError(f"{said}; leave it out")
    found = opened(model, tokenizer, device=device, dtype=dtype).between(source_language, target_language)
    if chat_template is not None:
        found = found._replace(tokenizer=found.tokenizer.with_chat_template(read_text(Path(chat_template))))
    spec, trained = found.model.spec, found.recipe
    goal = trained.objective if trained and fits(trained.objective, given.reads) else usual(spec, given.reads)
    if objective is not None and goal.kind != OBJECTIVES[objective].kind:
        goal = OBJECTIVES[objective]
    if isinstance(goal, Examples):
        goal = goal.but(truncate=goal.truncate or truncate)
    length = seq_len or (trained.seq_len if trained else None)
    if isinstance(goal, DPO):
        raise UsageError(
            "preferences are judged beside what the model said before it learnt them, which a run keeps to itself; have it "
            "validate on them (train --validation-data)"
        )
    if isinstance(goal, Labelled):
        if memory is not None:
            raise UsageError("--memory is for texts that are read in windows; leave it out with labelled text")
        return _labels(found, goal, given, held_out, length or longest_of(spec), precision)
    length = length or min(spec.context or LONGEST, LONGEST)
    if isinstance(goal, Contrastive):
        if bleu is not None:
            raise UsageError("--bleu compares translations, and this model makes vectors of texts; leave it out")
        return _pairs(found, goal, given, held_out, length, precision)
    if memory is None and trained and goal.kind == trained.objective.kind and given.reads == "text":
        memory = trained.memory
    beside = None if isinstance(model, Transformer) else Path(model)
    return _text(found, goal, given, held_out, length, memory, precision, bleu, beside)


def _labels(
    found: Opened, goal: Labelled, given: Sources, held_out: float | None, longest: int | None, precision: Precision
) -> LabelEvaluation:
    corpus = given.labelled(goal.labels)
    corpus = corpus if held_out is None else split_labelled(corpus, held_out)[1]
    names = () if goal.labels == "numbers" else label_names(found.model)
    examples = EncodedLabelled(corpus, found.tokenizer, names, longest, truncate=goal.truncate)
    validation, objective = LabelledValidation(examples), LabelledObjective(goal, found.model.spec)
    losses = evaluate_rows(found.model, objective, validation, precision=precision)
    right = figures(found.model, objective, validation, precision)
    return LabelEvaluation(goal.kind, goal.unit, losses.loss, len(examples), losses.tokens, examples.cut, right)


def _pairs(
    found: Opened, goal: Contrastive, given: Sources, held_out: float | None, longest: int, precision: Precision
) -> PairEvaluation:
    recipe = Recipe(objective=goal, seq_len=longest)
    recipe = recipe.but(batch_tokens=found.recipe.batch_tokens) if found.recipe else recipe
    whole = given.pairs()
    training, pairs = (whole, whole) if held_out is None else split_pairs(whole, held_out)
    validation = ContrastData(training, pairs, found.tokenizer).validation(recipe)  # in batches as in training
    assert validation is not None
    loss = evaluate_rows(found.model, objective_of(goal, found.model.spec), validation, precision=precision).loss
    guesses = [rows.chance() for rows, _ in validation.batches(0)]
    chance = sum(float(each.sum()) for each in guesses) / len(pairs.pairs)
    places = retrieve(found.model, found.tokenizer, pairs.pairs, longest=longest, truncate=goal.truncate)
    return PairEvaluation(goal.kind, goal.unit, loss, chance, validation.size, **places._asdict())


def _text(
    found: Opened,
    goal: ObjectiveSpec,
    given: Sources,
    held_out: float | None,
    length: int,
    memory: int | None,
    precision: Precision,
    way: BeamSearch | Released | None,
    directory: Path | None,
) -> TextEvaluation:
    model, tokenizer, trained, *_ = found
    spec, objective = model.spec, objective_of(goal, model.spec)
    check_vocabulary(spec, tokenizer.vocab_size)
    check_positions(spec, length)
    recipe = Recipe(objective=goal, seq_len=length, batch_tokens=length, seed=trained.seed if trained else 0)
    if memory:
        recipe = recipe.but(memory=memory)
        check_memory(spec, recipe)
    validation = _validation(given, held_out, tokenizer, recipe)
    beside = None  # what was trained beside the model, where the objective needs it
    if objective.auxiliary() is not None:
        if directory is None:
            raise UsageError(
                "this model is judged together with what was trained beside it; give the directory of the run"
            )
        beside = load_auxiliary(directory, device=next(model.parameters()).device)
    losses = evaluate_rows(model, objective, validation, precision=precision, auxiliary=beside)
    score = search = None
    if way is not None:
        assert isinstance(validation, PairValidation)
        sources, references = zip(*validation.corpus.pairs, strict=True)
        said, sampling = UNSAID, GREEDY
        if isinstance(way, Released):
            said = way.behind(*found.before(sources), None)
            sampling, way = said.chosen({}, {})
            if sampling.draws:
                raise UsageError(
                    "--as-released: the model's files draw tokens, and lines are answered by their likeliest texts; leave it out"
                )
        writer = lay_out_for_decoding(model)
        written = translate(writer, tokenizer, sources, search=way, sampling=sampling, max_new_tokens=said.most)
        score, search = bleu(written, references), way or BeamSearch(1)
    return TextEvaluation(
        objective=goal.kind,
        loss=losses.loss,
        perplexity=losses.perplexity,
        bits_per_byte=losses.bits_per_byte if goal.whole else None,
        nats=losses.nats,
        tokens=losses.tokens,
        nbytes=losses.nbytes,
        documents=len(losses.documents),
        seq_len=length,
        parts=losses.parts,
        memory=memory,
        bleu=score,
        search=search,
    )


def _validation(given: Sources, held_out: float | None, tokenizer: Tokenizer, recipe: Recipe) -> Validation:
    if given.reads == "pairs":
        pairs = given.pairs()
        pairs = pairs if held_out is None else split_pairs(pairs, held_out)[1]
        return PairValidation(pairs, EncodedPairs(pairs, tokenizer))
    if isinstance(goal := recipe.objective, SFT):
        said = given.exchanges(goal.reads)
        said = said if held_out is None else split_exchanges(said, held_out)[1]
        return ConversationValidation(EncodedConversations(said, tokenizer, recipe.seq_len, truncate=goal.truncate))
    corpus = given.corpus()
    corpus = corpus if held_out is None else corpus.split(held_out)[1]
    text = encode_corpus(corpus, tokenizer)
    if noise_of(recipe, tokenizer) is None and len(text.tokens) < recipe.seq_len:  # noise hangs on a row's length
        recipe = recipe.but(seq_len=len(text.tokens), batch_tokens=len(text.tokens))
    return text_validation(text, tokenizer, recipe)
