"""What a trained model is judged by: an objective, and rows of the data that is named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from anyformer.errors import TextError, UsageError
from anyformer.hub import load_auxiliary
from anyformer.inference.classification import label_names, longest_of
from anyformer.inference.opened import Opened
from anyformer.model import Transformer
from anyformer.recipe import (
    OBJECTIVES,
    ComparedAnswers,
    Contrastive,
    Examples,
    Labelled,
    ObjectiveSpec,
    Recipe,
    RewardedSpec,
    RewardSpec,
)
from anyformer.text import EncodedPairs, ParallelCorpus, Tokenizer, encode_corpus, split_labelled, split_pairs
from anyformer.text.conversations import split_exchanges
from anyformer.text.labelled import EncodedLabelled
from anyformer.training.chosen_recipe import fits, refuse_row_length
from anyformer.training.data.examples import ExampleValidation
from anyformer.training.data.feed import Validation
from anyformer.training.data.text import longest_of_text, text_validation
from anyformer.training.data.vocabulary import serves
from anyformer.training.objectives.answers.data import encoded_answers
from anyformer.training.objectives.architecture import RESTORED, usual
from anyformer.training.objectives.contrastive.data import ContrastData
from anyformer.training.objectives.labelled.data import LabelledValidation
from anyformer.training.objectives.objective import Objective, judging_noise_of, objective_of
from anyformer.training.objectives.rewarded import rewards_of
from anyformer.training.objectives.rewarded.data import EncodedPrompts
from anyformer.training.objectives.seq2seq.data import PairValidation
from anyformer.training.prepare import EXCHANGES, Sources
from anyformer.training.run.checks import check_positions, check_vocabulary, longest_row
from anyformer.training.step.memories import check_memory

# Objectives that a model may be judged by which was not trained by them.
NAMED = (
    *("sft", "causal-lm"),
    *(name for name, each in OBJECTIVES.items() if isinstance(each, ComparedAnswers) and not each.has_reference),
    "grpo",
)
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
        known = f"{', '.join(NAMED[:-1])} or {NAMED[-1]}"
        said = f"--objective {objective}: a text is judged by {known} where it is named, all else as trained"
        raise UsageError(f"{said}; leave it out")


def goal_of(
    found: Opened,
    given: Sources,
    objective: str | None = None,
    *,
    truncate: bool = False,
    rewards: Sequence[str | RewardSpec] | None = None,
    max_new_tokens: int | None = None,
    stop: Sequence[str] | None = None,
) -> ObjectiveSpec:
    """The objective that a run was trained by where the data are of its kind, else what suits the architecture, or is named.

    What a model writes itself is judged by the `rewards`, has so many new tokens and ends at `stop`, as given. Raises UsageError
    for a run that compared answers with the model that it began with, or learnt from data of another kind which alone it can
    be judged by, and for an encoder and a decoder whose vocabulary has no token to hide text by.
    """
    spec, learnt = found.model.spec, None if found.recipe is None else found.recipe.objective
    goal = learnt if learnt and fits(learnt, given.reads) else usual(spec, given.reads, found.tokenizer)
    if objective is not None and goal.kind != OBJECTIVES[objective].kind:
        goal = OBJECTIVES[objective]
    if isinstance(goal, ComparedAnswers) and goal.has_reference:
        raise UsageError(
            f"this run learnt from preferences beside the model that it began with ({goal.kind}), and judges itself while it "
            "learns (train --validation-data); say what to judge these data by: --objective simpo where they are preferences, "
            "sft where they are conversations, causal-lm where they are text"
        )
    if learnt is not None and not fits(learnt, given.reads):
        try:
            objective_of(goal, spec)
            judging_noise_of(Recipe(objective=goal), found.tokenizer)
        except (UsageError, TextError):
            how = "from pairs; give --source and --target" if learnt.reads == "pairs" else "not from pairs; give --data"
            raise UsageError(f"this run learnt by {learnt.kind}, {how}") from None
    if learnt is None and goal in RESTORED and not serves(found.tokenizer, goal):
        raise UsageError(
            "a text is hidden from this model's encoder by sentinels (<extra_id_0>) or a mask, and its tokenizer has none; "
            "give pairs of texts (--source and --target)"
        )
    answers = {
        "rewards": rewards and rewards_of(rewards),
        "max_new_tokens": max_new_tokens,
        "stop": stop and tuple([stop] if isinstance(stop, str) else stop),
    }
    said = {name: value for name, value in answers.items() if value}
    if said and not isinstance(goal, RewardedSpec):
        raise UsageError(
            f"--reward, --max-new-tokens and --stop are for what a model writes itself, and {goal.kind} judges what is given; "
            "take --objective grpo, or leave them out"
        )
    goal = goal.but(**said)
    return goal.but(truncate=goal.truncate or truncate) if isinstance(goal, Examples) else goal


def judging(
    found: Opened,
    goal: ObjectiveSpec,
    given: Sources,
    *,
    held_out: float | None = None,
    seq_len: int | None = None,
    memory: int | None = None,
) -> Judging:
    """What a goal judges a model by on data; `held_out` takes only what training with such a share of validation set aside.

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
        if length is not None:
            check_positions(spec, partial(min, int(examples.lengths.max())), length)
        return Judging(objective_of(goal, spec), LabelledValidation(examples), seq_len=length)
    length = length or min(spec.context or LONGEST, LONGEST)
    if isinstance(goal, Contrastive):
        recipe = Recipe(objective=goal, seq_len=length)
        recipe = recipe.but(batch_tokens=trained.batch_tokens) if trained else recipe
        whole = given.pairs()
        training, pairs = (whole, whole) if held_out is None else split_pairs(whole, held_out)
        data = ContrastData(training, pairs, found.tokenizer)
        check_positions(spec, partial(data.longest, spec, recipe), length)
        validation = data.validation(recipe)  # in batches as in training
        assert validation is not None
        return Judging(objective_of(goal, spec), validation, seq_len=length, pairs=pairs)
    if memory is None and trained and goal.kind == trained.objective.kind and given.reads == "text":
        memory = trained.memory
    objective = objective_of(goal, spec, found.tokenizer)
    check_vocabulary(spec, found.tokenizer.vocab_size)
    if given.reads == "pairs":
        refuse_row_length(goal, seq_len)
        pairs = given.pairs()
        pairs = pairs if held_out is None else split_pairs(pairs, held_out)[1]
        encoded = EncodedPairs(pairs, found.tokenizer)
        longest = int(encoded.lengths.max())
        check_positions(spec, lambda _: longest, longest)
        return Judging(objective, PairValidation(pairs, encoded), seq_len=longest)
    recipe = Recipe(objective=goal, seed=trained.seed if trained else 0)
    longest_of_rows = partial(longest_of_text, judging_noise_of, spec, recipe, found.tokenizer)
    length = length if seq_len else longest_row(spec, longest_of_rows, length) or length
    check_positions(spec, longest_of_rows, length)
    recipe = recipe.but(seq_len=length, batch_tokens=length)
    if memory:
        recipe = recipe.but(memory=memory)
        check_memory(spec, recipe)
    validation, length = _validation(given, held_out, found.tokenizer, recipe)
    beside = None
    if objective.auxiliary() is not None:
        if found.directory is None:
            raise UsageError(
                "this model is judged together with what was trained beside it; give the directory of the run"
            )
        beside = load_auxiliary(found.directory, device=next(found.model.parameters()).device)
    return Judging(objective, validation, beside, length, memory)


def _validation(given: Sources, held_out: float | None, tokenizer: Tokenizer, recipe: Recipe) -> tuple[Validation, int]:
    """The rows of a text, of conversations or of prompts, and the tokens of one: no more than a plain text has."""
    if (goal := recipe.objective).reads in EXCHANGES:
        said = given.exchanges(goal.reads)
        said = said if held_out is None else split_exchanges(said, held_out)[1]
        if isinstance(goal, RewardedSpec):
            return ExampleValidation(EncodedPrompts(said, tokenizer, goal, recipe.seq_len)), recipe.seq_len
        assert isinstance(goal, Examples)
        return ExampleValidation(encoded_answers(goal, said, tokenizer, recipe.seq_len)), recipe.seq_len
    corpus = given.corpus()
    corpus = corpus if held_out is None else corpus.split(held_out)[1]
    text = encode_corpus(corpus, tokenizer)
    plain = judging_noise_of(recipe, tokenizer) is None  # noise hangs on a row's length
    if plain and len(text.tokens) < recipe.seq_len:
        recipe = recipe.but(seq_len=len(text.tokens), batch_tokens=len(text.tokens))
    return text_validation(text, tokenizer, recipe), recipe.seq_len
