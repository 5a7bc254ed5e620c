"""What a directory of sentence-transformers has put before texts, by name: an instruction, "query: ", "passage: "."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from anyformer.disk.foreign import inside
from anyformer.errors import CheckpointError, UsageError, among
from anyformer.hub.sentences import is_listed, pooling_of, read_table
from anyformer.text.companions import PROMPTS


class Prompts(NamedTuple):
    """The prompts of a model of vectors."""

    by_name: Mapping[str, str]
    default: str | None = None  # the name of the one that is put before texts where nothing is said
    where: str = "this model"
    pooled: bool = True  # whether their tokens count in the mean

    def chosen(self, text: str | None, name: str | None) -> str:
        """What goes before each text: itself, the one of a name, or the default. Raises UsageError."""
        if text is not None and name is not None:
            raise UsageError(f"there are both a prompt and the name of one, {name!r}; give one of the two")
        name = self.default if name is None else name
        if text is None and name is not None and name not in self.by_name:
            known = among(name, self.by_name) if self.by_name else "; it has none; give the prompt itself"
            raise UsageError(f"{self.where} has no prompt {name!r}{known}")
        found = text if text is not None else "" if name is None else self.by_name[name]
        if found and not self.pooled:
            raise UsageError(f"{self.where} pools texts without their prompt, which is not computed here; give none")
        return found


def prompts_of(directory: Path) -> Prompts:
    """The prompts that a directory has, if any. Raises CheckpointError for a file that holds something else."""
    file = inside(directory / PROMPTS, CheckpointError)
    if not file.is_file():
        return Prompts({}, where=str(directory))
    said = read_table(file)
    named, default = said.get("prompts") or {}, said.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(each, str | None) for each in named.values()):
        raise CheckpointError(f"{file}: prompts must be a table of texts by name; mend or remove it")
    if default is not None and default not in named:
        raise CheckpointError(f"{file}: default_prompt_name = {default!r} is none of its prompts; mend or remove it")
    pooled = not is_listed(directory) or read_table(pooling_of(directory)).get("include_prompt") is not False
    return Prompts({name: text or "" for name, text in named.items()}, default, str(directory), pooled)
