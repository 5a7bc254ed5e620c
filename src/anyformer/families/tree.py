"""The family tree: the lineages of every file of this folder, what each descends from, and what it changed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from anyformer.errors import SpecError
from anyformer.families.files import Shelf, modules
from anyformer.families.lineage import Lineage

PACKAGE = "anyformer.families"
# Orders that readers of the catalogue and of the history know. A file or a lineage that they do not name follows, by year.
# fmt: off
FILES = (
    "transformer", "openai_gpt", "bert", "albert", "xlnet", "electra", "deberta", "marian", "t5", "bart", "longformer",
    "bigbird", "switch", "sparse_transformer", "gpt2", "gpt_neo", "gptj", "gopher", "lamda", "palm", "gpt_neox", "opt",
    "bloom", "falcon", "llama", "mistral", "qwen2", "phi_moe", "gpt_oss", "deepseek", "gemma",
    "llama_like", "olmo", "phi", "cohere", "nemotron", "phi3_small",
)
GENERATIONS = (
    "transformer", "marian", "bart", "led", "transformer-lm", "bert", "roberta", "distilbert", "minilm", "albert", "electra",
    "xlnet", "bigbird", "longformer", "deberta", "deberta-v2", "deberta-v3", "gpt", "sparse-transformer", "gpt2", "gpt3",
    "gpt-neo", "gptj", "gpt-neox", "pythia", "gopher", "chinchilla", "opt", "bloom", "nemotron4", "gpt-oss", "t5", "t5-v1.1",
    "mt5", "switch", "lamda", "palm", "falcon-rw", "falcon", "falcon2", "command-r", "command-r-plus", "command-a", "llama",
    "llama2", "llama3", "llama3.1", "llama3.2", "mistral", "mistral-v0.2", "mixtral", "qwen", "qwen2", "qwen-moe", "phi",
    "phi3", "phi3-small", "phi-moe", "phi4", "phi4-mini", "deepseek", "deepseek-v2", "deepseek-v3", "deepseek-v3-mtp", "gemma",
    "gemma2", "gemma3", "smollm2", "yi", "reka", "olmo", "olmo-0424", "olmo2",
)
# fmt: on


@cache
def lineages() -> tuple[Lineage, ...]:
    """Those of all files, in the catalogue's order, a file's together."""
    files = modules(PACKAGE, import_module(PACKAGE).__path__, FILES)
    each = [lineages_in(file) for file in files]
    new = sorted(filter(None, each[len(FILES) :]), key=lambda lineages: lineages[0].year)
    return tuple(line for lineages in (*each[: len(FILES)], *new) for line in lineages)


def lineages_in(file: ModuleType) -> list[Lineage]:
    """Those of one file."""
    return [value for value in vars(file).values() if isinstance(value, Lineage)]


# In the history's order.
TREE = Shelf(
    lambda: {
        line.name: line for line in sorted(lineages(), key=lambda line: (*GENERATIONS, line.name).index(line.name))
    }
)
LINEAGE_OF = Shelf(lambda: {preset.name: line for line in lineages() for preset in line.presets})


def lineage_of(preset: str) -> Lineage:
    """The lineage of a preset, by its name. Raises SpecError where the tree has none."""
    if preset not in LINEAGE_OF:
        raise SpecError(
            f"the family tree has no lineage for {preset!r}; a file of families/ takes it among its presets"
        )
    return LINEAGE_OF[preset]


def ancestors(line: Lineage) -> tuple[Lineage, ...]:
    """The lineage, what it descends from, and so on to the first."""
    found = [line]
    while found[-1].parent is not None:
        found.append(TREE[found[-1].parent])
    return tuple(found)


def path(a: Lineage, b: Lineage) -> tuple[Lineage, ...]:
    """The way from one lineage to another: up to their common ancestor, and down."""
    up, down = ancestors(a), ancestors(b)
    common = next(line for line in up if line in down)
    return (*up[: up.index(common) + 1], *reversed(down[: down.index(common)]))
