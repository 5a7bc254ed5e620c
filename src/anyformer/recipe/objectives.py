"""What a model is to predict, as data: each objective has the fields of its paper; `train.objectives` has the losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from anyformer.spec import Spec

Reads = Literal["text", "pairs", "labelled"]
SENTINELS = tuple(f"<extra_id_{i}>" for i in range(100))  # T5's, as its tokenizer spells them
MASK = {"mask_token": "<mask>"}


class ObjectiveSpec(Spec, abstract=True):
    """What the model is to predict."""

    reads: ClassVar[Reads] = "text"
    roles: ClassVar[Mapping[str, str]] = {}  # special tokens it needs, by what tokenizer_config.json calls them
    specials: ClassVar[tuple[str, ...]] = ()  # further ones
    # every token of the text is predicted, from those before it: bits a byte mean something
    whole: ClassVar[bool] = True

    # What predicts without reading a word: the frequency of the labels, their mean, or an even guess among a row's own choices.
    trivial: ClassVar[Literal["frequency", "mean", "chance"]] = "frequency"
    # what a batch is to learn is the sum of what its rows are: micro-batches change nothing
    divisible: ClassVar[bool] = True
    guess: ClassVar[str] = "unigrams"  # and what that is called
    unit: ClassVar[str] = "nats a token"  # of the loss
    in_nats: ClassVar[bool] = True

    @property
    def predicted_share(self) -> float:
        """Of the places of the stack with a head: how many have a label."""
        return 1.0


def _check_rate(objective: Spec, name: str) -> None:
    if not 0 < getattr(objective, name) < 1:
        raise objective.refusal(name, "must be above 0 and below 1, or nothing is hidden or nothing left")


def _check_length(said: Spec) -> None:
    length = said.values()["mean_length"]
    if length is not None and length < 1:
        raise said.refusal("mean_length", "must be at least 1 token")


class CausalLM(ObjectiveSpec):
    """The next token of the same document."""


class MultiToken(CausalLM):
    """And further ones: `weight` times the mean of the losses of the model's modules for them is added to the loss.

    DeepSeek-V3: arXiv:2412.19437, equations 24 and 25; 0.3 for the first 10T tokens there, then 0.1.
    """

    weight: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise self.refusal("weight", "must be above 0; the objective CausalLM predicts the next token alone")


class Seq2Seq(ObjectiveSpec):
    """The next token of the translation, given the source and the true tokens before it (teacher forcing)."""

    reads: ClassVar[Reads] = "pairs"


class MaskedLM(ObjectiveSpec):
    """Tokens that were hidden, from those on both sides; masks are drawn anew each time.

    BERT: arXiv:1810.04805, section 3.1; RoBERTa (dynamic masks): arXiv:1907.11692, section 4.1; ALBERT (n-grams):
    arXiv:1909.11942, section 4.1.
    """

    rate: float = 0.15  # of tokens, special ones not counted, are to be predicted
    mask_share: float = 0.8  # of these are shown as the mask
    random_share: float = 0.1  # as a random token; the rest as they are
    whole_words: bool = False  # hide all tokens of a word or none
    max_ngram: int = 1  # neighbouring tokens, or words, hidden together: n of them by a probability that falls as 1/n

    roles: ClassVar[Mapping[str, str]] = MASK
    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self, "rate")
        for name in ("mask_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise self.refusal(name, "must be from 0 to 1")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise self.refusal("random_share", f"and mask_share = {self.mask_share:g} add up to more than 1")
        if self.max_ngram < 1:
            raise self.refusal("max_ngram", "must be at least 1: single tokens, or words")

    @property
    def predicted_share(self) -> float:
        return self.rate


class PermutedLM(ObjectiveSpec):
    """Tokens from those before them in a random order, which stand on both sides. XLNet: arXiv:1906.08237, section 2."""

    share: float = 1 / 6  # of a document, the last of its order, is to be predicted: 1 / K of section 2.3
    mean_length: float = 3.0  # of the runs of neighbours that are, tokens

    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self, "share")
        _check_length(self)

    @property
    def predicted_share(self) -> float:
        return self.share / (1 + self.share)  # what is predicted stands there twice, as itself and as a blank


class SpanCorruption(ObjectiveSpec):
    """The spans that sentinels stand for, given the rest. T5: arXiv:1910.10683, section 3.1.4."""

    rate: float = 0.15  # of tokens go
    mean_length: float = 3.0  # of a span, tokens

    specials: ClassVar[tuple[str, ...]] = SENTINELS
    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self, "rate")
        _check_length(self)


class PrefixLM(ObjectiveSpec):
    """The rest of a text, given its beginning, cut at random. T5: arXiv:1910.10683, section 3.2.1."""

    whole: ClassVar[bool] = False


class Denoising(ObjectiveSpec):
    """The whole text, given what noise left of it; noises are applied in the order of the fields.

    BART: arXiv:1910.13461, section 2.2; the defaults are the mixture of its large models (section 4, infilling and permuted
    sentences). A permuted text whose sentences cannot be told apart stays as it is.
    """

    permute_sentences: bool = True
    rotate: bool = False  # to a token drawn at random
    delete_rate: float = 0.0  # of tokens, without a trace
    infill_rate: float = 0.3  # of tokens, spans of them replaced by one mask each
    mean_length: float = 3.0  # of a span that is infilled, tokens (Poisson)

    roles: ClassVar[Mapping[str, str]] = MASK
    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("delete_rate", "infill_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise self.refusal(name, "must be at least 0 and below 1")
        if not (self.permute_sentences or self.rotate or self.delete_rate or self.infill_rate):
            raise self.refusal(
                "infill_rate", "and all other noise is off, so that the text is only copied; turn one on"
            )
        _check_length(self)


class Denoiser(Spec):
    """Spans of a mean length at a rate; without a mean length, one span at the end."""

    mode: Literal["R", "S", "X"]  # regular, sequential, extreme
    rate: float
    mean_length: float | None = None  # tokens

    def __post_init__(self) -> None:
        _check_rate(self, "rate")
        _check_length(self)
        if self.mean_length is None and self.rate > 0.5:
            raise self.refusal(
                "rate", "must be at most 0.5 without a mean_length: the last part's mean share of the text"
            )


class UL2(ObjectiveSpec):
    """A mixture of denoisers, each document by one drawn at random: arXiv:2205.05131, section 3.1 and table 1."""

    denoisers: tuple[Denoiser, ...] = (
        Denoiser(mode="R", rate=0.15, mean_length=3.0),
        Denoiser(mode="R", rate=0.15, mean_length=8.0),
        Denoiser(mode="S", rate=0.25),
        Denoiser(mode="X", rate=0.5, mean_length=3.0),
        Denoiser(mode="X", rate=0.5, mean_length=8.0),
        Denoiser(mode="X", rate=0.15, mean_length=64.0),
        Denoiser(mode="X", rate=0.5, mean_length=64.0),
    )
    tell: bool = True  # which mode it is, by a token before the source: [R], [S] or [X]

    specials: ClassVar[tuple[str, ...]] = (*SENTINELS, "[R]", "[S]", "[X]")
    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.denoisers:
            raise self.refusal("denoisers", "is empty; name one at least")
