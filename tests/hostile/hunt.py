"""Tries hostile inputs: `python -m tests.hostile.hunt --inputs 2000 --seed 0`; keeps those that broke a promise."""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile import kinds
from tests.hostile.arena import Arena, Limits, scratch, seconds
from tests.hostile.kinds import AREAS, KINDS, WEIGHTS
from tests.hostile.material import Material
from tests.hostile.verdict import cause, faults, files_of

KEPT_OF_A_CAUSE = 3


@dataclass
class Bag:
    """What was tried and what was found; adds up over processes."""

    tried: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    found: list[dict[str, Any]] = field(default_factory=list)
    cpu_seconds: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        statuses = {str(status): n for status, n in self.statuses.items()}
        return {"tried": self.tried, "statuses": statuses, "found": self.found, "cpu_seconds": self.cpu_seconds}

    def add(self, data: dict[str, Any]) -> None:
        """Add what another process tried."""
        self.tried.update(data["tried"])
        self.statuses.update({int(status): n for status, n in data["statuses"].items()})
        self.found += data["found"]
        self.cpu_seconds.update(data["cpu_seconds"])

    def causes(self) -> dict[str, list[dict[str, Any]]]:
        """What was found, by cause, the most frequent first."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for one in self.found:
            groups.setdefault(one["cause"], []).append(one)
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def schedule(inputs: int, chosen: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(kind, number) of each input: kinds by their weights, evenly through the whole."""
    total, due = sum(WEIGHTS[name] for name in chosen), dict.fromkeys(chosen, 0.0)
    numbers = dict.fromkeys(chosen, 0)
    for _ in range(inputs):
        for name in chosen:
            due[name] += WEIGHTS[name] / total
        name = max(due, key=due.__getitem__)
        due[name] -= 1
        yield name, numbers[name]
        numbers[name] += 1


def hunt(
    material: Material,
    plan: Sequence[tuple[str, int]],
    seed: int,
    keep: Path,
    limits: Limits,
    until: float = math.inf,
) -> Bag:
    """Try each input of a plan, or those there is time for `until` then; those that break a promise go to `keep`."""
    bag, room = Bag(), material.root / f"room-{os.getpid()}"
    room.mkdir()
    kept = room / "cache"
    of_a_cause: Counter[str] = Counter()
    for name, index in plan:
        if seconds() > until:
            break
        folder = room / "input"
        attempt = kinds.draw(name, material, seed, index, folder)
        before = files_of(folder)
        shutil.copytree(material.arena.root / "cache", kept)  # nothing that one input leaves there reaches the next
        surroundings = {"ANYFORMER_CACHE": str(kept), **attempt.environment}
        ending = material.arena.run(
            attempt.arguments, folder, surroundings, attempt.stdout, attempt.typed.encode(), limits
        )
        shutil.rmtree(kept)
        broken = list(faults(attempt, ending, before, folder, limits))
        bag.tried[name] += 1
        bag.statuses[ending.status] += 1
        bag.cpu_seconds[name] += ending.cpu_seconds  # type: ignore[assignment]
        shutil.rmtree(folder)
        for fault in broken:
            why = cause(fault)
            of_a_cause[why] += 1
            place = keep / f"{name}-{seed}-{index}"
            if of_a_cause[why] <= KEPT_OF_A_CAUSE and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                kinds.draw(name, material, seed, index, place)
                (keep / f"{place.name}.json").write_text(json.dumps(attempt.as_json()), encoding="utf-8")
            bag.found.append(
                {
                    "kind": name,
                    "area": AREAS[name],
                    "cause": why,
                    "promise": fault.promise,
                    "where": fault.where,
                    "said": attempt.said,
                    "command": kinds.shown(attempt.arguments),
                    "kept": str(place) if place.exists() else "",
                }
            )
    shutil.rmtree(room)
    return bag


def spread(
    material: Material,
    plan: Sequence[tuple[str, int]],
    seed: int,
    keep: Path,
    limits: Limits,
    until: float = math.inf,
    processes: int = 1,
) -> Bag:
    """The same by several processes, each of which forks its own children."""
    if processes == 1:
        return hunt(material, plan, seed, keep, limits, until)
    reports = [material.root / f"report-{i}.json" for i in range(processes)]
    children = []
    for i, report in enumerate(reports):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                material.root /= f"process-{i}"  # what is made from here on is its own
                material.root.mkdir()
                report.write_text(json.dumps(hunt(material, plan[i::processes], seed, keep, limits, until).as_json()))
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    bag = Bag()
    failed = [child for child in children if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    for report in reports:
        if report.exists():
            bag.add(json.loads(report.read_text()))
    if failed:
        raise RuntimeError(f"{len(failed)} of {processes} processes of the harness itself failed")
    return bag


def report(bag: Bag, seed: int, elapsed: float, shown: int = 40) -> str:
    """What was tried and what was found, in words."""
    tried = sum(bag.tried.values())
    lines = [
        f"{tried:,} inputs with seed {seed} in {elapsed:.0f} s ({tried / max(elapsed, 1e-9):.0f} a second); "
        f"{len(bag.found)} broken promises of {len(bag.causes())} causes",
        "tried: "
        + ", ".join(f"{name} {n} ({1e3 * bag.cpu_seconds[name] / n:.0f} ms)" for name, n in bag.tried.most_common()),
        "status: " + ", ".join(f"{status}: {n}" for status, n in sorted(bag.statuses.items())),
    ]
    for ones in list(bag.causes().values())[:shown]:
        one = min(ones, key=lambda each: (not each["kept"], len(" ".join(each["said"]))))
        lines += [
            f"\n{len(ones)} × {one['promise']}: {one['where']}",
            f"    {one['kind']}: {'; '.join(one['said'])[:400]}",
            f"    {one['command'][:400]}",
            f"    python -m tests.hostile.replay {one['kept']}",
        ]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Hunt as the command line says; the status is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=int(os.environ.get("HOSTILE_INPUTS", "2000")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("HOSTILE_SEED", "0")) or secrets.randbits(32))
    parser.add_argument("--kinds", default=",".join(KINDS), help="of inputs, or areas: " + ", ".join(KINDS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many, whatever is left")
    parser.add_argument("--keep", type=Path, default=Path("hostile-failures"), help="folder of the inputs that failed")
    parser.add_argument("--json", type=Path, help="file for all that was found")
    given = parser.parse_args(words)
    asked = given.kinds.split(",")
    chosen = [name for name in KINDS if name in asked or AREAS[name] in asked]
    print(f"seed {given.seed}", flush=True)  # noqa: T201
    root = scratch()
    arena = Arena(root)
    try:
        (root / "material").mkdir()
        material = Material(root / "material", arena)
        for name in chosen:  # makes what it needs, once for all processes
            kinds.draw(name, material, given.seed, 0, root / f"first-{name}")
        began = seconds()
        plan, keep = list(schedule(given.inputs, chosen)), given.keep.absolute()
        bag = spread(material, plan, given.seed, keep, arena.limits, began + given.seconds, given.processes)
        print(report(bag, given.seed, seconds() - began))  # noqa: T201
        if given.json:
            given.json.write_text(json.dumps(bag.as_json(), indent=1))
    finally:
        shutil.rmtree(root)
    return 1 if bag.found else 0


if __name__ == "__main__":
    sys.exit(main())
