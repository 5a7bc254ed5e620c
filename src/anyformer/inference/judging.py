"""What a trained model is judged by: an objective, and rows of the data that is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from anyformer.errors import UsageError
from anyformer.hub import load_auxiliary
from anyformer.inference.classification import label_names, longest_of
from anyformer.inference.opened import Opened
from anyformer.model import Transformer
from anyformer.recipe import OBJECTIVES, SFT, Contrastive, Examples, Labelled, ObjectiveSpec, PreferenceSpec, Recipe
from anyformer.text import EncodedPairs, ParallelCorpus, Tokenizer, encode_corpus, split_labelled, split_pairs
from anyformer.text.conversations import split_exchanges
from anyformer.text.labelled import EncodedLabelled
from anyformer.training.chosen_recipe import fits
from anyformer.training.data.feed import Validation
from anyformer.training.data.text import text_validation
from anyformer.training.objectives.answers.data import ConversationValidation
from anyformer.training.objectives.answers.encoded import EncodedConversations
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.contrastive.data import ContrastData
from anyformer.training.objectives.labelled.data import LabelledValidation
from anyformer.training.objectives.objective import Objective, judging_noise_of, objective_of
from anyformer.training.objectives.seq2seq.data import PairValidation
from anyformer.training.prepare import Sources
from anyformer.training.run.checks import check_positions, check_vocabulary
from anyformer.training.step.memories import check_memory

NAMED = ("sft", "causal-lm")  # objectives that a model may be judged by which was not trained by them
LONGEST = 1024  # tokens a row where the model says nothing


class Judging(NamedTuple):
    """An objective and the rows that it judges a model by."""

    objective: Objective[Any]
    validation: Validation
    auxiliary: Transformer | None = None  # what was trained beside the model, where the objective needs it
    seq_len: int | None = None  # of the longest row; None: as long as they are
    memory: int | None = None  # tokens before a window that it sees; None: nobody asked for a memory
    pairs: ParallelCorpus | None = None  # that vectors are told apart by


def refuse_unknown(objective: str | None, given: Sources) -> None:
    """Raise UsageError for an objective that no text is judged by because it is named."""
    if objective is not None and (objective not in NAMED or given.reads == "pairs"):
        said = (
            f"--objective {objective}: a text is judged by {' or '.join(NAMED)} where it is named, all else as trained"
        )
        raise UsageError(f"{said}; leave it out")


def goal_of(found: Opened, given: Sources, objective: str | None = None, *, truncate: bool = False) -> ObjectiveSpec:
    """The objective that a run was trained by where the data are of its kind, else what suits the architecture, or is named.

    Raises UsageError for preferences.
    """
    spec, trained = found.model.spec, found.recipe
    goal = trained.objective if trained and fits(trained.objective, given.reads) else usual(spec, given.reads)
    if objective is not None and goal.kind != OBJECTIVES[objective].kind:
        goal = OBJECTIVES[objective]
    if isinstance(goal, PreferenceSpec):
        raise UsageError(
            "preferences are judged by the run that learns them, beside what its model said before; have it validate on them "
            "(train --validation-data), or have answers and texts judged by --objective sft or causal-lm"
        )
    return goal.but(truncate=goal.truncate or truncate) if isinstance(goal, Examples) else goal


def judging(
    found: Opened,
    goal: ObjectiveSpec,
    given: Sources,
    *,
    directory: Path | None,
    held_out: float | None = None,
    seq_len: int | None = None,
    memory: int | None = None,
) -> Judging:
    """What a goal judges a model by on data; `directory` is where the model came from, None for a model in memory.

    Raises UsageError and TextError for data that does not go together with model or options.
    """
    spec, trained = found.model.spec, found.recipe
    length = seq_len or (trained.seq_len if trained else None)
    if isinstance(goal, Labelled):
        if memory is not None:
            raise UsageError("--memory is for texts that are read in windows; leave it out with labelled text")
        corpus = given.labelled(goal.labels)
        corpus = corpus if held_out is None else split_labelled(corpus, held_out)[1]
        names = () if goal.labels == "numbers" else label_names(found.model)
        length = length or longest_of(spec)
        examples = EncodedLabelled(corpus, found.tokenizer, names, length, truncate=goal.truncate)
        return Judging(objective_of(goal, spec), LabelledValidation(examples), seq_len=length)
    length = length or min(spec.context or LONGEST, LONGEST)
    if isinstance(goal, Contrastive):
        recipe = Recipe(objective=goal, seq_len=length)
        recipe = recipe.but(batch_tokens=trained.batch_tokens) if trained else recipe
        whole = given.pairs()
        training, pairs = (whole, whole) if held_out is None else split_pairs(whole, held_out)
        validation = ContrastData(training, pairs, found.tokenizer).validation(recipe)  # in batches as in training
        assert validation is not None
        return Judging(objective_of(goal, spec), validation, seq_len=length, pairs=pairs)
    if memory is None and trained and goal.kind == trained.objective.kind and given.reads == "text":
        memory = trained.memory
    objective = objective_of(goal, spec)
    check_vocabulary(spec, found.tokenizer.vocab_size)
    check_positions(spec, length, length)
    recipe = Recipe(objective=goal, seq_len=length, batch_tokens=length, seed=trained.seed if trained else 0)
    if memory:
        recipe = recipe.but(memory=memory)
        check_memory(spec, recipe)
    validation = _validation(given, held_out, found.tokenizer, recipe)
    beside = None
    if objective.auxiliary() is not None:
        if directory is None:
            raise UsageError(
                "this model is judged together with what was trained beside it; give the directory of the run"
            )
        beside = load_auxiliary(directory, device=next(found.model.parameters()).device)
    return Judging(objective, validation, beside, length, memory)


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
    if (
        judging_noise_of(recipe, tokenizer) is None and len(text.tokens) < recipe.seq_len
    ):  # noise hangs on a row's length
        recipe = recipe.but(seq_len=len(text.tokens), batch_tokens=len(text.tokens))
    return text_validation(text, tokenizer, recipe)
