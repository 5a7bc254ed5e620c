"""Objectives as data: the properties of all; the fields of its paper are each one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from anyformer.spec import Spec

Reads = Literal["text", "pairs", "labelled", "conversations", "preferences", "prompts"]
MASK = {"mask_token": "<mask>"}
PADDED = {"pad_token": "<pad>"}  # transformers finds a row's last token by what is no padding


class ObjectiveSpec(Spec, abstract=True):
    """A prediction that is learnt."""

    loss: ClassVar[Any] = None  # the `Objective` that names this specification, once it is imported

    reads: ClassVar[Reads] = "text"
    # special tokens it needs, by what tokenizer_config.json calls them, and further ones
    roles: ClassVar[Mapping[str, str]] = {}
    specials: ClassVar[tuple[str, ...]] = ()
    # every token of the text is predicted, from those before it: bits a byte mean something, and it is judged without noise
    whole: ClassVar[bool] = True
    # what a batch is to learn is the sum of what its rows are: micro-batches change nothing
    divisible: ClassVar[bool] = True

    # What predicts without reading a word: the frequency of the labels, their mean, or an even guess among a row's own
    # choices; and what that is called.
    trivial: ClassVar[Literal["frequency", "mean", "chance"]] = "frequency"
    guess: ClassVar[str] = "unigrams"
    unit: ClassVar[str] = "nats a token"  # of the loss
    predicts: ClassVar[str] = "token"  # what a run counts
    in_nats: ClassVar[bool] = True

    @property
    def predicted_share(self) -> float:
        """Of the places of the stack with a head: how many have a label."""
        return 1.0


class Examples(ObjectiveSpec, abstract=True):
    """A prediction about examples, each of which a row holds whole."""

    truncate: bool = False  # cut those that are longer than a row; they are refused otherwise

    whole: ClassVar[bool] = False


class FramedTexts(Examples, abstract=True):
    """A prediction about whole texts, each as the tokenizer frames it: what opens it, the text, what closes it."""

    roles: ClassVar[Mapping[str, str]] = PADDED
