"""Every error a user can cause, each one line that names the thing, the value and the remedy."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

LONGEST_WORD = 200  # characters of a message without a space between them: a name, a number, a path
LONGEST = 2000  # characters of a message


class AnyformerError(Exception):
    """Could not start: the input was wrong and nothing has been written. The command line exits with status 2.

    Its message is safe to print: one whose values are long is cut, and what does not print is written as an escape.
    """

    exit_status = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


def printable(message: str) -> str:
    """A text that may hold what others wrote, to print on a terminal: bounded, and controls escaped."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in bounded(message))


def bounded(message: str) -> str:
    """A message of a size to be read: long words and the whole are cut."""
    return cut(re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: cut(word[0], LONGEST_WORD), cut(message, 2 * LONGEST)))


def cut(text: str, longest: int = LONGEST) -> str:
    """A text of so many characters, without its middle where it was longer: what is wrong and the remedy are at the ends."""
    if len(text) <= longest:
        return text
    return f"{text[: longest * 2 // 3]}… ({len(text):,} characters) …{text[-longest // 4 :]}"


KNOWN = "; there are "  # before all that a name could have been


class SpecError(AnyformerError):
    """A specification that cannot work, or a file that does not hold one: all that is wrong with it."""

    faults: tuple[SpecError, ...]  # each thing that is wrong, as an error of its own

    def __init__(self, message: object = "", faults: Sequence[SpecError] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults) or (self,)

    @classmethod
    def of(cls, faults: Sequence[SpecError]) -> SpecError:
        """One error of all of these, one after the other in one line, which lists what is known once."""
        said, listed = list[str](), set[str]()
        for i, fault in enumerate(faults, 1):
            without, _, known = str(fault).partition(KNOWN)
            said.append(f"({i}) {without if known in listed else fault}")
            listed.add(known)
        numbered = "; ".join(said)
        return faults[0] if len(faults) == 1 else cls(f"{len(faults)} faults: {numbered}", faults)


class NoModuleError(SpecError):
    """A part that is data alone was to be built: it can be written and counted, not run."""


class KernelError(AnyformerError):
    """An attention kernel was asked for something it does not compute."""


class CacheError(AnyformerError):
    """A key/value cache was used beyond what it holds."""


class InputError(AnyformerError):
    """A model was called with tensors it cannot take."""


class TextError(AnyformerError):
    """A corpus, tokenizer or prompt that cannot be used."""


class CheckpointError(AnyformerError):
    """A directory or file of weights that is missing, broken, or of another model."""


class UsageError(AnyformerError):
    """A command, option or name that does not exist, or options that exclude each other."""


class RunFailed(AnyformerError):
    """It ran and failed on the way: a full disk, a loss that is not a number. Exit status 1."""

    exit_status = 1


class DiskFailed(RunFailed):
    """The disk took or gave no more: whatever else is run there fails like it."""


@contextmanager
def errors_of(name: str, kind: type[AnyformerError] = SpecError) -> Iterator[None]:
    """Within it what is wrong with an architecture, or a part of one, is said with its name, file or change."""
    try:
        yield
    except kind as error:
        raise kind(f"{name}: {error}") from None


@contextmanager
def of_extra(extra: str, what: str, packages: str) -> Iterator[None]:
    """Within it packages of an extra are imported. Raises UsageError, naming the extra, where one is not there."""
    try:
        yield
    except ImportError:
        raise UsageError(f"{what} needs the {packages}; pip install 'anyformer[{extra}]'") from None


def unknown(what: str, value: object, known: Iterable[str]) -> str:
    """What to say of a value that is none of those known: the nearest of them, and all."""
    return f"{what} = {value!r} is unknown{among(value, known)}"


def among(name: object, known: Iterable[str]) -> str:
    """How a message ends that is about a name which is none of those known: with the nearest of them, and all."""
    names = list(known)
    return f"{did_you_mean(name, names)}{KNOWN}{', '.join(names)}"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known name nearest to `name`, of its first word if there is one, or an empty string."""
    folded, wanted = {each.lower(): each for each in known}, str(name)[:LONGEST_WORD].lower()
    near = difflib.get_close_matches(wanted, folded, n=max(1, len(folded)), cutoff=0.6)
    near = [each for each in near if _first_word(each) == _first_word(wanted)] or near
    return f" (did you mean '{folded[near[0]]}'?)" if near else ""


def _first_word(name: str) -> str:
    """The letters that a name begins with: of bert-base-uncased, bert."""
    return "".join(itertools.takewhile(str.isalpha, name))


def first_line(error: BaseException) -> str:
    """The first line of what an error of others says, cut where it is long; of one that says nothing, its kind."""
    return cut(next(iter(str(error).splitlines()), "") or type(error).__name__, LONGEST_WORD)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, as Python says it, and PyTorch of a CPU's and of a GPU's."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("allocate memory", "out of memory"))
