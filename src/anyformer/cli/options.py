"""What options take: amounts as people write them, devices by name, learning rates; and options that commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial, reduce, wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from anyformer.recipe import weighed


class Named(click.Path):
    """A path, be it there or not, whose name is not empty: as that of a variable that is not set is, and it would mean `.`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty; give one, or . for the directory where you are", param, ctx)
        return super().convert(value, param, ctx)


PATH = Named(path_type=Path)
FILE = click.Path(exists=True, path_type=Path)  # or a directory
ONE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = Named(dir_okay=False, path_type=Path)
DIRECTORY = Named(file_okay=False, path_type=Path)

CHOICE_WIDTH = 44  # columns of a choice's words in a help text

# Options that mean the same wherever they stand.
READ_AS = "anyformer.read_as"  # in the `meta` of a context: the type of --as, where one is given
as_option = click.option(
    "--as",
    metavar="TYPE",
    expose_value=False,
    callback=lambda context, option, name: name and _read_as(context, name),
    help="The model_type that each config.json is read as, whatever it says.",
)
device_option = click.option("--device", help="cpu, cuda, mps …; the best there is by default.")
run_option = click.option("--model", required=True, type=PATH, metavar="DIR", help="A run, or an HF directory.")
truncate_option = click.option(
    "--truncate", is_flag=True, help="Cut texts that the model has no room for.  [default: as trained]"
)


def one_after_the_other(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Options that several commands have, in this order in their help."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


language_options = one_after_the_other(
    click.option("--source-language", metavar="TOKEN", help="Special token of the language that is translated from."),
    click.option("--target-language", metavar="TOKEN", help="Of the language that answers are in."),
)
pair_options = one_after_the_other(
    click.option("--source", type=FILE, help="For translation: a file of sentences, one a line."),
    click.option("--target", type=FILE, help="Their translations, line by line."),
)
chat_template_option = click.option(
    "--chat-template",
    type=ONE_FILE,
    help="Jinja file that writes conversations.  [default: what the tokenizer brings]",
)
judging_options = one_after_the_other(  # how a trained model is judged by data
    click.option("--tokenizer", type=FILE, help="Where the model's directory has none."),
    click.option(
        "--objective",
        metavar="NAME",
        help="sft (the answers of conversations), causal-lm, simpo or orpo (preferences), grpo (what it answers itself), of any "
        "decoder.  [default: as trained]",
    ),
    chat_template_option,
    click.option(
        "--truncate",
        is_flag=True,
        help="Cut labelled texts, pairs or conversations longer than a row.  [default: as trained]",
    ),
)


def _one(context: click.Context, option: click.Parameter, given: Sequence[str | Path]) -> str | Path | None:
    names = [str(each) for each in given]
    if names[1:]:
        raise click.BadParameter(f"one text is read here, and {len(names)} are given, {', '.join(names)}; give one")
    for text, weight in map(weighed, names):
        if weight is not None:
            raise click.BadParameter(f"one text is read here, and no mixture, whose texts have weights; give {text}")
    return given[0] if given else None


# How click is told of a text, and of a file of texts, that a command reads alone: of two it would take the last without a word.
ONE_TEXT: Mapping[str, Any] = {"metavar": "TEXT", "multiple": True, "callback": _one}
ONE_FILE_OF_TEXTS: Mapping[str, Any] = {**ONE_TEXT, "type": ONE_FILE, "metavar": "FILE"}


DTYPES = ("float32", "bfloat16", "float16")
PACKINGS = ("int8", "int4", "nf4")
weights_option = click.option(
    "--dtype",
    type=click.Choice((*DTYPES, *PACKINGS)),
    callback=lambda context, option, name: as_dtype(name),
    help="Of weights and cache, as the weights are stored by default; int8, nf4 and, on a CPU, int4: of weights alone.",
)
cache_option = click.option(
    "--cache-dtype",
    type=click.Choice(("int8",)),
    callback=lambda context, option, name: None if name is None else _torch_dtype(name),
    help="Of the cache, 32 numbers with a scale.  [default: as the weights]",
)
compile_option = click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="Compile the step that writes a token: it takes a while at first, and is faster then.",
)
json_option = partial(click.option, "--json", "as_json", is_flag=True)


def choice(name: str, values: Sequence[str], default: str, help_text: str | None = None) -> Callable[..., Any]:
    """An option that takes one of a few words and says which it takes by default."""
    return click.option(name, default=default, show_default=True, **chosen(values, help_text))


