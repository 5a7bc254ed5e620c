"""`anyformer convert SRC DST`: weights from one format into another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import DTYPES, FILE, ONE_TEXT, PATH, SEED, Amount, Nbytes, as_option
from anyformer.errors import UsageError
from anyformer.screen import say

OF_INTO = ("layers", "tokenizer", "data", "tokens", "seed", "source", "target")  # as `transplant` calls them


@click.command("convert")
@click.argument("src", metavar="SRC", type=PATH)
@click.argument("dst", metavar="DST", type=PATH)
@click.option(
    "--to",
    "form",
    type=click.Choice(["hf", "anyformer", "transformers"]),
    help="The format; by default Hugging Face's where transformers has a class for the model, else ours. "
    "With 'transformers' it opens any model, by `import anyformer.integrations.transformers`.",
)
@click.option(
    "--class",
    "hf_type",
    metavar="TYPE",
    help="The class of transformers, by its model_type; by default that of SRC, or the first that computes the model.",
)
@click.option("--dtype", type=click.Choice(DTYPES), help="The type of the numbers; by default that of each in SRC.")
@click.option(
    "--shard-size",
    "shard_nbytes",
    type=Nbytes(),
    help="Bytes a file holds at most, by default 5GB; about as much memory is needed.",
)
@click.option(
    "--quantise",
    type=click.Choice(["f32", "f16", "bf16", "q8_0", "q4_0"]),
    help="The type of a GGUF file's matrices; by default that of SRC.",
)
@click.option("--merge", is_flag=True, help="Of a run with --lora, write weights in which the adapter is.")
@click.option(
    "--average",
    metavar="N",
    type=Amount(2, 10**6),
    help="Of a run: write the mean of its last N checkpoints.",
)
@click.option(
    "--with",
    "others",
    metavar="SRC[=W]",
    multiple=True,
    type=PATH,
    help="A model of the same architecture: write the mean of both, or of all. It weighs W, as SRC weighs 1. May be given "
    "several times.",
)
@click.option(
    "--by",
    metavar="WAY",
    help="How models become one: mean, slerp, or by what they changed of --base: task-arithmetic, ties,density=0.2 or "
    "dare,density=0.5,seed=0.  [default: mean]",
)
@click.option("--base", metavar="SRC", type=PATH, help="Of --by: the model that all of them began as.")
@click.option(
    "--into",
    metavar="SPEC",
    type=PresetName(),
    help="Another architecture: what does the same in it starts from SRC, all else is drawn, as a start for training.",
)
@click.option(
    "--layers",
    metavar="LAYERS",
    help="Of --into: which layer of SRC each begins as, such as 0-23,8-31, of an encoder-decoder the decoder's; "
    "0-11/2 is every second, 3~ writes nothing at first.",
)
@click.option(
    "--tokenizer",
    type=PATH,
    help="Of --into: another tokenizer.json or its directory; its tokens begin as SRC's of the same text.",
)
@click.option(
    "--data",
    **ONE_TEXT,
    help="Of --into: of what is to be fewer, layers, heads, neurons, experts, those stay that matter most for SRC's loss here.",
)
@click.option("--source", type=FILE, help="The same for translation: a file of sentences, one a line.")
@click.option("--target", type=FILE, help="Their translations, line by line.")
@click.option("--tokens", type=Amount(), help="Of --data: about so many.  [default: 4,096]")
@click.option("--seed", type=SEED, help="Of --into: what is drawn.  [default: 0]")
@as_option
@import_option
def command(
    src: Path,
    dst: Path,
    dtype: str | None,
    into: str | None,
    **given: Any,
) -> None:
    """Bring weights from one format, or architecture, into another.

    SRC is a Hugging Face directory, one of ours, a run or a GGUF file; DST a new directory, or a file that
    ends in .gguf or, of a model without a state, in .onnx. Tensors are read, turned and written one by one.
    Tokenizer, chat template and defaults for generation go along unchanged.

    \b
    anyformer convert runs/first first-hf
    anyformer convert path/to/mistral as-llama --class llama --shard-size 2GB
    anyformer convert runs/first first.gguf --quantise q8_0
    anyformer convert runs/encoder encoder.onnx
    anyformer convert runs/first first-for-transformers --to transformers
    anyformer convert runs/adapted merged --merge
    anyformer convert runs/first averaged --average 5
    anyformer convert runs/first soup --with runs/second=0.5 --with runs/third
    anyformer convert runs/a both --with runs/b --base runs/first --by ties
    anyformer convert runs/first experts --into "runs/first+experts=mixtral"
    anyformer convert runs/first deeper --into runs/first --layers 0-5,3-7
    anyformer convert runs/first less --into "runs/first+n_layers=6" --data texts/
    """  # noqa: D301
    import torch

    from anyformer.hub import convert, save
    from anyformer.hub.saving import refuse_in_use
    from anyformer.recipe.mixture import weighed

    own = {name: given.pop(name) for name in OF_INTO}
    if into is not None:
        others = {**given, "dtype": dtype, "form": None}
        options = {each.name: each.opts[0] for each in click.get_current_context().command.params}
        if said := [name for name, value in others.items() if value not in (None, False, ())]:
            what = f"--into leaves no room for {options[said[0]]}"
            may = ", ".join(f"--{name}" for name in OF_INTO)
            raise UsageError(f"{what}; leave all but --to, {may} out, and convert {dst} afterwards")
        refuse_in_use(dst)
        from anyformer.inspection import transplant  # which plain conversions have no use for

        found = transplant(into, src, **{name: value for name, value in own.items() if value is not None})
        say(f"{save(found.model, dst, found.tokenizer, form=given['form'])}; {found}")
        return
    if alone := [name for name, value in own.items() if value is not None]:
        raise UsageError(f"--{alone[0]} is of what --into makes; give --into too, or leave --{alone[0]} out")
    kind, weights = getattr(torch, dtype) if dtype else None, dict[Path, float]()
    for path, weight in (weighed(str(each)) for each in given.pop("others")):
        weights[Path(path)] = weights.get(Path(path), 0.0) + (1.0 if weight is None else weight)
    say(str(convert(src, dst, dtype=kind, others=weights, **given)))
