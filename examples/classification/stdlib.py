"""Labelled text from Python's own source: which package of the standard library a fragment of code comes from.

Lines that name one of the packages are left out, so that no fragment says its own answer. The split is by file: no fragment to
validate on comes from a file that was trained on, and none stands in both. Run it with the folder to write to:

    python examples/classification/stdlib.py fragments/
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

CLASSES = {  # label: folders of the standard library
    "asyncio": ("asyncio",),
    "email": ("email",),
    "importlib": ("importlib",),
    "multiprocessing": ("multiprocessing", "concurrent"),
    "tkinter": ("tkinter", "turtledemo"),
    "unittest": ("unittest",),
    "web": ("http", "urllib", "wsgiref", "xmlrpc"),
    "xml": ("xml", "html"),
}
NAMES = re.compile(
    "|".join({name for folders in CLASSES.values() for name in folders} | {"urlparse", "pyexpat"}), re.IGNORECASE
)
TESTS = {"test", "tests", "idle_test"}


def fragments(file: Path, n_lines: int) -> list[str]:
    """Return a file's runs of so many lines, of those that are neither blank nor name a package; what is left over is dropped."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = [line for line in lines if line.strip() and not NAMES.search(line)]
    return ["\n".join(kept[i : i + n_lines]) for i in range(0, len(kept) - n_lines + 1, n_lines)]


def files_of(folders: tuple[str, ...], library: Path) -> list[Path]:
    """Return the Python files below some folders, tests left out, in an order that no name decides."""
    found = [file for folder in folders for file in (library / folder).rglob("*.py") if not TESTS & set(file.parts)]
    return sorted(found, key=lambda file: hashlib.sha256(file.relative_to(library).as_posix().encode()).digest())


def split(folders: tuple[str, ...], library: Path, n_lines: int, share: float) -> tuple[list[str], list[str], int, int]:
    """Return (fragments to train on, to validate on, files of each): whole files go aside until they hold the share."""
    by_file = [(file, fragments(file, n_lines)) for file in files_of(folders, library)]
    wanted, aside, train, n_aside = share * sum(len(of) for _, of in by_file), [], [], 0
    for _, of in by_file:
        if len(aside) < wanted and len(of) <= wanted:
            aside += of
            n_aside += 1
        else:
            train += of
    return train, aside, len(by_file) - n_aside, n_aside


def unseen(aside: list[str], train: list[str]) -> list[str]:
    """Return what is set aside, once each, without what is trained on too: code is copied from file to file."""
    known = set(train)
    return [text for text in dict.fromkeys(aside) if text not in known]


def examples(chosen: dict[str, list[str]], most: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield at most so many fragments of each class, drawn at random, in random order."""
    rng = random.Random(seed)
    drawn = [(text, label) for label, texts in chosen.items() for text in rng.sample(texts, min(most, len(texts)))]
    rng.shuffle(drawn)
    yield from ({"text": text, "label": label} for text, label in drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for train.jsonl and validation.jsonl")
    parser.add_argument("--lines", type=int, default=8, help="of a fragment")
    parser.add_argument(
        "--most", type=int, default=600, help="fragments of a class to train on; a quarter of it to validate on"
    )
    parser.add_argument(
        "--share", type=float, default=0.2, help="of each class's fragments, in files of their own, set aside"
    )
    how = parser.parse_args()
    library = Path(sysconfig.get_paths()["stdlib"])
    train, aside = {}, {}
    for label, folders in CLASSES.items():
        train[label], aside[label], n_train, n_aside = split(folders, library, how.lines, how.share)
        aside[label] = unseen(aside[label], train[label])
        print(
            f"{label:16} {n_train:3} files, {len(train[label]):5} fragments; aside {n_aside:3}, {len(aside[label]):5}"
        )
        if not train[label] or not aside[label]:
            print(f"{label:16} is left out: this Python comes with too little of it")
            del train[label], aside[label]
    how.out.mkdir(parents=True, exist_ok=True)
    for name, chosen, most in (("train", train, how.most), ("validation", aside, how.most // 4)):
        text = "".join(json.dumps(example) + "\n" for example in examples(chosen, most, seed=0))
        (how.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(
            f"{how.out / name}.jsonl: {text.count(chr(10)):,} fragments, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
        )
    print(f"Python {platform.python_version()}")


if __name__ == "__main__":
    main()
