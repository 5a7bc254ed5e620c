"""How texts are written according to a model's own generation_config.json, read as transformers' `generate` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from anyformer.errors import InputError, TextError, UsageError
from anyformer.generation.beam import BeamSearch, Stopping, refuse_drawn
from anyformer.generation.sampling import GREEDY, Sampling
from anyformer.text.generation_config import CHOOSING, GENERATION, NEUTRAL, closing_ids

TOP_K = 50  # among which transformers draws where nothing is said
DRAWING = ("temperature", "top_k", "top_p", "min_p")
STOPPING: Mapping[Any, Stopping] = {True: "first", False: "estimate", "never": "bound"}
KINDS: Mapping[type, str] = {float: "a number", int: "a whole number", bool: "true or false"}
MOST = 10**9  # that a number is, be it of tokens
MOST_SHOWN = 8  # of tokens that are never written
REMEDY = "leave that out, and say how tokens are chosen"


class Released(NamedTuple):
    """What is said of texts; what nobody says is not in it."""

    sampling: dict[str, Any]  # of `Sampling`
    search: dict[str, Any]  # of `BeamSearch`
    least: int | None = None  # new tokens
    most: int | None = None
    shortest: int = 0  # with all that stands before: a prompt, or what opens an answer
    longest: int | None = None

    def __str__(self) -> str:
        lengths = {
            "min_new_tokens": self.least,
            "max_new_tokens": self.most,
            "min_length": self.shortest,
            "max_length": self.longest,
        }
        said = {**self.sampling, **self.search, **{name: n for name, n in lengths.items() if n}}
        if len(self.sampling.get("suppressed", ())) > MOST_SHOWN:
            said["suppressed"] = f"{len(self.sampling['suppressed']):,} tokens"
        return ", ".join(f"{name} {value}" for name, value in said.items()) or "nothing says how tokens are chosen"

    def of_new_tokens(self) -> Released:
        """The same without the lengths that count what stands before, too."""
        return self._replace(shortest=0, longest=None)

    def behind(self, before: int, forced: int, most: int | None) -> Released:
        """The same of new tokens alone, behind so many of a prompt or of what opens an answer; `most` wins where it is given.

        `forced` of those are what an answer always begins with, which count as new in what is said. Raises UsageError where
        there is no room.
        """
        most = max(0, self.most - forced) if most is None and self.most is not None else most
        if most is None and self.longest is not None:
            most = self.longest - before
            if most < 1:
                raise UsageError(
                    f"{GENERATION} says max_length = {self.longest}, and {before} tokens stand before; give max_new_tokens"
                )
        least = self.shortest - before if self.least is None else self.least - forced
        return self._replace(least=max(least, 0), most=most).of_new_tokens()

    def chosen(
        self, sampling: Mapping[str, Any], search: Mapping[str, Any], usual: Sampling = GREEDY
    ) -> tuple[Sampling, BeamSearch | None]:
        """How tokens are chosen, and the search, where a user gives some of it too: what is given wins,
        and what nobody says is as `usual`.

        A search that is given draws nothing, nor does temperature 0; one beam, and what is to be drawn, is no search. Raises
        UsageError for options of a search without one, and of drawing where nothing is drawn, or searched.
        """
        said, searched, beams = self.sampling, self.search, search.get("beams")
        if (beams or 1) > 1 or sampling.get("temperature") == 0:
            said = {name: value for name, value in said.items() if name not in DRAWING}
        if beams == 1 or sampling.get("temperature"):
            searched = {}
        how = replace(usual, **{"min_new_tokens": self.least or 0, **said, **sampling})
        options = BeamSearch(**{"beams": 1, **searched, **search})
        if options.beams == 1 and options != BeamSearch(1):
            raise UsageError("length_penalty and stopping are of a search; give beams, at least 2, or leave them out")
        if options.beams > 1:
            refuse_drawn(how)
        elif how.draws and not how.temperature:
            raise UsageError(
                "top_k, top_p and min_p say which tokens are drawn; give a temperature too, or leave them out"
            )
        return how, options if options.beams > 1 else None


UNSAID = Released({}, {})


def released(said: Mapping[str, Any]) -> Released:
    """What a generation_config.json says (`Tokenizer.generation`): a text is drawn where `do_sample` is true, else the likeliest.

    Raises TextError for what is not done here, such as drawing among beams, and for what is no value.
    """
    for name, neutral in NEUTRAL.items():
        if said.get(name) not in (None, *neutral):
            raise _refused(name, said[name], "is not done here")
    if all(said.get(name) is None for name in CHOOSING):
        return UNSAID
    draws, beams = _value(said, "do_sample", bool), _value(said, "num_beams", int)
    beams = 1 if beams is None else beams
    if beams < 1:
        raise _refused("num_beams", beams, "searches nothing")
    if draws and beams > 1:
        raise _refused("num_beams", beams, "draws among beams, which is not done here")
    temperature, top_k, top_p, min_p = (_value(said, name, int if name == "top_k" else float) for name in DRAWING)
    drawn = {
        "temperature": 1.0 if temperature is None else temperature,
        "top_k": TOP_K if top_k is None else top_k or None,
        "top_p": None if top_p is None or top_p >= 1 else top_p,
        "min_p": min_p,
    }
    sampling = {
        **(drawn if draws and drawn["temperature"] else {"temperature": 0.0}),
        "repetition_penalty": _value(said, "repetition_penalty", float),
        "no_repeat_ngram_size": _value(said, "no_repeat_ngram_size", int),
        "suppressed": _suppressed(said) or None,
        "last_token": next(iter(_ids(said, "forced_eos_token_id", 1)), None),
    }
    stopping = False if said.get("early_stopping") is None else said["early_stopping"]
    if type(stopping) not in (bool, str) or stopping not in STOPPING:
        raise _refused("early_stopping", stopping, 'must be true, false or "never"')
    search = {
        "beams": beams,
        "length_penalty": _value(said, "length_penalty", float),
        "stopping": STOPPING[stopping],
        "renormalised": _value(said, "renormalize_logits", bool),
    }
    lengths = [_value(said, f"{end}_{what}", int) for end in ("min", "max") for what in ("new_tokens", "length")]
    if wrong := [each for each in lengths if each is not None and each < 0]:
        raise TextError(f"{GENERATION} says a length of {wrong[0]}, which no text has; {REMEDY}")
    least, shortest, most, longest = lengths
    found = Released(_said(sampling), _said(search) if beams > 1 else {}, least, most, shortest or 0, longest)
    try:
        found.chosen({}, {})
    except InputError as error:
        raise TextError(f"{GENERATION}: {error}") from None
    return found


def _suppressed(said: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that are never written; one that ends a text always may be."""
    words = said.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) and len(word) == 1 for word in words):
        raise _refused("bad_words_ids", words, "has words of several tokens, or none, which is not done here")
    single = [token for word in words for token in _ids({"bad_words_ids": word}, "bad_words_ids")]
    ends = closing_ids(said)
    return tuple(dict.fromkeys([token for token in single if token not in ends] + _ids(said, "suppress_tokens")))


def _ids(said: Mapping[str, Any], name: str, most: int | None = None) -> list[int]:
    """The tokens that a field names, a number or a list of so many at most."""
    value = said.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(each) is int and each >= 0 for each in ids) or (most is not None and len(ids) > most):
        raise _refused(name, value, "names no token, or too many")
    return ids


def _value(said: Mapping[str, Any], name: str, kind: type) -> Any:
    """What a field says; None where it says nothing."""
    value = said.get(name)
    if value is None:
        return None
    if type(value) is not kind and (kind is not float or type(value) is not int):
        raise _refused(name, value, f"must be {KINDS[kind]}")
    if kind is not bool and abs(value) > MOST:
        raise _refused(name, value, f"is beyond {MOST:,}")
    return value


def _said(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refused(name: str, value: Any, why: str) -> TextError:
    return TextError(f"{GENERATION}: {name} = {repr(value)[:80]} {why}; {REMEDY}")
