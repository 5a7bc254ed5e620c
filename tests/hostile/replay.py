"""Runs an input that was kept once more and says how it ended: `python -m tests.hostile.replay hostile-failures/recipe-0-17`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.hostile.arena import Arena, scratch
from tests.hostile.kinds import Attempt, shown
from tests.hostile.verdict import faults, files_of


def main(place: Path) -> int:
    """Replay what lies in `place`, with its command beside it; the status is 1 where a promise is still broken."""
    attempt = Attempt(**json.loads(place.with_name(place.name + ".json").read_text(encoding="utf-8")))
    root = scratch()
    arena = Arena(root)
    folder = root / "input"
    try:
        shutil.copytree(place, folder, symlinks=True)
        before = files_of(folder)
        ending = arena.run(attempt.arguments, folder, attempt.environment, attempt.stdout, attempt.typed.encode())
        broken = list(faults(attempt, ending, before, folder, arena.limits))
    finally:
        shutil.rmtree(root)
    said = [
        f"{place}: {'; '.join(attempt.said)}",
        f"$ {shown(attempt.arguments)}",
        repr(ending.out[:2_000]),
        ending.errors[-6_000:],
        f"status {ending.status}, {ending.cpu_seconds:.1f} s, {ending.memory_nbytes >> 20} MiB",
        *(f"broken: {fault.promise}: {fault.where}" for fault in broken),
    ]
    print("\n".join(said))  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