def chosen(values: Sequence[str], help_text: str | None = None) -> dict[str, Any]:
    """How click is told of a choice: many words stand in the help, where a line can end between them."""
    many = len("|".join(values)) > CHOICE_WIDTH
    said = f"{(help_text or '').rstrip('.')}: {', '.join(values)}." if many else help_text
    return {"type": click.Choice(values), "metavar": "NAME" if many else None, "help": said}


def as_dtype(name: str | None) -> Any:
    """What `load` takes: a torch.dtype, the name of a packing, or None."""
    return name if name is None or name in PACKINGS else _torch_dtype(name)


def _read_as(context: click.Context, hf_type: str) -> None:
    from anyformer.hub.source import reading_as

    context.meta[READ_AS] = hf_type
    context.with_resource(reading_as(hf_type))


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


PRECISIONS = ("float32", "bf16")
RECOMPUTE = ("none", "selective", "full")
precision_option = choice("--precision", PRECISIONS, "float32")

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


class Amount(click.ParamType):
    """A whole number from `least` to `most`, with k, M, B or T behind it or not."""

    name = "number"
    pattern = r"(-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?)\s*([kmbgt]?)"
    what, remedy = "", "write it as 3000000, 3M or 1.5B"

    def __init__(self, least: int = 1, most: int = 10**15) -> None:
        self.least, self.most = least, most
        if most <= 10**6:  # so few that a help text and a remedy have room for them
            self.name, self.remedy = f"{least}…{most}", f"give one from {least} to {most}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(self.pattern, str(value).strip(), re.IGNORECASE)
        number = Decimal(re.sub("[_,]", "", match[1])) * _UNITS[match[2].lower()] if match else Decimal("nan")
        if match is None or (self.least <= number <= self.most and number % 1):
            self.fail(f"'{value}' is not read here as a whole number{self.what}; {self.remedy}", param, ctx)
        if number < self.least:
            self.fail(f"'{value}' is less than {self.least:,}, the least that is taken here", param, ctx)
        if number > self.most:
            self.fail(f"'{value}' is more than {self.most:,}, the most that is taken here", param, ctx)
        return int(number)


def given_or_none(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """What was given of an option that may be given several times; None: nothing was."""
    return given or None


reward_options = one_after_the_other(  # of what a model writes itself
    click.option(
        "--reward",
        "rewards",
        metavar="NAME",
        multiple=True,
        callback=given_or_none,
        help="What answers are worth: equal, contains, last-number or boxed, beside the prompt's answer, the directory of a "
        "reward model, or a kind of one's own (--import). May be given several times.",
    ),
    click.option("--max-new-tokens", type=Amount(most=2**16), help="Of an answer to a prompt."),
    click.option(
        "--stop",
        metavar="TEXT",
        multiple=True,
        callback=given_or_none,
        help="End an answer before this text. May be given several times.",
    ),
)


class Nbytes(Amount):
    """A number of bytes: 5GB, 500MB, powers of ten."""

    name = "bytes"
    pattern = r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)b?"
    what, remedy = " of bytes", "write it as 5GB or 500MB"


VOCABULARY = Amount(most=10**7)
params_option = click.option(
    "--params", "n_params", type=Amount(), help="Resize the architecture to so many parameters."
)
vocab_option = click.option(
    "--vocab", "vocab_size", type=VOCABULARY, help="Tokens of the vocabulary.  [default: the model's]"
)

NAMES = (
    *("H100", "H800", "H200", "B200", "A100-40GB", "A100-80GB", "V100", "L4", "RTX4090"),
    *("TPUv4", "TPUv5e", "TPUv5p", "MI300X"),
)
THIS = "this"


class DeviceName(click.ParamType):
    """The name of a device, `this`, or the YAML file of one; it is looked up when the command runs."""

    name = "device"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in (THIS, *NAMES) if name.lower().startswith(incomplete.lower())]


class Number(click.ParamType):
    """A number from `least` to `most`; without them any that is finite."""

    name = "number"

    def __init__(self, least: float = -1e30, most: float = 1e30) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self.least <= number <= self.most:  # nor is what is no number at all
            self.fail(f"'{value}' is no number from {self.least:g} to {self.most:g}", param, ctx)
        return number


