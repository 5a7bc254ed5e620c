"""The harness itself can fail: of faults put in on purpose it sees each; its damage is drawn again from the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.hostile import gguf_tree, mutate, trees
from tests.hostile.answer import timeless
from tests.hostile.hunt import schedule
from tests.hostile.kinds import KINDS
from tests.hostile.seeded import FAULTS
from tests.hostile.verdict import asks_for_json

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen() -> dict[str, list[str]]:
    """Of each fault put in, the promises seen broken."""
    if sys.platform != "linux":
        pytest.skip("limits and forks are Linux's")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-m", "tests.hostile.seeded"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("promise", FAULTS)
def test_a_seeded_fault_is_seen(promise: str, seen: dict[str, list[str]]) -> None:
    assert promise in seen[promise]


def test_without_a_fault_nothing_is_seen(seen: dict[str, list[str]]) -> None:
    assert seen["none"] == []


def test_damage_is_drawn_again_from_its_seed(tmp_path: Path) -> None:
    def damaged(seed: int) -> tuple[str, bytes]:
        file = tmp_path / "file.json"
        file.write_text(json.dumps({"a": [1, 2, {"b": "c"}], "d": 0.5}))
        return mutate.mutate_file(file, Random(seed)), file.read_bytes()

    assert [damaged(seed) for seed in range(50)] == [damaged(seed) for seed in range(50)]
    assert len({damaged(seed) for seed in range(50)}) > 40


def test_every_kind_has_its_share() -> None:
    planned = Counter(kind for kind, _ in schedule(2_000, list(KINDS)))
    assert set(planned) == set(KINDS)
    assert min(planned.values()) >= 40
    assert len(set(schedule(2_000, list(KINDS)))) == 2_000


def test_the_head_of_a_gguf_file_is_read_and_written(tmp_path: Path) -> None:
    import numpy as np

    from tests.hub.gguf_files import write

    tokens = {"ggml.tokens": ["a", "b"], "ggml.scores": [0.5, 1.5], "ggml.add_bos_token": True}
    tensors = {"model.norm.weight": np.ones(4, np.float32)}
    content = write(tmp_path / "a.gguf", "llama", tensors, {"block_count": 2}, tokens=tokens).read_bytes()
    head, data = gguf_tree.read(content)
    assert gguf_tree.write(trees.pairs(head), data) == content


@pytest.mark.parametrize(
    ("said", "asks"),
    [
        ("cost gpt2 --json", True),
        ("tokenizer encode --tokenizer run --json", True),
        ("tokenizer encode --tokenizer run --text --json", False),
        ("tokenizer encode --text x", False),
    ],
)
def test_an_option_is_told_from_the_value_of_another(said: str, asks: bool) -> None:
    assert asks_for_json(said.split()) is asks


def test_times_are_not_part_of_an_answer() -> None:
    assert timeless('{"loss": 4.18, "seconds": 3}') == timeless('{"seconds": 4.5, "loss": 4.18}')
    assert timeless("12 steps in 3.5 s, loss 4.18") == timeless("12 steps in 310 ms, loss 4.18")
    assert timeless("loss 4.18") != timeless("loss 4.20")
