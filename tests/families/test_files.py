"""Names are found without reading all files: those of one that has a name, and of all where names are listed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anyformer.families import ALIASES, PRESETS, find
from anyformer.families.files import Shelf

READ = """
import sys
from anyformer import families
found = {asked}
print(found, *sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith({package!r} + ".")))
"""


def read(asked: str, package: str = "anyformer.families") -> list[str]:
    """What a process answers that asks this alone, and the files of the package that it has read then."""
    code = READ.format(asked=asked, package=package)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl"])  # an alias and a name
def test_a_preset_is_read_with_what_its_file_imports_alone(name: str) -> None:
    found, *files = read(f"families.preset({name!r}).name")
    assert found in ("gpt2-1.5b", name)
    assert "gpt2" in files
    assert not {"llama", "qwen2", "gemma", "deepseek"} & set(files)


def test_a_checkpoint_family_is_read_alone() -> None:
    found, *files = read("families.FAMILIES['gpt2'].architecture", "anyformer.families.hf")
    assert found == "GPT2LMHeadModel"
    assert "gpt2" in files
    assert not {"qwen2", "gemma", "deepseek"} & set(files)


def test_what_is_found_alone_is_what_is_listed() -> None:
    assert all(find(name) is preset for name, preset in PRESETS.items())
    assert all(find(alias) is PRESETS[name] for alias, name in ALIASES.items())


def test_a_shelf_reads_when_one_looks() -> None:
    reads: list[str] = []

    def near(name: str) -> dict[str, int]:
        reads.append(name)
        return {"b": 20, "c": 30} if name in "bc" else {}

    def every() -> dict[str, int]:
        reads.append("all")
        return {"a": 1, "b": 2, "c": 3}

    shelf = Shelf(every, near)
    assert (shelf["b"], shelf["c"], reads) == (20, 30, ["b"])
    assert "x" not in shelf
    assert reads == ["b", "x", "all"]
    shelf["d"] = 4
    assert list(shelf.items()) == [
        ("a", 1),
        ("b", 20),
        ("c", 30),
        ("d", 4),
    ]  # what was found stays, in the files' order
    del shelf["a"]
    assert (len(shelf), shelf.get("a"), reads) == (3, None, ["b", "x", "all"])