minutes_option = click.option(
    "--minutes",
    type=Number(0.01, 1e6),
    help="A budget in the place of --tokens: what steps timed here leave time for.",
)
SHARE, ABOVE_ZERO = Number(0, 1), Number(1e-30)
SEED = Amount(0, 2**62)
SAMPLING: dict[str, dict[str, Any]] = {  # what `Sampling` takes
    "temperature": {
        "type": Number(0),
        "help": "0 takes the likeliest token; 1 draws as the model says.",
    },
    "top_k": {"type": Amount(most=10**9), "help": "Draw from the k likeliest tokens."},
    "top_p": {"type": SHARE, "help": "Draw from the likeliest tokens that have this probability together."},
    "min_p": {"type": SHARE, "help": "Draw from tokens at least this share as likely as the likeliest."},
    "repetition_penalty": {
        "type": ABOVE_ZERO,
        "help": "Above 1 makes tokens of prompt and text less likely: their logits are divided by it.",
    },
    "presence_penalty": {"type": Number(-100, 100), "help": "Taken off the logit of each token written."},
    "frequency_penalty": {"type": Number(-100, 100), "help": "The same, each time that it was written."},
    "no_repeat_ngram_size": {
        "type": Amount(0, 10**9),
        "metavar": "N",
        "help": "No N tokens in a row that prompt or text has already.",
    },
    "min_new_tokens": {"type": Amount(0, 10**9), "help": "Tokens before the text may end."},
}


def together(name: str, options: dict[str, dict[str, Any]]) -> Callable[..., Any]:
    """Options by the names of what they give: a command gets those that are given as one argument of this name."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def told(*args: Any, **given: Any) -> Any:
            each = {option: given.pop(option) for option in options}
            found = {option: value for option, value in each.items() if value is not None}
            return command(*args, **{name: found}, **given)

        for option, how in reversed(options.items()):
            told = click.option("--" + option.replace("_", "-"), **how)(told)
        return told

    return add


def sampling_options(temperature: float) -> Callable[..., Any]:
    """The options of how tokens are chosen: a command gets those that are given, as `sampling`, and `as_released`."""
    how = SAMPLING["temperature"]
    usual = how | {"help": f"{how['help']}  [default: {temperature:g}]"}
    options = together("sampling", SAMPLING | {"temperature": usual})
    return lambda command: as_released_option(options(command))


FORMS: dict[str, dict[str, Any]] = {
    "json_schema": {
        "metavar": "FILE|JSON",
        "callback": lambda context, option, given: None if given is None else _schema(given),
        "help": "Write a JSON value that has this schema.",
    },
    "regex": {"metavar": "PATTERN", "help": "Write a text that this regular expression matches from end to end."},
    "grammar": {
        "type": ONE_FILE,
        "callback": lambda context, option, file: None if file is None else _grammar(file),
        "help": "Write a text of this grammar, in Lark's notation or in llama.cpp's (GBNF).",
    },
}


def _schema(given: str) -> Any:
    """A JSON schema: itself, which begins with {, or what a file holds."""
    from anyformer.disk.foreign import parse_json, read_json
    from anyformer.errors import InputError

    if given.lstrip().startswith("{"):
        return parse_json(given.encode(), "--json-schema", InputError, "mend it")
    return read_json(ONE_FILE.convert(given, None, None), InputError)


def _grammar(file: Path) -> str:
    from anyformer.text.sources import read_text

    if not (text := read_text(file)).strip():
        raise click.BadParameter(f"{file} is empty; write the rules of a grammar into it")
    return text


form_options = together("forms", FORMS)  # what a text is held to
GUESSES: dict[str, dict[str, Any]] = {
    "draft": {
        "type": PATH,
        "metavar": "DIR",
        "help": "A smaller model of the same vocabulary guesses; the text is the same.",
    },
    "draft_tokens": {
        "type": Amount(most=1000),
        "help": "That it guesses before they are checked.  [default: 4]",
    },
    "lookup": {
        "type": Amount(most=1000),
        "metavar": "N",
        "help": "Guess N tokens by what the text said before.",
    },
    "ahead": {"is_flag": True, "default": None, "help": "The model's own modules for later tokens guess."},
}
guess_options = together("guesses", GUESSES)

as_released_option = click.option(
    "--as-released",
    is_flag=True,
    help="As the model's generation_config.json says, where no other option does.",
)


class RateList(click.ParamType):
    """Learning rates, separated by commas."""

    name = "lr[,lr…]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            rates = tuple(dict.fromkeys(float(rate) for rate in str(value).split(",")))
        except ValueError:
            rates = ()
        if not rates or not all(0 < rate < math.inf for rate in rates):
            self.fail(f"'{value}' is no list of learning rates above 0; write 3e-4,1e-3", param, ctx)
        return rates
