"""The family tree: every preset is in it once, it has one root and no circle, and every generation changed something."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import pairwise

import pytest
from anyformer.families.misprints import MISPRINTS
from anyformer.families.training import TRAINING

from anyformer.descriptions import lineage
from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.families.tree import TREE, ancestors, lineage_of, path

NAMES = list(TREE)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_one_lineage(name: str) -> None:
    found = [line.name for line in TREE.values() if any(fnmatchcase(name, pattern) for pattern in line.presets)]
    assert len(found) == 1, f"{name} is of the lineages {found}; families/tree.py gives it one"


def test_there_is_one_root_and_no_circle() -> None:
    for line in TREE.values():
        above, at = [line.name], line
        while at.parent is not None:
            at = TREE[at.parent]
            assert at.name not in above
            above.append(at.name)
        assert above[-1] == "transformer"
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
    assert {m.lineage for m in MISPRINTS} <= set(TREE)
    assert set(TRAINING) <= set(PRESETS)
    with pytest.raises(SpecError, match="no lineage for 'gpt5'"):
        lineage_of("gpt5")
