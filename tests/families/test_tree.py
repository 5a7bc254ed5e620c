"""The family tree: every preset is in it once, it has one root and no circle, and every generation changed something."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules

import pytest

from anyformer import families
from anyformer.descriptions import history, lineage
from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.families.tree import FILES, GENERATIONS, TREE, ancestors, lineage_of, path

NAMES = list(TREE)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_one_lineage(name: str) -> None:
    found = [line.name for line in TREE.values() if name in {preset.name for preset in line.presets}]
    assert found == [lineage_of(name).name], f"{name} is of the lineages {found}; one file gives it one"


def test_there_is_one_root_and_no_circle() -> None:
    for line in TREE.values():
        above, at = [line.name], line
        while at.parent is not None:
            at = TREE[at.parent]
            assert at.name not in above
            above.append(at.name)
        assert above[-1] == "lstm"
        assert tuple(above) == tuple(x.name for x in ancestors(line))


@pytest.mark.parametrize("name", NAMES)
def test_every_generation_is_known_and_changed_something(name: str) -> None:
    line = TREE[name]
    assert lineage_of(line.known) is line
    if line.parent is not None:
        assert TREE[line.parent].year <= line.year
        (step,) = lineage(PRESETS[TREE[line.parent].known], PRESETS[line.known])
        assert step.rows
        assert not step.back
        assert (step.changed, step.year) == (line.changed, line.year)


def test_the_way_is_up_and_down() -> None:
    found = path(TREE["mixtral"], TREE["qwen2"])
    assert [line.name for line in found] == ["mixtral", "mistral", "llama2", "llama", "qwen", "qwen2"]
    steps = lineage(PRESETS["mixtral-8x22b"], PRESETS["qwen2-7b"])
    assert [step.back for step in steps] == [True, True, True, False, False]
    assert (steps[0].names[0], steps[-1].names[1]) == ("mixtral-8x22b", "qwen2-7b")
    assert all(before.names[1] == after.names[0] for before, after in pairwise(steps))
    down = [line.name for line in path(TREE["gpt"], TREE["llama"])]
    assert down == ["gpt", "gpt2", "gpt3", "llama"]
    assert [line.name for line in path(TREE["llama"], TREE["gpt"])] == down[::-1]


def test_within_a_lineage() -> None:
    (step,) = lineage(PRESETS["gpt2"], PRESETS["gpt2-xl"])
    assert step.parts == ()
    assert {row.part for row in step.rows} == {"layers", "d_model", "heads", "d_ff"}
    assert lineage(PRESETS["gpt2"], PRESETS["gpt2"]) == ()


def test_what_papers_say_is_among_the_rows() -> None:
    def parts(a: str, b: str) -> set[str]:
        return {row.part for row in lineage(PRESETS[a], PRESETS[b])[0].parts}

    assert {"norm placement"} <= parts("gpt", "gpt2-xl")
    assert {"norm", "positions", "activation", "biases"} <= parts("gpt3-175b", "llama-65b")
    assert parts("llama2-7b", "mistral-7b-v0.1") == {"who sees whom", "attention"}
    assert {"norm placement", "scores", "output", "who sees whom"} <= parts("gemma-7b", "gemma2-27b")
    assert {"QK-norm", "scores", "positions"} <= parts("gemma2-27b", "gemma3-27b")
    assert {"attention", "experts"} <= parts("deepseek-67b", "deepseek-v2")


def test_names_in_tables_are_known() -> None:
    columns = set(history().columns)
    assert {misprint.column for line in TREE.values() for misprint in line.misprints} <= columns
    assert all("source" in preset.training for preset in PRESETS.values() if preset.training)
    assert set(FILES) <= {info.name for info in iter_modules(families.__path__)}
    assert set(GENERATIONS) <= set(TREE)
    with pytest.raises(SpecError, match="no lineage for 'gpt5'"):
        lineage_of("gpt5")


TOY = """
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama

TOY = Origin("toy", "llama2", 2031, "this test").lineage(
    "smaller",
    Preset("toy-1m", llama(2, 64, 2, 128), "4.2M", alias="toy"),
    Preset("toy-2m", llama(4, 64, 2, 128)),
    sizes="this test, table 1",
    tokenizer="bytes, 256",
    training={"source": "this test, section 2"},
)
"""
# The package with one folder more, before anything in it is imported.
ASKED = """
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
import anyformer
found = PathFinder.find_spec("anyformer.families", anyformer.__path__)
found.submodule_search_locations.append(sys.argv[1])
families = sys.modules["anyformer.families"] = module_from_spec(found)
found.loader.exec_module(families)
from anyformer.descriptions import history, lineage
from anyformer.families.tree import TREE
toy = families.preset("toy")
print(list(families.PRESETS)[-2:], families.presets("toy"), toy.name, toy.source, toy.training["source"])
print([step.changed for step in lineage(families.preset("llama2-7b"), toy)])
print(list(TREE)[-1], history().entries[-1].model, len(history().entries))
"""


def test_a_new_family_is_one_file(tmp_path: Path) -> None:
    """A file laid beside the others is in presets, history, tree and aliases; nothing else names it."""
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", ASKED, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['toy-1m', 'toy-2m'] ('toy-1m', 'toy-2m') toy-1m this test, table 1 this test, section 2",
        "['smaller']",
        f"toy toy-2m {len(TREE) + 1}",
    ]
