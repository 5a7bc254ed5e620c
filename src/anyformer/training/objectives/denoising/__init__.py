"""A text written from what noise left of it: span corruption, prefixes, denoising, and their mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from anyformer.spec import AtLeastOne, Rate, Spec, TrueShare
from anyformer.training.objectives.specification import MASK, ObjectiveSpec

SENTINELS = tuple(f"<extra_id_{i}>" for i in range(100))  # T5's, as its tokenizer spells them


class RestoredText(ObjectiveSpec, abstract=True):
    """A text, given what noise left of it: read by an encoder, or by a decoder that sees it from both sides."""

    whole: ClassVar[bool] = False


class SpanCorruption(RestoredText):
    """The spans that sentinels stand for, given the rest. T5: arXiv:1910.10683, section 3.1.4."""

    rate: TrueShare = 0.15  # of tokens go
    mean_length: AtLeastOne = 3.0  # of a span, tokens

    specials: ClassVar[tuple[str, ...]] = SENTINELS


class PrefixLM(RestoredText):
    """The rest of a text, given its beginning, cut at random. T5: arXiv:1910.10683, section 3.2.1."""


class Denoising(RestoredText):
    """The whole text, given what noise left of it; noises are applied in the order of the fields.

    BART: arXiv:1910.13461, section 2.2; the defaults are the mixture of its large models (section 4, infilling and permuted
    sentences). A permuted text whose sentences cannot be told apart stays as it is.
    """

    permute_sentences: bool = True
    rotate: bool = False  # to a token drawn at random
    delete_rate: Rate = 0.0  # of tokens, without a trace
    infill_rate: Rate = 0.3  # of tokens, spans of them replaced by one mask each
    mean_length: AtLeastOne = 3.0  # of a span that is infilled, tokens (Poisson)

    roles: ClassVar[Mapping[str, str]] = MASK

    def __post_init__(self) -> None:
        if not (self.permute_sentences or self.rotate or self.delete_rate or self.infill_rate):
            raise self.refusal(
                "infill_rate", "and all other noise is off, so that the text is only copied; turn one on"
            )


class Denoiser(Spec):
    """Spans of a mean length at a rate; without a mean length, one span at the end."""

    mode: Literal["R", "S", "X"]  # regular, sequential, extreme
    rate: TrueShare
    mean_length: AtLeastOne | None = None  # tokens

    def __post_init__(self) -> None:
        if self.mean_length is None and self.rate > 0.5:
            raise self.refusal(
                "rate", "must be at most 0.5 without a mean_length: the last part's mean share of the text"
            )


class UL2(RestoredText):
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

    def __post_init__(self) -> None:
        self.require("denoisers", bool(self.denoisers), "is empty; name one at least")
