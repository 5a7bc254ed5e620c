"""A trained model and its tokenizer as they are given: the two themselves, or a directory that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anyformer.disk.hub_cache import located
from anyformer.errors import UsageError
from anyformer.families import find as find_preset
from anyformer.generation import Form, Grammar, grammars_of
from anyformer.generation.prompt import check_writes
from anyformer.hub import load
from anyformer.hub.loading import load_tokenizer
from anyformer.hub.prompts import Prompts, prompts_of
from anyformer.layers.packing import Packing
from anyformer.model import Transformer
from anyformer.recipe import Examples, Recipe, of_run
from anyformer.spec import split_variant
from anyformer.text import Tokenizer
from anyformer.text.filling import ending_middles
from anyformer.text.prompts import encode_prompt
from anyformer.text.sources import read_text
from anyformer.training.step.device import choose_device

TrainedModel = Transformer | str | Path
"""A model, or a path that `load` takes: a run, a directory of Hugging Face's or ours, a GGUF file."""


class Opened(NamedTuple):
    """A model to be used on texts."""

    model: Transformer
    tokenizer: Tokenizer
    recipe: Recipe | None  # that it was trained by; None where it came without
    prompts: Prompts = Prompts({})  # that its directory has for texts whose vectors it makes
    directory: Path | None = None  # where it was read from; None: it was given itself

    def framing(self, objective: type[Examples], truncate: bool) -> tuple[int | None, bool]:
        """(tokens of the longest text, whether longer ones are cut): as the model was trained by such an objective."""
        if self.recipe is None or not isinstance(self.recipe.objective, objective):
            return None, truncate
        return self.recipe.seq_len, truncate or self.recipe.objective.truncate

    def between(self, source: str | None, target: str | None) -> Opened:
        """With the tokenizer `Tokenizer.between` two languages; None: as its files say. Raises UsageError without an encoder."""
        if source is target is None:
            return self
        if self.model.encoder is None:
            named = " and ".join(each for each in (source, target) if each is not None)
            raise UsageError(
                f"a language ({named}) is a translation's, and this model has no encoder; say it in the prompt"
            )
        return self._replace(tokenizer=self.tokenizer.between(source, target))

    def by_template(self, file: str | Path | None) -> Opened:
        """With the tokenizer by which conversations are written as a Jinja file says; None: as its own files do."""
        if file is None:
            return self
        return self._replace(tokenizer=self.tokenizer.with_chat_template(read_text(Path(file))))

    def filling(self) -> Opened:
        """To write what stands between two texts (`text.filling`): with a tokenizer by which a text ends where a middle does.

        Raises UsageError for a model with an encoder, TextError for a vocabulary without the tokens that mark a middle.
        """
        if self.model.encoder is not None:
            raise UsageError(
                "a suffix is for decoders that were trained to fill in the middle, and this model has an encoder; leave it out"
            )
        return self._replace(tokenizer=ending_middles(self.tokenizer))

    def before(self, prompts: Sequence[str | Sequence[int]]) -> tuple[int, int]:
        """Tokens before what is written: of the longest prompt, or of what opens an answer where the model has an encoder;
        and how many of those stand behind the one that starts it."""
        if self.model.encoder is not None:
            n = len(self.tokenizer.answer_opening)
            return n, max(n - 1, 0)
        encoded = (encode_prompt(self.tokenizer, each) if isinstance(each, str) else each for each in prompts)
        return max(map(len, encoded), default=0), 0

    def grammar(self, forms: Mapping[Form, Any]) -> Grammar | None:
        """What texts are held to: the one form that is given, or nothing.

        Raises UsageError for several forms, InputError for a model that writes nothing, and as `Grammars` does.
        """
        if not forms:
            return None
        check_writes(self.model.spec)
        if len(forms) > 1:
            raise UsageError(f"a text is held to one form: leave one of {' and '.join(forms)} out")
        ((form, content),) = forms.items()
        return grammars_of(self.tokenizer, self.model.spec.n_scored).read(form, content)

    def beside(self, model: TrainedModel, **options: Any) -> Opened:
        """A second model, of the first one's tokenizer where it comes without; the options are those of `opened`."""
        own = load_tokenizer(model) if isinstance(model, str | Path) else None
        return opened(model, self.tokenizer if own is None else own, **options)


def opened(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None = None,
    *,
    device: str | None = None,
    dtype: torch.dtype | Packing | None = None,
    prepare: Callable[[Transformer], Transformer] | None = None,
) -> Opened:
    """The model and a tokenizer, its directory's if none is given; `device`, `dtype`, `prepare` are for what is loaded here.

    Raises UsageError for a model that is on another device, where there is no tokenizer, or no weights but a preset's
    name, and what `load` does.
    """
    known = Tokenizer.load(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    if isinstance(model, Transformer):
        there = next(model.parameters()).device
        if device is not None and torch.empty(0, device=choose_device(device)).device != there:
            raise UsageError(
                f"device {device!r}: the model is on {there}, and is used where it is; move it by model.to({device!r})"
            )
        found, beside, recipe, prompts, directory = model, None, None, Prompts({}), None
    else:
        place, _ = split_variant(model)
        if not Path(place).exists() and find_preset(place) is not None:
            raise UsageError(f"{model} is an architecture without weights; give the directory of a trained model")
        found, beside = load(model, device=choose_device(device), dtype=dtype)
        found, recipe, prompts = prepare(found) if prepare else found, of_run(place), prompts_of(located(place))
        directory = Path(model)
    if (known := known or beside) is None:
        what = "the model" if isinstance(model, Transformer) else str(model)
        raise UsageError(f"{what} has no tokenizer beside its weights, so no text can be read; give its tokenizer.json")
    return Opened(found, known, recipe, prompts, directory)


def at_least_one(option: str, number: int | None) -> int | None:
    """The number of an option. Raises UsageError for one below 1, which would say nothing."""
    if number is not None and number < 1:
        raise UsageError(f"{option} {number} is nothing; give 1 or more")
    return number
