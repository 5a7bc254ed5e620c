"""examples/classification/stdlib.py: fragments that do not name their answer, split by file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer.text import read_labelled
from examples.classification import stdlib

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "classification" / "stdlib.py"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fragments")
    subprocess.run([sys.executable, str(SCRIPT), str(out), "--most", "80"], check=True, capture_output=True)
    return out


def texts(file: Path) -> list[tuple[str, str]]:
    return [(row["text"], row["label"]) for row in map(json.loads, file.read_text(encoding="utf-8").splitlines())]


def test_fragments_are_labelled_text_of_equal_shares(written: Path) -> None:
    train, validation = (read_labelled(written / f"{name}.jsonl") for name in ("train", "validation"))
    assert set(train.counts()) == set(validation.counts()) >= set(stdlib.CLASSES) - {"tkinter"}
    assert set(train.counts().values()) == {80}
    assert set(validation.counts().values()) == {20}


def test_no_fragment_says_its_answer_or_stands_on_both_sides(written: Path) -> None:
    train, validation = texts(written / "train.jsonl"), texts(written / "validation.jsonl")
    names = [name for folders in stdlib.CLASSES.values() for name in folders]
    for text, _ in (*train, *validation):
        assert len(text.splitlines()) == 8
        assert not any(name in text.lower() for name in names)
    assert not {text for text, _ in train} & {text for text, _ in validation}


def test_copied_code_is_not_validated_on() -> None:
    assert stdlib.unseen(["a", "b", "b", "c"], ["c", "d"]) == ["a", "b"]


def test_files_are_on_one_side(tmp_path: Path) -> None:
    """In a library of its own, where each line says its file."""
    for i in range(10):
        file = tmp_path / "email" / f"part{i}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"x = {i}, {line}\n" for line in range(8 * (i + 1))))
    train, aside, n_train, n_aside = stdlib.split(("email",), tmp_path, 8, 0.2)
    sides = [{text.split()[2] for text in side} for side in (train, aside)]
    assert not sides[0] & sides[1]
    assert (len(sides[0]), len(sides[1])) == (n_train, n_aside)
    assert n_train + n_aside == 10
    assert len(train) + len(aside) == 55
    assert len(aside) >= 0.2 * 55
