"""How much of what reads files is reached by hostile inputs: `python -m tests.hostile.covered --inputs 2000 --seed 13`.

Lines and branches, of coverage.py, over the processes of all inputs together. Not part of any test.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage  # of the extra dev

from tests.hostile.arena import Arena, scratch
from tests.hostile.hunt import hunt, schedule
from tests.hostile.kinds import KINDS
from tests.hostile.material import Material

READERS = (  # below src/anyformer
    *("spec/codec.py", "spec/ranges.py", "recipe/file.py", "costs/hardware/devices.py", "variants/variant.py"),
    *("hub/source.py", "hub/contents.py", "hub/weights.py", "hub/gguf.py", "hub/gguf_header.py"),
    *("families/gguf/dialect.py", "families/gguf/keys.py", "families/gguf/metadata.py"),
    *("families/hf/settings.py", "families/hf/layout.py"),
    *("text/sources.py", "text/corpus.py", "text/pieces.py", "text/labelled_files.py"),
    *("text/gguf_vocabulary.py", "text/tokenizer.py", "text/tokenizer_file.py"),
    *("disk/plain.py", "disk/foreign.py", "disk/seal.py", "disk/cache.py", "disk/run_layout.py"),
    *("training/checkpoint/*.py", "cli/main.py", "cli/options.py", "screen.py"),
)


def main(words: Sequence[str] | None = None) -> None:
    """Hunt, and print the table of the readers' files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--show-missing", action="store_true")
    given = parser.parse_args(words)
    root = scratch()
    source = Path(__file__).parents[2] / "src" / "anyformer"
    measured = coverage.Coverage(
        data_file=root / "data",
        data_suffix=True,
        branch=True,
        include=[str(source / name) for name in READERS],
        config_file=False,
    )
    try:
        measured.start()  # before the package is imported, so that what runs at import counts

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            try:
                yield
            finally:  # a forked child writes a file of its own
                measured.stop()
                measured.save()

        arena = Arena(root, around=around)
        (root / "material").mkdir()
        material = Material(root / "material", arena)
        bag = hunt(material, list(schedule(given.inputs, list(KINDS))), given.seed, root / "kept", arena.limits)
        measured.stop()
        measured.save()
        whole = coverage.Coverage(data_file=root / "data", branch=True, config_file=False)
        whole.combine([str(root)])
        print(f"{sum(bag.tried.values()):,} inputs with seed {given.seed}")  # noqa: T201
        whole.report(show_missing=given.show_missing, file=sys.stdout, ignore_errors=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    os.environ.setdefault("COVERAGE_CORE", "ctrace")
    main()
